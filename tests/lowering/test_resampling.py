"""Interpolation and grid sampling, forward and backward."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.compare import same
from tests.lowering_mode import LoweringMode

SHAPES = {1: (2, 3, 7), 2: (2, 3, 7, 5), 3: (1, 2, 4, 5, 3)}
MODES = [
    ("nearest", 1),
    ("nearest", 2),
    ("nearest", 3),
    ("nearest-exact", 2),
    ("linear", 1),
    ("bilinear", 2),
    ("bicubic", 2),
    ("trilinear", 3),
]


def _same_with_gradients(fn: Any, *inputs: torch.Tensor) -> None:
    inputs = tuple(x.clone().requires_grad_() for x in inputs)

    def program() -> list[torch.Tensor]:
        y = fn(*inputs)
        grad = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) % 5 - 2
        return [y, *torch.autograd.grad(y, inputs, grad)]

    expected = program()
    with LoweringMode() as mode:
        got = program()
    assert len(mode.lowered) >= 2, mode.lowered
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "rank"), MODES)
@pytest.mark.parametrize("how", [{"size": 10}, {"scale_factor": 2.0}, {"scale_factor": 0.6}])
def test_interpolate(mode: str, rank: int, how: dict[str, Any]) -> None:
    for align in (None,) if "nearest" in mode else (False, True):
        _same_with_gradients(
            lambda x, align=align: F.interpolate(x, **how, mode=mode, align_corners=align),
            torch.randn(SHAPES[rank]),
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (12, 9)])
def test_antialiased(mode: str, size: tuple[int, int]) -> None:
    _same_with_gradients(lambda x: F.interpolate(x, size, mode=mode, antialias=True), torch.randn(2, 3, 9, 8))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_bytes_are_resampled_in_fixed_point(mode: str) -> None:
    x = torch.randint(0, 256, (1, 3, 9, 11), dtype=torch.uint8)
    same(lambda: F.interpolate(x, (5, 20), mode=mode))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    _same_with_gradients(
        lambda x, grid: F.grid_sample(x, grid, mode, padding, align),
        torch.randn(2, 3, 5, 6),
        torch.randn(2, 4, 3, 2),
    )
    if mode != "bicubic":
        _same_with_gradients(
            lambda x, grid: F.grid_sample(x, grid, mode, padding, align),
            torch.randn(1, 2, 4, 5, 3),
            torch.randn(1, 2, 3, 2, 3),
        )
