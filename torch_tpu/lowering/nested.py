"""Jagged tensors [batch, *, ...] and padded ones: rows one after the other, or each at its place.

The rows of batch entry i are values[offsets[i]:offsets[i + 1]].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu.lowering.registry import lower


def _sole(op: str, offsets: Sequence[jax.Array]) -> jax.Array:
    if len(offsets) != 1 or offsets[0].ndim != 1:
        raise RuntimeError(f"{op}(): only one jagged dimension with 1-d offsets is supported")
    return offsets[0]


def _filled(values: jax.Array, there: jax.Array, padding: Any) -> jax.Array:
    """`values` where their row is `there`, else the padding."""
    mask = there.reshape(there.shape + (1,) * (values.ndim - there.ndim))
    return jnp.where(mask, values, jnp.asarray(padding, values.dtype))


@lower("aten::_jagged_to_padded_dense_forward")
def padded(
    values: jax.Array, offsets: Sequence[jax.Array], max_lengths: Sequence[int], padding_value: Any = 0.0
) -> jax.Array:
    """[rows, ...] -> [batch, max_length, ...]; longer entries are cut, as on the CPU."""
    starts = _sole("_jagged_to_padded_dense_forward", offsets)
    places = starts[:-1, None] + jnp.arange(max_lengths[0], dtype=starts.dtype)
    if values.size == 0:
        return jnp.full((*places.shape, *values.shape[1:]), padding_value, values.dtype)
    rows = jnp.take(values, places, axis=0, mode="clip")
    return _filled(rows, places < starts[1:, None], padding_value)


@lower("aten::_padded_dense_to_jagged_forward")
def jagged(dense: jax.Array, offsets: Sequence[jax.Array], total_L: int) -> jax.Array:
    """[batch, max_length, ...] -> [total_L, ...]; rows beyond max_length are zero, as on CUDA."""
    starts = _sole("_padded_dense_to_jagged_forward", offsets)
    rows = jnp.arange(total_L, dtype=starts.dtype)
    entry = jnp.searchsorted(starts, rows, side="right") - 1
    place = rows - starts[entry]
    if dense.size == 0:
        return jnp.zeros((total_L, *dense.shape[2:]), dense.dtype)
    return _filled(dense.at[entry, place].get(mode="clip"), place < dense.shape[1], 0)
