"""Lowerings of ops that make tensors from numbers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Array = jax.Array


def _or_default(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype


# --- one value ----------------------------------------------------------------------------------


def _fill(size: Any, value: Any, dtype: torch.dtype | None) -> Array:
    number = jnp.asarray(value) if dtype is None else dtypes.cast(value, dtype)
    return jnp.broadcast_to(number, tuple(size))


@lower("aten::full")
def full(size: list[int], fill_value: Any, dtype: torch.dtype | None = None) -> Array:
    return _fill(size, fill_value, dtype)


@lower("aten::zeros")
def zeros(size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _fill(size, 0, _or_default(dtype))


@lower("aten::ones")
def ones(size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _fill(size, 1, _or_default(dtype))


@lower("aten::_efficientzerotensor")
def efficient_zeros(size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _fill(size, 0, _or_default(dtype))


@lower("aten::scalar_tensor")
def scalar_tensor(s: Any, dtype: torch.dtype | None = None) -> Array:
    return _fill((), s, _or_default(dtype))


def _like(self: Array, dtype: torch.dtype | None) -> torch.dtype:
    return dtypes.TORCH_DTYPE[np.dtype(self.dtype)] if dtype is None else dtype


@lower("aten::full_like")
def full_like(self: Array, fill_value: Any, dtype: torch.dtype | None = None) -> Array:
    return _fill(self.shape, fill_value, _like(self, dtype))


@lower("aten::zeros_like")
def zeros_like(self: Array, dtype: torch.dtype | None = None) -> Array:
    return _fill(self.shape, 0, _like(self, dtype))


@lower("aten::ones_like")
def ones_like(self: Array, dtype: torch.dtype | None = None) -> Array:
    return _fill(self.shape, 1, _like(self, dtype))


@lower("aten::new_full")
def new_full(self: Array, size: list[int], fill_value: Any, dtype: torch.dtype | None = None) -> Array:
    return _fill(size, fill_value, _like(self, dtype))


@lower("aten::new_zeros")
def new_zeros(self: Array, size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _fill(size, 0, _like(self, dtype))


@lower("aten::new_ones")
def new_ones(self: Array, size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _fill(size, 1, _like(self, dtype))


# --- ranges -------------------------------------------------------------------------------------


def _range_dtype(numbers: tuple[Any, ...], dtype: torch.dtype | None) -> np.dtype:
    if dtype is None:
        integral = all(isinstance(n, int) for n in numbers)
        dtype = torch.int64 if integral else torch.get_default_dtype()
    return dtypes.compute_dtype(dtype)


def _steps(start: Any, step: Any, count: int, dtype: np.dtype) -> Array:
    start, step = (dtypes.cast(n, dtype) for n in (start, step))
    return start + step * jax.lax.iota(dtype, count)


@lower("aten::arange", static=("end",))
def arange(end: Any, dtype: torch.dtype | None = None) -> Array:
    return arange_start_step(0, end, 1, dtype)


@lower("aten::arange.start", static=("start", "end"))
def arange_start(start: Any, end: Any, dtype: torch.dtype | None = None) -> Array:
    return arange_start_step(start, end, 1, dtype)


@lower("aten::arange.start_step", static=("start", "end", "step"))
def arange_start_step(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> Array:
    kind = _range_dtype((start, end, step), dtype)
    if kind.kind in "iu":  # PyTorch truncates the numbers, then counts
        start, end, step = int(start), int(end), int(step)
        return _steps(start, step, max(0, -((start - end) // step)), kind)
    return _steps(start, step, max(0, math.ceil((end - start) / step)), kind)


@lower("aten::range", static=("start", "end"))
def range_(start: Any, end: Any, dtype: torch.dtype | None = None) -> Array:
    return range_step(start, end, 1, dtype)


@lower("aten::range.step", static=("start", "end", "step"))
def range_step(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> Array:
    """Like arange, but `end` is included and the default dtype is a float one."""
    kind = dtypes.compute_dtype(_or_default(dtype))
    return _steps(start, step, math.floor((end - start) / step) + 1, kind)


_SPACE = [".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor", ""]


def _points(start: Any, end: Any, steps: int, kind: np.dtype) -> Array:
    """`steps` points from start to end, each counted from the nearer end as PyTorch does."""
    start, end = (dtypes.cast(n, kind) for n in (start, end))
    index = jax.lax.iota(kind, steps)
    step = (end - start) / max(steps - 1, 1)
    forward = jax.lax.iota(np.int32, steps) < steps // 2 if steps > 1 else True
    return jnp.where(forward, start + step * index, end - step * (steps - 1 - index))


def _space_kind(dtype: torch.dtype | None) -> np.dtype:
    dtype = _or_default(dtype)
    inexact = dtype.is_floating_point or dtype.is_complex
    return dtypes.compute_dtype(dtype) if inexact else np.dtype(np.float64)


@lower(*[f"aten::linspace{kind}" for kind in _SPACE])
def linspace(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None) -> Array:
    return _points(start, end, steps, _space_kind(dtype))


@lower(*[f"aten::logspace{kind}" for kind in _SPACE])
def logspace(start: Any, end: Any, steps: int, base: Any = 10.0, dtype: torch.dtype | None = None) -> Array:
    kind = _space_kind(dtype)
    return jnp.power(dtypes.cast(base, kind), _points(start, end, steps, kind))


# --- matrices and index lists -------------------------------------------------------------------


@lower("aten::eye")
def eye(n: int, dtype: torch.dtype | None = None) -> Array:
    return eye_m(n, n, dtype)


@lower("aten::eye.m")
def eye_m(n: int, m: int, dtype: torch.dtype | None = None) -> Array:
    return jnp.eye(n, m, dtype=dtypes.JAX_DTYPE[_or_default(dtype)])


@lower("aten::tril_indices")
def tril_indices(row: int, col: int, offset: int = 0) -> Array:
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lower("aten::triu_indices")
def triu_indices(row: int, col: int, offset: int = 0) -> Array:
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))


# --- windows and frequencies --------------------------------------------------------------------


def _phase(length: int, periodic: bool, dtype: torch.dtype | None) -> Array:
    """n / N for the samples of a window: N is the length, or one less when symmetric."""
    kind = dtypes.compute_dtype(_or_default(dtype))
    return jax.lax.iota(kind, length) / (length if periodic else length - 1)


def _cosines(phase: Array, *weights: Any) -> Array:
    """Sum of (-1)^k weights[k] cos(2 pi k phase); a window of one sample is 1."""
    if phase.size == 1:
        return jnp.ones_like(phase)
    return sum((-1) ** k * w * jnp.cos(2 * math.pi * k * phase) for k, w in enumerate(weights))


@lower("aten::hann_window", "aten::hann_window.periodic")
def hann_window(window_length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Array:
    return _cosines(_phase(window_length, periodic, dtype), 0.5, 0.5)


@lower(*[f"aten::hamming_window{kind}" for kind in
         ("", ".periodic", ".periodic_alpha", ".periodic_alpha_beta")])  # fmt: skip
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: Any = 0.54,
    beta: Any = 0.46,
    dtype: torch.dtype | None = None,
) -> Array:
    return _cosines(_phase(window_length, periodic, dtype), alpha, beta)


@lower("aten::blackman_window", "aten::blackman_window.periodic")
def blackman_window(window_length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Array:
    return jnp.abs(_cosines(_phase(window_length, periodic, dtype), 0.42, 0.5, 0.08))


@lower("aten::bartlett_window", "aten::bartlett_window.periodic")
def bartlett_window(window_length: int, periodic: bool = True, dtype: torch.dtype | None = None) -> Array:
    phase = _phase(window_length, periodic, dtype)
    return jnp.ones_like(phase) if phase.size == 1 else 1 - jnp.abs(2 * phase - 1)


@lower("aten::kaiser_window", "aten::kaiser_window.periodic", "aten::kaiser_window.beta")
def kaiser_window(
    window_length: int, periodic: bool = True, beta: Any = 12.0, dtype: torch.dtype | None = None
) -> Array:
    phase = _phase(window_length, periodic, dtype)
    if phase.size == 1:
        return jnp.ones_like(phase)
    inside = jnp.maximum(1 - (2 * phase - 1) ** 2, 0)
    return jnp.i0(beta * jnp.sqrt(inside)) / jnp.i0(dtypes.cast(beta, phase.dtype))


@lower("aten::fft_fftfreq")
def fftfreq(n: int, d: Any = 1.0, dtype: torch.dtype | None = None) -> Array:
    index = np.concatenate([np.arange((n + 1) // 2), np.arange(-(n // 2), 0)])
    return dtypes.cast(index, dtypes.compute_dtype(_or_default(dtype))) / (n * d)


@lower("aten::fft_rfftfreq")
def rfftfreq(n: int, d: Any = 1.0, dtype: torch.dtype | None = None) -> Array:
    return dtypes.cast(np.arange(n // 2 + 1), dtypes.compute_dtype(_or_default(dtype))) / (n * d)
