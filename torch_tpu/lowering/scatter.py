"""Lowerings of ops with one position per element along a dimension, and of reductions of segments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry
from torch_tpu.lowering.indexing import Selector, reduce_at, write_at
from torch_tpu.lowering.registry import lower


@lower("aten::gather")
def gather(x: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    flat, positions = jnp.atleast_1d(x), jnp.atleast_1d(index)
    dim = dim % flat.ndim
    limits = [s if d == dim else positions.shape[d] for d, s in enumerate(flat.shape)]
    flat = lax.slice(flat, [0] * flat.ndim, limits)
    return jnp.take_along_axis(flat, positions, axis=dim, mode="fill").reshape(index.shape)


def _elements(dim: int, index: jax.Array) -> Selector:
    """The selector of the elements that differ from `index`'s own place in their position at `dim`."""
    places = [lax.broadcasted_iota(np.int32, index.shape, d) for d in range(index.ndim)]
    return (*places[:dim], index, *places[dim + 1 :])


def _scatter(x: jax.Array, dim: int, index: jax.Array, source: Any, how: str) -> jax.Array:
    """x with source[...] put at index[...] along dim, as `write_at`. source: an array, or one number."""
    if index.size == 0:
        return x
    shape, x, index = x.shape, jnp.atleast_1d(x), jnp.atleast_1d(index)
    dim = dim % x.ndim
    source = jnp.asarray(source)
    source = _corner(source, index) if source.ndim or x.ndim == 1 else jnp.broadcast_to(source, index.shape)
    if how in ("set", "add") and index.shape == (*x.shape[:dim], 1, *x.shape[dim + 1 :]):
        # One position per row: comparing is cheaper than scattering, and fuses.
        here = lax.broadcasted_iota(index.dtype, x.shape, dim) == index
        source = source.astype(x.dtype)
        added = source if how == "set" else (x | source if x.dtype == np.bool_ else x + source)
        return jnp.where(here, added, x).reshape(shape)
    return write_at(x, _elements(dim, index), how, source).reshape(shape)


def _corner(source: jax.Array, index: jax.Array) -> jax.Array:
    """The part of source that index covers."""
    if source.size == 1 and source.ndim < 2:
        return jnp.broadcast_to(source.reshape(()), index.shape)
    return lax.slice(source, [0] * source.ndim, index.shape)


@lower("aten::scatter.src", "aten::scatter.value")
def scatter(x: jax.Array, dim: int, index: jax.Array, source: Any) -> jax.Array:
    return _scatter(x, dim, index, source if _is_array(source) else registry.constant(source, x.dtype), "set")


@lower("aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter_with(x: jax.Array, dim: int, index: jax.Array, source: Any, *, reduce: str) -> jax.Array:
    source = source if _is_array(source) else registry.constant(source, x.dtype)
    return _scatter(x, dim, index, source, reduce)


def _is_array(x: Any) -> bool:
    return not dtypes.is_number(x)


@lower("aten::scatter_add")
def scatter_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _scatter(x, dim, index, source, "add")


@lower("aten::scatter_reduce.two")
def scatter_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    if index.size == 0:
        return x
    flat, index = jnp.atleast_1d(x), jnp.atleast_1d(index)
    source = _corner(jnp.atleast_1d(source), index)
    return reduce_at(flat, _elements(dim % flat.ndim, index), source, reduce, include_self).reshape(x.shape)


# ---- segments: data's rows along `axis` in consecutive groups


def _segments(lengths: jax.Array | None, offsets: jax.Array | None, axis: int, rows: int) -> jax.Array:
    """The segment of each row, [..., rows]; an index past the last segment where a row is in none."""
    if offsets is None:
        assert lengths is not None
        offsets = jnp.cumsum(lengths, axis=axis)
    else:
        offsets = lax.slice_in_dim(offsets, 1, None, axis=axis)
    ends = offsets[..., None, :]
    return jnp.sum(ends <= jnp.arange(rows)[:, None], axis=-1, dtype=np.int64)


def _segment_shape(lengths: jax.Array | None, offsets: jax.Array | None, axis: int) -> int:
    if lengths is not None:
        return int(lengths.shape[axis])
    assert offsets is not None
    return int(offsets.shape[axis]) - 1


def _segment_places(segment: jax.Array, shape: tuple[int, ...], axis: int) -> Selector:
    tail = len(shape) - segment.ndim
    segment = jnp.broadcast_to(segment.reshape(*segment.shape, *(1,) * tail), shape)
    return _elements(axis, segment)


_START = {"sum": 0, "mean": 0, "prod": 1, "max": -np.inf, "min": np.inf}
_SEGMENT_REDUCE = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


@lower("aten::segment_reduce")
def segment_reduce(
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    indices: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> jax.Array:
    axis, dtype = axis % data.ndim, dtypes.compute_dtype(data.dtype)
    segment = _segments(lengths, offsets, axis, data.shape[axis])
    count = _segment_shape(lengths, offsets, axis)
    start = registry.constant(_START[reduce] if initial is None else initial, dtype)
    out = jnp.broadcast_to(start, (*data.shape[:axis], count, *data.shape[axis + 1 :]))
    places = _segment_places(segment, data.shape, axis)
    out = reduce_at(out, places, data.astype(dtype), _SEGMENT_REDUCE[reduce], True)
    if reduce == "mean":
        sizes = write_at(jnp.zeros(out.shape, dtype), places, "add", dtype.type(1))
        empty = jnp.nan if initial is None else out
        out = jnp.where(sizes == 0, empty, out / sizes)
    return out


@lower("aten::_segment_reduce_backward")
def segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    *,
    lengths: jax.Array | None = None,
    offsets: jax.Array | None = None,
    axis: int = 0,
    initial: Any = None,
) -> jax.Array:
    axis = axis % data.ndim
    dtype = dtypes.compute_dtype(data.dtype)
    grad, output, x = grad.astype(dtype), output.astype(dtype), data.astype(dtype)
    places = _segment_places(_segments(lengths, offsets, axis, data.shape[axis]), data.shape, axis)

    def spread(of_segment: jax.Array) -> jax.Array:
        return of_segment.at[places].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    def total(of_row: jax.Array) -> jax.Array:
        return write_at(jnp.zeros(grad.shape, dtype), places, "add", of_row)

    if reduce == "sum":
        return spread(grad)
    if reduce == "mean":
        return spread(grad / jnp.maximum(total(jnp.ones_like(x)), 1))
    if reduce == "prod":
        return _segment_product_backward(grad, output, x, places, initial)
    chosen = (x == spread(output)) | jnp.isnan(x)
    return jnp.where(chosen, spread(grad / jnp.maximum(total(chosen), 1)), 0)


def _segment_product_backward(
    grad: jax.Array, output: jax.Array, x: jax.Array, places: Selector, initial: Any
) -> jax.Array:
    """grad times the product of the segment's other rows, also where a row is zero."""
    zero = x == 0
    start = jnp.full(grad.shape, 1, x.dtype) * registry.constant(1 if initial is None else initial, x.dtype)
    others = write_at(start, places, "multiply", jnp.where(zero, 1, x))
    zeros = write_at(jnp.zeros(grad.shape, np.int32), places, "add", zero)

    def spread(of_segment: jax.Array) -> jax.Array:
        return of_segment.at[places].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    without_me = spread(zeros) - zero
    product = jnp.where(zero, spread(others), spread(output) / jnp.where(zero, 1, x))
    return jnp.where(without_me > 0, 0, spread(grad) * product)
