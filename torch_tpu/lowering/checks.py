"""Positions out of range, found before an op runs (Debug Eager), with the CPU's own errors.

A check takes the op's arguments, positional, in schema order. It reads the elements of index arguments
only, which may be on any device, and raises IndexError or RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: The check of each functional op that has one ("aten::gather").
CHECKS: dict[str, Callable[..., None]] = {}

_MASKS = (torch.bool, torch.uint8)


def check(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the check of the ops `names`."""

    def register(fn: Callable[..., None]) -> Callable[..., None]:
        CHECKS.update(dict.fromkeys(names, fn))
        return fn

    return register


def outside(index: Tensor, low: int, high: int) -> int | None:
    """The first element of `index` that is not in [low, high)."""
    values = index.cpu()
    bad = values[(values < low) | (values >= high)]
    return int(bad[0].item()) if bad.numel() else None


def _size(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


def _dim(x: Tensor, dim: int) -> int:
    return dim % max(x.ndim, 1)


@check(
    "aten::index.Tensor",
    "aten::_unsafe_index.Tensor",
    "aten::index_put",
    "aten::_unsafe_index_put",
    "aten::_index_put_impl",
)
def check_index(x: Tensor, indices: Sequence[Tensor | None], *_: Any) -> None:
    dim = place = 0  # the CPU's text counts the index tensors, not the dimensions of x
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            dim, place = dim + index.ndim, place + index.ndim
            continue
        if index is not None and dim < x.ndim:
            size = x.shape[dim]
            if size == 0 and index.numel():
                raise IndexError("index is out of bounds for dimension with size 0")
            _bounded(index, -size, place, size, IndexError)
            place += 1
        dim += 1


def _bounded(index: Tensor, low: int, dim: int, size: int, error: type[Exception], prefix: str = "") -> None:
    found = outside(index, low, size)
    if found is not None:
        raise error(f"{prefix}index {found} is out of bounds for dimension {dim} with size {size}")


@check("aten::index_select")
def check_index_select(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    found = outside(index, 0, _size(x, dim))
    if found is not None:
        raise IndexError("index out of range in self")


@check(
    "aten::gather",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter.reduce",
    "aten::scatter.value_reduce",
    "aten::scatter_add",
    "aten::scatter_reduce.two",
)
def check_elements(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    _bounded(index, 0, _dim(x, dim), _size(x, dim), RuntimeError)


@check("aten::index_add")
def check_index_add(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    if x.ndim > 1:
        _bounded(index, 0, _dim(x, dim), _size(x, dim), RuntimeError)
    else:
        check_index_select(x, dim, index)


@check("aten::index_reduce")
def check_index_reduce(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    check_index_select(x, dim, index)


@check("aten::index_copy")
def check_index_copy(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    _bounded(index, 0, _dim(x, dim), _size(x, dim), IndexError, "index_copy_(): ")


@check("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def check_index_fill(x: Tensor, dim: int, index: Tensor, *_: Any) -> None:
    _bounded(index, -_size(x, dim), _dim(x, dim), _size(x, dim), IndexError)


@check("aten::take", "aten::put")
def check_take(x: Tensor, index: Tensor, *_: Any) -> None:
    if x.numel() == 0 and index.numel():
        raise IndexError("take(): tried to take from an empty tensor")
    found = outside(index, -x.numel(), x.numel())
    if found is not None:
        raise IndexError(f"out of range: tried to access index {found} on a tensor of {x.numel()} elements.")


@check("aten::masked_scatter")
def check_masked_scatter(x: Tensor, mask: Tensor, source: Tensor, *_: Any) -> None:
    if int(mask.cpu().expand(torch.broadcast_shapes(x.shape, mask.shape)).sum()) > source.numel():
        raise RuntimeError("Number of elements of source < number of ones in mask")


@check("aten::embedding", "aten::embedding_renorm")
def check_embedding(weight: Tensor, indices: Tensor, *_: Any) -> None:
    check_index_select(weight, 0, indices)


@check("aten::embedding_dense_backward")
def check_embedding_backward(grad: Tensor, indices: Tensor, num_weights: int, *_: Any) -> None:
    if outside(indices, 0, num_weights) is not None:
        raise IndexError("index out of range in self")


@check("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def check_embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, *_: Any) -> None:
    starts, n = offsets.cpu(), indices.numel()
    if starts.numel() and starts[0] != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {int(starts[0])}"
        )
    if starts.numel() and starts[-1] > n:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {n} but got offsets[-1] of {int(starts[-1])}"
        )
    values, rows = indices.cpu(), weight.shape[0]
    bad = ((values < 0) | (values >= rows)).nonzero()
    if bad.numel():
        place = int(bad[0, 0])
        raise RuntimeError(
            f"Index {place} of input takes value {int(values[place])} which is not in the valid range "
            f"[0, {rows})"
        )


@check("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def check_nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, *_: Any
) -> None:
    values = target.cpu()
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    found = outside(values[values != ignore_index], 0, classes)
    if found is not None:
        raise IndexError(f"Target {found} is out of bounds.")


@check("aten::multi_margin_loss")
def check_multi_margin_loss(x: Tensor, target: Tensor, *_: Any) -> None:
    if outside(target, 0, x.shape[-1]) is not None:
        raise RuntimeError("target out of range")


@check("aten::multilabel_margin_loss_forward")
def check_multilabel_margin_loss(x: Tensor, target: Tensor, *_: Any) -> None:
    if outside(target, -1, x.shape[-1]) is not None:
        raise RuntimeError("argument #2 'target' is out of range")
