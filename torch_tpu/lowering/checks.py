"""Positions out of range: what ops with indices require of them, with the CPU's own errors.

A rule takes the arrays that the op's lowering takes, positional, and gives the bounds of each index argument.
The op's program finds the first element outside of each; the host hears of it when it next waits for the
device (`csrc/traps.cpp`), in Debug Eager at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


@dataclass(frozen=True)
class Bound:
    """Every element of `values` must lie in [low, high).

    text: of the error; {value} stands for the first element that does not, {place} for its place.
    """

    values: Array
    low: int
    high: int
    error: type[Exception]
    text: str


Rule = Callable[..., Iterator[Bound]]

#: The rule of each functional op that has one ("aten::gather").
RULES: dict[str, Rule] = {}

#: What first_outside says where all elements are in range.
NOTHING = 2**63 - 1
_LOWEST = -(2**63)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of the ops `names`."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def first_outside(bound: Bound) -> Array:
    """int64 []: place (row-major) * 2^32 + value of the first element out of bounds, or NOTHING.

    One reduction, for the sake of speed. Values are clipped to 32 bits.
    """
    values = bound.values.reshape(-1).astype(jnp.int64)
    outside = (values < bound.low) | (values >= bound.high)
    shown = jnp.clip(values, -(2**31), 2**31 - 1) & (2**32 - 1)
    place = lax.iota(np.int64, values.shape[0])
    return jnp.min(jnp.where(outside, place << 32 | shown, NOTHING), initial=NOTHING)


def _size(x: Array, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


def _dim(x: Array, dim: int) -> int:
    return dim % max(x.ndim, 1)


def _within(
    index: Array, low: int, dim: int, size: int, error: type[Exception], prefix: str = ""
) -> Iterator[Bound]:
    text = f"{prefix}index {{value}} is out of bounds for dimension {dim} with size {size}"
    yield Bound(index, low, size, error, text)


@rule(
    "aten::index.Tensor",
    "aten::_unsafe_index.Tensor",
    "aten::index_put",
    "aten::_unsafe_index_put",
    "aten::_index_put_impl",
)
def index_rule(x: Array, indices: Sequence[Array | None], *_: Any) -> Iterator[Bound]:
    dim = place = 0  # the CPU's text counts the index tensors, not the dimensions of x
    for index in indices:
        if index is not None and index.dtype in (np.bool_, np.uint8):
            dim, place = dim + index.ndim, place + index.ndim
            continue
        if index is not None and dim < x.ndim:
            size = x.shape[dim]
            if size == 0:
                yield Bound(index, 0, 0, IndexError, "index is out of bounds for dimension with size 0")
            else:
                yield from _within(index, -size, place, size, IndexError)
            place += 1
        dim += 1


@rule("aten::index_select", "aten::index_reduce")
def index_select_rule(x: Array, dim: int, index: Array, *_: Any) -> Iterator[Bound]:
    yield Bound(index, 0, _size(x, dim), IndexError, "index out of range in self")


@rule(
    "aten::gather",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter.reduce",
    "aten::scatter.value_reduce",
    "aten::scatter_add",
    "aten::scatter_reduce.two",
)
def elements_rule(x: Array, dim: int, index: Array, *_: Any) -> Iterator[Bound]:
    yield from _within(index, 0, _dim(x, dim), _size(x, dim), RuntimeError)


@rule("aten::index_add")
def index_add_rule(x: Array, dim: int, index: Array, *_: Any) -> Iterator[Bound]:
    if x.ndim > 1:
        yield from _within(index, 0, _dim(x, dim), _size(x, dim), RuntimeError)
    else:
        yield from index_select_rule(x, dim, index)


@rule("aten::index_copy")
def index_copy_rule(x: Array, dim: int, index: Array, *_: Any) -> Iterator[Bound]:
    yield from _within(index, 0, _dim(x, dim), _size(x, dim), IndexError, "index_copy_(): ")


@rule("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill_rule(x: Array, dim: int, index: Array, *_: Any) -> Iterator[Bound]:
    yield from _within(index, -_size(x, dim), _dim(x, dim), _size(x, dim), IndexError)


@rule("aten::take", "aten::put")
def take_rule(x: Array, index: Array, *_: Any) -> Iterator[Bound]:
    if x.size == 0:
        yield Bound(index, 0, 0, IndexError, "take(): tried to take from an empty tensor")
        return
    text = f"out of range: tried to access index {{value}} on a tensor of {x.size} elements."
    yield Bound(index, -x.size, x.size, IndexError, text)


@rule("aten::masked_scatter")
def masked_scatter_rule(x: Array, mask: Array, source: Array, *_: Any) -> Iterator[Bound]:
    wanted = jnp.sum(jnp.broadcast_to(mask, jnp.broadcast_shapes(x.shape, mask.shape)))
    text = "Number of elements of source < number of ones in mask"
    yield Bound(wanted, 0, source.size + 1, RuntimeError, text)


@rule("aten::embedding", "aten::embedding_renorm")
def embedding_rule(weight: Array, indices: Array, *_: Any) -> Iterator[Bound]:
    yield from index_select_rule(weight, 0, indices)


@rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag_rule(weight: Array, indices: Array, offsets: Array, *_: Any) -> Iterator[Bound]:
    rows, count = weight.shape[0], indices.size
    text = (
        "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
        "However, got {value}"
    )
    yield Bound(offsets[:1], 0, 1, RuntimeError, text)
    text = f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of {{value}}"
    yield Bound(offsets[-1:], _LOWEST, count + 1, RuntimeError, text)
    text = f"Index {{place}} of input takes value {{value}} which is not in the valid range [0, {rows})"
    yield Bound(indices, 0, rows, RuntimeError, text)


@rule("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss_rule(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int, *_: Any
) -> Iterator[Bound]:
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    used = jnp.where(target == ignore_index, 0, target)
    yield Bound(used, 0, classes, IndexError, "Target {value} is out of bounds.")


def _classes(x: Array) -> int:
    return x.shape[-1] if x.ndim else 1


@rule("aten::multi_margin_loss")
def multi_margin_loss_rule(x: Array, target: Array, *_: Any) -> Iterator[Bound]:
    yield Bound(target, 0, _classes(x), RuntimeError, "target out of range")


@rule("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss_rule(x: Array, target: Array, *_: Any) -> Iterator[Bound]:
    yield Bound(target, -1, _classes(x), RuntimeError, "argument #2 'target' is out of range")


@rule("aten::_grouped_mm")
def grouped_mm_rule(x: Array, y: Array, offs: Array | None = None, *_: Any) -> Iterator[Bound]:
    if offs is not None:
        divided = y.shape[0] if x.ndim == y.ndim else x.shape[0] if x.ndim == 2 else y.shape[1]
        text = f"_grouped_mm(): offs[{{place}}] is {{value}}, not in [0, {divided}]"
        yield Bound(offs, 0, divided + 1, RuntimeError, text)


def _lengths(name: str, offsets: Sequence[Array], rows: int, most: int) -> Iterator[Bound]:
    """Offsets of a jagged dimension: in the rows, not decreasing, no entry longer than `most`."""
    for ends in offsets[:1]:
        yield Bound(
            ends, 0, rows + 1, RuntimeError, f"{name}(): offsets[{{place}}] is {{value}} of {rows} rows"
        )
        text = f"{name}(): found batch item {{place}} of length {{value}}, expected 0 to {most}"
        yield Bound(jnp.diff(ends), 0, most + 1, RuntimeError, text)


@rule("aten::_jagged_to_padded_dense_forward")
def padded_rule(values: Array, offsets: Sequence[Array], *_: Any) -> Iterator[Bound]:
    rows = values.shape[0]
    yield from _lengths("_jagged_to_padded_dense_forward", offsets, rows, rows)


@rule("aten::_padded_dense_to_jagged_forward")
def jagged_rule(dense: Array, offsets: Sequence[Array], total: int, *_: Any) -> Iterator[Bound]:
    name = "_padded_dense_to_jagged_forward"
    yield from _lengths(name, offsets, total, dense.shape[1])
    for ends in offsets[:1]:
        text = f"{name}(): final offset {{value}} should match total_L value {total}"
        yield Bound(ends[-1:], total, total + 1, RuntimeError, text)
