"""Layer, group, batch, RMS and weight norms. Statistics are float32 for 16-bit floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Optional = jax.Array | None

#: Ops that write arguments their schema does not mark. Their lowerings return the declared outputs
#: and then the new values of these arguments, None where the argument is None or keeps its value.
SILENT_WRITES: dict[str, tuple[str, ...]] = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
}


def _up(x: Any) -> Any:
    return x if x is None else x.astype(dtypes.compute_dtype(x.dtype))


def _moments(x: jax.Array, dims: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    mean = x.mean(dims, keepdims=True)
    return mean, lax.square(x - mean).mean(dims, keepdims=True)


def _affine(x: jax.Array, weight: Optional, bias: Optional) -> jax.Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _input_gradient(g: jax.Array, x_hat: jax.Array, rstd: jax.Array, dims: Sequence[int]) -> jax.Array:
    """The gradient of `(x - mean) * rstd` by x, where g is the gradient of its result x_hat."""
    correlation = (g * x_hat).mean(dims, keepdims=True)
    return (g - g.mean(dims, keepdims=True) - x_hat * correlation) * rstd


# Layer norm


@lower("aten::native_layer_norm")
def native_layer_norm(
    input: jax.Array, normalized_shape: Sequence[int], weight: Optional, bias: Optional, eps: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = _up(input)
    mean, var = _moments(x, _trailing(x, normalized_shape))
    rstd = lax.rsqrt(var + eps)
    return _affine((x - mean) * rstd, _up(weight), _up(bias)), mean, rstd


def _trailing(x: jax.Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


@lower("aten::native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: Optional,
    bias: Optional,
    output_mask: Sequence[bool],
) -> tuple[Optional, Optional, Optional]:
    x, g, mean, rstd = _up(input), _up(grad_out), _up(mean), _up(rstd)
    inner = _trailing(x, normalized_shape)
    outer = tuple(range(inner[0])) if inner else tuple(range(x.ndim))
    x_hat = (x - mean) * rstd
    scaled = g if weight is None else g * _up(weight)
    return (
        _input_gradient(scaled, x_hat, rstd, inner) if output_mask[0] else None,
        (g * x_hat).sum(outer) if output_mask[1] else None,
        g.sum(outer) if output_mask[2] else None,
    )


# RMS norm


@lower("aten::_fused_rms_norm")
def fused_rms_norm(
    input: jax.Array, normalized_shape: Sequence[int], weight: Optional, eps: Any
) -> tuple[jax.Array, jax.Array]:
    x = _up(input)
    eps = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = lax.rsqrt(lax.square(x).mean(_trailing(x, normalized_shape), keepdims=True) + eps)
    return _affine(x * rstd, _up(weight), None), rstd


@lower("aten::_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    normalized_shape: Sequence[int],
    rstd: jax.Array,
    weight: Optional,
    output_mask: Sequence[bool],
) -> tuple[Optional, Optional]:
    x, g, rstd = _up(input), _up(grad_out), _up(rstd)
    inner = _trailing(x, normalized_shape)
    x_hat = x * rstd
    scaled = g if weight is None else g * _up(weight)
    correlation = (scaled * x_hat).mean(inner, keepdims=True)
    return (
        (scaled - x_hat * correlation) * rstd if output_mask[0] else None,
        (g * x_hat).sum(tuple(range(inner[0]))) if output_mask[1] else None,
    )


# Group norm


@lower("aten::native_group_norm")
def native_group_norm(
    input: jax.Array, weight: Optional, bias: Optional, N: int, C: int, HxW: int, group: int, eps: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = _up(input).reshape(N, group, C // group, HxW)
    mean, var = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + eps)
    per_channel = [a if a is None else _up(a).reshape(group, C // group, 1) for a in (weight, bias)]
    out = _affine((x - mean) * rstd, *per_channel).reshape(input.shape)
    return out, mean.reshape(N, group), rstd.reshape(N, group)


@lower("aten::native_group_norm_backward")
def native_group_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Optional,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Optional, Optional, Optional]:
    x, g = (_up(a).reshape(N, group, C // group, HxW) for a in (input, grad_out))
    mean, rstd = (_up(a).reshape(N, group, 1, 1) for a in (mean, rstd))
    x_hat = (x - mean) * rstd
    scaled = g if weight is None else g * _up(weight).reshape(group, C // group, 1)
    return (
        _input_gradient(scaled, x_hat, rstd, (2, 3)).reshape(input.shape) if output_mask[0] else None,
        (g * x_hat).sum((0, 3)).reshape(C) if output_mask[1] else None,
        g.sum((0, 3)).reshape(C) if output_mask[2] else None,
    )


# Batch norm: per-channel arrays are (C,), channels are dimension 1.


def _channels(value: jax.Array, x: jax.Array) -> jax.Array:
    """(C,) shaped to broadcast over x."""
    return _up(value).reshape(-1, *(1,) * (x.ndim - 2))


def _normalize(
    x: jax.Array, weight: Optional, bias: Optional, mean: jax.Array, invstd: jax.Array
) -> jax.Array:
    weight, bias = (a if a is None else _channels(a, x) for a in (weight, bias))
    return _affine((x - _channels(mean, x)) * _channels(invstd, x), weight, bias)


def _not_channels(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _running(old: Optional, new: jax.Array, momentum: Any) -> Optional:
    return old if old is None else momentum * new + (1 - momentum) * _up(old)


def _unbiased(var: jax.Array, count: Any) -> jax.Array:
    return var * (count / (count - 1))


def _statistics(x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    """Mean and biased variance per channel, and over how many elements."""
    mean, var = _moments(x, _not_channels(x))
    return mean.reshape(-1), var.reshape(-1), x.size // max(x.shape[1], 1)


@lower("aten::_native_batch_norm_legit_functional")
def batch_norm_functional(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Optional, ...]:
    """Output, the mean and 1 / std that were used, and the new running mean and variance."""
    x = _up(input)
    if training:
        mean, var, count = _statistics(x)
        running_mean = _running(running_mean, mean, momentum)
        running_var = _running(running_var, _unbiased(var, count), momentum)
    else:
        assert running_mean is not None and running_var is not None
        mean, var = _up(running_mean), _up(running_var)
    invstd = lax.rsqrt(var + eps)
    return _normalize(x, weight, bias, mean, invstd), mean, invstd, running_mean, running_var


@lower("aten::native_batch_norm")
def native_batch_norm(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Optional, ...]:
    """The three declared outputs, then the arguments it writes (see SILENT_WRITES)."""
    result = batch_norm_functional(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return result if training else (*result[:3], None, None)


@lower("aten::_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    mean: jax.Array,
    var: jax.Array,
    momentum: Any,
    eps: Any,
) -> tuple[Optional, ...]:
    return batch_norm_functional(input, weight, bias, mean, var, False, momentum, eps)[:3]


@lower("aten::_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: jax.Array, weight: Optional, bias: Optional, training: bool, momentum: Any, eps: Any
) -> tuple[Optional, ...]:
    return batch_norm_functional(input, weight, bias, None, None, training, momentum, eps)[:3]


@lower("aten::_batch_norm_with_update_functional")
def batch_norm_with_update(
    input: jax.Array,
    weight: Optional,
    bias: Optional,
    mean: jax.Array,
    var: jax.Array,
    momentum: Any,
    eps: Any,
) -> tuple[Optional, ...]:
    result = batch_norm_functional(input, weight, bias, mean, var, True, momentum, eps)
    return (*result[:3], jnp.zeros(0, jnp.uint8), *result[3:])


@lower("aten::_batch_norm_no_update")
def batch_norm_no_update(
    input: jax.Array, weight: Optional, bias: Optional, mean: Optional, var: Optional, momentum: Any, eps: Any
) -> tuple[Optional, ...]:
    result = batch_norm_functional(input, weight, bias, mean, var, False, momentum, eps)
    return (*result[:3], jnp.zeros(0, jnp.uint8))


@lower("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: jax.Array,
    input: jax.Array,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_invstd: Optional,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> tuple[Optional, ...]:
    x, g, dims = _up(input), _up(grad_out), _not_channels(input)
    mean = save_mean if train else running_mean
    invstd = save_invstd if train else lax.rsqrt(_up(running_var) + eps)
    assert mean is not None and invstd is not None
    scale = _channels(invstd, x)
    x_hat = (x - _channels(mean, x)) * scale
    scaled = g if weight is None else g * _channels(weight, x)
    by_input = _input_gradient(scaled, x_hat, scale, dims) if train else scaled * scale
    results = (by_input, (g * x_hat).sum(dims), g.sum(dims))
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask, strict=True))


@lower("aten::batch_norm_backward")
def batch_norm_backward(*args: Any) -> tuple[Optional, ...]:
    return native_batch_norm_backward(*args[:10])


# The pieces of a synchronised batch norm. PyTorch has no meta kernels for them: dtypes here are final.


@lower("aten::batch_norm_stats")
def batch_norm_stats(input: jax.Array, eps: Any) -> tuple[jax.Array, jax.Array]:
    mean, var, _ = _statistics(_up(input))
    return mean, lax.rsqrt(var + eps)


@lower("aten::batch_norm_update_stats")
def batch_norm_update_stats(
    input: jax.Array, running_mean: Optional, running_var: Optional, momentum: Any
) -> tuple[Optional, ...]:
    mean, var, count = _statistics(_up(input))
    return (
        mean,
        var,
        _running(running_mean, mean, momentum),
        _running(running_var, _unbiased(var, count), momentum),
    )


@lower("aten::batch_norm_elemt")
def batch_norm_elemt(
    input: jax.Array, weight: Optional, bias: Optional, mean: jax.Array, invstd: jax.Array, eps: Any
) -> jax.Array:
    return _normalize(_up(input), weight, bias, mean, invstd).astype(input.dtype)


@lower("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: Optional,
    running_var: Optional,
    momentum: Any,
    eps: Any,
    counts: jax.Array,
) -> tuple[Optional, ...]:
    """Joins the statistics of several ranks: mean and invstd are (ranks, C), counts (ranks,)."""
    mean, invstd = _up(mean), _up(invstd)
    weight = counts.astype(mean.dtype)[:, None]
    count = weight.sum()
    total = (mean * weight).sum(0) / count
    var = ((1 / lax.square(invstd) - eps + lax.square(mean - total)) * weight).sum(0) / count
    return (
        total,
        lax.rsqrt(var + eps),
        _running(running_mean, total, momentum),
        _running(running_var, _unbiased(var, count), momentum),
    )


@lower("aten::batch_norm_gather_stats")
def batch_norm_gather_stats(
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    running_mean: Optional,
    running_var: Optional,
    momentum: Any,
    eps: Any,
    count: int,
) -> tuple[Optional, ...]:
    counts = jnp.full(mean.shape[0], count)
    return batch_norm_gather_stats_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


@lower("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Optional,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Optional, ...]:
    x, g, dims = _up(input), _up(grad_out), _not_channels(input)
    total = g.sum(dims)
    projected = (g * (x - _channels(mean, x))).sum(dims)
    dtype = x.dtype if weight is None else weight.dtype
    by_weight = (projected * _up(invstd)).astype(dtype) if weight_g else None
    sums = (total, projected) if input_g else (None, None)
    return (*sums, by_weight, total.astype(dtype) if bias_g else None)


@lower("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: jax.Array,
    input: jax.Array,
    mean: jax.Array,
    invstd: jax.Array,
    weight: Optional,
    sum_dy: jax.Array,
    sum_dy_xmu: jax.Array,
    count: jax.Array,
) -> jax.Array:
    x, g = _up(input), _up(grad_out)
    total = count.sum()
    scale = _channels(invstd, x)
    slope = _channels(sum_dy_xmu / total, x) * lax.square(scale)
    g = (g - _channels(sum_dy / total, x) - (x - _channels(mean, x)) * slope) * scale
    return (g if weight is None else g * _channels(weight, x)).astype(input.dtype)


# Norms of weights


def _norm_except(v: jax.Array, dim: int) -> jax.Array:
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    return jnp.sqrt(lax.square(v).sum(dims, keepdims=True))


@lower("aten::_weight_norm_interface")
def weight_norm(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    norms = _norm_except(_up(v), dim)
    return _up(v) * (_up(g) / norms), norms


@lower("aten::_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: jax.Array, saved_v: jax.Array, saved_g: jax.Array, saved_norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    grad, v, g, norms = _up(grad_w), _up(saved_v), _up(saved_g), _up(saved_norms)
    dims = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    along = (grad * v).sum(dims, keepdims=True) / norms
    return g / norms * (grad - v * along / norms), along
