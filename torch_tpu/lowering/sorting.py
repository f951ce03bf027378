"""Lowerings of sorting and of selection by rank. NaN counts as the largest value, as in PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower


def _key(x: jax.Array, descending: bool) -> jax.Array:
    """An int32 (for 64-bit dtypes int64) per element that orders as PyTorch orders x."""
    kind = x.dtype
    wide = np.dtype(np.int64 if kind.itemsize == 8 else np.int32)
    if jnp.issubdtype(kind, np.floating):
        if kind.itemsize < 4:
            x = x.astype(np.float32)
        x = jnp.where(jnp.isnan(x), np.nan, x + 0.0)  # one NaN, one zero
        bits = lax.bitcast_convert_type(x, wide)
        key = bits ^ ((bits >> (8 * wide.itemsize - 1)) & np.iinfo(wide).max)
    elif kind in (np.uint32, np.uint64):
        key = lax.bitcast_convert_type(x, wide) ^ np.iinfo(wide).min
    else:
        key = x.astype(wide)
    return ~key if descending else key


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
    rows = _last(x, dim)
    places = _top_places(rows, k, largest)
    values = pick(rows, places)
    if x.ndim == 0:
        return values[..., :k].reshape(()), places.reshape(())
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(places, -1, dim)


def _top_places(rows: jax.Array, k: int, largest: bool) -> jax.Array:
    exact_in_float32 = rows.dtype.itemsize <= 2 or rows.dtype == np.float32
    if not exact_in_float32:
        return order(rows, descending=largest)[..., :k]
    # XLA has a fast float32 top-k, in the total order: -NaN < -inf < ... < inf < NaN.
    rows = dtypes.cast(rows, np.float32)
    rows = jnp.where(jnp.isnan(rows), np.float32(np.nan), rows + 0.0)
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
