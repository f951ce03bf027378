"""Lowerings of reductions: sums, extrema, moments, norms and distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.pointwise import is_complex, is_floating, to_inexact, wide
from torch_tpu.lowering.registry import lower

Array = jax.Array


def axes_of(self: Array, dim: int | list[int] | None) -> tuple[int, ...]:
    """The axes that `dim` names, all of them for None and []; none for a 0-d array."""
    if self.ndim == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(self.ndim))
    return tuple(d % self.ndim for d in ([dim] if isinstance(dim, int) else dim))


def accumulating(self: Array, dtype: torch.dtype | None = None) -> Array:
    """`self` in `dtype`, as PyTorch adds it up: 16-bit floats in float32, integers in int64."""
    x = self if dtype is None else dtypes.cast(self, dtype)
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        return dtypes.cast(x, torch.int64)
    return wide(x)


# --- sums and products --------------------------------------------------------------------------


@lower("aten::sum")
def sum_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return sum_(self, None, False, dtype)


@lower("aten::sum.dim_IntList")
def sum_(
    self: Array, dim: list[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return jnp.sum(accumulating(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("aten::nansum")
def nansum(
    self: Array, dim: list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return sum_(jnp.where(jnp.isnan(self), 0, self), dim, keepdim, dtype)


@lower("aten::mean")
def mean_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return mean(self, None, False, dtype)


@lower("aten::mean.dim")
def mean(
    self: Array, dim: list[int] | None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    total = sum_(self, dim, keepdim, dtype)
    count = math.prod(self.shape[a] for a in axes_of(self, dim))
    return total / jnp.asarray(count, total.dtype)


@lower("aten::prod")
def prod_all(self: Array, dtype: torch.dtype | None = None) -> Array:
    return jnp.prod(accumulating(self, dtype))


@lower("aten::prod.dim_int")
def prod(self: Array, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None) -> Array:
    return jnp.prod(accumulating(self, dtype), axes_of(self, dim), keepdims=keepdim)


@lower("aten::trace")
def trace(self: Array) -> Array:
    return jnp.sum(jnp.diagonal(accumulating(self)))


@lower("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: int | list[int] | None = None) -> Array:
    return jnp.sum(self != 0, axes_of(self, dim), dtype=jnp.int64)


@lower("aten::hash_tensor")
def hash_tensor(self: Array, dim: list[int] | None = None, keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or of the elements' bits as float64 or int64."""
    wide_kind = torch.float64 if is_floating(self) else torch.int64
    bits = lax.bitcast_convert_type(dtypes.cast(self, wide_kind), jnp.uint64)
    result = lax.reduce_xor(bits, axes_of(self, dim))
    return jnp.expand_dims(result, axes_of(self, dim)) if keepdim else result


@lower("aten::all", "aten::_is_all_true")
def all_all(self: Array) -> Array:
    return jnp.all(self != 0)


@lower("aten::any", "aten::_is_any_true")
def any_all(self: Array) -> Array:
    return jnp.any(self != 0)


@lower("aten::all.dim", "aten::all.dims")
def all_(self: Array, dim: int | list[int] | None = None, keepdim: bool = False) -> Array:
    return jnp.all(self != 0, _listed(self, dim), keepdims=keepdim)


@lower("aten::any.dim", "aten::any.dims")
def any_(self: Array, dim: int | list[int] | None = None, keepdim: bool = False) -> Array:
    return jnp.any(self != 0, _listed(self, dim), keepdims=keepdim)


def _listed(self: Array, dim: int | list[int] | None) -> tuple[int, ...]:
    """Unlike the other reductions, all and any reduce nothing over an empty list."""
    return () if isinstance(dim, (list, tuple)) and not dim else axes_of(self, dim)


@lower("aten::logsumexp")
def logsumexp(self: Array, dim: list[int], keepdim: bool = False) -> Array:
    x, axes = _floating(self), axes_of(self, dim)
    if is_complex(x):
        high = jnp.max(x.real, axes, keepdims=True, initial=-jnp.inf)
    else:
        high = jnp.max(x, axes, keepdims=True, initial=-jnp.inf)
    high = jnp.where(jnp.isinf(high), 0, high)
    result = jnp.log(jnp.sum(jnp.exp(x - high), axes, keepdims=True)) + high
    return result if keepdim else jnp.squeeze(result, axes)


def _floating(self: Array) -> Array:
    return wide(to_inexact(self))


# --- extrema ------------------------------------------------------------------------------------


@lower("aten::amax")
def amax(self: Array, dim: list[int] | None = None, keepdim: bool = False) -> Array:
    return jnp.max(self, axes_of(self, dim), keepdims=keepdim)


@lower("aten::amin")
def amin(self: Array, dim: list[int] | None = None, keepdim: bool = False) -> Array:
    return jnp.min(self, axes_of(self, dim), keepdims=keepdim)


@lower("aten::max")
def max_all(self: Array) -> Array:
    return jnp.max(self)


@lower("aten::min")
def min_all(self: Array) -> Array:
    return jnp.min(self)


@lower("aten::aminmax", "aten::_aminmax", "aten::_aminmax.dim")
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    axes = axes_of(self, dim)
    return jnp.min(self, axes, keepdims=keepdim), jnp.max(self, axes, keepdims=keepdim)


def _arg(select: Callable[..., Array], self: Array, dim: int | None, keepdim: bool) -> Array:
    """Index of an extremum: the first of equal ones, and of the first NaN if there is one."""
    if self.ndim == 0:
        return jnp.zeros((), jnp.int64)
    if dim is None:
        flat = select(self.reshape(-1), axis=0)
        return (flat.reshape((1,) * self.ndim) if keepdim else flat).astype(jnp.int64)
    return select(self, axis=dim, keepdims=keepdim).astype(jnp.int64)


@lower("aten::argmax")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(jnp.argmax, self, dim, keepdim)


@lower("aten::argmin")
def argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(jnp.argmin, self, dim, keepdim)


@lower("aten::max.dim")
def max_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return jnp.max(self, axes_of(self, dim), keepdims=keepdim), argmax(self, dim, keepdim)


@lower("aten::min.dim")
def min_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return jnp.min(self, axes_of(self, dim), keepdims=keepdim), argmin(self, dim, keepdim)


# --- order statistics ---------------------------------------------------------------------------


def _select_sorted(
    self: Array, dim: int, keepdim: bool, rank: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """The elements at `rank(x)` of each sorted row (NaN last) and their indices, along `dim`."""
    x = jnp.atleast_1d(self)
    order = jnp.argsort(x, axis=dim, stable=True)
    index = jnp.take_along_axis(order, rank(x), axis=dim)
    value = jnp.take_along_axis(x, index, axis=dim)
    if not keepdim or self.ndim == 0:
        value, index = jnp.squeeze(value, dim), jnp.squeeze(index, dim)
    return value, index.astype(jnp.int64)


@lower("aten::median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower median; NaN, at its first index, where there is one."""

    def rank(x: Array) -> Array:
        last_number = jnp.sum(~jnp.isnan(x), dim, keepdims=True)
        middle = (x.shape[dim] - 1) // 2
        return jnp.where(last_number < x.shape[dim], last_number, middle)

    return _select_sorted(self, dim, keepdim, rank)


@lower("aten::nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower median of the numbers; NaN where there is none."""

    def rank(x: Array) -> Array:
        return jnp.maximum(jnp.sum(~jnp.isnan(x), dim, keepdims=True) - 1, 0) // 2

    return _select_sorted(self, dim, keepdim, rank)


def _of_all(by_dim: Callable[..., tuple[Array, Array]], self: Array) -> Array:
    if self.size == 0:
        return jnp.full((), math.nan if is_floating(self) else jnp.iinfo(self.dtype).min, self.dtype)
    return by_dim(self.reshape(-1), 0)[0]


@lower("aten::median")
def median(self: Array) -> Array:
    return _of_all(median_dim, self)


@lower("aten::nanmedian")
def nanmedian(self: Array) -> Array:
    return _of_all(nanmedian_dim, self)


@lower("aten::mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The most frequent element, the smallest of equally frequent ones, and the index of its last copy."""
    x = jnp.moveaxis(jnp.atleast_1d(self), dim, -1)
    order = jnp.argsort(x, axis=-1, stable=True)
    ordered = jnp.take_along_axis(x, order, axis=-1)
    position = jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape)
    starts = jnp.concatenate(
        [jnp.ones_like(x[..., :1], bool), ordered[..., 1:] != ordered[..., :-1]], axis=-1
    )
    run = position - lax.cummax(jnp.where(starts, position, 0), axis=x.ndim - 1)
    last = jnp.argmax(run, axis=-1, keepdims=True)
    value = jnp.moveaxis(jnp.take_along_axis(ordered, last, axis=-1), -1, dim)
    index = jnp.moveaxis(jnp.take_along_axis(order, last, axis=-1), -1, dim)
    if not keepdim or self.ndim == 0:
        value, index = jnp.squeeze(value, dim), jnp.squeeze(index, dim)
    return value, index.astype(jnp.int64)


# --- moments ------------------------------------------------------------------------------------


@lower("aten::var_mean.correction", static=("correction",))
def var_mean(
    self: Array, dim: list[int] | None = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    x, axes = accumulating(self), axes_of(self, dim)
    count = math.prod(self.shape[a] for a in axes)
    total = jnp.sum(x, axes, keepdims=True)
    center = total / jnp.asarray(count, total.real.dtype)
    squares = jnp.square(jnp.abs(x - center)) if is_complex(x) else jnp.square(x - center)
    freedom = max(0.0, count - (1 if correction is None else correction))
    variance = jnp.sum(squares, axes, keepdims=keepdim)
    return variance / jnp.asarray(freedom, variance.dtype), center if keepdim else jnp.squeeze(center, axes)


@lower("aten::var.correction", static=("correction",))
def var(self: Array, dim: list[int] | None = None, correction: Any = None, keepdim: bool = False) -> Array:
    return var_mean(self, dim, correction, keepdim)[0]


@lower("aten::std.correction", static=("correction",))
def std(self: Array, dim: list[int] | None = None, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.sqrt(var(self, dim, correction, keepdim))


@lower("aten::std_mean.correction", static=("correction",))
def std_mean(
    self: Array, dim: list[int] | None = None, correction: Any = None, keepdim: bool = False
) -> tuple[Array, Array]:
    variance, center = var_mean(self, dim, correction, keepdim)
    return jnp.sqrt(variance), center


# --- norms and distances ------------------------------------------------------------------------


def norm_over(x: Array, ord: float, axes: tuple[int, ...], keepdim: bool) -> Array:
    """The vector norm of order `ord` of real or complex `x`, in x's own precision."""
    size = jnp.abs(x)
    if ord == 0:
        return jnp.sum(size != 0, axes, keepdims=keepdim).astype(size.dtype)
    if math.isinf(ord):
        bound, reduce = (0.0, jnp.max) if ord > 0 else (math.inf, jnp.min)
        return reduce(size, axes, keepdims=keepdim, initial=bound)
    if ord == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if not axes:
        return size
    return _power_sum(size, ord, axes, keepdim) ** (1 / ord) if ord != 2 else jnp.sqrt(
        _power_sum(size, 2, axes, keepdim))  # fmt: skip


def _power_sum(size: Array, ord: float, axes: tuple[int, ...], keepdim: bool) -> Array:
    return jnp.sum(jnp.square(size) if ord == 2 else size**ord, axes, keepdims=keepdim)


@lower("aten::linalg_vector_norm", static=("ord",))
def vector_norm(
    self: Array,
    ord: Any = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Array:
    x = _floating(self if dtype is None else dtypes.cast(self, dtype))
    return norm_over(x, float(ord), axes_of(self, dim), keepdim)


@lower("aten::linalg__powsum", static=("ord",))
def powsum(
    self: Array,
    ord: Any = 2,
    dim: list[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Array:
    x = _floating(self if dtype is None else dtypes.cast(self, dtype))
    return _power_sum(jnp.abs(x), float(ord), axes_of(self, dim), keepdim)


@lower("aten::norm.Scalar", "aten::norm.ScalarOpt_dtype", "aten::native_norm", static=("p",))
def norm_all(self: Array, p: Any = 2, dtype: torch.dtype | None = None) -> Array:
    return vector_norm(self, 2 if p is None else p, None, False, dtype)


@lower("aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype",
       "aten::native_norm.ScalarOpt_dim_dtype", static=("p",))  # fmt: skip
def norm(
    self: Array, p: Any, dim: list[int], keepdim: bool = False, dtype: torch.dtype | None = None
) -> Array:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@lower("aten::dist", static=("p",))
def dist(self: Array, other: Array, p: Any = 2) -> Array:
    dtype = dtypes.compute_dtype(dtypes.result_type([self, other]))
    return vector_norm(dtypes.cast(self, dtype) - dtypes.cast(other, dtype), p)


@lower("aten::renorm", static=("p",))
def renorm(self: Array, p: Any, dim: int, maxnorm: Any) -> Array:
    """Scale the slices along `dim` whose p-norm exceeds `maxnorm` down to it."""
    x = _floating(self)
    axes = tuple(a for a in range(x.ndim) if a != dim % x.ndim)
    norms = norm_over(x, float(p), axes, True)
    return x * jnp.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1)


def _distances(x1: Array, x2: Array) -> Array:
    return x1[..., :, None, :] - x2[..., None, :, :]


@lower("aten::_euclidean_dist")
def euclidean_dist(x1: Array, x2: Array) -> Array:
    return cdist(x1, x2, 2.0, None)


@lower("aten::_cdist_forward", static=("p",))
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    """Distances between the rows of x1 [..., P, M] and x2 [..., R, M]: [..., P, R]."""
    return norm_over(_distances(_floating(x1), _floating(x2)), p, (-1,), False)


@lower("aten::_cdist_backward", static=("p",))
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    """The gradient for x1; where a distance is not smooth, the subgradient CPU gives."""
    difference = _distances(_floating(x1), _floating(x2))
    slope = _norm_slope(difference, _floating(cdist)[..., None], p)
    if difference.size == 0:  # else with the batch dimensions to which x1 was broadcast
        return jnp.zeros((), x1.dtype)
    return jnp.sum(_floating(grad)[..., None] * slope, axis=-2)


def _norm_slope(difference: Array, norm: Array, p: float) -> Array:
    """d norm / d difference."""
    size, direction = jnp.abs(difference), jnp.sign(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return direction
    if math.isinf(p):
        return direction * (size == norm)
    safe = jnp.where(norm == 0, 1, norm)
    if p == 2:
        return jnp.where(norm == 0, 0, difference / safe)
    power = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1))
    return jnp.where(norm == 0, 0, direction * power / safe ** (p - 1))


def _pairs(rows: int) -> tuple[Array, Array]:
    first, second = jnp.triu_indices(rows, 1)
    return first, second


@lower("aten::_pdist_forward", static=("p",))
def pdist(self: Array, p: float = 2.0) -> Array:
    """Distances between each two rows of self [N, M]: [N * (N - 1) / 2]."""
    first, second = _pairs(self.shape[0])
    return norm_over(self[first] - self[second], p, (-1,), False)


@lower("aten::_pdist_backward", static=("p",))
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    first, second = _pairs(self.shape[0])
    step = grad[:, None] * _norm_slope(self[first] - self[second], pdist[:, None], p)
    return jnp.zeros_like(self).at[first].add(step).at[second].add(-step)
