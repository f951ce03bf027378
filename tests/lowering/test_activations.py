"""Activations and softmax, forward and backward, where their pieces meet and at the extremes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.compare import INF, same
from tests.lowering_mode import LoweringMode

X = torch.tensor([-90.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 25.0])
ACTIVATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    F.relu, F.relu6, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.elu, F.celu,
    F.selu, F.leaky_relu, F.hardtanh, F.hardswish, F.hardsigmoid, F.softplus, F.softshrink,
    F.hardshrink, F.logsigmoid, F.tanhshrink, torch.sigmoid, torch.tanh, F.rrelu, F.glu,
    lambda x: F.elu(x, 0.7), lambda x: F.celu(x, 0.7), lambda x: F.softplus(x, 2.0, 5.0),
    lambda x: F.hardtanh(x, -2.0, 0.5), lambda x: F.threshold(x, 0.5, -7.0),
    lambda x: F.softmax(x, 0), lambda x: F.log_softmax(x, -1), lambda x: F.softmax(x.reshape(3, 4), 0),
    lambda x: F.prelu(x, torch.tensor([0.3], dtype=x.dtype)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activation_and_its_gradient(op: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_()
        y = op(x)
        return y, torch.autograd.grad(y, x, torch.ones_like(y) / 3)[0]

    expected = program(X.to(dtype))
    with LoweringMode() as mode:
        got = program(X.to(dtype))
    assert mode.lowered
    # The CPU rounds some 16-bit gradients between its steps.
    tolerance = {} if dtype is torch.float32 else {"rtol": 1.6e-2, "atol": 1e-3}
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_over_empty_and_infinite_rows(dim: int) -> None:
    same(lambda x: torch._softmax(x, dim, False), torch.full((2, 3), -INF))
    same(lambda x: torch._softmax(x, dim, False), torch.zeros(0, 3))
    same(lambda x: torch._safe_softmax(x, dim), torch.tensor([[-INF, -INF], [0.0, -INF]]))


def test_softmax_of_one_number() -> None:
    same(lambda x: (torch._softmax(x, 0, False), torch._log_softmax(x, -1, False)), torch.tensor(3.0))


@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit(eps: float | None) -> None:
    same(lambda x: torch.logit(x, eps), torch.tensor([-0.1, 0.0, 0.05, 0.5, 0.97, 1.0, 1.2]))
