"""Losses and their gradients. reduction: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

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


def _common(*arrays: jax.Array) -> list[jax.Array]:
    """The arrays in the dtype PyTorch computes their common dtype in."""
    dtype = dtypes.compute_dtype(dtypes.result_type(arrays))
    return [dtypes.cast(a, dtype) for a in arrays]


def _reduce(loss: jax.Array, reduction: int) -> jax.Array:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _share(grad: jax.Array, count: int, reduction: int) -> jax.Array:
    """The gradient that each of `count` unreduced losses receives."""
    return _up(grad) / count if reduction == 1 else _up(grad)


def _weighted(x: jax.Array, weight: Optional) -> jax.Array:
    return x if weight is None else x * weight


# Elementwise losses


@lower("aten::mse_loss")
def mse_loss(self: jax.Array, target: jax.Array, reduction: int = 1) -> jax.Array:
    x, y = _common(self, target)
    return _reduce(lax.square(x - y), reduction)


@lower("aten::mse_loss_backward")
def mse_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y = _common(self, target)
    difference = x - y
    return 2 * difference * _share(grad_output, difference.size, reduction)


@lower("aten::smooth_l1_loss")
def smooth_l1_loss(self: jax.Array, target: jax.Array, reduction: int = 1, beta: Any = 1.0) -> jax.Array:
    x, y = _common(self, target)
    z = jnp.abs(x - y)
    return _reduce(jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), reduction)


@lower("aten::smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, beta: Any
) -> jax.Array:
    x, y = _common(self, target)
    x = x - y
    slope = jnp.where(jnp.abs(x) < beta, x / beta, jnp.sign(x))
    return slope * _share(grad_output, x.size, reduction)


@lower("aten::huber_loss")
def huber_loss(self: jax.Array, target: jax.Array, reduction: int = 1, delta: Any = 1.0) -> jax.Array:
    x, y = _common(self, target)
    z = jnp.abs(x - y)
    return _reduce(jnp.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), reduction)


@lower("aten::huber_loss_backward")
def huber_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, delta: Any
) -> jax.Array:
    x, y = _common(self, target)
    x = x - y
    slope = jnp.where(jnp.abs(x) <= delta, x, delta * jnp.sign(x))
    return slope * _share(grad_output, x.size, reduction)


@lower("aten::soft_margin_loss")
def soft_margin_loss(self: jax.Array, target: jax.Array, reduction: int = 1) -> jax.Array:
    x, y = _common(self, target)
    return _reduce(jnp.log1p(jnp.exp(-y * x)), reduction)


@lower("aten::soft_margin_loss_backward")
def soft_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int
) -> jax.Array:
    x, y = _common(self, target)
    z = jnp.exp(-y * x)
    return -y * z / (1 + z) * _share(grad_output, z.size, reduction)


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


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1] if x.ndim else 1)


def _positive(z: jax.Array) -> jax.Array:
    return jnp.where(z > 0, z, 0)


@lower("aten::multi_margin_loss", static=("p",))
def multi_margin_loss(
    self: jax.Array,
    target: jax.Array,
    p: Any = 1,
    margin: Any = 1,
    weight: Optional = None,
    reduction: int = 1,
) -> jax.Array:
    x = _rows(_up(self))
    index = target.reshape(-1)
    z = _positive(jnp.asarray(margin, x.dtype) - _pick(x, index, 1)[:, None] + x) ** p
    z = z if weight is None else z * _up(weight)[index][:, None]
    others = jnp.arange(x.shape[1]) != index[:, None]
    loss = jnp.where(others, z, 0).sum(1) / x.shape[1]
    return _reduce(loss.reshape(self.shape[:-1]), reduction)


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
    rows, labels = _rows(x), _rows(target)
    named = jnp.cumsum(labels < 0, 1) == 0
    wanted = jnp.take_along_axis(rows, jnp.maximum(labels, 0), 1)
    z = _positive(1 - wanted[:, :, None] + rows[:, None, :])
    counts = named[:, :, None] & ~_is_target(labels, rows.shape[1])[:, None, :]
    loss = jnp.where(counts, z, 0).sum((1, 2)) / rows.shape[1]
    return _reduce(loss.reshape(x.shape[:-1]), reduction)


@lower("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss(self: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    x = _up(self)
    labels = _rows(target)
    is_target = _is_target(labels, labels.shape[1]).reshape(target.shape)
    return _multilabel_margin(x, target, reduction), is_target


@lower("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: jax.Array, self: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    fn = lambda x: _multilabel_margin(x, target, reduction)  # noqa: E731
    return jax.vjp(fn, _up(self))[1](_up(grad_output))[0]


# CTC: log_probs is (T, N, C), targets (N, S) or concatenated; states are the targets with blanks between.


def _extended(
    targets: jax.Array, lengths: Sequence[int], blank: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Labels (N, 2 * longest + 1) with blanks, where a label differs from the one before, and the lengths."""
    longest = max(lengths, default=0)
    columns = jnp.arange(longest)
    if targets.ndim == 1:
        starts = np.cumsum([0, *lengths[:-1]])
        padded = jnp.pad(targets, (0, longest))[starts[:, None] + columns]
    else:
        padded = jnp.pad(targets, ((0, 0), (0, max(longest - targets.shape[1], 0))))[:, :longest]
    sizes = jnp.asarray(lengths)
    padded = jnp.where(columns < sizes[:, None], padded, blank)
    labels = jnp.full((len(lengths), 2 * longest + 1), blank, padded.dtype).at[:, 1::2].set(padded)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    return labels, (labels != blank) & (labels != before), sizes


def _log_sum(parts: Sequence[jax.Array]) -> jax.Array:
    """log of the sum of exponentials; its gradient is 0, not NaN, where all parts are -inf."""
    top = jnp.maximum(jnp.stack(parts).max(0), jnp.finfo(parts[0].dtype).min)
    total = sum(jnp.exp(p - lax.stop_gradient(top)) for p in parts)
    return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)) + lax.stop_gradient(top), -jnp.inf)


def _ctc(
    log_probs: jax.Array, targets: jax.Array, times: jax.Array, lengths: Sequence[int], blank: int
) -> tuple[jax.Array, jax.Array]:
    labels, skips, sizes = _extended(targets, lengths, blank)
    emitted = jnp.take_along_axis(log_probs, labels[None], 2)  # (T, N, states)
    states = jnp.arange(labels.shape[1])
    start = jnp.where(states < 2, emitted[0], -jnp.inf)

    def step(alpha: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        one, two = (
            jnp.pad(alpha, ((0, 0), (k, 0)), constant_values=-jnp.inf)[:, : alpha.shape[1]] for k in (1, 2)
        )
        alpha = now + _log_sum([alpha, one, jnp.where(skips, two, -jnp.inf)])
        return alpha, alpha

    _, later = lax.scan(step, start, emitted[1:])
    alpha = jnp.concatenate([start[None], later])
    rows = jnp.arange(labels.shape[0])
    final = alpha[jnp.maximum(times - 1, 0), rows]
    last, previous = final[rows, 2 * sizes], final[rows, jnp.maximum(2 * sizes - 1, 0)]
    loss = -_log_sum([last, jnp.where(sizes > 0, previous, -jnp.inf)])
    empty = jnp.where(sizes > 0, jnp.inf, 0)
    return jnp.where(times == 0, empty, loss), alpha.transpose(1, 0, 2)


@lower("aten::_ctc_loss")
def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return _ctc(_up(log_probs), targets, jnp.asarray(input_lengths), target_lengths, blank)


@lower("aten::_ctc_loss_backward")
def ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    x, times = _up(log_probs), jnp.asarray(input_lengths)
    by_x = jax.grad(lambda x: _ctc(x, targets, times, target_lengths, blank)[0].sum())(x)
    # PyTorch's gradient has this second term, which a log_softmax below it cancels.
    by_x = (by_x + jnp.exp(x)) * _up(grad)[:, None]
    by_x = jnp.where(jnp.arange(x.shape[0])[:, None, None] < times[:, None], by_x, 0)
    return jnp.where(zero_infinity & jnp.isinf(neg_log_likelihood)[:, None], 0, by_x)
