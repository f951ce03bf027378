"""Pooling and its gradients: index rules, ceil_mode, padding counts, adaptive windows."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.compare import NAN, same
from tests.lowering_mode import LoweringMode


def _same_with_gradient(fn: Any, x: torch.Tensor, **tolerances: float) -> None:
    x = x.clone().requires_grad_()

    def program() -> list[torch.Tensor]:
        result = fn(x)
        y = result[0] if isinstance(result, tuple) else result
        grad = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) % 7 + 1
        return [*(result if isinstance(result, tuple) else [y]), *torch.autograd.grad(y, x, grad)]

    expected = program()
    with LoweringMode() as mode:
        got = program()
    assert len(mode.lowered) >= 2, mode.lowered
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerances)


@pytest.mark.parametrize(
    "how",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "dilation": (2, 1)},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_max_pool2d(how: dict[str, Any], platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_PLATFORM", platform)
    _same_with_gradient(lambda x: F.max_pool2d(x, **how, return_indices=True), torch.randn(2, 3, 9, 11))


def test_max_pool_of_ties_nan_and_infinity() -> None:
    pool = lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)  # noqa: E731
    same(pool, torch.randint(0, 2, (1, 2, 8, 8)).float())
    x = torch.randn(1, 2, 8, 8)
    x[0, 0, 2:4, 3:6] = NAN
    same(pool, x)
    same(pool, torch.full((1, 1, 5, 5), -float("inf")))


def test_max_pool_with_a_long_window_and_in_three_dimensions() -> None:
    _same_with_gradient(lambda x: F.max_pool1d(x, 70, 3, 35, return_indices=True), torch.randn(2, 3, 100))
    _same_with_gradient(lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True), torch.randn(1, 2, 5, 4, 6))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("ceil", [True, False])
@pytest.mark.parametrize("divisor", [None, 5])
def test_avg_pool(include: bool, ceil: bool, divisor: int | None) -> None:
    for fn, shape in ((F.avg_pool2d, (2, 3, 9, 8)), (F.avg_pool3d, (2, 3, 5, 6, 7))):
        _same_with_gradient(
            lambda x, fn=fn: fn(x, 3, 2, 1, ceil, include, divisor), torch.randn(shape), rtol=1e-5, atol=1e-5
        )


def test_avg_pool_with_a_long_window() -> None:
    _same_with_gradient(lambda x: F.avg_pool2d(x, (70, 1), 3), torch.randn(1, 2, 90, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (4, 2), (9, 12)])
def test_adaptive_pools(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 8, 6)
    _same_with_gradient(lambda x: torch.ops.aten._adaptive_avg_pool2d(x, size), x, rtol=1e-5, atol=1e-5)
    _same_with_gradient(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)


def test_adaptive_avg_pool_keeps_infinity_in_its_window() -> None:
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 0, 0] = float("inf")
    same(lambda: torch.ops.aten._adaptive_avg_pool2d(x, (3, 2)))


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_and_unpooling(rank: int) -> None:
    x = torch.randn(2, 3, *(9, 8, 7)[:rank])
    samples = torch.rand(2, 3, rank)
    fractional = getattr(torch.ops.aten, f"fractional_max_pool{rank}d").default
    _same_with_gradient(lambda x: fractional(x, [2] * rank, [4] * rank, samples), x)
    pool, unpool = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    y, indices = pool(x, 2, return_indices=True)
    same(lambda: unpool(y, indices, 2, output_size=x.shape[2:]))
