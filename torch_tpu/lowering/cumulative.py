"""Lowerings of scans along one dimension: running sums, products and extrema."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.lowering.pointwise import is_complex, is_floating, logaddexp
from torch_tpu.lowering.reductions import accumulating
from torch_tpu.lowering.registry import lower

Array = jax.Array


def _along(scan: Callable[..., Array], x: Array, dim: int) -> Array:
    """`scan` of `x` along `dim`; 0-d and empty arrays are their own scan."""
    return scan(x, axis=dim % x.ndim) if x.ndim and x.size else x


@lower("aten::cumsum")
def cumsum(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _along(lax.cumsum, accumulating(self, dtype), dim)


@lower("aten::cumprod")
def cumprod(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return _along(lax.cumprod, accumulating(self, dtype), dim)


@lower("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Array:
    x = accumulating(self)

    def scan(x: Array, axis: int) -> Array:
        combine = logaddexp if is_complex(x) else jnp.logaddexp
        return lax.associative_scan(combine, x, axis=axis)

    return _along(scan, x, dim)


def _with_index(scan: Callable[..., Array], self: Array, dim: int) -> tuple[Array, Array]:
    """Running extrema and where each was last reached; a NaN stays, at its latest index."""
    if not self.ndim or not self.size:
        return self, jnp.zeros(self.shape, jnp.int64)
    x = self.astype(jnp.uint8) if self.dtype == jnp.bool_ else self
    axis = dim % x.ndim
    values = scan(x, axis=axis)
    reached = x == values
    if is_floating(x):
        reached |= jnp.isnan(x)
    position = lax.broadcasted_iota(jnp.int64, x.shape, axis)
    return values, lax.cummax(jnp.where(reached, position, 0), axis=axis)


@lower("aten::cummax")
def cummax(self: Array, dim: int) -> tuple[Array, Array]:
    return _with_index(lax.cummax, self, dim)


@lower("aten::cummin")
def cummin(self: Array, dim: int) -> tuple[Array, Array]:
    return _with_index(lax.cummin, self, dim)
