"""Ops whose output size depends on data: PyTorch's results, with at most one wait for the device."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.lowering.compare import NAN
from torch_tpu.lowering.data_dependent import HOST, needs_host

aten = torch.ops.aten
X = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [2.0, 5.0, 0.0], [3.0, 1.0, 0.0]])
MASK = X > 1
NONE = torch.zeros(4, 3, dtype=torch.bool)


class _Waits(TorchDispatchMode):
    """Counts what reads from a device, and the sizes that ops were called with."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.sizes = collections.Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += func is aten._local_scalar_dense.default
        if func is aten.nonzero_static.default:
            self.sizes[(kwargs or {})["size"]] += 1
        return func(*args, **(kwargs or {}))


def _check(name: str, *args: Any, waits: int = 1, **kwargs: Any) -> None:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    expected = getattr(getattr(aten, packet), overload or "default")(*args, **kwargs)
    with _Waits() as seen:
        got = HOST[name](*args, **kwargs)
    assert seen.reads <= waits
    torch.testing.assert_close(tree_leaves(got), tree_leaves(expected), equal_nan=True)


@pytest.mark.parametrize("x", [X, X > 0, torch.tensor(2.0), torch.tensor(0.0), torch.zeros(0, 3), X[0] * 0])
def test_nonzero(x: torch.Tensor) -> None:
    _check("aten::nonzero", x)


@pytest.mark.parametrize("mask", [MASK, MASK[:, :1], MASK[0], NONE, ~NONE])
def test_masked_select(mask: torch.Tensor) -> None:
    _check("aten::masked_select", X, mask)


@pytest.mark.parametrize(
    "indices",
    [
        [MASK],
        [NONE],
        [MASK[:, 0]],
        [None, MASK[0]],
        [None, MASK[0].to(torch.uint8)],
        [MASK[:, 0], torch.tensor(1)],
        [torch.tensor([0, 2]), torch.tensor([True, False, True])],
        [MASK[:, 0], MASK[0]],
    ],
)
def test_index_with_masks(indices: list[torch.Tensor | None]) -> None:
    assert needs_host("aten::index.Tensor", [X, indices])
    if sum(i is not None and i.dtype is torch.bool for i in indices) > 1:
        indices = [torch.tensor([True, False, True, False]), torch.tensor([True, False, True])]
    _check("aten::index.Tensor", X, indices)


def test_integers_alone_do_not_need_the_host() -> None:
    assert not needs_host("aten::index.Tensor", [X, [None, torch.tensor([1])]])
    assert needs_host("aten::nonzero", [X])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("indices", [[MASK], [MASK[:, 0]], [None, MASK[0]]])
def test_the_same_values_everywhere_need_no_wait(
    indices: list[torch.Tensor | None], accumulate: bool
) -> None:
    _check("aten::index_put", X, indices, torch.tensor(7.0), accumulate, waits=0)
    if indices[0] is MASK[:, 0]:
        _check("aten::index_put", X, indices, torch.ones(3), accumulate, waits=0)


def test_values_of_their_own() -> None:
    _check("aten::index_put", X, [MASK], torch.arange(5.0))
    _check("aten::index_put", X, [None, MASK[0]], torch.arange(4.0)[:, None])
    _check("aten::index_put", X, [MASK[:, 0], torch.tensor(1)], torch.arange(4.0), True)
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        HOST["aten::index_put"](X, [MASK], torch.ones(9))
    with pytest.raises(RuntimeError, match="dtypes match"):
        HOST["aten::index_put"](X, [MASK], torch.ones(1, dtype=torch.int64))


def test_masks_of_other_shapes() -> None:
    for indices, text in (
        ([torch.ones(2, dtype=torch.bool)], r"shape of the mask \[2\] at index 0 .*\[4, 3\] at index 0"),
        ([None, torch.ones(2, dtype=torch.bool)], r"\[2\] at index 0 .*\[4, 3\] at index 1"),
        ([torch.ones(4, 3, 1, dtype=torch.bool)], "too many indices for tensor of dimension 2"),
    ):
        with pytest.raises(IndexError, match=text):
            HOST["aten::index.Tensor"](X, indices)


@pytest.mark.parametrize("x", [X, X.long(), X > 1, X.bfloat16(), X[:0], torch.tensor(2.0),
                               torch.tensor([NAN, 1.0, NAN, -0.0, 0.0])])  # fmt: skip
def test_unique(x: torch.Tensor) -> None:
    for inverse, counts in ((True, True), (False, True), (True, False)):
        _check("aten::_unique2", x, True, inverse, counts)
        _check("aten::unique_consecutive", x, inverse, counts)
    _check("aten::_unique", x, True, True)


@pytest.mark.parametrize("dim", [0, 1])
def test_unique_rows(dim: int) -> None:
    _check("aten::unique_dim", X, dim, True, True, True)
    _check("aten::unique_dim_consecutive", X, dim, True, True)
    _check("aten::unique_consecutive", X, True, True, dim)
    _check("aten::unique_dim", torch.arange(12).reshape(2, 3, 2) // 6, dim, True, True, True)
    with pytest.raises(RuntimeError, match="0 sized dimensions"):
        HOST["aten::unique_dim"](torch.zeros(3, 0), 0)


def test_bincount() -> None:
    x = torch.tensor([1, 5, 1, 0])
    _check("aten::bincount", x)
    _check("aten::bincount", x.to(torch.uint8), None, 9)
    _check("aten::bincount", x, torch.tensor([0.5, 1.0, 2.0, 3.0]))
    _check("aten::bincount", x, x)
    _check("aten::bincount", x[:0], None, 3)
    for bad in (torch.tensor([-1]), torch.tensor([[1]])):
        with pytest.raises(RuntimeError, match="1-d non-negative integral"):
            HOST["aten::bincount"](bad)


def test_repeat_interleave() -> None:
    repeats = torch.tensor([2, 0, 3])
    _check("aten::repeat_interleave.Tensor", repeats)
    _check("aten::repeat_interleave.Tensor", repeats.int(), output_size=5, waits=0)
    _check("aten::repeat_interleave.Tensor", repeats[:0])
    with pytest.raises(RuntimeError, match="can not be negative"):
        HOST["aten::repeat_interleave.Tensor"](torch.tensor([2, -1]))


def test_equal() -> None:
    for other in (X.clone(), X + 1, X[:2], X * NAN):
        _check("aten::equal", X, other)
    assert not HOST["aten::equal"](X * NAN, X * NAN)


def test_sizes_are_few() -> None:
    """A thousand different counts are served by a few static sizes, none over a quarter too large."""
    with _Waits() as seen:
        for count in range(1, 1001):
            assert HOST["aten::nonzero"](torch.arange(1001) < count).shape == (count, 1)
    assert len(seen.sizes) <= 36
    assert all(size <= 1001 for size in seen.sizes)
