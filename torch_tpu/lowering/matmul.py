"""Matrix and vector products. 16-bit floats accumulate in float32, integers wrap in their own dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower


def product(equation: str, a: jax.Array, b: jax.Array, dtype: Any = None) -> jax.Array:
    """`einsum` of two arrays of one dtype, accumulated and returned in `dtype` or PyTorch's compute dtype."""
    target = dtypes.JAX_DTYPE[dtype] if dtype is not None else dtypes.compute_dtype(a.dtype)
    return jnp.einsum(equation, a, b, preferred_element_type=target)


def plus(base: jax.Array, value: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """`beta * base + alpha * value`, where beta == 0 hides NaN and infinity in `base`.

    Integers take the integer part of beta and alpha.
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        beta, alpha = dtypes.cast(beta, value.dtype), dtypes.cast(alpha, value.dtype)
    scaled = jnp.where(beta == 0, 0, beta * base.astype(value.dtype))
    return scaled + alpha * value


@lower("aten::mm")
def mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return product("ij,jk->ik", self, mat2)


@lower("aten::mm.dtype")
def mm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    return product("ij,jk->ik", self, mat2, out_dtype)


@lower("aten::bmm")
def bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    return product("bij,bjk->bik", self, mat2)


@lower("aten::bmm.dtype")
def bmm_dtype(self: jax.Array, mat2: jax.Array, out_dtype: Any) -> jax.Array:
    return product("bij,bjk->bik", self, mat2, out_dtype)


@lower("aten::mv")
def mv(self: jax.Array, vec: jax.Array) -> jax.Array:
    return product("ij,j->i", self, vec)


@lower("aten::dot")
def dot(self: jax.Array, tensor: jax.Array) -> jax.Array:
    return product("i,i->", self, tensor)


@lower("aten::vdot")
def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    return product("i,i->", jnp.conj(self), other)


@lower("aten::addmm")
def addmm(self: jax.Array, mat1: jax.Array, mat2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return plus(self, mm(mat1, mat2), beta, alpha)


@lower("aten::addmm.dtype")
def addmm_dtype(
    self: jax.Array, mat1: jax.Array, mat2: jax.Array, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return plus(self, mm_dtype(mat1, mat2, out_dtype), beta, alpha)


@lower("aten::_addmm_activation")
def addmm_activation(
    self: jax.Array,
    mat1: jax.Array,
    mat2: jax.Array,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    use_gelu: bool = False,
) -> jax.Array:
    value = plus(self, mm(mat1, mat2), beta, alpha)
    return jax.nn.gelu(value, approximate=False) if use_gelu else jax.nn.relu(value)


@lower("aten::baddbmm")
def baddbmm(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return plus(self, bmm(batch1, batch2), beta, alpha)


@lower("aten::baddbmm.dtype")
def baddbmm_dtype(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, out_dtype: Any, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return plus(self, bmm_dtype(batch1, batch2, out_dtype), beta, alpha)


@lower("aten::addbmm")
def addbmm(
    self: jax.Array, batch1: jax.Array, batch2: jax.Array, *, beta: Any = 1, alpha: Any = 1
) -> jax.Array:
    return plus(self, product("bij,bjk->ik", batch1, batch2), beta, alpha)


@lower("aten::addmv")
def addmv(self: jax.Array, mat: jax.Array, vec: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    return plus(self, mv(mat, vec), beta, alpha)


@lower("aten::addr", promote="default")
def addr(self: jax.Array, vec1: jax.Array, vec2: jax.Array, *, beta: Any = 1, alpha: Any = 1) -> jax.Array:
    if self.dtype == jnp.bool_:
        return (self & (beta != 0)) | (vec1[:, None] & vec2 & (alpha != 0))
    return plus(self, vec1[:, None] * vec2, beta, alpha)


@lower("aten::_trilinear")
def trilinear(
    i1: jax.Array,
    i2: jax.Array,
    i3: jax.Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> jax.Array:
    """The product of the three, each with new dimensions at its `expand`, summed over `sumdim`."""
    a, b, c = (jnp.expand_dims(x, tuple(at)) for x, at in ((i1, expand1), (i2, expand2), (i3, expand3)))
    rank = range(a.ndim)
    return jnp.einsum(a, [*rank], b, [*rank], c, [*rank], [d for d in rank if d not in sumdim])
