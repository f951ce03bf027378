"""Fused optimizer steps: whole lists of parameters in one program. All hyperparameters are run-time data.

A step skips its update where `found_inf` is not zero, and divides gradients by `grad_scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Optional = jax.Array | None
Arrays = Sequence[jax.Array]
Lists = tuple[list[jax.Array], ...]


def _per_parameter(
    step: Callable[..., Sequence[jax.Array]], lists: Sequence[Arrays], steps: Arrays, skip: Optional
) -> Lists:
    """New lists from `step` of the i-th entries and the i-th step count; the old entries where `skip`.

    An empty list stays empty, its entry is None.
    """
    results: list[list[jax.Array]] = [[] for _ in lists]
    for i in range(len(lists[0])):
        old = [entries[i] if entries else None for entries in lists]
        count = steps[i] if steps else None
        for result, before, after in zip(results, old, step(*old, count), strict=True):
            if before is not None:
                after = after.astype(before.dtype)
                result.append(after if skip is None else jnp.where(skip.reshape(()) == 0, after, before))
    return tuple(results)


def _gradient(grad: jax.Array, like: jax.Array, scale: Optional) -> jax.Array:
    grad = grad.astype(like.dtype)
    return grad if scale is None else grad / scale.reshape(()).astype(like.dtype)


def _number(value: Any, dtype: Any) -> Any:
    return dtypes.cast(value, dtype).reshape(()) if isinstance(value, jax.Array) else value


def _adam(decoupled: bool) -> Callable[..., Lists]:
    def fused(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Optional = None,
        found_inf: Optional = None,
    ) -> Lists:
        def step(p: Any, g: Any, m: Any, v: Any, v_max: Any, t: Any) -> Sequence[jax.Array]:
            x = p.astype(dtypes.compute_dtype(p.dtype))
            g = unscaled = _gradient(g, x, grad_scale)
            rate = _number(lr, x.dtype)
            g = -g if maximize else g
            if decoupled:
                x = x * (1 - rate * weight_decay)
            else:
                g = g + weight_decay * x
            m = beta1 * m.astype(x.dtype) + (1 - beta1) * g
            v = beta2 * v.astype(x.dtype) + (1 - beta2) * g * g
            wide = jnp.promote_types(x.dtype, t.dtype)
            count = t.astype(wide)
            bias1, bias2 = (1 - _power(b, count) for b in (beta1, beta2))
            largest = jnp.maximum(v_max.astype(x.dtype), v) if amsgrad else v
            root = jnp.sqrt(largest) / jnp.sqrt(bias2).astype(x.dtype) + eps
            x = x - (rate / bias1).astype(x.dtype) * m / root
            return x, unscaled, m, v, largest if amsgrad else v_max

        lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        return _per_parameter(step, lists, state_steps, found_inf)

    return fused


def _power(base: Any, exponent: jax.Array) -> jax.Array:
    return jnp.power(jnp.asarray(base, exponent.dtype), exponent)


lower("aten::_fused_adam", "aten::_fused_adam.tensor_lr")(_adam(decoupled=False))
lower("aten::_fused_adamw", "aten::_fused_adamw.tensor_lr")(_adam(decoupled=True))


@lower("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr")
def fused_sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Optional = None,
    found_inf: Optional = None,
) -> Lists:
    def step(p: Any, g: Any, buffer: Any, _: None) -> Sequence[Any]:
        x = p.astype(dtypes.compute_dtype(p.dtype))
        g = unscaled = _gradient(g, x, grad_scale)
        g = (-g if maximize else g) + weight_decay * x
        if buffer is not None:
            buffer = g if is_first_step else momentum * buffer.astype(x.dtype) + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        return x - _number(lr, x.dtype) * g, unscaled, buffer

    return _per_parameter(step, (self, grads, momentum_buffer_list), (), found_inf)


@lower("aten::_fused_adagrad")
def fused_adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Optional = None,
    found_inf: Optional = None,
) -> Lists:
    def step(p: Any, g: Any, total: Any, t: Any) -> Sequence[jax.Array]:
        x = p.astype(dtypes.compute_dtype(p.dtype))
        g = unscaled = _gradient(g, x, grad_scale)
        g = (-g if maximize else g) + weight_decay * x
        total = total.astype(x.dtype) + g * g
        rate = _number(lr, x.dtype) / (1 + (t.astype(x.dtype) - 1) * lr_decay)
        return x - rate * g / (jnp.sqrt(total) + eps), unscaled, total

    return (*_per_parameter(step, (self, grads, state_sums), state_steps, found_inf), list(state_steps))


@lower("aten::_fused_adagrad.tensor_lr")
def fused_adagrad_tensor_lr(*args: Any, **kwargs: Any) -> Lists:
    return fused_adagrad(*args, **kwargs)[:3]
