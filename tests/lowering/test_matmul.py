"""Matrix products: dtypes, scale factors as run-time data, and NaN hidden by beta == 0."""

import math

import jax
import pytest
import torch

from tests.lowering.compare import same, traced
from tests.lowering_mode import to_jax, to_torch
from torch_tpu.lowering import registry

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
LOOSE = {"rtol": 2e-2, "atol": 2e-2}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_mm_bmm_mv_and_dot(dtype: torch.dtype) -> None:
    a, b = (torch.randn(2, 3, 4) * 3, torch.randn(2, 4, 5) * 3)
    a, b = a.to(dtype), b.to(dtype)
    tolerances = LOOSE if dtype is torch.bfloat16 else {}
    same(torch.mm, a[0], b[0], **tolerances)
    same(torch.bmm, a, b, **tolerances)
    same(torch.mv, a[0], b[0, :, 0], **tolerances)
    same(torch.dot, a[0, 0], b[0, :, 0], **tolerances)
    same(torch.vdot, a[0, 0], b[0, :, 0], **tolerances)


def test_an_empty_inner_dimension_gives_zeros() -> None:
    same(torch.mm, torch.randn(3, 0), torch.randn(0, 2))
    same(torch.addmm, torch.randn(2), torch.randn(3, 0), torch.randn(0, 2))


def test_integers_wrap_and_int_mm_widens() -> None:
    a = torch.full((17, 32), 100, dtype=torch.int8)
    same(torch.mm, a, a.T.contiguous())
    same(torch._int_mm, a, a.T[:, :16].contiguous())


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.5])
def test_addmm_scales_at_run_time_and_beta_zero_hides_nan(beta: float) -> None:
    bias, a, b = torch.full((5,), math.nan if beta == 0 else 2.0), torch.randn(3, 4), torch.randn(4, 5)
    found = registry.find("aten::addmm")
    assert found is not None
    run = jax.jit(lambda beta, *x: registry.call(found, list(x), {"beta": beta, "alpha": 0.5}))
    got = to_torch(run(beta, *map(to_jax, (bias, a, b))), torch.float32)
    torch.testing.assert_close(got, torch.addmm(bias, a, b, beta=beta, alpha=0.5))


def test_batched_and_rank_one_sums() -> None:
    a, b, c = torch.randn(3, 2, 4), torch.randn(3, 4, 5), torch.randn(2, 5)
    same(lambda: torch.baddbmm(c, a, b, beta=2, alpha=3))
    same(lambda: torch.addbmm(c, a, b, beta=2, alpha=3))
    same(lambda: torch.addmv(c[:, 0], a[0], b[0, :, 0], beta=2, alpha=3))
    same(lambda: torch.addr(c, c[:, 0], c[0], beta=2, alpha=3))
    same(lambda: torch.addr(c > 0, c[:, 0] > 0, c[0] > 0))
    same(lambda: torch._addmm_activation(c[0], a[0], b[0], use_gelu=False))


def test_mm_with_a_wider_result() -> None:
    a, b = torch.randn(3, 4).bfloat16(), torch.randn(4, 5).bfloat16()
    got = traced("aten::mm.dtype", to_jax(a), to_jax(b), torch.float32, dtype=torch.float32)
    torch.testing.assert_close(got, a.float() @ b.float())
