"""Special functions against PyTorch's, on both sides of every change of method."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lowering.compare import same

special = torch.special
POINTS = torch.tensor([1e-6, 0.1, 0.7, 1.0, 1.9, 2.1, 4.6, 7.9, 8.1, 24.9, 25.1, 60.0], dtype=torch.float64)

BESSEL = [special.bessel_j0, special.bessel_j1, special.bessel_y0, special.bessel_y1,
          special.modified_bessel_i0, special.modified_bessel_i1,
          special.modified_bessel_k0, special.modified_bessel_k1,
          special.scaled_modified_bessel_k0, special.scaled_modified_bessel_k1,
          special.spherical_bessel_j0, special.i0, special.i0e, special.i1, special.i1e]  # fmt: skip
OTHER = [special.erfcx, special.entr, special.ndtri, special.log_ndtr, special.erf, special.erfc,
         special.erfinv, special.gammaln, special.digamma]  # fmt: skip
POLYNOMIALS = [name for name in dir(special) if "_polynomial_" in name]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("op", BESSEL)
def test_bessel_functions(op: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    tolerance = 2e-8 if dtype is torch.float64 else 1e-5  # PyTorch's own j0 and j1 are off by 5e-9
    same(op, POINTS.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", OTHER)
def test_error_and_gamma_functions(op: Callable[..., torch.Tensor]) -> None:
    same(op, torch.cat([POINTS, -POINTS[:9], torch.zeros(1).double()]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_polygamma(n: int) -> None:
    same(lambda x: special.polygamma(n, x), torch.cat([POINTS, -POINTS[1:3]]), rtol=1e-9, atol=1e-12)


def test_hurwitz_zeta() -> None:
    orders = torch.tensor([0.5, 1.0, 1.1, 2.0, 7.5], dtype=torch.float64)[:, None]
    same(special.zeta, orders, torch.cat([POINTS, torch.tensor([0.0, -2.0]).double()]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_of_each_degree(name: str) -> None:
    x = torch.tensor([-1.0, -0.3, 0.0, 0.6, 1.0, 1.7], dtype=torch.float64)
    degrees = torch.arange(-1, 9)[:, None]
    same(getattr(special, name), x, degrees, rtol=1e-9, atol=1e-9)
    same(lambda x: getattr(special, name)(x, 3), x, rtol=1e-9, atol=1e-9)
