"""`linalg.lstsq` by every driver: the CPU's solutions, ranks, residuals and singular values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support import DEVICE, assert_same, counting, to

SHAPES = [
    ((5, 3), (5, 2)),
    ((3, 5), (3, 2)),
    ((5, 3), (5,)),
    ((2, 5, 3), (2, 5, 2)),
    ((2, 5, 3), (2, 5)),
    ((4, 4), (4, 1)),
    ((0, 5, 3), (0, 5, 2)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("sizes", SHAPES)
def test_like_the_cpu(sizes: tuple[Any, Any], driver: str | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(n, dtype=dtype) for n in sizes)
    with counting() as counted:
        actual = torch.linalg.lstsq(a.to(DEVICE), b.to(DEVICE), driver=driver)
    assert_same(tuple(actual), tuple(torch.linalg.lstsq(a, b, driver=driver)), rtol=1e-4, atol=1e-4)
    assert not counted.fallbacks


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_dependent_columns_give_the_least_norm(driver: str) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    a[:, 1] = a[:, 0]
    actual = torch.linalg.lstsq(a.to(DEVICE), b.to(DEVICE), driver=driver)
    expected = torch.linalg.lstsq(a, b, driver="gelsd")  # the CPU's gelsy finds a rank of 1
    assert actual.rank.item() == 2 and actual.residuals.numel() == 0
    assert_same(actual.solution, expected.solution)


def test_gradients_and_out() -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
        (torch.linalg.lstsq(a, b).solution ** 2).sum().backward()
        solution, *others = (a.new_empty(0) for _ in range(4))
        others[1] = others[1].to(torch.int64)
        torch.linalg.lstsq(a.detach(), b.detach(), out=(solution, *others))
        return [a.grad, b.grad, solution]

    torch.manual_seed(0)
    args = tuple(torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((5, 3), (5, 2)))
    moved = to(args)
    assert_same(run(*moved), run(*args))


@pytest.mark.parametrize(
    "a, b, options, text",
    [
        (torch.ones(3), torch.ones(3), {}, "at least 2 dimensions"),
        (torch.ones(3, 2), torch.ones(4, 1), {}, "should match"),
        (torch.ones(3, 2), torch.ones(3, 1, dtype=torch.float64), {}, "same dtype"),
        (torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 1, dtype=torch.int64), {}, "float"),
        (torch.ones(3, 2), torch.ones(3, 1), {"driver": "qr"}, "driver"),
    ],
)
def test_refuses_what_the_cpu_refuses(a: torch.Tensor, b: torch.Tensor, options: Any, text: str) -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match=text):
            torch.linalg.lstsq(a.to(device), b.to(device), **options)
