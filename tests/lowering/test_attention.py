"""Attention by blocks equals attention by definition, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.lowering.compare import same
from tests.lowering_mode import to_jax, to_torch
from torch_tpu.lowering import attention

INF = float("inf")
SEED = 0


@pytest.fixture(params=["whole", "blocks"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with one block, and with many that do not fit the lengths."""
    if request.param == "blocks":
        monkeypatch.setattr(attention, "_WHOLE_SCORES", 1)
        monkeypatch.setattr(attention, "_BLOCK", 8)


def _bias(shape: tuple[int, ...] | None, dtype: torch.dtype) -> torch.Tensor | None:
    if shape is None:
        return None
    bias = torch.randn(shape, dtype=dtype)
    bias.view(-1)[::5] = -INF
    if shape[-2] > 1:
        bias[..., 1, :] = -INF  # a row without keys
    return bias


def _reference(inputs: list[Any], grad: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Output and gradients in float64 by PyTorch's own composition."""
    leaves: list[Any] = [x if x is None else x.double().requires_grad_() for x in inputs]
    q, k, v, bias = leaves
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=q.shape[1] != k.shape[1], **options)
    given = [x for x in leaves if x is not None]
    return [out.detach(), *torch.autograd.grad(out, given, grad.double())]


def _lowered(
    inputs: list[Any], grad: torch.Tensor, is_causal: bool = False, scale: Any = None
) -> list[torch.Tensor]:
    with jax.enable_x64(True):
        q, k, v, bias = (None if x is None else to_jax(x) for x in inputs)
        mask = [True, True, True, bias is not None]

        def both(grad: jax.Array, *args: Any) -> list[Any]:
            forward = attention.attention(jax.random.key(0), *args, 0.0, is_causal, scale=scale)
            out, log_sum, seed = forward[0], forward[1], forward[6]
            assert log_sum.shape == args[0].shape[:3]
            rest = (None, None, 0, 0, 0.0, is_causal, seed, seed)
            return [out, *attention.attention_backward(grad, *args, mask, out, log_sum, *rest, scale=scale)]

        results = jax.jit(both)(to_jax(grad), q, k, v, bias)
        return [to_torch(x, grad.dtype) for x in results if x is not None]


CASES: dict[str, dict[str, Any]] = {
    "different lengths": {"t": 17, "s": 30},
    "a width of its own for values": {"t": 5, "s": 7, "width": 6},
    "grouped heads": {"t": 9, "s": 9, "kv_heads": 2},
    "causal, more keys": {"t": 17, "s": 30, "is_causal": True},
    "causal, more queries": {"t": 30, "s": 17, "is_causal": True},
    "full bias": {"t": 20, "s": 16, "bias": (2, 4, 20, 16), "kv_heads": 2, "dtype": torch.float64},
    "bias for all": {"t": 20, "s": 17, "bias": (20, 17)},
    "bias of keys": {"t": 20, "s": 17, "bias": (2, 1, 1, 17), "kv_heads": 2, "scale": 0.3},
    "bias of rows": {"t": 20, "s": 17, "bias": (1, 4, 20, 1)},
    "bfloat16": {"t": 20, "s": 17, "is_causal": True, "dtype": torch.bfloat16},
}


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients(case: str) -> None:
    torch.manual_seed(SEED)
    options = dict(CASES[case])
    t, s, kv_heads = options.pop("t"), options.pop("s"), options.pop("kv_heads", 4)
    width, shape, dtype = (
        options.pop("width", 8),
        options.pop("bias", None),
        options.pop("dtype", torch.float32),
    )
    q, k = torch.randn(2, 4, t, 8, dtype=dtype), torch.randn(2, kv_heads, s, 8, dtype=dtype)
    v, grad = torch.randn(2, kv_heads, s, width, dtype=dtype), torch.randn(2, 4, t, width, dtype=dtype)
    inputs = [q, k, v, _bias(shape, dtype)]
    expected = [x.to(dtype) for x in _reference(inputs, grad, **options)]
    tolerance = 3e-2 if dtype is torch.bfloat16 else 2e-5
    torch.testing.assert_close(_lowered(inputs, grad, **options), expected, rtol=tolerance, atol=tolerance)


P = 0.3


def _weighted(factors: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhte,bhse->bhts", q, k) / math.sqrt(q.shape[-1])
    return (jax.nn.softmax(scores, axis=-1) * factors) @ v


def _dropped(grad: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> list[Any]:
    """Output and gradients by the lowerings, with dropout."""
    forward = attention.attention(jax.random.key(3), q, k, v, None, jnp.float32(P))
    out, log_sum, seed = forward[0], forward[1], forward[6]
    rest = (None, None, 0, 0, P, False, seed, seed)
    mask = [True, True, True, False]
    return [out, *attention.attention_backward(grad, q, k, v, None, mask, out, log_sum, *rest)[:3]]


@pytest.mark.usefixtures("sizes")
def test_backward_drops_what_forward_dropped() -> None:
    t, s = 20, 24
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        q, k = (jnp.asarray(rng.normal(size=(1, 2, n, 8)), np.float32) for n in (t, s))
        v = jnp.broadcast_to(jnp.eye(s, dtype=np.float32), (1, 2, s, s))  # the output is the weights

        grad = jnp.asarray(rng.normal(size=(1, 2, t, s)), np.float32)
        out, *got = jax.jit(_dropped)(grad, q, k, v)
        kept = out != 0
        assert abs(float(kept.mean()) - (1 - P)) < 0.06
        factors = jnp.where(kept, np.float32(1 / (1 - P)), 0)
        weights, back = jax.vjp(lambda *args: _weighted(factors, *args), q, k, v)
        for a, b in zip([out, *got], [weights, *back(grad)], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_fast_path(norm_first: bool, activation: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[0, 0, 0, 1, 1], [0, 1, 0, 1, 0]]).bool()
    with torch.no_grad():
        same(lambda: layer(x), rtol=1e-4, atol=1e-5)
        same(lambda: layer(x, src_key_padding_mask=padding), rtol=1e-4, atol=1e-5)


def test_multihead_attentions_fast_path() -> None:
    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    causal = torch.triu(torch.ones(5, 5), 1).bool()
    with torch.no_grad():
        same(lambda: layer(x, x, x, attn_mask=causal), rtol=1e-4, atol=1e-5)
        same(lambda: layer(x, x, x, average_attn_weights=False), rtol=1e-4, atol=1e-5)


def test_split_of_joined_projections() -> None:
    qkv, bias = torch.randn(2, 5, 48), torch.randn(48)
    same(lambda: torch.ops.aten._transform_bias_rescale_qkv(qkv, bias, 4))
