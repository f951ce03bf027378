"""Losses and their gradients: reductions, weights, ignored and out-of-range classes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering_mode import LoweringMode

REDUCTIONS = ["none", "mean", "sum"]


def _same(fn: Any, x: torch.Tensor, *others: torch.Tensor, lowered: int = 2) -> None:
    x = x.clone().requires_grad_()

    def program() -> list[torch.Tensor]:
        y = fn(x, *others)
        return [y, *torch.autograd.grad(y, x, torch.full_like(y, 1.5))]

    expected = program()
    with LoweringMode() as mode:
        got = program()
    assert len(mode.lowered) >= lowered, mode.lowered
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elementwise_losses(reduction: str) -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    _same(lambda x: F.mse_loss(x, y, reduction=reduction), x)
    _same(lambda x: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.7), x)
    _same(lambda x: F.huber_loss(x, y, reduction=reduction, delta=0.7), x)
    _same(lambda x: F.soft_margin_loss(x, y.sign(), reduction=reduction), x)
    _same(lambda x: F.mse_loss(x, y.double(), reduction=reduction), x)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(reduction: str, weighted: bool) -> None:
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    x[0, :2], y[0, :2] = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    weight = torch.rand(5) if weighted else None
    _same(lambda x: F.binary_cross_entropy(x, y, weight, reduction=reduction), x)
    with_logits = lambda x: F.binary_cross_entropy_with_logits(  # noqa: E731
        x, y, weight, reduction=reduction, pos_weight=weight
    )
    _same(with_logits, x * 50, lowered=1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3, 2), (5,)])
def test_nll_loss(reduction: str, weighted: bool, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    target = torch.randint(0, 5, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    if target.ndim:
        target.view(-1)[::3] = -100
    weight = torch.rand(5) if weighted else None
    _same(lambda x: F.nll_loss(x, target, weight, reduction=reduction), x)


def test_nll_loss_of_ignored_targets_alone_is_nan_and_infinite_scores_of_others_do_not_matter() -> None:
    x, target = torch.randn(3, 4), torch.full((3,), -100)
    _same(lambda x: F.nll_loss(x, target), x)
    x[:, 0] = -float("inf")
    _same(lambda x: F.nll_loss(x, torch.tensor([1, 2, 3])), x)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction: str) -> None:
    x, target, weight = torch.randn(4, 5), torch.randint(0, 5, (4,)), torch.rand(5)
    _same(lambda x: F.multi_margin_loss(x, target, 1, 0.7, weight, reduction=reduction), x)
    _same(lambda x: F.multi_margin_loss(x, target, 2, reduction=reduction), x)
    labels = torch.tensor([[1, 3, -1, 0, 2], [0, -1, 1, 1, 1], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0]])
    _same(lambda x: F.multilabel_margin_loss(x, labels, reduction=reduction), x)


@pytest.mark.parametrize("flat", [True, False])
def test_ctc_loss(flat: bool) -> None:
    scores, targets = torch.randn(7, 3, 5), torch.tensor([[1, 1, 2], [3, 4, 0], [2, 0, 0]])
    times, lengths = [7, 5, 2], [3, 2, 0]
    if flat:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)])
    _same(lambda x: F.ctc_loss(x.log_softmax(2), targets, times, lengths, zero_infinity=True), scores)
    # A target with repeats needs more steps than these.
    _same(lambda x: F.ctc_loss(x.log_softmax(2), targets, [3, 5, 2], lengths, zero_infinity=True), scores)
