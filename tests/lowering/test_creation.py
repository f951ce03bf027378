"""Tensors made from numbers hold what PyTorch's hold, in value and in rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lowering.compare import same

FLOAT_TYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize(
    "args", [(5,), (2, 9), (9, 2, -3), (0, 1, 0.1), (1.5, 4), (-3, 3, 0.75), (0,), (5, 5)]
)
def test_arange(args: tuple[float, ...]) -> None:
    same(lambda: torch.arange(*args))
    same(lambda: torch.arange(*args, dtype=torch.float64))


@pytest.mark.parametrize("args", [(0.5, 7), (0, 5.9, 2)])
def test_arange_of_integers_from_floats(args: tuple[float, ...]) -> None:
    same(lambda: torch.arange(*args, dtype=torch.int64))


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [*FLOAT_TYPES, torch.int64, torch.complex64])
def test_linspace_and_logspace(steps: int, dtype: torch.dtype) -> None:
    same(lambda: torch.linspace(-3, 10, steps, dtype=dtype))
    same(lambda: torch.logspace(0, 2, steps, base=2.0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_constant_tensors(dtype: torch.dtype) -> None:
    x = torch.empty(2, 3, dtype=dtype)
    same(lambda: (torch.zeros(2, 0, dtype=dtype), torch.ones(3, dtype=dtype), torch.eye(2, 3, dtype=dtype)))
    same(lambda: (torch.full((2, 2), 7, dtype=dtype), torch.scalar_tensor(2.5, dtype=dtype)))
    same(lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3)), x)
    same(lambda x: (x.new_zeros(2), x.new_ones(2), x.new_full((1,), 3)), x)


def test_full_takes_its_dtype_from_the_value() -> None:
    same(lambda: (torch.full((2,), 1), torch.full((2,), 0.5), torch.full((2,), True), torch.full((), 1j)))


@pytest.mark.parametrize("offset", [-2, 0, 1, 5])
def test_triangle_indices(offset: int) -> None:
    same(lambda: (torch.tril_indices(3, 4, offset), torch.triu_indices(3, 4, offset)))


@pytest.mark.parametrize("window", [torch.hann_window, torch.hamming_window, torch.blackman_window,
                                    torch.bartlett_window, torch.kaiser_window])  # fmt: skip
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("periodic", [True, False])
def test_windows(window: Callable[..., torch.Tensor], length: int, periodic: bool) -> None:
    same(lambda: window(length, periodic))
    same(lambda: window(length, periodic, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 4, 5])
def test_frequencies(n: int) -> None:
    same(lambda: (torch.fft.fftfreq(n, 0.5), torch.fft.rfftfreq(n, 2.0)))
