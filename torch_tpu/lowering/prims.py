"""Lowerings of what occurs only in graphs: the prims of PyTorch's references, and `empty`."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry
from torch_tpu.lowering.registry import lower


def _named(names: str, pattern: str = "{}") -> dict[str, str]:
    return {name: pattern.format(name) for name in names.split()}


#: Prims that are an ATen op with stricter rules about dtypes and shapes, by that op's name.
_ATEN: dict[str, str] = {
    **_named("abs acos acosh as_strided as_strided_scatter asin asinh atan atan2 atanh bitwise_not cat ceil"),
    **_named(
        "clone conj_physical cos cosh digamma erf erfc exp exp2 expm1 floor fmax fmin full full_like gcd"
    ),
    **_named("hypot igamma igammac lgamma log log10 log1p log2 maximum minimum neg nextafter reciprocal"),
    **_named("round rsqrt scalar_tensor sign signbit sin sinh sqrt tan tanh trunc"),
    **_named(
        "add bitwise_and bitwise_or bitwise_xor eq fmod frexp ge gt le lt mul ne remainder", "{}.Tensor"
    ),
    **_named("sub", "{}.Tensor"),
    **_named("bessel_j0 bessel_j1 erfcx ndtri spherical_bessel_j0 zeta", "special_{}"),
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "erf_inv": "erfinv",
    "fill": "fill.Scalar",
    "pow": "pow.Tensor_Tensor",
    "reshape": "view",
    "rev": "flip",
    "shift_left": "bitwise_left_shift.Tensor",
    "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "squeeze": "squeeze.dims",
    "transpose": "permute",
    "view_of_dtype": "view.dtype",
    "where": "where.self",
}


def _as_aten(name: str, *args: Any, **kwargs: Any) -> Any:
    lowering = registry.find(f"aten::{name}")
    if lowering is None:
        raise NotImplementedError(f"aten::{name} has no lowering")
    return registry.call(lowering, list(args), kwargs)


for _prim, _name in _ATEN.items():
    lower(f"prims::{_prim}")(functools.partial(_as_aten, _name))


@lower("prims::copy_strided", "prims::device_put", "prims::view_of")
def identity(x: jax.Array, *where: Any) -> jax.Array:
    return x


@lower("prims::convert_element_type")
def convert_element_type(x: jax.Array, dtype: torch.dtype) -> jax.Array:
    return dtypes.cast(x, dtype)


@lower("prims::div")
def div(x: jax.Array, y: jax.Array) -> jax.Array:
    return x / y if jnp.issubdtype(x.dtype, jnp.inexact) else lax.div(x, y)


@lower("prims::cbrt")
def cbrt(x: jax.Array) -> jax.Array:
    return jnp.cbrt(x)


@lower("prims::isfinite")
def isfinite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x)


@lower("prims::conj")
def conj(x: jax.Array) -> jax.Array:
    return jnp.conj(x)


@lower("prims::real")
def real(x: jax.Array) -> jax.Array:
    return jnp.real(x)


@lower("prims::imag")
def imag(x: jax.Array) -> jax.Array:
    return jnp.imag(x)


@lower("prims::broadcast_in_dim")
def broadcast_in_dim(x: jax.Array, shape: list[int], broadcast_dimensions: list[int]) -> jax.Array:
    return lax.broadcast_in_dim(x, shape, broadcast_dimensions)


@lower("prims::collapse", "prims::collapse_view")
def collapse(x: jax.Array, start: int, end: int) -> jax.Array:
    """Dimensions start to end, both included, as one."""
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


@lower("prims::split_dim")
def split_dim(x: jax.Array, dim: int, outer_length: int) -> jax.Array:
    return x.reshape(*x.shape[:dim], outer_length, x.shape[dim] // outer_length, *x.shape[dim + 1 :])


@lower("prims::empty", "prims::empty_permuted", "prims::empty_strided")
def empty(shape: list[int], *order: Any, dtype: torch.dtype, requires_grad: bool) -> jax.Array:
    return jnp.zeros(shape, dtypes.storage_dtype(dtype))


@lower("aten::empty.memory_format", "aten::empty_permuted", "aten::empty_strided")
def aten_empty(size: list[int], *order: Any, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.zeros(size, dtypes.storage_dtype(dtype or torch.get_default_dtype()))


@lower("aten::empty_like")
def empty_like(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


@lower("aten::new_empty", "aten::new_empty_strided")
def new_empty(x: jax.Array, size: list[int], *order: Any) -> jax.Array:
    return jnp.zeros(size, x.dtype)


@lower("prims::iota")
def iota(length: int, *, start: int, step: int, dtype: torch.dtype, requires_grad: bool) -> jax.Array:
    return dtypes.cast(jnp.arange(length, dtype=np.int64) * step + start, dtype)


def _reduced(name: str, x: jax.Array, dims: list[int], *, output_dtype: Any = None) -> jax.Array:
    return _as_aten(name, x, dims)


for _prim, _name in {"amax": "amax", "amin": "amin", "sum": "sum.dim_IntList"}.items():
    lower(f"prims::{_prim}")(functools.partial(_reduced, _name))


@lower("prims::var")
def var(x: jax.Array, dims: list[int], correction: Any = 1, *, output_dtype: Any = None) -> jax.Array:
    return _as_aten("var.correction", x, dims, correction=correction)


@lower("prims::prod")
def prod(x: jax.Array, dims: list[int], *, output_dtype: Any = None) -> jax.Array:
    return jnp.prod(x, tuple(dims))


@lower("prims::xor_sum")
def xor_sum(x: jax.Array, dims: list[int], *, output_dtype: Any = None) -> jax.Array:
    return lax.reduce(x, np.zeros((), x.dtype), lax.bitwise_xor, tuple(dims))
