"""Factorizations and solvers: batches, empty and singular matrices, and what is unique about a result."""

import pytest
import torch

from tests.lowering.compare import same
from tests.lowering_mode import LoweringMode

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
DTYPES = [torch.float32, torch.float64, torch.complex64]


def _matrices(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype) + 3 * torch.eye(shape[-2], shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_inverse_and_determinant(dtype: torch.dtype) -> None:
    a, b = _matrices(2, 4, 4, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
    same(torch.ops.aten._linalg_solve_ex, a, b, **CLOSE)
    same(lambda: torch.ops.aten._linalg_solve_ex(a, b.mT, left=False), **CLOSE)
    same(torch.ops.aten._linalg_solve_ex, a, b[:, :, 0], **CLOSE)
    same(torch.linalg.inv_ex, a, **CLOSE)
    same(torch.ops.aten._linalg_det, a, **CLOSE)
    same(torch.ops.aten._linalg_slogdet, a, **CLOSE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_solve_and_determinants(dtype: torch.dtype) -> None:
    a, b = _matrices(2, 4, 4, dtype=dtype).requires_grad_(), torch.randn(2, 4, 3, dtype=dtype)
    for fn in (
        lambda: torch.linalg.solve(a, b),
        lambda: torch.linalg.det(a),
        lambda: torch.linalg.slogdet(a)[1],
    ):
        expected = torch.autograd.grad(fn().abs().sum(), a)
        with LoweringMode() as mode:
            got = torch.autograd.grad(fn().abs().sum(), a)
        assert mode.lowered["aten::linalg_lu_solve"]
        torch.testing.assert_close(got, expected, **CLOSE)


def test_a_singular_matrix_has_info_and_an_empty_one_works() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    with LoweringMode():
        assert torch.linalg.lu_factor_ex(singular).info.item() == 2
        assert torch.linalg.inv_ex(torch.zeros(3, 3)).info.item() == 1
        assert torch.linalg.cholesky_ex(-torch.eye(2)).info.item() > 0
    same(torch.linalg.inv_ex, torch.zeros(2, 0, 0))
    same(torch.ops.aten._linalg_det, torch.zeros(2, 0, 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 4, 4), (5, 3), (3, 5)])
def test_lu_and_qr(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = _matrices(*shape, dtype=dtype)
    same(torch.linalg.lu, a, **CLOSE)
    same(torch.linalg.lu_factor_ex, a, **CLOSE)
    same(lambda: torch.ops.aten.linalg_lu_factor_ex(a, pivot=True), **CLOSE)
    same(torch.lu_unpack, *torch.linalg.lu_factor(a), **CLOSE)
    same(torch.linalg.qr, a, **CLOSE)
    same(lambda: torch.linalg.qr(a, "complete")[1], **CLOSE)
    same(torch.geqrf, a, **CLOSE)
    packed, tau = torch.geqrf(a)
    if shape[-2] >= shape[-1]:
        same(torch.linalg.householder_product, packed, tau, **CLOSE)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve_and_triangular_solves(left: bool, adjoint: bool) -> None:
    a, b = _matrices(2, 4, 4, dtype=torch.complex64), torch.randn(2, 4, 4, dtype=torch.complex64)
    factors = torch.linalg.lu_factor(a)
    same(lambda: torch.linalg.lu_solve(*factors, b, left=left, adjoint=adjoint), **CLOSE)
    same(lambda: torch.linalg.solve_triangular(a, b, upper=adjoint, left=left), **CLOSE)
    same(lambda: torch.triangular_solve(b, a, left, adjoint), **CLOSE)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky(upper: bool, dtype: torch.dtype) -> None:
    a = _matrices(2, 4, 4, dtype=dtype)
    a = a @ a.mH + torch.eye(4)
    same(lambda: torch.linalg.cholesky_ex(a, upper=upper), **CLOSE)
    factor = torch.linalg.cholesky(a, upper=upper)
    same(lambda: torch.cholesky_inverse(factor, upper=upper), **CLOSE)
    same(lambda: torch.ops.aten._cholesky_solve_helper(a, factor, upper), **CLOSE)


def test_decompositions_up_to_sign_rebuild_the_matrix() -> None:
    a = torch.randn(2, 5, 3)
    symmetric = a.mT @ a
    with LoweringMode(only={"aten::_linalg_svd", "aten::_linalg_eigh"}) as mode:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        values, vectors = torch.linalg.eigh(symmetric)
        alone = torch.linalg.eigvalsh(symmetric.triu(), UPLO="U")
    assert len(mode.lowered) == 2
    torch.testing.assert_close(u * s.unsqueeze(-2) @ vh, a, **CLOSE)
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, symmetric, **CLOSE)
    torch.testing.assert_close(alone, values, **CLOSE)
    torch.testing.assert_close(s, torch.linalg.svdvals(a), **CLOSE)


def test_cross() -> None:
    same(torch.linalg.cross, torch.randn(2, 3), torch.randn(1, 3))
    same(lambda x, y: torch.linalg.cross(x, y, dim=0), torch.randn(3, 2), torch.randn(3, 2))
