"""Reading and writing a tensor through its view spec.

A storage's Value is a dense row-major array (its *layout*). A tensor addresses it by sizes, strides
and an offset. Here such a spec becomes slices, reshapes, transposes and broadcasts of the array.

How: the flat index space of N elements is factored. With strides s1 > s2 > ... of the view's
dimensions (broadcast dimensions left out, dimensions that lie end to end merged), the chain
p0 = N, p(i) = gcd(s(i), p(i-1)) splits the space into factors of size p(i-1)/p(i), and dimension i
is the slice start::s(i)/p(i) of factor i as long as it ends inside the factor. If one does not, no
other chain can do better (any other p(i) divides the gcd, so its blocks are smaller), and a gather
over the flat array is left. Any divisor of the gcd serves as p(i) where it is feasible; the
layout's own strides are preferred, so that the factors are the layout's dimensions where possible.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu import dtypes


@dataclass(frozen=True)
class ViewSpec:
    """A tensor relative to its storage; strides and offset count items of `dtype`."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True)
class DynamicRule:
    """For which other offsets a program made for one offset is right.

    dims: (stride, size, largest valid start) of each dimension that restricts the offset.
    """

    dims: tuple[tuple[int, int, int], ...]

    def holds(self, offset: int) -> bool:
        return all((offset // stride) % size <= last for stride, size, last in self.dims)


@dataclass(frozen=True)
class _Factor:
    """A dimension of the factored layout, and the slice start : : step of `length` items taken of it."""

    size: int
    stride: int
    start: int
    step: int
    length: int

    @property
    def extent(self) -> int:
        return (self.length - 1) * self.step + 1


@dataclass(frozen=True)
class _Access:
    """How a view maps onto the layout.

    kept: the view dimensions with more than one distinct element, by falling stride.
    factors: None for a gather.
    """

    kept: tuple[int, ...]
    factors: tuple[_Factor, ...] | None

    @property
    def whole(self) -> bool:
        return self.factors is not None and all(f.length == f.size for f in self.factors)


def item_sizes(layout_sizes: tuple[int, ...], source: torch.dtype, target: torch.dtype) -> tuple[int, ...]:
    """The shape of a layout of `source` items seen as items of `target`; a tail too short is left out."""
    a, b = source.itemsize, target.itemsize
    if a > b:
        return (*layout_sizes, a // b)
    if a == b:
        return layout_sizes
    ratio = b // a
    if layout_sizes and layout_sizes[-1] % ratio == 0:
        return (*layout_sizes[:-1], layout_sizes[-1] // ratio)
    return (math.prod(layout_sizes) // ratio,)


def covers(layout_dtype: torch.dtype, layout_sizes: tuple[int, ...], spec: ViewSpec) -> bool:
    """True when writing through `spec` replaces every element of the layout."""
    items = item_sizes(tuple(layout_sizes), layout_dtype, spec.dtype)
    if math.prod(layout_sizes) * layout_dtype.itemsize != math.prod(items) * spec.dtype.itemsize:
        return False
    if 0 in spec.sizes or 0 in items:
        return 0 in items
    return _access(items, spec.sizes, spec.strides, spec.offset).whole


def fits(layout_sizes: tuple[int, ...], layout_dtype: torch.dtype, spec: ViewSpec) -> DynamicRule | None:
    """The offsets for which `read` and `write` of `spec` with a run-time offset are right.

    None: the spec needs a gather (or has no elements), which is right for every offset.
    """
    items = item_sizes(tuple(layout_sizes), layout_dtype, spec.dtype)
    if 0 in spec.sizes or 0 in items:
        return None
    factors = _access(items, spec.sizes, spec.strides, spec.offset).factors
    if factors is None:
        return None
    dims = ((f.stride, f.size, f.size - f.extent) for f in factors)
    return DynamicRule(tuple(d for d in dims if d[2] < d[1] - 1))


def read(
    base: jax.Array, layout_dtype: torch.dtype, spec: ViewSpec, offset: jax.Array | None = None
) -> jax.Array:
    """The elements of the tensor `spec` over `base`, as an array of shape spec.sizes.

    offset: a 0-d integer array used instead of spec.offset; it must satisfy `fits`.
    """
    if 0 in spec.sizes:
        return jnp.zeros(spec.sizes, dtypes.storage_dtype(spec.dtype))
    x = _as_dtype(base, layout_dtype, spec.dtype)
    access = _access(x.shape, spec.sizes, spec.strides, spec.offset)
    x = _gather(x, access, spec, offset) if access.factors is None else _slice(x, access.factors, offset)
    x = _reshape(x, tuple(spec.sizes[d] for d in access.kept))
    x = _transpose(x, tuple(int(i) for i in np.argsort(access.kept)))
    if any(n > 1 and d not in access.kept for d, n in enumerate(spec.sizes)):
        x = lax.broadcast_in_dim(x, spec.sizes, tuple(sorted(access.kept)))
    return _conj_neg(_reshape(x, spec.sizes), spec)


def write(
    base: jax.Array | None,
    layout_dtype: torch.dtype,
    spec: ViewSpec,
    value: jax.Array,
    offset: jax.Array | None = None,
    *,
    layout_sizes: tuple[int, ...] | None = None,
) -> jax.Array:
    """A new base: `base` with `value` (shape spec.sizes, spec's dtype) stored through `spec`.

    base may be None where `covers` is true; layout_sizes then gives the result's shape.
    """
    sizes = tuple(layout_sizes) if base is None else base.shape  # type: ignore[arg-type]
    items = item_sizes(sizes, layout_dtype, spec.dtype)
    if 0 in spec.sizes:
        return jnp.zeros(sizes, dtypes.storage_dtype(layout_dtype)) if base is None else base
    access = _access(items, spec.sizes, spec.strides, spec.offset)
    value = _one_per_element(_conj_neg(value, spec), access)
    if access.whole:
        new = _reshape(value, items)
    elif base is None:
        raise ValueError(f"write(): {spec} does not cover a layout of {sizes}, so it needs base")
    else:
        old = _as_dtype(base, layout_dtype, spec.dtype)
        if access.factors is None:
            new = _scatter(old, access, spec, value, offset)
        else:
            new = _update(old, access.factors, value, offset)
    new = _as_dtype(new, spec.dtype, layout_dtype)
    if base is not None and new.size < base.size:  # bytes of base that make no whole item stay
        new = jnp.concatenate([new.reshape(-1), base.reshape(-1)[new.size :]])
    return _reshape(new, sizes)


# --- the solver -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _access(
    layout: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> _Access:
    dims = [d for d in range(len(sizes)) if sizes[d] > 1 and strides[d] > 0]
    kept = tuple(sorted(dims, key=lambda d: (-strides[d], d)))
    total = math.prod(layout)
    boundaries = sorted({math.prod(layout[d:]) for d in range(len(layout))} | {1}, reverse=True)
    merged = _merge([(sizes[d], strides[d]) for d in kept])
    chain = _chain(merged, total, offset, boundaries)
    if chain is None:
        return _Access(kept, None)
    factors = []
    outer = total
    for (length, stride), p in zip([*merged, (1, 1)], [*chain, 1], strict=True):
        start = (offset % outer) // p
        factors.append(_Factor(outer // p, p, start, max(1, stride // p), length))
        outer = p
    return _Access(kept, tuple(part for f in factors for part in _refine(f, boundaries) if part.size > 1))


def _merge(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge dimensions (size, stride), by falling stride, that lie end to end."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _chain(dims: list[tuple[int, int]], outer: int, offset: int, boundaries: list[int]) -> list[int] | None:
    """The strides p(i) of the factors of `dims`, or None; see the module's docstring."""
    if not dims:
        return []
    (size, stride), rest = dims[0], dims[1:]
    if offset % outer + (size - 1) * stride >= outer:
        return None
    largest = math.gcd(stride, outer)
    natural = next(b for b in boundaries if largest % b == 0)
    for p in dict.fromkeys((natural, largest)):
        inner = _chain(rest, p, offset, boundaries)
        if inner is not None:
            return [p, *inner]
    return None


def _refine(factor: _Factor, boundaries: list[int]) -> list[_Factor]:
    """Split a factor at the layout's own boundaries where its slice allows it."""
    f, out = factor, []
    for boundary in boundaries:
        q, rest = divmod(boundary, f.stride)
        if rest or q <= 1 or q >= f.size or f.size % q:
            continue
        first, last = f.start // q, (f.start + f.extent - 1) // q
        if first == last:
            length, inner = 1, f.length
        elif q % f.step == 0 and f.length % (q // f.step) == 0 and f.start % q < f.step:
            inner = q // f.step
            length = f.length // inner
        else:
            continue
        out.append(_Factor(f.size // q, f.stride * q, first, 1, length))
        f = _Factor(q, f.stride, f.start % q, f.step if inner > 1 else 1, inner)
    return [*out, f]


# --- slices and gathers ---------------------------------------------------------------------------


def _index_dtype(total: int) -> type[np.integer]:
    return np.int32 if total < 2**31 else np.int64


def _starts(factors: tuple[_Factor, ...], total: int, offset: jax.Array | None) -> list[Any]:
    kind = _index_dtype(total)
    if offset is None:
        return [kind(f.start) for f in factors]
    offset = offset.astype(kind)
    return [offset // kind(f.stride) % kind(f.size) for f in factors]


def _slice(x: jax.Array, factors: tuple[_Factor, ...], offset: jax.Array | None) -> jax.Array:
    if all(f.length == f.size for f in factors):
        return x
    total, first = x.size, [f.start for f in factors]
    x = _reshape(x, tuple(f.size for f in factors))
    if offset is not None:
        x = lax.dynamic_slice(x, _starts(factors, total, offset), [f.extent for f in factors])
        first = [0] * x.ndim
    if offset is not None and all(f.step == 1 for f in factors):
        return x
    limits = [start + f.extent for start, f in zip(first, factors, strict=True)]
    return lax.slice(x, first, limits, [f.step for f in factors])


def _update(
    x: jax.Array, factors: tuple[_Factor, ...], value: jax.Array, offset: jax.Array | None
) -> jax.Array:
    shape = x.shape
    starts = _starts(factors, x.size, offset)
    x = _reshape(x, tuple(f.size for f in factors))
    value = _reshape(value, tuple(f.length for f in factors))
    stepped = [d for d, f in enumerate(factors) if f.step > 1]
    if stepped:
        # Spread the value over a window and select: cheaper than a scatter.
        window = lax.dynamic_slice(x, starts, [f.extent for f in factors])
        zero = jnp.zeros((), value.dtype)
        value = lax.pad(value, zero, [(0, 0, f.step - 1) for f in factors])
        for d in stepped:
            hit = lax.broadcasted_iota(np.int32, window.shape, d) % factors[d].step == 0
            value = jnp.where(hit, value, window)
    return lax.dynamic_update_slice(x, value, starts).reshape(shape)


def _indices(access: _Access, spec: ViewSpec, total: int, offset: jax.Array | None) -> jax.Array:
    kind = _index_dtype(total)
    shape = tuple(spec.sizes[d] for d in access.kept)
    start = jnp.asarray(spec.offset if offset is None else offset, kind)
    index = jnp.broadcast_to(start, shape)
    for i, d in enumerate(access.kept):
        index = index + lax.broadcasted_iota(kind, shape, i) * kind(spec.strides[d])
    return index


def _gather(x: jax.Array, access: _Access, spec: ViewSpec, offset: jax.Array | None) -> jax.Array:
    index = _indices(access, spec, x.size, offset)
    return x.reshape(-1).at[index].get(mode="promise_in_bounds")


def _scatter(
    x: jax.Array, access: _Access, spec: ViewSpec, value: jax.Array, offset: jax.Array | None
) -> jax.Array:
    index = _indices(access, spec, x.size, offset)
    return x.reshape(-1).at[index].set(value, mode="promise_in_bounds").reshape(x.shape)


def _one_per_element(value: jax.Array, access: _Access) -> jax.Array:
    """One value per distinct element, dimensions by falling stride."""
    order = tuple(sorted(access.kept))
    limits = [n if d in access.kept else 1 for d, n in enumerate(value.shape)]
    if tuple(limits) != value.shape:
        value = lax.slice(value, [0] * value.ndim, limits)
    value = _reshape(value, tuple(value.shape[d] for d in order))
    return _transpose(value, tuple(order.index(d) for d in access.kept))


def _reshape(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return x if x.shape == shape else lax.reshape(x, shape)


def _transpose(x: jax.Array, order: tuple[int, ...]) -> jax.Array:
    return x if order == tuple(range(x.ndim)) else lax.transpose(x, order)


# --- dtypes ---------------------------------------------------------------------------------------


def _conj_neg(x: jax.Array, spec: ViewSpec) -> jax.Array:
    # Its own inverse. complex32 is held as bits, the imaginary part in the upper half.
    if spec.dtype is torch.complex32:
        bits = (0x80000000 if spec.conj else 0) ^ (0x80008000 if spec.neg else 0)
        return x ^ np.uint32(bits) if bits else x
    x = jnp.conj(x) if spec.conj else x
    return -x if spec.neg else x


def _part(dtype: np.dtype) -> np.dtype:
    """The dtype of the parts a dtype is made of, one that XLA can reinterpret."""
    if dtype.kind == "c":
        return np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
    return np.dtype(np.uint8) if dtype == np.bool_ else dtype


def _as_dtype(x: jax.Array, source: torch.dtype, target: torch.dtype) -> jax.Array:
    """The bytes of `x` (items of `source`) as items of `target`, of shape `item_sizes`."""
    kind = dtypes.storage_dtype(target)
    if x.dtype == kind:
        return x
    shape = item_sizes(x.shape, source, target)
    if x.dtype.kind == "c":
        x = jnp.stack([lax.real(x), lax.imag(x)], -1)
    x = _bitcast(x.astype(np.uint8) if x.dtype == np.bool_ else x, _part(kind))
    if kind.kind == "c":
        x = _group(x, 2)
        x = lax.complex(x[..., 0], x[..., 1])
    elif kind == np.bool_:
        x = x != 0
    return _reshape(x, shape)


def _bitcast(x: jax.Array, part: np.dtype) -> jax.Array:
    if x.dtype == part:
        return x
    if x.dtype.itemsize == part.itemsize and x.dtype.kind in "iu" and part.kind in "iu":
        return x.astype(part)
    if part.itemsize > x.dtype.itemsize:
        x = _group(x, part.itemsize // x.dtype.itemsize)
    return lax.bitcast_convert_type(x, part)


def _group(x: jax.Array, count: int) -> jax.Array:
    """Put each `count` neighbours into a last dimension; a tail too short is left out."""
    if x.ndim and x.shape[-1] % count == 0:
        return x.reshape(*x.shape[:-1], x.shape[-1] // count, count)
    return x.reshape(-1)[: x.size // count * count].reshape(-1, count)
