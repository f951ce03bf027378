"""Reading and writing through view specs gives what PyTorch's own views give on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lowering_mode import to_jax, to_torch
from torch_tpu import dtypes
from torch_tpu.lowering import strided
from torch_tpu.lowering.strided import ViewSpec


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def spec_of(x: torch.Tensor) -> ViewSpec:
    return ViewSpec(tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.is_conj(), x.is_neg())


def values(shape: tuple[int, ...], dtype: torch.dtype, start: int = 1) -> torch.Tensor:
    x = torch.arange(start, start + math.prod(shape)).reshape(shape)
    if dtype is torch.bool:
        return x % 3 == 0
    if dtype.is_complex:
        return torch.complex(x.double(), -x.double() - 0.5).to(dtype)
    return x.to(dtype)


def same(got: jax.Array, expected: torch.Tensor) -> None:
    assert got.shape == tuple(expected.shape)
    assert got.dtype == dtypes.storage_dtype(expected.dtype)
    assert torch.equal(_bytes(to_torch(got, expected.dtype)), _bytes(expected))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)).view(torch.uint8)


def check(base: torch.Tensor, view: torch.Tensor) -> None:
    """Read, read at a run-time offset, and write `view`, a view of the contiguous `base`."""
    spec, sizes, dtype = spec_of(view), tuple(base.shape), base.dtype
    rule = strided.fits(sizes, dtype, spec)
    assert rule is None or rule.holds(spec.offset)
    value = values(tuple(view.shape), view.dtype, 101)
    if base.dtype is torch.bool is not view.dtype:
        value = torch.zeros_like(value)  # other bits than 0 and 1 are no bool
    covered = strided.covers(dtype, sizes, spec)

    def everything(array: jax.Array, new: jax.Array, offset: jax.Array) -> list[jax.Array]:
        reads = [strided.read(array, dtype, spec, o) for o in (None, offset)]
        source = None if covered else array
        writes = [strided.write(source, dtype, spec, new, o, layout_sizes=sizes) for o in (None, offset)]
        return reads + writes

    got = jitted(everything)(to_jax(base), to_jax(value), jnp.asarray(spec.offset))
    written = _written(base, view, value)
    for array, expected in zip(got, (view, view, written, written), strict=True):
        same(array, expected)


def jitted(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})


def _written(base: torch.Tensor, view: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    result = base.clone()
    typed = result.reshape(-1).view(torch.uint8).view(-1)[: _whole(result, view.dtype)].view(view.dtype)
    target = typed.as_strided(view.shape, view.stride(), view.storage_offset())
    value = torch.view_as_complex(torch.view_as_real(value)) if view.dtype.is_complex else value
    for tag, flip in ((view.is_conj(), torch.conj_physical), (view.is_neg(), torch.neg)):
        value = flip(value) if tag else value
    target.copy_(value)
    return result


def _whole(base: torch.Tensor, dtype: torch.dtype) -> int:
    return base.numel() * base.itemsize // dtype.itemsize * dtype.itemsize


# --- chains of view ops ---------------------------------------------------------------------------


def _slice(draw: Any, x: torch.Tensor) -> torch.Tensor:
    dim = draw(st.integers(0, x.ndim - 1))
    start, stop = draw(st.integers(0, x.shape[dim])), draw(st.integers(0, x.shape[dim]))
    index = [slice(None)] * dim + [slice(start, stop, draw(st.integers(1, 3)))]
    return x[tuple(index)]


def _view(draw: Any, x: torch.Tensor) -> torch.Tensor:
    dim = draw(st.integers(0, x.ndim - 1))
    parts = [k for k in range(1, x.shape[dim] + 1) if x.shape[dim] % k == 0]
    k = draw(st.sampled_from(parts or [1]))
    return x.unflatten(dim, (k, x.shape[dim] // k))


def _flatten(draw: Any, x: torch.Tensor) -> torch.Tensor:
    first = draw(st.integers(0, x.ndim - 1))
    last = draw(st.integers(first, x.ndim - 1))
    shape = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    try:
        return x.view(shape)
    except RuntimeError:  # not a view of this x
        return x


def _dtype(draw: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return x.view(draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.int64])))
    except RuntimeError:  # strides or sizes do not allow this one
        return x


def _diagonal(draw: Any, x: torch.Tensor) -> torch.Tensor:
    return x.diagonal(draw(st.integers(-1, 1)), 0, 1) if x.ndim > 1 else x


def _complex(draw: Any, x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        tags = [torch.conj, torch.real, torch.imag, lambda y: y.conj().imag, lambda y: y.conj().conj()]
        return draw(st.sampled_from(tags))(x)
    return x


OPS: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [
    _slice,
    _slice,
    _view,
    _flatten,
    _dtype,
    _diagonal,
    _complex,
    lambda draw, x: x.permute(draw(st.permutations(range(x.ndim)))),
    lambda draw, x: x.unsqueeze(draw(st.integers(0, x.ndim))),
    lambda draw, x: x.squeeze(),
    lambda draw, x: x.select(0, draw(st.integers(0, x.shape[0] - 1))) if x.shape[0] else x,
]

SOURCES = [
    torch.float32,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
]


@st.composite
def viewed(draw: Any) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = draw(st.sampled_from(SOURCES))
    base = values(tuple(draw(st.lists(st.integers(0, 6), max_size=4))), dtype)
    view = base
    for op in draw(st.lists(st.sampled_from(OPS), max_size=5)):
        if view.ndim:
            view = op(draw, view)
    return base, view


@settings(max_examples=100, deadline=None)
@given(viewed())
def test_chains_of_views(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    check(*case)


@pytest.mark.parametrize("name", ["conj", "neg", "both"])
def test_conj_and_neg(name: str) -> None:
    base = values((3, 4), torch.complex64)
    tagged = {"conj": base.conj(), "neg": torch._neg_view(base), "both": torch._neg_view(base.conj())}
    check(base, tagged[name])
    check(base, tagged[name].t()[1:])
    check(base, base.conj().imag)


@pytest.mark.parametrize(
    "sizes,strides,offset",
    [((2, 2), (6, 2), 4), ((3, 2), (6, 2), 4), ((3, 3), (6, 1), 4), ((8,), (2,), 1), ((6,), (2,), 2)],
)
def test_slices_that_cross_rows(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    base = values((4, 6), torch.float32)
    check(base, base.as_strided(sizes, strides, offset))


@st.composite
def any_spec(draw: Any) -> tuple[tuple[int, ...], ViewSpec]:
    layout = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    total = math.prod(layout)
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, max(0, (total - 1) // max(1, n - 1)))) for n in sizes]
    room = total - 1 - sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if n > 1)
    while room < 0:
        i = int(np.argmax([(n - 1) * s for n, s in zip(sizes, strides, strict=True)]))
        room += (sizes[i] - 1) * strides[i]
        strides[i] = 0
    return layout, ViewSpec(tuple(sizes), tuple(strides), draw(st.integers(0, room)), torch.int32)


@settings(max_examples=100, deadline=None)
@given(any_spec())
def test_any_strides(case: tuple[tuple[int, ...], ViewSpec]) -> None:
    layout, spec = case
    base = values(layout, torch.int32)
    view = base.as_strided(spec.sizes, spec.strides, spec.offset)
    # Of several values for one element any may win; the others stay.
    value = values(spec.sizes, torch.int32, 1000)
    where = torch.arange(base.numel()).as_strided(spec.sizes, spec.strides, spec.offset)
    covered = strided.covers(torch.int32, layout, spec)
    assert not covered or set(where.flatten().tolist()) == set(range(base.numel()))

    def both(array: jax.Array, new: jax.Array, offset: jax.Array) -> list[jax.Array]:
        reads = [strided.read(array, torch.int32, spec, o) for o in (None, offset)]
        return [*reads, strided.write(array, torch.int32, spec, new)]

    *reads, written = jitted(both)(to_jax(base), to_jax(value), jnp.asarray(spec.offset))
    for array in reads:
        same(array, view)
    new = np.asarray(written).reshape(-1)
    candidates: dict[int, set[int]] = {i: {v} for i, v in enumerate(base.flatten().tolist())}
    for i in where.flatten().tolist():
        candidates[i] = set()
    for i, v in zip(where.flatten().tolist(), value.flatten().tolist(), strict=True):
        candidates[i].add(v)
    assert all(new[i] in allowed for i, allowed in candidates.items())


# --- offsets at run time --------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(viewed(), st.integers(0, 200))
def test_rule_admits_only_right_offsets(case: tuple[torch.Tensor, torch.Tensor], offset: int) -> None:
    base, view = case
    spec, sizes = spec_of(view), tuple(base.shape)
    last = sum((n - 1) * s for n, s in zip(spec.sizes, spec.strides, strict=True))
    items = base.numel() * base.itemsize // spec.dtype.itemsize
    if 0 in spec.sizes or last >= items:
        return
    offset %= items - last
    rule = strided.fits(sizes, base.dtype, spec)
    if rule is not None and not rule.holds(offset):
        return
    flat = base.reshape(-1).view(torch.uint8)[: _whole(base, view.dtype)].view(view.dtype)
    moved = flat.as_strided(spec.sizes, spec.strides, offset)
    moved = moved.conj() if spec.conj else moved
    moved = torch._neg_view(moved) if spec.neg else moved
    read = jitted(lambda array, o: strided.read(array, base.dtype, spec, o))
    same(read(to_jax(base), jnp.asarray(offset)), moved)


def test_rows_of_a_matrix_share_one_program() -> None:
    x = torch.zeros(1000, 16)
    rule = strided.fits((1000, 16), torch.float32, spec_of(x[3]))
    assert rule is not None
    assert all(rule.holds(x[i].storage_offset()) for i in range(1000))
    assert not rule.holds(1)
    assert strided.fits((10,), torch.float32, spec_of(torch.zeros(10).unfold(0, 3, 1))) is None


# --- what the programs are made of ----------------------------------------------------------------

MATRIX, CUBE, IMAGE = (6, 8), (2, 6, 8), (2, 3, 4, 5)
VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "itself": (MATRIX, lambda x: x),
    "transpose": (MATRIX, lambda x: x.t()),
    "slice": (MATRIX, lambda x: x[1:3, 2:7]),
    "select": (CUBE, lambda x: x[:, 2]),
    "expand": (MATRIX, lambda x: x[:1].expand(5, 8)),
    "channels_last": (IMAGE, lambda x: x.permute(0, 2, 3, 1)),
    "chunk": (MATRIX, lambda x: x.chunk(3, 1)[1]),
    "narrow": (CUBE, lambda x: x.narrow(1, 2, 3)),
    "diagonal": (MATRIX, lambda x: x.diagonal()),
    "batched diagonal": (CUBE, lambda x: x.diagonal(1, 1, 2)),
    "t of a slice": (MATRIX, lambda x: x[2:, 1:4].t()),
    "heads": (CUBE, lambda x: x.view(2, 6, 2, 4).transpose(1, 2)),
    "one of packed heads": (CUBE, lambda x: x.chunk(2, -1)[1].unflatten(-1, (2, 2)).transpose(1, 2)),
    "steps": (MATRIX, lambda x: x[::2, 1::3]),
    "flat slice": (MATRIX, lambda x: x.view(-1)[5:29].view(4, 6)),
    "windows": (MATRIX, lambda x: x.unfold(1, 2, 2)),
}


def primitives(fn: Callable[..., Any], *args: Any) -> set[str]:
    found: set[str] = set()

    def visit(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            found.add(eqn.primitive.name)
            for sub in jax.extend.core.jaxprs_in_params(eqn.params):
                visit(sub)

    visit(jax.make_jaxpr(fn)(*args).jaxpr)
    return found


@pytest.mark.parametrize("name", VIEWS)
def test_common_views_need_no_gather(name: str) -> None:
    shape, make = VIEWS[name]
    base = values(shape, torch.float32)
    view = make(base)
    if 0 not in view.stride():
        check(base, view)
    spec, array = spec_of(view), to_jax(base)
    value = to_jax(view.contiguous())
    for offset in (None, jnp.asarray(spec.offset)):
        used = primitives(lambda b, o: strided.read(b, torch.float32, spec, o), array, offset)
        used |= primitives(lambda b, v, o: strided.write(b, torch.float32, spec, v, o), array, value, offset)
        assert not {p for p in used if "gather" in p or "scatter" in p}


def test_whole_tensors_cost_nothing() -> None:
    x = torch.zeros(MATRIX)
    assert primitives(lambda b: strided.read(b, torch.float32, spec_of(x)), to_jax(x)) == set()
    spec = spec_of(x[1:3])
    assert primitives(lambda b: strided.read(b, torch.float32, spec), to_jax(x)) == {"slice"}
    steps = spec_of(x[:, ::2])
    assert primitives(lambda b: strided.read(b, torch.float32, steps), to_jax(x)) == {"slice"}
    assert primitives(lambda b: strided.read(b, torch.float32, spec_of(x.t())), to_jax(x)) == {"transpose"}
    covered = (x, x.t(), x.view(-1), x.view(2, 3, 8), x.view(torch.int16))
    assert all(strided.covers(torch.float32, MATRIX, spec_of(v)) for v in covered)
    assert not any(strided.covers(torch.float32, MATRIX, spec_of(v)) for v in (x[1:], x[:, ::2], x[0]))


def test_write_without_base_needs_a_covering_spec() -> None:
    spec = spec_of(torch.zeros(MATRIX)[1:])
    with pytest.raises(ValueError, match="does not cover"):
        strided.write(None, torch.float32, spec, jnp.zeros((5, 8), np.float32), layout_sizes=MATRIX)


# --- dtypes ---------------------------------------------------------------------------------------

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32]
DTYPES += [torch.int64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_dtype_views(source: torch.dtype, target: torch.dtype) -> None:
    base = values((4, 16), source)
    if target is torch.bool and source is not torch.bool:
        base = torch.zeros_like(base)
    check(base, base[1:].view(target)[..., 1:])


@pytest.mark.parametrize("target", [*DTYPES, torch.float8_e5m2, torch.uint64, torch.float64], ids=str)
def test_bytes_seen_as_anything(target: torch.dtype) -> None:
    base = torch.zeros(64, dtype=torch.uint8) if target is torch.bool else values((64,), torch.uint8)
    check(base, base.view(target))
    check(base, base[16:].view(target)[1:])


def test_a_tail_shorter_than_an_item_stays() -> None:
    base = torch.arange(11, dtype=torch.uint8)
    view = base[:8].view(torch.int32)
    spec = ViewSpec((2,), (1,), 0, torch.int32)
    same(strided.read(to_jax(base), torch.uint8, spec), view)
    assert not strided.covers(torch.uint8, (11,), spec)
    new = strided.write(to_jax(base), torch.uint8, spec, jnp.asarray([0, -1], np.int32))
    assert np.asarray(new).tolist() == [0, 0, 0, 0, 255, 255, 255, 255, 8, 9, 10]


def test_complex_half_is_bits() -> None:
    x = torch.tensor([1 + 2j, -3 + 0.5j]).to(torch.complex32)
    parts = torch.view_as_real(x).contiguous().view(torch.int32).reshape(-1)
    bits = jnp.asarray(parts.numpy().view(np.uint32))
    for view in (torch.view_as_real(x), x[1:]):
        got = np.asarray(strided.read(bits, torch.complex32, spec_of(view)))
        expected = torch.view_as_real(view).contiguous() if view.is_complex() else view.contiguous()
        assert got.tobytes() == expected.view(torch.uint8).numpy().tobytes()
    got = np.asarray(strided.read(bits, torch.complex32, spec_of(x.conj())))
    expected = torch.view_as_real(torch.complex(x.real.float(), -x.imag.float()).to(torch.complex32))
    assert got.tobytes() == expected.contiguous().view(torch.uint8).numpy().tobytes()
