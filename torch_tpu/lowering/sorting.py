"""Lowerings of sorting, selection by rank, search in sorted sequences, and histograms.

NaN counts as the largest value, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry
from torch_tpu.lowering.indexing import write_at
from torch_tpu.lowering.registry import lower

_SMALL_SEARCH = 32  # boundaries up to which comparing with all of them beats a binary search


def _key(x: jax.Array, descending: bool) -> jax.Array:
    """An int32 (for 64-bit dtypes int64) per element that orders as PyTorch orders x."""
    kind = x.dtype
    wide = np.dtype(np.int64 if kind.itemsize == 8 else np.int32)
    limits = jnp.iinfo(wide)
    if jnp.issubdtype(kind, np.floating):
        if kind.itemsize < 4:
            x = x.astype(np.float32)
        x = _plain_zero(jnp.where(jnp.isnan(x), np.nan, x))  # one NaN, one zero
        bits = lax.bitcast_convert_type(x, wide)
        key = bits ^ ((bits >> (8 * wide.itemsize - 1)) & limits.max)
    elif kind in (np.uint32, np.uint64):
        key = lax.bitcast_convert_type(x, wide) ^ limits.min
    else:
        key = x.astype(wide)
    return ~key if descending else key


def _plain_zero(x: jax.Array) -> jax.Array:
    """x without -0. Not `x + 0`: XLA takes that for x."""
    return jnp.where(x == 0, jnp.zeros((), x.dtype), x)


def _order_by_pairs(key: jax.Array) -> jax.Array:
    places = lax.broadcasted_iota(np.int32, key.shape, key.ndim - 1)
    return lax.sort((key, places), dimension=key.ndim - 1, is_stable=True, num_keys=1)[1]


def _order_by_words(key: jax.Array) -> jax.Array:
    # XLA's CPU sort is five times as fast on one operand: pack the key and the place in one integer.
    places = lax.broadcasted_iota(np.int64, key.shape, key.ndim - 1)
    words = lax.sort((key.astype(np.int64) << 32) | places, dimension=key.ndim - 1)
    return (words & 0xFFFFFFFF).astype(np.int32)


def order(x: jax.Array, descending: bool = False) -> jax.Array:
    """The stable permutation (int32) that sorts x along its last dimension."""
    key = _key(x, descending)
    if key.dtype == np.int64:
        return _order_by_pairs(key)
    return lax.platform_dependent(key, cpu=_order_by_words, default=_order_by_pairs)


def pick(x: jax.Array, places: jax.Array) -> jax.Array:
    """x at `places` (all in range) along the last dimension."""
    return jnp.take_along_axis(x, places, axis=-1, mode="promise_in_bounds")


def _last(x: jax.Array, dim: int) -> jax.Array:
    return jnp.moveaxis(jnp.atleast_1d(x), dim, -1)


def _sorted(x: jax.Array, dim: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    rows = _last(x, dim)
    places = order(rows, descending)
    values = pick(rows, places)
    return jnp.moveaxis(values, -1, dim).reshape(x.shape), jnp.moveaxis(places, -1, dim).reshape(x.shape)


@lower("aten::sort")
def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    return _sorted(x, dim, descending)


@lower("aten::sort.stable")
def sort_stable(
    x: jax.Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[jax.Array, jax.Array]:
    return _sorted(x, dim, descending)


@lower("aten::topk")
def topk(
    x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:  # whatever k is
        return x, jnp.zeros((), jnp.int64)
    rows = _last(x, dim)
    places = _top_places(rows, k, largest)
    values = pick(rows, places)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


def _top_places(rows: jax.Array, k: int, largest: bool) -> jax.Array:
    exact_in_float32 = rows.dtype.itemsize <= 2 or rows.dtype == np.float32
    if not exact_in_float32:
        return order(rows, descending=largest)[..., :k]
    # XLA has a fast float32 top-k, in the total order: -NaN < -inf < ... < inf < NaN.
    rows = dtypes.cast(rows, np.float32)
    rows = _plain_zero(jnp.where(jnp.isnan(rows), np.float32(np.nan), rows))
    return lax.top_k(rows if largest else -rows, k)[1]


@lower("aten::kthvalue")
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    rows = _last(x, dim)
    place = order(rows)[..., k - 1 : k]
    results = [jnp.moveaxis(r, -1, dim) for r in (pick(rows, place), place)]
    value, place = results if keepdim else [r.squeeze(dim) for r in results]
    return value, place


# ---- sorted sequences


def search(boundaries: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    """Per value the number of boundaries before it, as PyTorch's binary search finds it (int64).

    boundaries: [n], or [..., n] with the leading shape of values [..., m].
    """
    n = boundaries.shape[-1]
    before = jnp.greater if right else jnp.greater_equal
    if n <= _SMALL_SEARCH and boundaries.ndim == 1:
        return jnp.sum(~before(boundaries, values[..., None]), axis=-1, dtype=np.int64)
    start, end = jnp.zeros(values.shape, np.int64), jnp.full(values.shape, n, np.int64)
    for _ in range(n.bit_length()):
        middle = start + ((end - start) >> 1)
        if boundaries.ndim == 1:
            found = boundaries.at[middle].get(mode="clip")
        else:
            found = jnp.take_along_axis(boundaries, middle, axis=-1, mode="clip")
        move = ~before(found, values) & (start < end)
        start, end = jnp.where(move, middle + 1, start), jnp.where(move, end, middle)
    return start


@lower("aten::bucketize.Tensor", "aten::bucketize.Scalar", promote="default")
def bucketize(self: Any, other: jax.Array, *, out_int32: bool = False, right: bool = False) -> jax.Array:
    return search(other, jnp.asarray(self), right)


@lower("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    boundaries: jax.Array,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    if sorter is not None:
        boundaries = jnp.take_along_axis(boundaries, sorter, axis=-1, mode="clip")
    dtype = dtypes.compute_dtype(dtypes.result_type((boundaries, values)))
    values = registry.constant(values, dtype)
    return search(boundaries.astype(dtype), values, right or side == "right")


@lower("aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor", promote="default")
def isin(self: Any, other: Any, *, assume_unique: bool = False, invert: bool = False) -> jax.Array:
    elements, tests = jnp.asarray(self), jnp.asarray(other).reshape(-1)
    if tests.size <= _SMALL_SEARCH:
        found = jnp.any(elements[..., None] == tests, axis=-1)
    else:
        tests = lax.sort(tests)
        found = tests.at[search(tests, elements, right=False)].get(mode="clip") == elements
    return ~found if invert else found


# ---- histograms


def _limits(x: jax.Array, low: Any, high: Any, of_data: Any, margin: float) -> tuple[jax.Array, jax.Array]:
    """The ends of a histogram's range: of the data where asked, and `margin` outwards if they are equal."""
    low, high = registry.constant(low, x.dtype), registry.constant(high, x.dtype)
    if x.size:
        low, high = jnp.where(of_data, x.min(), low), jnp.where(of_data, x.max(), high)
    same = low == high
    return jnp.where(same, low - margin, low), jnp.where(same, high + margin, high)


@lower("aten::histc")
def histc(x: jax.Array, bins: int = 100, min: Any = 0, max: Any = 0) -> jax.Array:
    dtype = dtypes.compute_dtype(x.dtype)
    x = x.reshape(-1).astype(dtype)
    low, high = _limits(x, min, max, jnp.asarray(min == max), margin=1)
    inside = (x >= low) & (x <= high)
    position = jnp.where(inside, (x - low) / (high - low) * bins, 0).astype(np.int64)
    position = jnp.where(inside, jnp.minimum(position, bins - 1), bins)
    return write_at(jnp.zeros(bins, dtype), (position,), "add", dtype.type(1))


def _check_bins(x: jax.Array, bins: Sequence[int], range: Sequence[float] | None) -> None:
    if len(bins) != x.shape[1] or min(bins, default=1) < 1:
        raise RuntimeError(f"histogramdd: expected {x.shape[1]} positive numbers of bins, got {list(bins)}")
    if range is None:
        return
    pairs = list(zip(range[::2], range[1::2], strict=False))
    if len(range) != 2 * len(bins) or not all(math.isfinite(v) for v in range):
        raise RuntimeError(
            f"histogramdd: expected a finite range for each of {len(bins)} columns, got {range}"
        )
    if any(low > high for low, high in pairs):
        raise RuntimeError(f"histogramdd: min should not exceed max, got the range {list(range)}")


def _check_counted(
    x: jax.Array, weight: jax.Array | None, edges: Sequence[jax.Array] = (), rank: int = 0
) -> None:
    """Errors of dtypes and shapes; the CPU's own take their place."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise NotImplementedError(f"histogram: not implemented for {x.dtype}")
    if x.ndim < rank:
        raise RuntimeError(f"histogramdd: expected at least {rank} dimensions, got {list(x.shape)}")
    if any(e.ndim != 1 or e.size < 2 for e in edges):
        raise RuntimeError("histogram: expected 1-d edges, at least two")
    if any(a.dtype != x.dtype for a in (*edges, *([] if weight is None else [weight]))):
        raise RuntimeError(f"histogram: expected edges and weight of the input's dtype, {x.dtype}")


def _edges(x: jax.Array, bins: Sequence[int], range: Sequence[float] | None) -> list[jax.Array]:
    """Per column of x [M, N] the ends of its bins, evenly spread over `range`, else over the data."""
    _check_bins(x, bins, range)
    ends = []
    for n, count in enumerate(bins):
        first, last = (0, 1) if range is None else range[2 * n : 2 * n + 2]
        low, high = _limits(x[:, n], first, last, range is None, margin=0.5)
        step = (high - low) / count
        edges = low + step * jnp.arange(count + 1, dtype=x.dtype)
        ends.append(edges.at[-1].set(high))
    return ends


def _histogram(
    x: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool
) -> jax.Array:
    """How many rows of x [M, N], or how much of their weight, is in each cell; the last end is inside."""
    if not edges:  # no columns
        return jnp.zeros((), x.dtype)
    sizes = tuple(e.size - 1 for e in edges)
    outside, places = jnp.zeros(x.shape[0], bool), []
    for n, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        column = x[:, n]
        outside |= ~((column >= edge[0]) & (column <= edge[-1]))
        places.append(jnp.minimum(search(edge, column, right=True) - 1, size - 1))
    places[0] = jnp.where(outside, sizes[0], places[0])
    amount = jnp.ones(x.shape[0], x.dtype) if weight is None else weight.reshape(-1).astype(x.dtype)
    total = write_at(jnp.zeros(sizes, x.dtype), tuple(places), "add", amount)
    if density:
        total = total / total.sum()
        for n, edge in enumerate(edges):
            total = total / jnp.diff(edge).reshape((-1,) + (1,) * (len(sizes) - n - 1))
    return total


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@lower("aten::histogram.bin_ct")
def histogram(
    x: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    _check_counted(x, weight)
    x = x.reshape(-1, 1)
    edges = _edges(x, [bins], range)
    return _histogram(x, edges, weight, density), edges[0]


@lower("aten::histogram.bins_tensor")
def histogram_of(
    x: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> tuple[jax.Array, jax.Array]:
    _check_counted(x, weight, [bins])
    return _histogram(x.reshape(-1, 1), [bins], weight, density), bins


@lower("aten::_histogramdd_bin_edges")
def histogramdd_edges(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> list[jax.Array]:
    _check_counted(x, weight, rank=2)
    return _edges(_rows(x), bins, range)


@lower("aten::_histogramdd_from_bin_cts")
def histogramdd(
    x: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    _check_counted(x, weight, rank=2)
    return _histogram(_rows(x), _edges(_rows(x), bins, range), weight, density)


@lower("aten::_histogramdd_from_bin_tensors")
def histogramdd_of(
    x: jax.Array, bins: Sequence[jax.Array], *, weight: jax.Array | None = None, density: bool = False
) -> jax.Array:
    _check_counted(x, weight, bins, rank=2)
    return _histogram(_rows(x), bins, weight, density)
