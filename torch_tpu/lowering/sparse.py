"""Lowerings of what sparse tensors need of dense ones; csrc/sparse.cpp has the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_tpu.lowering.registry import lower


@lower("aten::_convert_indices_from_coo_to_csr")
def rows_to_starts(self: jax.Array, size: int, *, out_int32: bool = False) -> jax.Array:
    """Of each row, where its elements start: sorted row numbers [nnz] -> [size + 1]."""
    kind = jnp.int32 if out_int32 else jnp.int64
    return jnp.searchsorted(self, jnp.arange(size + 1, dtype=self.dtype)).astype(kind)


@lower("aten::_convert_indices_from_csr_to_coo")
def starts_to_rows(
    crow_indices: jax.Array, col_indices: jax.Array, *, out_int32: bool = False, transpose: bool = False
) -> jax.Array:
    """Batch numbers, row and column of each element [batch dims + 2, all elements] from where rows start.

    `transpose`: column and row.
    """
    batch, count = col_indices.shape[:-1], col_indices.shape[-1]
    places = jnp.arange(count, dtype=crow_indices.dtype)
    starts = crow_indices.reshape(-1, crow_indices.shape[-1])
    rows = jax.vmap(lambda s: jnp.searchsorted(s, places, side="right") - 1)(starts).reshape(-1)
    numbers = jnp.indices((*batch, count)).reshape(len(batch) + 1, -1)[:-1]
    columns = col_indices.reshape(-1)
    pair = (columns, rows) if transpose else (rows, columns)
    return jnp.stack([*numbers, *pair]).astype(jnp.int32 if out_int32 else jnp.int64)
