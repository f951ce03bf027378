"""Reading and writing at integer positions, and embeddings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.lowering.compare import same
from tests.lowering_mode import to_jax, to_torch
from torch_tpu.lowering import registry

aten = torch.ops.aten
X = torch.arange(60.0).reshape(3, 4, 5)
PAIRS, J = torch.tensor([[0, -1], [2, 1]]), torch.tensor([1, -3])


@pytest.mark.parametrize(
    "indices", [[PAIRS], [PAIRS, J], [None, J], [J, None, J], [None, J, J], [PAIRS, torch.tensor(1)]]
)
def test_index(indices: list[torch.Tensor | None]) -> None:
    same(lambda: aten.index(X, indices))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_with_repeated_positions(dtype: torch.dtype, accumulate: bool) -> None:
    x, rows = X[0].to(dtype), torch.tensor([1, -3, 3])
    same(lambda: aten.index_put(x, [rows], X[1, :1, :].to(dtype), accumulate))


def test_bfloat16_sums_are_made_in_float32() -> None:
    ones = torch.ones(1000, dtype=torch.bfloat16)
    with jax.enable_x64(True):
        lowering = registry.find("aten::index_add")
        assert lowering is not None
        zero = jnp.zeros(1, jnp.bfloat16)
        total = registry.call(lowering, [zero, 0, jnp.zeros(1000, np.int64), to_jax(ones)], {})
    assert to_torch(total, torch.float32).item() == 1000  # bfloat16 steps would stop at 256


def test_out_of_range_reads_nan_and_writes_nothing() -> None:
    with jax.enable_x64(True):
        weight, index = jnp.ones((3, 2)), jnp.asarray([0, 3, -1])
        read = registry.find("aten::embedding")
        write = registry.find("aten::index_copy")
        assert read is not None and write is not None
        rows = np.asarray(registry.call(read, [weight, index], {}))
        written = registry.call(write, [weight, 0, index, jnp.zeros((3, 2))], {})
    np.testing.assert_array_equal(np.isnan(rows).all(1), [False, True, True])
    np.testing.assert_array_equal(np.asarray(written).sum(1), [0, 2, 2])


@pytest.mark.parametrize("dim", [0, -1])
def test_whole_rows(dim: int) -> None:
    index = torch.tensor([2, 0, 2])
    source = torch.randn_like(X).index_select(dim, index)
    same(lambda: X.index_select(dim, index))
    same(lambda: X.index_add(dim, index, source, alpha=0.5))
    same(lambda: X.index_copy(dim, index[:2], source.narrow(dim, 0, 2)))
    same(lambda: X.index_fill(dim, torch.tensor([-1, 0]), 7.5))


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_index_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    index, source = torch.tensor([2, 0, 2]), torch.randn(3, 4, 5).mul(4).to(dtype)
    x = X.to(dtype)
    same(lambda: aten.index_reduce(x, 0, index, source, reduce, include_self=include_self))


def test_zero_dimensional() -> None:
    x, zero = torch.tensor(3.0), torch.tensor([0])
    same(lambda: x.index_select(0, zero))
    same(lambda: x.index_add(0, zero, torch.tensor(2.0)))
    same(lambda: x.index_fill(0, zero, 2.0))
    same(lambda: x.take(torch.tensor(-1)))


def test_flat_positions() -> None:
    index = torch.tensor([[0, -1], [59, 0]])
    same(lambda: X.take(index))
    same(lambda: aten.put(X, index, torch.ones(2, 2), True))


def test_masked_scatter_and_its_gradient() -> None:
    mask, source = torch.rand(4, 5) > 0.5, torch.randn(3, 4, 5)
    same(lambda: X.masked_scatter(mask, source))
    same(lambda: aten.masked_scatter_backward(X, (X % 2).bool(), [2, 3, 6]))


def test_nonzero_static() -> None:
    x = torch.tensor([[0, 2, 0], [3, 0, 4]])
    for size in (0, 2, 3, 5):
        same(lambda size=size: torch.nonzero_static(x, size=size))
    same(lambda: torch.nonzero_static(torch.tensor(2.0), size=2))


@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("scale_grad_by_freq", [False, True])
def test_embedding(padding_idx: int | None, scale_grad_by_freq: bool) -> None:
    indices, weight = torch.tensor([[0, 1, 1], [3, 1, 0]]), torch.randn(4, 2, requires_grad=True)
    same(lambda: F.embedding(indices, weight, padding_idx).detach())
    pad = -1 if padding_idx is None else padding_idx
    grad = torch.randn(2, 3, 2)
    same(lambda: aten.embedding_dense_backward(grad, indices, 4, pad, scale_grad_by_freq))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_embedding_renorm(norm_type: float) -> None:
    weight, indices = torch.randn(4, 3), torch.tensor([0, 2, 2])
    same(lambda: aten.embedding_renorm(weight, indices, 0.5, norm_type))


BAG = {"indices": [1, 2, 4, 4, 0, 2], "offsets": [0, 2, 2, 5]}


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding_idx", [-1, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_embedding_bag(mode: int, padding_idx: int, weighted: bool) -> None:
    """The output, and the gradients by the lowerings' own intermediate results."""
    if weighted and mode != 0:
        return
    indices, offsets = (torch.tensor(BAG[k]) for k in ("indices", "offsets"))
    weight = torch.randn(5, 3, requires_grad=True)
    factors = torch.randn(6, requires_grad=True) if weighted else None
    expected = aten._embedding_bag(
        weight, indices, offsets, mode=mode, per_sample_weights=factors, padding_idx=padding_idx
    )[0]
    grad = torch.randn(4, 3)
    wanted = torch.autograd.grad(expected, [weight] + ([factors] if factors is not None else []), grad)
    with jax.enable_x64(True):
        w, i, o, g = (to_jax(t) for t in (weight, indices, offsets, grad))
        f = None if factors is None else to_jax(factors)

        def call(name: str, *args: Any) -> Any:
            lowering = registry.find(name)
            assert lowering is not None
            return registry.call(lowering, list(args), {})

        out, bag, size, taken = call(
            "aten::_embedding_bag", w, i, o, False, mode, False, f, False, padding_idx
        )
        of_weight = call(
            "aten::_embedding_bag_backward", g, i, o, bag, size, taken, 5, False, mode, False, f, padding_idx
        )
        got = [out, of_weight]
        if f is not None:
            name = "aten::_embedding_bag_per_sample_weights_backward"
            got.append(call(name, g, w, i, o, bag, mode, padding_idx))
    result = [to_torch(x, torch.float32) for x in got]
    torch.testing.assert_close(result, [expected.detach(), *wanted])
