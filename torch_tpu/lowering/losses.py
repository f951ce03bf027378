"""Losses and their gradients. reduction: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Optional = jax.Array | None


def _up(x: Any) -> Any:
    return x if x is None else x.astype(dtypes.compute_dtype(x.dtype))


def _reduce(loss: jax.Array, reduction: int) -> jax.Array:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _share(grad: jax.Array, count: int, reduction: int) -> jax.Array:
    """The gradient that each of `count` unreduced losses receives."""
    return _up(grad) / count if reduction == 1 else _up(grad)


def _weighted(x: jax.Array, weight: Optional) -> jax.Array:
    return x if weight is None else x * weight


# Elementwise losses


@lower("aten::mse_loss", promote="default")
def mse_loss(self: jax.Array, target: jax.Array, reduction: int = 1) -> jax.Array:
    return _reduce(lax.square(self - target), reduction)


@lower("aten::mse_loss_backward", promote="default")
def mse_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    difference = self - target
    return 2 * difference * _share(grad_output, difference.size, reduction)


@lower("aten::smooth_l1_loss", promote="default")
def smooth_l1_loss(self: jax.Array, target: jax.Array, reduction: int = 1, beta: Any = 1.0) -> jax.Array:
    z = jnp.abs(self - target)
    return _reduce(jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@lower("aten::smooth_l1_loss_backward", promote="default")
def smooth_l1_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, beta: Any
) -> jax.Array:
    x = self - target
    slope = jnp.where(jnp.abs(x) < beta, x / beta, jnp.sign(x))
    return slope * _share(grad_output, x.size, reduction)


@lower("aten::huber_loss", promote="default")
def huber_loss(self: jax.Array, target: jax.Array, reduction: int = 1, delta: Any = 1.0) -> jax.Array:
    z = jnp.abs(self - target)
    return _reduce(jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@lower("aten::huber_loss_backward", promote="default")
def huber_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, delta: Any
) -> jax.Array:
    x = self - target
    slope = jnp.where(jnp.abs(x) <= delta, x, delta * jnp.sign(x))
    return slope * _share(grad_output, x.size, reduction)


@lower("aten::soft_margin_loss", promote="default")
def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = 1) -> jax.Array:
    return _reduce(jnp.log1p(jnp.exp(-target * self)), reduction)


@lower("aten::soft_margin_loss_backward", promote="default")
def soft_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    z = jnp.exp(-target * self)
    return -target * z / (1 + z) * _share(grad_output, self.size, reduction)


@lower("aten::binary_cross_entropy")
def binary_cross_entropy(
    self: jax.Array, target: jax.Array, weight: Optional = None, reduction: int = 1
) -> jax.Array:
    x, y = _up(self), _up(target)
    # Logarithms are cut at -100, so that a certain wrong answer has a finite loss.
    loss = (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)
    return _reduce(_weighted(loss, _up(weight)), reduction)


@lower("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, weight: Optional = None, reduction: int = 1
) -> jax.Array:
    x, y = _up(self), _up(target)
    slope = (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    return _weighted(slope, _up(weight)) * _share(grad_output, x.size, reduction)


@lower("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: jax.Array,
    target: jax.Array,
    weight: Optional = None,
    pos_weight: Optional = None,
    reduction: int = 1,
) -> jax.Array:
    x, y = _up(self), _up(target)
    softplus = jnp.logaddexp(-jnp.abs(x), 0) + jnp.maximum(-x, 0)
    scale = 1 if pos_weight is None else (_up(pos_weight) - 1) * y + 1
    return _reduce(_weighted((1 - y) * x + scale * softplus, _up(weight)), reduction)


# Classes: x is (N, C, *positions) or (C,), target is (N, *positions) or ().


def _class_terms(
    target: jax.Array, weight: Optional, classes: int, ignore_index: int, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """The class of each target, safe to index with, and its weight: 0 where it is ignored."""
    kept = target != ignore_index
    safe = jnp.where(kept, target, 0)
    safe = jnp.clip(safe, 0, max(classes - 1, 0))
    each = jnp.ones(target.shape, dtype) if weight is None else _up(weight)[safe]
    return safe, jnp.where(kept, each, 0)


def _pick(x: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    return jnp.take_along_axis(x, jnp.expand_dims(index, axis), axis).squeeze(axis)


@lower("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(
    self: jax.Array, target: jax.Array, weight: Optional, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    x, axis = _up(self), min(self.ndim - 1, 1)
    if self.ndim == 1:
        target = target.reshape(())
    index, each = _class_terms(target, weight, x.shape[axis], ignore_index, x.dtype)
    loss = jnp.where(each == 0, 0, -each * _pick(x, index, axis))
    if reduction == 0:
        return loss, jnp.zeros((), x.dtype)
    total = each.sum()
    return (loss.sum() / total if reduction == 1 else loss.sum()), total


@lower("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    weight: Optional,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    x, axis = _up(self), min(self.ndim - 1, 1)
    if self.ndim == 1:
        target = target.reshape(())
    index, each = _class_terms(target, weight, x.shape[axis], ignore_index, x.dtype)
    grad = _up(grad_output) / _up(total_weight) if reduction == 1 else _up(grad_output)
    if self.ndim == 1:
        grad = grad.reshape(())
    classes = jnp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    hit = jnp.expand_dims(index, axis) == classes
    return jnp.where(hit & jnp.expand_dims(each != 0, axis), jnp.expand_dims(-each * grad, axis), 0)


@lower("aten::multi_margin_loss", static=("p",))
def multi_margin_loss(
    self: jax.Array,
    target: jax.Array,
    p: Any = 1,
    margin: Any = 1,
    weight: Optional = None,
    reduction: int = 1,
) -> jax.Array:
    x = _up(self).reshape(-1, self.shape[-1])
    index = target.reshape(-1)
    z = jnp.maximum(margin - _pick(x, index, 1)[:, None] + x, 0) ** p
    z = z if weight is None else z * _up(weight)[index][:, None]
    others = jnp.arange(x.shape[1]) != index[:, None]
    loss = jnp.where(others, z, 0).sum(1) / x.shape[1]
    return _reduce(loss.reshape(target.shape), reduction)


@lower("aten::multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: jax.Array,
    self: jax.Array,
    target: jax.Array,
    p: Any,
    margin: Any,
    weight: Optional = None,
    reduction: int = 1,
) -> jax.Array:
    fn = lambda x: multi_margin_loss(x, target, p, margin, weight, reduction)  # noqa: E731
    return jax.vjp(fn, _up(self))[1](_up(grad_output))[0]


def _is_target(target: jax.Array, classes: int) -> jax.Array:
    """(N, C): which classes are named by the rows of target, each up to its first negative entry."""
    named = jnp.cumsum(target < 0, 1) == 0
    hits = (target[:, :, None] == jnp.arange(classes)) & named[:, :, None]
    return hits.any(1)


def _multilabel_margin(x: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    rows, labels = x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1])
    named = jnp.cumsum(labels < 0, 1) == 0
    wanted = jnp.take_along_axis(rows, jnp.maximum(labels, 0), 1)
    z = jnp.maximum(1 - wanted[:, :, None] + rows[:, None, :], 0)
    counts = named[:, :, None] & ~_is_target(labels, rows.shape[1])[:, None, :]
    loss = jnp.where(counts, z, 0).sum((1, 2)) / rows.shape[1]
    return _reduce(loss.reshape(x.shape[:-1]), reduction)


@lower("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss(
    self: jax.Array, target: jax.Array, reduction: int
) -> tuple[jax.Array, jax.Array]:
    x = _up(self)
    is_target = _is_target(target.reshape(-1, x.shape[-1]), x.shape[-1]).reshape(target.shape)
    return _multilabel_margin(x, target, reduction), is_target


@lower("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    fn = lambda x: _multilabel_margin(x, target, reduction)  # noqa: E731
    return jax.vjp(fn, _up(self))[1](_up(grad_output))[0]
