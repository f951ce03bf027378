"""Lowerings of ops that read or write at integer positions along whole dimensions.

Negative positions wrap where PyTorch allows them. A position out of range reads as NaN (the smallest
integer, False) and writes nothing; the program reports it (`checks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry
from torch_tpu.lowering.registry import lower

Selector = tuple[Any, ...]  # what stands in x[...]: slices and integer arrays


def take_at(x: jax.Array, where: Selector, wrap: bool = False) -> jax.Array:
    """x[where]; `wrap`: negative positions count from the end."""
    return x.at[where].get(mode="fill", wrap_negative_indices=wrap)


def write_at(x: jax.Array, where: Selector, how: str, values: Any, wrap: bool = False) -> jax.Array:
    """x with values put at `where`; `how`: "set", or "add", "multiply", "max", "min" into what is there.

    Sums and products of 16-bit floats are made in float32.
    """
    dtype = x.dtype
    if dtype == np.bool_:
        how = {"add": "max", "multiply": "min"}.get(how, how)
        x, values = x.astype(np.uint8), jnp.asarray(values).astype(np.uint8)
    if how in ("add", "multiply"):
        compute = dtypes.compute_dtype(x.dtype)
        x, values = x.astype(compute), jnp.asarray(values).astype(compute)
    return getattr(x.at[where], how)(values, mode="drop", wrap_negative_indices=wrap).astype(dtype)


def along(x: jax.Array, dim: int, index: jax.Array) -> Selector:
    """The selector that has `index` at `dim` and everything before it."""
    return (slice(None),) * (dim % max(x.ndim, 1)) + (index,)


def _selector(indices: Sequence[jax.Array | None]) -> Selector:
    return tuple(slice(None) if i is None else i for i in indices)


@lower("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(x: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    return take_at(x, _selector(indices), wrap=True)


@lower("aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl")
def index_put(
    x: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
    unsafe: bool = False,
) -> jax.Array:
    return write_at(x, _selector(indices), "add" if accumulate else "set", values, wrap=True)


@lower("aten::_unsafe_masked_index")
def masked_index(x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], fill: Any) -> jax.Array:
    found = x.at[_selector(indices)].get(mode="clip")
    return jnp.where(mask, found, registry.constant(fill, x.dtype))


@lower("aten::_unsafe_masked_index_put_accumulate")
def masked_index_put_accumulate(
    x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array
) -> jax.Array:
    return write_at(x, _selector(indices), "add", jnp.where(mask, values, jnp.zeros_like(values)), wrap=True)


@lower("aten::index_select")
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if x.ndim == 0:
        return x
    return take_at(x, along(x, dim, jnp.atleast_1d(index)))


@lower("aten::take")
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    return take_at(x.reshape(-1), (index,), wrap=True)


@lower("aten::put")
def put(x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False) -> jax.Array:
    how = "add" if accumulate else "set"
    return write_at(x.reshape(-1), (index,), how, source.reshape(index.shape), wrap=True).reshape(x.shape)


@lower("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    flat = jnp.atleast_1d(x)
    fill = registry.constant(value, x.dtype)
    return write_at(flat, along(flat, dim, index), "set", fill, wrap=True).reshape(x.shape)


def _rows(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array
) -> tuple[jax.Array, Selector, jax.Array]:
    """x, the selector of its rows at `dim`, and source's rows, all with at least one dimension."""
    x, index = jnp.atleast_1d(x), jnp.atleast_1d(index)
    dim = dim % x.ndim
    shape = (*x.shape[:dim], index.size, *x.shape[dim + 1 :])
    return x, along(x, dim, index), source.reshape(shape)


@lower("aten::index_copy")
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    flat, where, rows = _rows(x, dim, index, source)
    return write_at(flat, where, "set", rows).reshape(x.shape)


@lower("aten::index_add")
def index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Any = 1) -> jax.Array:
    flat, where, rows = _rows(x, dim, index, source)
    if not (isinstance(alpha, int) and alpha == 1):
        dtype = dtypes.compute_dtype(x.dtype)
        rows = rows.astype(dtype) * registry.constant(alpha, dtype)
    return write_at(flat, where, "add", rows).reshape(x.shape)


_HOW = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "multiply",
    "multiply": "multiply",
    "amax": "max",
    "amin": "min",
}


def _identity(dtype: Any, how: str) -> Any:
    if how in ("add", "multiply"):
        return np.asarray(how == "multiply").astype(dtype)
    if dtype == np.bool_:
        return how == "min"
    if jnp.issubdtype(dtype, np.floating):
        return np.asarray(np.inf if how == "min" else -np.inf).astype(dtype)
    return jnp.iinfo(dtype).max if how == "min" else jnp.iinfo(dtype).min


def reduce_at(x: jax.Array, where: Selector, source: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    """x with `source` reduced into the positions `where` ("sum", "prod", "mean", "amax", "amin")."""
    how, dtype = _HOW[reduce], x.dtype
    result = x.astype(dtypes.compute_dtype(dtype))
    if not include_self:
        result = write_at(result, where, "set", jnp.asarray(_identity(result.dtype, how), result.dtype))
    result = write_at(result, where, how, source)
    if reduce == "mean":
        count = write_at(jnp.full(x.shape, int(include_self), np.int32), where, "add", np.int32(1))
        count = jnp.maximum(count, 1).astype(result.dtype)
        exact = jnp.issubdtype(result.dtype, np.inexact)
        result = result / count if exact else jnp.floor_divide(result, count)
    return result.astype(dtype)


@lower("aten::index_reduce")
def index_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, *, include_self: bool = True
) -> jax.Array:
    flat, where, rows = _rows(x, dim, index, source)
    return reduce_at(flat, where, rows, reduce, include_self).reshape(x.shape)


def _rank(mask: jax.Array) -> jax.Array:
    """The position of each element among the True ones of a flat mask; out of any range where False."""
    dtype = np.int32 if mask.size < 2**31 else np.int64
    return jnp.where(mask, jnp.cumsum(mask, dtype=dtype) - 1, np.iinfo(dtype).max)


@lower("aten::masked_scatter")
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    x, mask = jnp.broadcast_to(x, shape), jnp.broadcast_to(mask, shape)
    if source.size == 0:
        return x
    found = source.reshape(-1).at[_rank(mask.reshape(-1))].get(mode="clip")
    return jnp.where(mask, found.reshape(shape), x)


@lower("aten::masked_scatter_backward")
def masked_scatter_backward(grad: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    zeros = jnp.zeros(int(np.prod(sizes)), grad.dtype)
    return write_at(zeros, (_rank(mask),), "set", grad.reshape(-1)).reshape(sizes)


@lower("aten::nonzero_static")
def nonzero_static(x: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """The first `size` positions of non-zero elements, [size, x.ndim], filled up with `fill_value`."""
    rank = _rank(dtypes.cast(x, np.bool_).reshape(-1))
    columns = []
    for dim in range(x.ndim):
        positions = lax.broadcasted_iota(np.int64, x.shape, dim).reshape(-1)
        columns.append(write_at(jnp.full(size, fill_value, np.int64), (rank,), "set", positions))
    return jnp.stack(columns, axis=1) if columns else jnp.zeros((size, 0), np.int64)


# ---- embeddings


@lower("aten::embedding")
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    return take_at(weight, (indices,))


def _frequency(indices: jax.Array, rows: int, dtype: Any) -> jax.Array:
    """How often each element of `indices` occurs in it."""
    count = write_at(jnp.zeros(rows, np.int32), (indices,), "add", np.int32(1))
    return count.at[indices].get(mode="clip").astype(dtype)


@lower("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    dtype = dtypes.compute_dtype(grad.dtype)
    grad = grad.astype(dtype)
    if scale_grad_by_freq:
        grad = grad / _frequency(indices, num_weights, dtype)[..., None]
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, num_weights, indices)
    return write_at(jnp.zeros((num_weights, grad.shape[-1]), dtype), (indices,), "add", grad)


@lower("aten::embedding_renorm", static=("norm_type",))
def embedding_renorm(weight: jax.Array, indices: jax.Array, max_norm: Any, norm_type: float) -> jax.Array:
    dtype = dtypes.compute_dtype(weight.dtype)
    rows = take_at(weight, (indices,)).astype(dtype)
    norm = jnp.linalg.norm(rows, ord=norm_type, axis=-1, keepdims=True)
    rows = jnp.where(norm > max_norm, rows * (max_norm / (norm + 1e-7)), rows)
    return write_at(weight, (indices,), "set", rows.astype(weight.dtype))


_SUM, _MEAN, _MAX = 0, 1, 2  # modes of embedding_bag


@lower("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, ...]:
    """(output, the bag of each index, the size of each bag, for "max" the index that was taken)."""
    n, bags, dtype = indices.size, offsets.size - include_last_offset, dtypes.compute_dtype(weight.dtype)
    starts = write_at(jnp.zeros(n, np.int64), (offsets[:bags],), "add", np.int64(1))
    bag = jnp.cumsum(starts) - 1
    padding = (indices == padding_idx) if padding_idx >= 0 else jnp.zeros(n, bool)
    counted = jnp.where(padding, bags, bag)
    sized = jnp.where(padding, offsets.size, bag)
    size = write_at(jnp.zeros(offsets.size, np.int64), (sized,), "add", np.int64(1))
    rows = take_at(weight, (indices,)).astype(dtype)
    if mode == _MAX:
        output, taken = _bag_max(rows, indices, counted, bags)
        return output, bag, size, taken
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(dtype)[:, None]
    output = write_at(jnp.zeros((bags, weight.shape[1]), dtype), (counted,), "add", rows)
    if mode == _MEAN:
        output = output / jnp.maximum(size[:bags], 1)[:, None].astype(dtype)
    return output, bag, size, jnp.zeros(0, np.int64)


def _bag_max(rows: jax.Array, indices: jax.Array, bag: jax.Array, bags: int) -> tuple[jax.Array, jax.Array]:
    """The largest of each column per bag, and the index whose row had it first; 0 and 0 if empty."""
    n, columns = rows.shape
    best = write_at(jnp.full((bags, columns), -np.inf, rows.dtype), (bag,), "max", rows)
    is_best = rows == best.at[bag].get(mode="clip")
    place = jnp.where(is_best, jnp.arange(n)[:, None], n)
    first = write_at(jnp.full((bags, columns), n, np.int64), (bag,), "min", place)
    taken = indices.at[first].get(mode="fill", fill_value=0)
    return jnp.where(jnp.isneginf(best), 0, best), taken


@lower("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    dtype = dtypes.compute_dtype(grad.dtype)
    grad, zeros = grad.astype(dtype), jnp.zeros((num_weights, grad.shape[1]), dtype)
    if mode == _MAX:
        filled = bag_size[: grad.shape[0], None] > 0
        columns = lax.broadcasted_iota(np.int64, grad.shape, 1)
        return write_at(zeros, (jnp.where(filled, maximum_indices, num_weights), columns), "add", grad)
    rows = take_at(grad, (bag,))
    if mode == _MEAN:
        rows = rows / bag_size.at[bag].get(mode="clip")[:, None].astype(dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(dtype)[:, None]
    if scale_grad_by_freq:
        rows = rows / _frequency(indices, num_weights, dtype)[:, None]
    if padding_idx >= 0:
        indices = jnp.where(indices == padding_idx, num_weights, indices)
    return write_at(zeros, (indices,), "add", rows)


@lower("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    """Raises NotImplementedError for sparse=True."""
    if sparse:
        raise NotImplementedError("embedding_bag(): expected sparse to be False on this device, got True")
    how = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return embedding_bag_dense_backward(grad, indices, bag, bag_size, maximum_indices, *how)


@lower("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    dtype = dtypes.compute_dtype(grad.dtype)
    products = take_at(grad, (bag,)).astype(dtype) * take_at(weight, (indices,)).astype(dtype)
    of_index = jnp.sum(products, axis=1)
    return jnp.where(indices == padding_idx, 0, of_index) if padding_idx >= 0 else of_index
