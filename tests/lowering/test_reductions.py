"""Reductions and scans: which dims, which dtype, which index, and what NaN and emptiness give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.compare import INF, NAN, same
from tests.lowering_mode import LoweringMode

X = torch.tensor([[3.0, -1.0, 3.0, 2.0], [NAN, 5.0, 5.0, -INF], [0.0, 0.0, 0.0, -4.0]])
FINITE = torch.nan_to_num(X, 7.0, 8.0, -9.0)
INTS = FINITE.long()
BOOLS = FINITE > 1

Op = Callable[..., Any]


@pytest.mark.parametrize("op", [torch.sum, torch.nansum, torch.mean, torch.amax, torch.amin, torch.std,
                                torch.var, torch.all, torch.any])  # fmt: skip
@pytest.mark.parametrize("dim", [(), (0,), (-1,), (0, 1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reduction_over_dims(op: Op, dim: tuple[int, ...], keepdim: bool) -> None:
    same(lambda x: op(x, dim=dim, keepdim=keepdim), X)


@pytest.mark.parametrize("op", [torch.max, torch.min, torch.median, torch.nanmedian, torch.mode, torch.cummax,
                                torch.cummin])  # fmt: skip
@pytest.mark.parametrize("x", [X, INTS])
@pytest.mark.parametrize("dim", [0, -1])
def test_values_with_their_indices(op: Op, x: torch.Tensor, dim: int) -> None:
    if op is torch.nanmedian or x is INTS or op not in (torch.mode,):
        same(lambda x: tuple(op(x, dim)), x)


@pytest.mark.parametrize("op", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_first_index_wins_and_nan_wins_over_all(op: Op, dim: int | None) -> None:
    same(lambda x: (op(x, dim), op(x, dim, keepdim=True)), X)
    same(lambda x: op(x, dim), INTS)


@pytest.mark.parametrize("op", [torch.sum, torch.prod, torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("x", [INTS, BOOLS, FINITE.bfloat16()])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64])
def test_accumulation_dtype(op: Op, x: torch.Tensor, dtype: torch.dtype | None) -> None:
    same(lambda x: op(x, 1, dtype=dtype), x)


def test_long_half_precision_sums_accumulate_in_float32() -> None:
    same(lambda x: (x.sum(), x.mean(0), x.cumsum(0)), torch.full((5000,), 0.1, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "op",
    [torch.sum, torch.prod, torch.max, torch.median, torch.argmax, torch.std, torch.all, torch.count_nonzero,
     lambda x: torch.cumsum(x, 0), lambda x: torch.cummax(x, 0), lambda x: torch.max(x, 0),
     lambda x: torch.median(x, 0), lambda x: torch.mode(x, 0), lambda x: torch.logcumsumexp(x, 0),
     lambda x: torch.linalg.vector_norm(x), lambda x: torch.logsumexp(x, 0)],
)  # fmt: skip
def test_zero_dim_input(op: Op) -> None:
    same(op, torch.tensor(2.5))


@pytest.mark.parametrize("x", [X, INTS, BOOLS, X.bfloat16()])
def test_hash(x: torch.Tensor) -> None:
    same(lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, 1, keepdim=True)), x)


def test_empty_input() -> None:
    empty = torch.zeros(0, 3)
    same(lambda x: (x.sum(), x.prod(), x.mean(), x.all(), x.any(), x.std(), x.sum(0), x.cumsum(0)), empty)
    same(lambda x: (torch.logsumexp(x, 0), torch.median(x), torch.linalg.vector_norm(x)), empty)


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 5])
def test_variance_with_a_correction(correction: float) -> None:
    same(lambda x: torch.var_mean(x, 1, correction=correction), FINITE)
    same(lambda x: torch.std(x, 0, correction=correction), torch.complex(FINITE, FINITE.flip(0)))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, INF, -INF])
def test_norms(order: float) -> None:
    same(lambda x: torch.linalg.vector_norm(x, order, dim=1), FINITE)
    same(lambda x: torch.norm(x, p=order, dim=0, keepdim=True), FINITE)
    same(lambda x: torch.dist(x, x.reshape(-1)[:4], p=order), FINITE)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, INF])
def test_pairwise_distances_and_their_gradient(p: float) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.clone().requires_grad_(), x[:2].flip(1).clone().requires_grad_()
        distances = torch.cdist(a, b, p=p, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = torch.nn.functional.pdist(a, p=p)
        loss = (distances * torch.arange(1.0, 7).reshape(3, 2)).sum() + (pairs * pairs).sum()
        return distances.detach(), pairs.detach(), *torch.autograd.grad(loss, (a, b))

    expected = program(FINITE)
    with LoweringMode() as mode:
        got = program(FINITE)
    assert {"aten::_cdist_backward", "aten::_pdist_backward"} <= set(mode.lowered)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dim", [(0,), (-1,), (0, 1)])
def test_logsumexp_of_numbers_and_infinities(dim: tuple[int, ...]) -> None:
    same(lambda x: torch.logsumexp(x, dim, keepdim=True), X)
    same(lambda x: (torch.logsumexp(x * INF, dim), torch.logsumexp(x, dim)), FINITE.double())


def test_running_logsumexp_keeps_infinities() -> None:
    same(lambda x: torch.logcumsumexp(x, 0), torch.tensor([-INF, -INF, 1.0, 3.0, INF, 2.0, NAN]))


def test_counts_and_traces() -> None:
    same(lambda x: (torch.count_nonzero(x), torch.count_nonzero(x, (0, 1)), torch.trace(x)), INTS)
    same(lambda x: torch.aminmax(x, dim=0), X)
    same(lambda x: torch.renorm(x, 2, 0, 3.0), FINITE)
