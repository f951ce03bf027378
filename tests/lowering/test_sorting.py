"""Sorting, selection by rank, search, and histograms."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.compare import EDGES, NAN, same

INTEGERS = [5, -3, 5, 0, -128, 127, -3, 1]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_sort_stably_with_nan_last_or_first(dtype: torch.dtype, descending: bool) -> None:
    x = torch.tensor([EDGES, EDGES[::-1]], dtype=dtype)
    for dim in (0, 1):
        same(lambda dim=dim: torch.sort(x, dim=dim, descending=descending, stable=True))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_integers_sort_to_their_limits(dtype: torch.dtype, descending: bool) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.max, 3, limits.min, 3, 1, limits.min, limits.max], dtype=dtype)
    same(lambda: torch.sort(x, descending=descending, stable=True))


def test_bools_sort_and_long_rows_are_stable() -> None:
    same(lambda: torch.sort(torch.tensor([True, False, True, False]), descending=True, stable=True))
    many = torch.randint(0, 5, (3000,)).float()
    same(lambda: torch.sort(many, stable=True))
    same(lambda: torch.sort(torch.tensor(2.0)))
    nothing = torch.empty(0, 3)
    same(lambda: torch.sort(nothing))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.int8])
@pytest.mark.parametrize("largest", [False, True])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    values = [3.0, -7.0, 0.5, 100.0, NAN, 2.0] if dtype.is_floating_point else [3, -128, 0, 100, 127, 2]
    x = torch.tensor([values, values[::-1]], dtype=dtype)
    same(lambda: torch.topk(x, 4, largest=largest))
    same(lambda: torch.topk(x, 1, dim=0, largest=largest)[0])
    same(lambda: torch.topk(torch.tensor(2.0), 1))


def test_smallest_of_infinities_and_nan() -> None:
    x = torch.tensor([float("inf"), NAN, -float("inf"), 1.0])
    same(lambda: torch.topk(x, 4, largest=False))


def test_kthvalue() -> None:
    x = torch.tensor([[4.0, NAN, 1.0, 3.0], [0.0, 9.0, 8.0, 7.0]])
    for k in (1, 3, 4):
        same(lambda k=k: torch.kthvalue(x, k))
    same(lambda: torch.kthvalue(x, 2, dim=0, keepdim=True))
    same(lambda: torch.kthvalue(torch.tensor(1.0), 1))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [5, 100])
def test_search(right: bool, size: int) -> None:
    edges = torch.arange(float(size))
    values = torch.tensor([[-1.0, 0.0, 2.5], [4.0, 1e9, NAN]])
    same(lambda: torch.bucketize(values, edges, right=right))
    same(lambda: torch.searchsorted(edges, values, right=right, out_int32=True))
    same(lambda: torch.searchsorted(edges, 3, right=right))
    rows = torch.stack([edges, edges * 2])
    same(lambda: torch.searchsorted(rows, values, right=right))
    order = torch.randperm(size)
    same(lambda: torch.searchsorted(edges[order], values, sorter=torch.argsort(edges[order])))


@pytest.mark.parametrize("tests", [[2.0, NAN], list(map(float, range(100)))])
def test_isin(tests: list[float]) -> None:
    elements = torch.tensor([[1.0, 2.0], [NAN, 500.0]])
    same(lambda: torch.isin(elements, torch.tensor(tests)))
    same(lambda: torch.isin(elements, torch.tensor(tests), invert=True))
    same(lambda: torch.isin(elements, 2))
    same(lambda: torch.isin(2, torch.tensor(tests)))


def test_histograms() -> None:
    x = torch.tensor([1.0, 2.0, 2.0, 5.0, -1.0, 3.0])
    same(lambda: torch.histc(x, 4))
    same(lambda: torch.histc(x, 4, 0.0, 3.0))
    same(lambda: torch.histc(torch.ones(3), 3))
    same(lambda: torch.histogram(x, 4, density=True))
    same(lambda: torch.histogram(torch.ones(3), 3))
    same(lambda: torch.histogram(x, torch.tensor([-1.0, 0.0, 2.0, 3.0]), weight=x + 2))
    same(lambda: torch.histogramdd(torch.stack([x, x.flip(0)], 1), [2, 3]))
