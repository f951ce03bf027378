"""One position per element along a dimension, and reductions of segments."""

from __future__ import annotations

import pytest
import torch

from tests.lowering.compare import NAN, same

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([[0, 3, 1], [2, 2, 3], [1, 0, 0]])
ONE = torch.tensor([[3], [0], [4], [1]])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_with_a_smaller_index(dim: int) -> None:
    same(lambda: X.gather(dim, INDEX))
    scalar, zeros = torch.tensor(2.0), torch.tensor([0, 0])
    same(lambda: scalar.gather(0, zeros))
    nothing = torch.empty(0, 3, dtype=torch.int64)
    same(lambda: X.gather(dim, nothing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("index", [INDEX, ONE])
def test_scatter(dtype: torch.dtype, index: torch.Tensor) -> None:
    x, source = X.to(dtype), (X * 3).round().to(dtype)
    distinct = index[:1] if index is INDEX else index
    same(lambda: x.scatter(1, distinct, source))
    same(lambda: x.scatter(1, index, 1))
    same(lambda: x.scatter_add(1, index, source))


def test_scatter_with_a_reduction() -> None:
    same(lambda: X.scatter(0, INDEX, X, reduce="add"))
    same(lambda: X.scatter(0, INDEX, 2.5, reduce="multiply"))


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, source = (X * 9).to(dtype), (X * 5).to(dtype)
    same(lambda: x.scatter_reduce(0, INDEX, source, reduce, include_self=include_self))


def test_scatter_reduce_keeps_nan() -> None:
    source = torch.tensor([1.0, NAN, 3.0])
    index = torch.tensor([0, 0, 1])
    same(lambda: torch.zeros(2).scatter_reduce(0, index, source, "amax"))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    data = torch.randn(6, 2)
    data[1, 0] = 0
    lengths, offsets = torch.tensor([2, 0, 3, 1]), torch.tensor([0, 2, 2, 5, 6])
    same(lambda: torch.segment_reduce(data, reduce, lengths=lengths, initial=initial))
    same(lambda: torch.segment_reduce(data, reduce, offsets=offsets, initial=initial))
    output = torch.segment_reduce(data, reduce, lengths=lengths, initial=initial)
    same(
        lambda: torch.ops.aten._segment_reduce_backward(
            torch.ones(4, 2), output, data, reduce, lengths=lengths, initial=initial
        )
    )
