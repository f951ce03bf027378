"""Torch dtypes, their JAX counterparts, and PyTorch's type promotion over JAX arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

#: dtypes on which XLA can compute.
JAX_DTYPE: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
TORCH_DTYPE: dict[np.dtype, torch.dtype] = {v: k for k, v in JAX_DTYPE.items()}
_RAW: dict[int, np.dtype] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def storage_dtype(dtype: torch.dtype) -> np.dtype:
    """The JAX dtype of a Value of `dtype`; raw bits for dtypes XLA does not compute on."""
    known = JAX_DTYPE.get(dtype)
    return _RAW[dtype.itemsize] if known is None else known


def is_number(x: Any) -> bool:
    """True for a Python number and for a run-time one (a weakly typed 0-d array)."""
    if isinstance(x, (bool, int, float, complex)):
        return True
    return isinstance(x, jax.Array) and x.weak_type and x.ndim == 0


def _category(dtype: torch.dtype) -> int:
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def _number_dtype(x: Any) -> torch.dtype:
    kind = np.result_type(x.dtype if isinstance(x, jax.Array) else type(x)).kind
    if kind == "c":
        wide = torch.get_default_dtype() is torch.float64
        return torch.complex128 if wide else torch.complex64
    return {"b": torch.bool, "f": torch.get_default_dtype()}.get(kind, torch.int64)


def result_type(args: Iterable[Any]) -> torch.dtype:
    """`torch.result_type` of arrays and numbers: tensors outrank 0-d tensors outrank numbers."""
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in args:
        if x is None:
            continue
        if is_number(x):
            rank, own = 2, _number_dtype(x)
        else:
            rank, own = (0 if x.ndim else 1), TORCH_DTYPE[np.dtype(x.dtype)]
        old = ranks[rank]
        ranks[rank] = own if old is None else torch.promote_types(old, own)
    result: torch.dtype | None = None
    for dtype in ranks:
        if dtype is not None and (result is None or _category(dtype) > _category(result)):
            result = dtype if result is None else _widen(result, dtype)
    if result is None:
        raise TypeError("result_type(): expected at least one array or number")
    return result


def _widen(high: torch.dtype, low: torch.dtype) -> torch.dtype:
    # A lower rank raises only the category; complex keeps the width of a floating tensor.
    if low.is_complex and high.is_floating_point:
        return torch.promote_types(high, torch.complex32 if high is torch.float16 else torch.complex64)
    return low


def compute_dtype(dtype: torch.dtype | np.dtype | Any) -> np.dtype:
    """The dtype PyTorch accumulates in: float32 for the 8- and 16-bit floats, else itself."""
    torch_dtype = dtype if isinstance(dtype, torch.dtype) else TORCH_DTYPE[np.dtype(dtype)]
    if torch_dtype is torch.complex32:
        return np.dtype(np.complex64)
    if torch_dtype.is_floating_point and torch_dtype.itemsize < 4:
        return np.dtype(np.float32)
    return JAX_DTYPE[torch_dtype]


def cast(x: Any, dtype: torch.dtype | np.dtype | Any) -> jax.Array:
    """`x.to(dtype)` with PyTorch's rules: complex to real drops the imaginary part, x != 0 is bool."""
    target = JAX_DTYPE[dtype] if isinstance(dtype, torch.dtype) else np.dtype(dtype)
    x = jnp.asarray(np.uint64(x) if isinstance(x, int) and x >= 1 << 63 else x)
    if x.dtype == target and not x.weak_type:
        return x
    if target == np.bool_:
        return x != 0
    if x.dtype == np.bool_ and jnp.issubdtype(target, jnp.inexact):
        # Not a convert: XLA takes `a * convert(p)` for a select, so that inf * False were 0.
        x = jnp.where(x, np.int8(1), np.int8(0))
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(target, jnp.complexfloating):
        x = jnp.real(x)
    if jnp.issubdtype(x.dtype, jnp.floating) and np.issubdtype(target, np.integer) and target.itemsize < 4:
        x = jax.lax.convert_element_type(x, np.int32)  # wraps, as the CPU; XLA's conversion saturates
    return jax.lax.convert_element_type(x, target)
