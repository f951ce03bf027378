"""Fourier transforms."""

from __future__ import annotations

import pytest
import torch

import torch_tpu.lowering.fft  # noqa: F401 (registers)
from tests.lowering.compare import same


@pytest.mark.parametrize("norm", [0, 1, 2])
@pytest.mark.parametrize("dims", [[1], [0, 2], [2, 0, 1]])
def test_transforms(norm: int, dims: list[int]) -> None:
    x = torch.randn(3, 4, 5)
    z = torch.randn(3, 4, 5, dtype=torch.complex128)
    aten = torch.ops.aten
    for forward in (True, False):
        same(lambda forward=forward: aten._fft_c2c(z, dims, norm, forward))
    for onesided in (True, False):
        same(lambda onesided=onesided: aten._fft_r2c(x, dims, norm, onesided), atol=1e-5, rtol=1e-5)
    for size in (6, 7):
        same(lambda size=size: torch.fft.irfft(z, n=size, dim=2))
