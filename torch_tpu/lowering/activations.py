"""Lowerings of activation functions and softmax, with their backward ops."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_tpu import dtypes
from torch_tpu.lowering.pointwise import clamp, unary, wide
from torch_tpu.lowering.registry import lower

Array = jax.Array

# --- piecewise linear ---------------------------------------------------------------------------

unary(
    {
        "relu": lambda x: jnp.where(x < 0, 0, x),  # -0 and NaN stay
        "hardsigmoid": lambda x: jnp.clip(x + 3, 0, 6) / 6,
        "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    },
    promote="default",
)


@lower("aten::hardsigmoid_backward", promote="default")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lower("aten::hardswish_backward", promote="default")
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    slope = jnp.where(self >= 3, 1, self / 3 + 0.5)
    return jnp.where(self <= -3, 0, grad_output * slope)


@lower("aten::hardtanh", promote="default")
def hardtanh(self: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    return clamp(self, min_val, max_val)


@lower("aten::hardtanh_backward", promote="default")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Any, max_val: Any) -> Array:
    return jnp.where((self <= min_val) | (self >= max_val), 0, grad_output)


@lower("aten::threshold", promote="default")
def threshold(self: Array, threshold: Any, value: Any) -> Array:
    return jnp.where(self <= threshold, value, self)


@lower("aten::threshold_backward", promote="default")
def threshold_backward(grad_output: Array, self: Array, threshold: Any) -> Array:
    return jnp.where(self <= threshold, 0, grad_output)


@lower("aten::leaky_relu", promote="default")
def leaky_relu(self: Array, negative_slope: Any = 0.01) -> Array:
    return jnp.where(self > 0, self, self * negative_slope)


@lower("aten::leaky_relu_backward", promote="default")
def leaky_relu_backward(grad_output: Array, self: Array, negative_slope: Any, self_is_result: bool) -> Array:
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lower("aten::_prelu_kernel", promote="default")
def prelu(self: Array, weight: Array) -> Array:
    return jnp.where(self > 0, self, self * weight)


@lower("aten::_prelu_kernel_backward", promote="default")
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    positive = self > 0
    return (jnp.where(positive, grad_output, weight * grad_output),
            jnp.where(positive, 0, self * grad_output))  # fmt: skip


@lower("aten::rrelu_with_noise_backward", promote="default")
def rrelu_backward(
    grad_output: Array,
    self: Array,
    noise: Array,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> Array:
    if not training:
        return jnp.where(self > 0, grad_output, grad_output * ((lower + upper) / 2))
    return jnp.where(upper - lower > 1e-6, noise * grad_output,
                     jnp.where(self > 0, grad_output, grad_output * ((lower + upper) / 2)))  # fmt: skip


@lower("aten::hardshrink", promote="default")
def hardshrink(self: Array, lambd: Any = 0.5) -> Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@lower("aten::softshrink", promote="default")
def softshrink(self: Array, lambd: Any = 0.5) -> Array:
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@lower("aten::hardshrink_backward", "aten::softshrink_backward", promote="default")
def shrink_backward(grad_out: Array, self: Array, lambd: Any) -> Array:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad_out)


# --- exponential --------------------------------------------------------------------------------


@lower("aten::elu", promote="default")
def elu(self: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    return jnp.where(self <= 0, jnp.expm1(self * input_scale) * alpha * scale, self * scale)


@lower("aten::elu_backward", promote="default")
def elu_backward(
    grad_output: Array,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: Array,
) -> Array:
    x = self_or_result
    if is_result:
        negative = (x + alpha * scale) * input_scale
    else:
        negative = alpha * scale * input_scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad_output * negative, grad_output * scale)


@lower("aten::celu", promote="default")
def celu(self: Array, alpha: Any = 1.0) -> Array:
    return jnp.where(self <= 0, jnp.expm1(self / alpha) * alpha, self)


@lower("aten::softplus", promote="default")
def softplus(self: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    scaled = self * beta
    return jnp.where(scaled > threshold, self, jnp.log1p(jnp.exp(scaled)) / beta)


@lower("aten::softplus_backward", promote="default")
def softplus_backward(grad_output: Array, self: Array, beta: Any, threshold: Any) -> Array:
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * jax.nn.sigmoid(scaled))


@lower("aten::log_sigmoid_forward", promote="default")
def log_sigmoid(self: Array) -> tuple[Array, Array]:
    """(log sigmoid, exp(-|self|)); the second is CPU's buffer for the backward op, which needs none."""
    decay = jnp.exp(-jnp.abs(self))
    return jnp.minimum(self, 0) - jnp.log1p(decay), decay


@lower("aten::log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    return wide(grad_output) * jax.nn.sigmoid(-wide(self))


@lower("aten::sigmoid_backward", promote="default")
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj((1 - output) * output)


@lower("aten::tanh_backward", promote="default")
def tanh_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj(1 - output * output)


@lower("aten::silu", promote="default")
def silu(self: Array) -> Array:
    return self * jax.nn.sigmoid(self)


@lower("aten::silu_backward", promote="default")
def silu_backward(grad_output: Array, self: Array) -> Array:
    gate = jax.nn.sigmoid(self)
    return grad_output * gate * (1 + self * (1 - gate))


@lower("aten::mish", promote="default")
def mish(self: Array) -> Array:
    return self * jnp.tanh(jax.nn.softplus(self))


@lower("aten::mish_backward", promote="default")
def mish_backward(grad_output: Array, self: Array) -> Array:
    tanh = jnp.tanh(jax.nn.softplus(self))
    return grad_output * (tanh + self * jax.nn.sigmoid(self) * (1 - tanh * tanh))


_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


@lower("aten::gelu", promote="default")
def gelu(self: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = _TANH_SCALE * (self + _TANH_CUBE * self * self * self)
        return 0.5 * self * (1 + jnp.tanh(inner))
    return self * normal_cdf(self)


@lower("aten::gelu_backward", promote="default")
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        square = self * self
        tanh = jnp.tanh(_TANH_SCALE * self * (1 + _TANH_CUBE * square))
        inner_slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * square)
        return grad_output * 0.5 * (1 + tanh + self * (1 - tanh * tanh) * inner_slope)
    density = jnp.exp(-0.5 * self * self) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (normal_cdf(self) + self * density)


def normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))


@lower("aten::logit", promote="int_to_float")
def logit(self: Array, eps: Any = None) -> Array:
    if eps is not None:
        self = jnp.minimum(jnp.maximum(self, eps), 1 - eps)
    return jnp.log(self / (1 - self))


@lower("aten::logit_backward", promote="int_to_float")
def logit_backward(grad_output: Array, self: Array, eps: Any = None) -> Array:
    slope = grad_output / (self * (1 - self))
    if eps is None:
        return jnp.where((self < 0) | (self > 1), math.nan, slope)
    return jnp.where((self < eps) | (self > 1 - eps), 0, slope)


# --- gated linear unit --------------------------------------------------------------------------


@lower("aten::glu")
def glu(self: Array, dim: int = -1) -> Array:
    self = wide(self)
    value, gate = jnp.split(self, 2, axis=dim)
    return value * jax.nn.sigmoid(gate)


@lower("aten::glu_backward")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    grad_output, self = wide(grad_output), wide(self)
    value, gate = jnp.split(self, 2, axis=dim)
    gate = jax.nn.sigmoid(gate)
    return jnp.concatenate([grad_output * gate, grad_output * value * gate * (1 - gate)], axis=dim)


@lower("aten::glu_jvp")
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Array:
    glu, x, dx = wide(glu), wide(x), wide(dx)
    _, gate = jnp.split(x, 2, axis=dim)
    dvalue, dgate = jnp.split(dx, 2, axis=dim)
    gate = jax.nn.sigmoid(gate)
    return dvalue * gate + dgate * (glu - gate * glu)


# --- softmax ------------------------------------------------------------------------------------


def _shifted(self: Array, dim: int) -> Array:
    """self - max(self) in the precision PyTorch computes softmax in; a column for 0-d inputs."""
    x = jnp.atleast_1d(wide(self))
    return x - jnp.max(x, axis=dim, keepdims=True, initial=-jnp.inf)


@lower("aten::_softmax")
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    exp = jnp.exp(_shifted(self, dim))
    return (exp / jnp.sum(exp, axis=dim, keepdims=True)).reshape(self.shape)


@lower("aten::_log_softmax")
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    shifted = _shifted(self, dim)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))).reshape(self.shape)


@lower("aten::_safe_softmax")
def safe_softmax(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    """Softmax in which a row of -inf alone gives zeros."""
    x = self if dtype is None else dtypes.cast(self, dtype)
    masked = jnp.all(jnp.atleast_1d(x) == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(masked, 0, jnp.atleast_1d(softmax(x, dim, False))).reshape(self.shape)


@lower("aten::_softmax_backward_data")
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad_output, output = wide(grad_output), wide(output)
    product = grad_output * output
    return product - output * _total(product, dim)


@lower("aten::_log_softmax_backward_data")
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad_output, output = wide(grad_output), wide(output)
    return grad_output - jnp.exp(output) * _total(grad_output, dim)


def _total(x: Array, dim: int) -> Array:
    return jnp.sum(x, axis=dim, keepdims=True) if x.ndim else x


@lower("aten::_masked_softmax")
def masked_softmax(self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Softmax where `mask` is False; True leaves an element out. A row left out whole is zeros."""
    if mask_type == 0:
        mask = mask.reshape(1, 1, *mask.shape)
    elif mask_type == 1:
        mask = mask.reshape(mask.shape[0], *(1,) * (self.ndim - mask.ndim), *mask.shape[1:])
    axis = self.ndim - 1 if dim is None else dim
    return safe_softmax(jnp.where(mask, -jnp.inf, wide(self)), axis)


@lower("aten::_masked_softmax_backward")
def masked_softmax_backward(grad_output: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    grad_output, output = wide(grad_output), wide(output)
    axis = output.ndim - 1 if dim is None else dim
    return output * (grad_output - _total(grad_output * output, axis))
