"""Lowerings of Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_tpu.lowering.registry import lower

_BY_ROOT, _BY_SIZE = 1, 2  # PyTorch's numbers for "divided by the root of the size", "by the size"


def _scaled(x: jax.Array, size: int, normalization: int) -> jax.Array:
    if normalization == _BY_ROOT:
        return x / math.sqrt(size)
    return x / size if normalization == _BY_SIZE else x


def _size(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


def _complex(x: jax.Array, dims: Sequence[int], forward: bool) -> jax.Array:
    for dim in dims:
        x = jnp.fft.fft(x, axis=dim) if forward else jnp.fft.ifft(x, axis=dim, norm="forward")
    return x


@lower("aten::_fft_c2c")
def fft_c2c(x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    return _scaled(_complex(x, dim, forward), _size(x.shape, dim), normalization)


@lower("aten::_fft_r2c")
def fft_r2c(x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    """The last of `dim` is halved if onesided."""
    size = _size(x.shape, dim)
    if onesided:
        return _scaled(_complex(jnp.fft.rfft(x, axis=dim[-1]), dim[:-1], True), size, normalization)
    return _scaled(_complex(x, dim, True), size, normalization)


@lower("aten::_fft_c2r")
def fft_c2r(x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    """The last of `dim` is a half, and becomes `last_dim_size` long."""
    size = _size(x.shape, dim[:-1]) * last_dim_size
    x = _complex(x, dim[:-1], False)
    return _scaled(jnp.fft.irfft(x, n=last_dim_size, axis=dim[-1], norm="forward"), size, normalization)
