"""Recurrent cells whose gates come precomputed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Optional = jax.Array | None


def _gates(
    input_gates: jax.Array, hidden_gates: jax.Array, input_bias: Optional, hidden_bias: Optional, count: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Both sides' gates with their biases, each as `count` arrays (batch, hidden)."""
    sides = []
    for gates, bias in ((input_gates, input_bias), (hidden_gates, hidden_bias)):
        gates = gates.astype(dtypes.compute_dtype(gates.dtype))
        gates = gates if bias is None else gates + bias.astype(gates.dtype)
        sides.append(jnp.split(gates, count, 1))
    return sides[0], sides[1]


@lower("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    cx: jax.Array,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(hy, cy, workspace): the workspace holds the activated gates, (batch, 4 * hidden)."""
    a, b = _gates(input_gates, hidden_gates, input_bias, hidden_bias, 4)
    i, f, g, o = (x + y for x, y in zip(a, b, strict=True))
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx.astype(f.dtype) + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], 1)


@lower("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Optional,
    grad_cy: Optional,
    cx: jax.Array,
    cy: jax.Array,
    workspace: jax.Array,
    has_bias: bool,
) -> tuple[Optional, ...]:
    """The gradients of the gates (batch, 4 * hidden), of cx and of the bias."""
    dtype = dtypes.compute_dtype(workspace.dtype)
    i, f, g, o = jnp.split(workspace.astype(dtype), 4, 1)
    zero = jnp.zeros(cx.shape, dtype)
    by_h = zero if grad_hy is None else grad_hy.astype(dtype)
    by_c = zero if grad_cy is None else grad_cy.astype(dtype)
    tanh = jnp.tanh(cy.astype(dtype))
    by_c = by_c + by_h * o * (1 - tanh * tanh)
    gates = jnp.concatenate(
        [
            by_c * g * i * (1 - i),
            by_c * cx.astype(dtype) * f * (1 - f),
            by_c * i * (1 - g * g),
            by_h * tanh * o * (1 - o),
        ],
        1,
    )
    return gates, by_c * f, gates.sum(0) if has_bias else None


@lower("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    hx: jax.Array,
    input_bias: Optional = None,
    hidden_bias: Optional = None,
) -> tuple[jax.Array, jax.Array]:
    """(hy, workspace): gates r, z, n, then hx and the hidden side of n, (batch, 5 * hidden)."""
    (ri, zi, ni), (rh, zh, nh) = _gates(input_gates, hidden_gates, input_bias, hidden_bias, 3)
    h = hx.astype(ri.dtype)
    r, z = jax.nn.sigmoid(ri + rh), jax.nn.sigmoid(zi + zh)
    n = jnp.tanh(ni + r * nh)
    # PyTorch has no meta kernel for this op: dtypes here are final.
    hy, workspace = n + z * (h - n), jnp.concatenate([r, z, n, h, nh], 1)
    return hy.astype(hx.dtype), workspace.astype(hx.dtype)


@lower("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy: jax.Array, workspace: jax.Array, has_bias: bool) -> tuple[Optional, ...]:
    """The gradients of the input gates, the hidden gates, hx, and both biases."""
    dtype = dtypes.compute_dtype(workspace.dtype)
    r, z, n, h, nh = jnp.split(workspace.astype(dtype), 5, 1)
    grad = grad_hy.astype(dtype)
    by_n = grad * (1 - z) * (1 - n * n)
    by_z = grad * (h - n) * z * (1 - z)
    by_r = by_n * nh * r * (1 - r)
    by_input = jnp.concatenate([by_r, by_z, by_n], 1)
    by_hidden = jnp.concatenate([by_r, by_z, by_n * r], 1)
    biases = (by_input.sum(0), by_hidden.sum(0)) if has_bias else (None, None)
    results = (by_input, by_hidden, grad * z, *biases)
    return tuple(r if r is None else r.astype(grad_hy.dtype) for r in results)
