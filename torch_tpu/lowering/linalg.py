"""Factorizations and solvers of batches of matrices.

`info` is 0 where a factorization succeeded and positive where not, as LAPACK says it. Pivots count from 1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering.registry import lower
from torch_tpu.runtime import client


def _adjoint(a: jax.Array) -> jax.Array:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _broadcast(a: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:]))


def _solve_triangular(
    a: jax.Array, b: jax.Array, *, upper: bool, left: bool = True, unit: bool = False, op: str = "n"
) -> jax.Array:
    """X with op(A) X = B (left) or X op(A) = B; op: n none, t transpose, c adjoint. Batches broadcast."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = _broadcast(a, batch), _broadcast(b, batch)
    if not a.size or not b.size:
        return jnp.zeros(b.shape, b.dtype)
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        transpose_a=op != "n",
        conjugate_a=op == "c",
        unit_diagonal=unit,
    )


# LU


def _lu(a: jax.Array, pivot: bool = True) -> tuple[jax.Array, jax.Array]:
    """The packed factors and int32 pivots, which count from 1."""
    m, n = a.shape[-2:]
    k = min(m, n)
    if not a.size:
        return a, jnp.broadcast_to(jnp.arange(1, k + 1, dtype=jnp.int32), (*a.shape[:-2], k))
    if pivot:
        packed, pivots, _ = lax.linalg.lu(a)
        return packed, pivots + 1
    return _lu_without_pivots(a), jnp.broadcast_to(jnp.arange(1, k + 1, dtype=jnp.int32), (*a.shape[:-2], k))


def _lu_without_pivots(a: jax.Array) -> jax.Array:
    rows, columns = jnp.arange(a.shape[-2])[:, None], jnp.arange(a.shape[-1])

    def step(i: Any, a: jax.Array) -> jax.Array:
        column = jnp.where(rows > i, lax.dynamic_slice_in_dim(a, i, 1, -1), 0)
        row = jnp.where(columns > i, lax.dynamic_slice_in_dim(a, i, 1, -2), 0)
        pivot = lax.dynamic_slice_in_dim(lax.dynamic_slice_in_dim(a, i, 1, -1), i, 1, -2)
        factor = column / pivot
        kept = jnp.where((rows > i) & (columns == i), factor, a)
        return kept - factor * row

    return lax.fori_loop(0, min(a.shape[-2:]), step, a)


def _unpack(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
    k = min(packed.shape[-2:])
    lower_ = jnp.tril(packed[..., :, :k], -1) + jnp.eye(packed.shape[-2], k, dtype=packed.dtype)
    return lower_, jnp.triu(packed[..., :k, :])


def _permutation(pivots: jax.Array, size: int) -> jax.Array:
    """(..., size): the row that lies at each place after the swaps."""
    identity = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*pivots.shape[:-1], size))

    def swap(i: Any, order: jax.Array) -> jax.Array:
        j = lax.dynamic_slice_in_dim(pivots, i, 1, -1) - 1
        here = lax.dynamic_slice_in_dim(order, i, 1, -1)
        there = jnp.take_along_axis(order, j, -1)
        places = jnp.arange(size)
        return jnp.where(places == i, there, jnp.where(places == j, here, order))

    return lax.fori_loop(0, pivots.shape[-1], swap, identity) if identity.size else identity


def _permutation_matrix(pivots: jax.Array, size: int, dtype: Any) -> jax.Array:
    """P with A = P L U."""
    order = _permutation(pivots, size)
    return (order[..., None, :] == jnp.arange(size)[:, None]).astype(dtype)


def _first_zero(packed: jax.Array) -> jax.Array:
    """LAPACK's info of an LU: the first zero on U's diagonal, counted from 1, or 0."""
    zero = jnp.diagonal(packed, axis1=-2, axis2=-1) == 0
    if not zero.shape[-1]:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(zero.any(-1), zero.argmax(-1) + 1, 0).astype(jnp.int32)


@lower("aten::linalg_lu_factor_ex")
def lu_factor(
    A: jax.Array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    packed, pivots = _lu(A, pivot)
    return packed, pivots, _first_zero(packed)


@lower("aten::linalg_lu")
def linalg_lu(A: jax.Array, *, pivot: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    packed, pivots = _lu(A, pivot)
    p = _permutation_matrix(pivots, A.shape[-2], A.dtype) if pivot else jnp.zeros(0, A.dtype)
    return p, *_unpack(packed)


@lower("aten::lu_unpack")
def lu_unpack(
    LU_data: jax.Array, LU_pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[jax.Array, ...]:
    nothing = jnp.zeros(0, LU_data.dtype)
    p = _permutation_matrix(LU_pivots, LU_data.shape[-2], LU_data.dtype) if unpack_pivots else nothing
    return p, *(_unpack(LU_data) if unpack_data else (nothing, nothing))


def _lu_solve(packed: jax.Array, pivots: jax.Array, b: jax.Array, adjoint: bool) -> jax.Array:
    """X with A X = B, or A^H X = B, from A's factors."""
    batch = jnp.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed, b = _broadcast(packed, batch), _broadcast(b, batch)
    order = _permutation(jnp.broadcast_to(pivots, (*batch, pivots.shape[-1])), packed.shape[-2])[..., None]
    if not adjoint:
        b = jnp.take_along_axis(b, order, -2)
        return _solve_triangular(packed, _solve_triangular(packed, b, upper=False, unit=True), upper=True)
    y = _solve_triangular(packed, b, upper=True, op="c")
    y = _solve_triangular(packed, y, upper=False, unit=True, op="c")
    return jnp.take_along_axis(y, jnp.argsort(order, -2), -2)


@lower("aten::linalg_lu_solve")
def linalg_lu_solve(
    LU: jax.Array, pivots: jax.Array, B: jax.Array, *, left: bool = True, adjoint: bool = False
) -> jax.Array:
    if left:
        return _lu_solve(LU, pivots, B, adjoint)
    return _adjoint(_lu_solve(LU, pivots, _adjoint(B), not adjoint))


@lower("aten::_linalg_solve_ex")
def linalg_solve(
    A: jax.Array, B: jax.Array, *, left: bool = True, check_errors: bool = False
) -> tuple[jax.Array, ...]:
    packed, pivots = _lu(A)
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    b = B[..., None] if vector else B
    x = linalg_lu_solve(packed, pivots, b, left=left or vector)
    return (x[..., 0] if vector else x), packed, pivots, _first_zero(packed)


@lower("aten::linalg_inv_ex")
def linalg_inv(A: jax.Array, *, check_errors: bool = False) -> tuple[jax.Array, jax.Array]:
    packed, pivots = _lu(A)
    eye = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return _lu_solve(packed, pivots, eye, False), _first_zero(packed)


def _swap_sign(pivots: jax.Array, dtype: Any) -> jax.Array:
    swaps = (pivots != jnp.arange(1, pivots.shape[-1] + 1)).sum(-1)
    return jnp.where(swaps % 2 == 1, -1, 1).astype(dtype)


def _determinant_lu(a: jax.Array, contiguous: bool) -> tuple[jax.Array, jax.Array]:
    """LU of the transpose of a contiguous real matrix, which PyTorch's gradient expects."""
    return _lu(jnp.swapaxes(a, -1, -2) if contiguous and not jnp.iscomplexobj(a) else a)


@lower("aten::_linalg_det")
def linalg_det(A: jax.Array, contiguous: bool = True) -> tuple[jax.Array, jax.Array, jax.Array]:
    packed, pivots = _determinant_lu(A, contiguous)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return diagonal.prod(-1) * _swap_sign(pivots, A.dtype), packed, pivots


@lower("aten::_linalg_slogdet")
def linalg_slogdet(
    A: jax.Array, contiguous: bool = True
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    packed, pivots = _determinant_lu(A, contiguous)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sign = jnp.sign(diagonal).prod(-1) * _swap_sign(pivots, A.dtype)
    return sign, jnp.log(jnp.abs(diagonal)).sum(-1), packed, pivots


# Cholesky


def _cholesky(a: jax.Array, upper: bool) -> jax.Array:
    """The factor; all NaN where a matrix is not positive-definite."""
    if not a.size:
        return a
    factor = lax.linalg.cholesky(_adjoint(a) if upper else a, symmetrize_input=False)
    return _adjoint(factor) if upper else factor


@lower("aten::linalg_cholesky_ex")
def linalg_cholesky(
    self: jax.Array, *, upper: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array]:
    factor = _cholesky(self, upper)
    failed = jnp.isnan(factor).any((-2, -1))
    return factor, failed.astype(jnp.int32)


@lower("aten::cholesky")
def cholesky(self: jax.Array, upper: bool = False) -> jax.Array:
    return _cholesky(self, upper)


def _cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool) -> jax.Array:
    first, second = ("c", "n") if upper else ("n", "c")
    y = _solve_triangular(factor, b, upper=upper, op=first)
    return _solve_triangular(factor, y, upper=upper, op=second)


@lower("aten::_cholesky_solve_helper")
def cholesky_solve(self: jax.Array, A: jax.Array, upper: bool) -> jax.Array:
    return _cholesky_solve(self, A, upper)


@lower("aten::cholesky_inverse")
def cholesky_inverse(self: jax.Array, upper: bool = False) -> jax.Array:
    eye = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    return _cholesky_solve(eye, self, upper)


# Triangular systems


@lower("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    self: jax.Array, B: jax.Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    return _solve_triangular(self, B, upper=upper, left=left, unit=unitriangular)


@lower("aten::triangular_solve")
def triangular_solve(
    self: jax.Array, A: jax.Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[jax.Array, jax.Array]:
    x = _solve_triangular(A, self, upper=upper, unit=unitriangular, op="t" if transpose else "n")
    return x, _broadcast(A, x.shape[:-2])


# Orthogonal factorizations


@lower("aten::linalg_qr")
def linalg_qr(A: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    m, n = A.shape[-2:]
    if mode == "r":
        r = jnp.linalg.qr(A, "r") if A.size else jnp.zeros((*A.shape[:-2], min(m, n), n), A.dtype)
        return jnp.zeros(0, A.dtype), r
    if not A.size:
        k = m if mode == "complete" else min(m, n)
        eye = jnp.broadcast_to(jnp.eye(m, k, dtype=A.dtype), (*A.shape[:-2], m, k))
        return eye, jnp.zeros((*A.shape[:-2], k, n), A.dtype)
    q, r = jnp.linalg.qr(A, mode)
    return q, r


@lower("aten::linalg_householder_product")
def householder_product(input: jax.Array, tau: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(input, tau) if input.size else input


@lower("aten::geqrf")
def geqrf(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    if not self.size:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
    packed, tau = jnp.linalg.qr(self, mode="raw")  # as NumPy, which gives the packed matrix transposed
    return jnp.swapaxes(packed, -1, -2), tau


@lower("aten::ormqr")
def ormqr(
    self: jax.Array, input2: jax.Array, input3: jax.Array, left: bool = True, transpose: bool = False
) -> jax.Array:
    """Q @ input3, or from the right, or with Q's adjoint; Q is the product of `self`'s reflectors."""
    if not self.size:
        return input3
    (rows, columns), count = self.shape[-2:], input2.shape[-1]
    reflectors = jnp.tril(self, -1) + jnp.eye(rows, columns, dtype=self.dtype)

    def reflect(i: Any, c: jax.Array) -> jax.Array:
        i = i if left == transpose else count - 1 - i
        v, tau = reflectors[..., :, i, None], input2[..., i, None, None]
        tau = jnp.conj(tau) if transpose else tau
        return c - (tau * v @ (_adjoint(v) @ c) if left else tau * (c @ v) @ _adjoint(v))

    return lax.fori_loop(0, count, reflect, input3)


@lower("aten::_linalg_svd")
def linalg_svd(
    A: jax.Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    if not compute_uv:
        empty = jnp.zeros(0, A.dtype)
        return empty, jnp.linalg.svd(A, compute_uv=False), empty
    return tuple(jnp.linalg.svd(A, full_matrices=full_matrices))


@lower("aten::_linalg_eigh")
def linalg_eigh(A: jax.Array, UPLO: str = "L", compute_v: bool = True) -> tuple[jax.Array, jax.Array]:
    a = A if UPLO == "L" else _adjoint(A)
    if not compute_v:
        return jnp.linalg.eigvalsh(a, symmetrize_input=False), jnp.zeros(0, A.dtype)
    values, vectors = jnp.linalg.eigh(a, symmetrize_input=False)
    return values, vectors


@lower("aten::linalg_pinv.atol_rtol_tensor")
def linalg_pinv(
    self: jax.Array,
    *,
    atol: jax.Array | None = None,
    rtol: jax.Array | None = None,
    hermitian: bool = False,
) -> jax.Array:
    """V 1/S U^H over the singular values above max(atol, rtol * the largest)."""
    if not self.size:
        return jnp.zeros((*self.shape[:-2], self.shape[-1], self.shape[-2]), self.dtype)
    if hermitian:
        values, v = linalg_eigh(self)
        u, size = v, jnp.abs(values)
    else:
        u, values, vh = jnp.linalg.svd(self, full_matrices=False)
        v, size = _adjoint(vh), values
    atol = jnp.zeros((), values.dtype) if atol is None else atol
    usual = jnp.finfo(values.dtype).eps * max(self.shape[-2:])
    rtol = jnp.where(atol > 0, 0, usual) if rtol is None else rtol
    bound = jnp.maximum(atol, rtol * size.max(-1))[..., None]
    inverse = jnp.where(size > bound, 1 / jnp.where(size > bound, values, 1), 0)
    return (v * inverse[..., None, :].astype(v.dtype)) @ _adjoint(u)


@lower("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: jax.Array) -> jax.Array:
    if not self.size:
        return self
    imaginary = jnp.issubdtype(self.dtype, jnp.complexfloating)
    wide: Any = np.complex128 if imaginary else np.float64  # the squarings lose digits
    if client.platform() == "tpu":  # complex128 aborts its compiler, LU factors are float32
        wide = np.complex64 if imaginary else np.float32
    return jax.scipy.linalg.expm(self.astype(wide))


@lower("aten::linalg_cross")
def linalg_cross(self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    a, b = jnp.broadcast_arrays(self, other)
    a1, a2 = jnp.roll(a, -1, dim), jnp.roll(a, -2, dim)
    b1, b2 = jnp.roll(b, -1, dim), jnp.roll(b, -2, dim)
    return a1 * b2 - a2 * b1
