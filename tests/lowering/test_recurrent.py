"""The fused recurrent cells against the cells' definition; gradients against autograd of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.lowering_mode import to_jax
from torch_tpu.lowering import registry


def _call(name: str, *args: Any) -> list[np.ndarray | None]:
    found = registry.find(name)
    assert found is not None
    values = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
    return [r if r is None else np.asarray(r) for r in registry.call(found, values, {})]


def lstm(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = (a + b).chunk(4, 1)
    cy = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy


def gru(a: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    (ri, zi, ni), (rh, zh, nh) = a.chunk(3, 1), b.chunk(3, 1)
    z = (zi + zh).sigmoid()
    n = (ni + (ri + rh).sigmoid() * nh).tanh()
    return n + z * (h - n)


def _inputs(gates: int, bias: bool) -> tuple[torch.Tensor, ...]:
    biases = (torch.randn(gates * 4), torch.randn(gates * 4)) if bias else ()
    return (torch.randn(3, gates * 4), torch.randn(3, gates * 4), torch.randn(3, 4), *biases)


def _biased(fn: Callable[..., Any], a: Any, b: Any, state: Any, *biases: Any) -> Any:
    return fn(a + biases[0], b + biases[1], state) if biases else fn(a, b, state)


def _close(got: Any, expected: Any) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias: bool) -> None:
    inputs = tuple(x.requires_grad_() for x in _inputs(4, bias))
    hy, cy = _biased(lstm, *inputs)
    got = _call("aten::_thnn_fused_lstm_cell", *inputs)
    _close(got[:2], (hy, cy))
    by_h, by_c = torch.randn_like(hy), torch.randn_like(cy)
    by = torch.autograd.grad((hy, cy), inputs, (by_h, by_c))
    back = _call(
        "aten::_thnn_fused_lstm_cell_backward_impl", by_h, by_c, inputs[2], cy, torch.tensor(got[2]), bias
    )
    _close(back[: 2 + bias], (by[0], by[2], *by[3:4]))
    assert (back[2] is not None) == bias


@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell(bias: bool) -> None:
    inputs = tuple(x.requires_grad_() for x in _inputs(3, bias))
    hy = _biased(gru, *inputs)
    got = _call("aten::_thnn_fused_gru_cell", *inputs)
    _close(got[:1], (hy,))
    by_h = torch.randn_like(hy)
    back = _call("aten::_thnn_fused_gru_cell_backward", by_h, torch.tensor(got[1]), bias)
    _close([x for x in back if x is not None], torch.autograd.grad(hy, inputs, by_h))
