"""PyTorch's checks of memory overlap between what an op writes and what it reads.

They depend on metadata alone, so they run once per key.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from torch_tpu.eager.forms import Form
from torch_tpu.eager.program import TensorLeaf, leaves

#: In-place ops that PyTorch lets write through an expanded tensor.
_LENIENT = frozenset(
    {
        "fill_",
        "zero_",
        "masked_fill_",
        "index_put_",
        "_index_put_impl_",
        "index_fill_",
        "masked_scatter_",
        "resize_",
    }
)
_INTERNAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory "
    "location. Please clone() the tensor before performing the operation."
)
_PARTIAL = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


def check(form: Form, args: list[Any]) -> None:
    """Raise RuntimeError as PyTorch does where a written argument overlaps itself or, in part, an input."""
    name = form.op._schema.name.partition("::")[2]
    if not form.written or name in _LENIENT:
        return
    written = [leaf for i in form.written for leaf in leaves([args[i]]) if isinstance(leaf, TensorLeaf)]
    inputs = [leaf for leaf in leaves(args) if isinstance(leaf, TensorLeaf) and leaf not in written]
    for leaf in written:
        if 0 in leaf.spec.sizes:
            continue
        if any(n > 1 and s == 0 for n, s in zip(leaf.spec.sizes, leaf.spec.strides, strict=True)):
            raise RuntimeError(_INTERNAL)
        if any(other.slot == leaf.slot and _partly_overlaps(leaf, other) for other in inputs):
            raise RuntimeError(_PARTIAL)


def writes_twice(form: Form, args: list[Any]) -> bool:
    """True where tensors of a written list may share elements, so that their order matters."""
    lists = [args[i] for i in form.written if isinstance(args[i], list)]
    spans: dict[int, list[tuple[int, int]]] = {}
    for leaf in leaves(lists):
        if isinstance(leaf, TensorLeaf) and 0 not in leaf.spec.sizes:
            spans.setdefault(leaf.slot, []).append(_span(leaf))
    ordered = (sorted(found) for found in spans.values())
    return any(a[1] > b[0] for found in ordered for a, b in itertools.pairwise(found))


def _partly_overlaps(a: TensorLeaf, b: TensorLeaf) -> bool:
    """True when two dense tensors share some bytes but are not the same elements."""
    if a.spec == b.spec or 0 in a.spec.sizes or 0 in b.spec.sizes or not (_is_dense(a) and _is_dense(b)):
        return False
    (start, end), (other_start, other_end) = _span(a), _span(b)
    if (start, end) == (other_start, other_end):
        return a.spec.strides != b.spec.strides
    return start < other_end and other_start < end


def _is_dense(leaf: TensorLeaf) -> bool:
    return leaf.tensor.numel() == 1 or bool(
        leaf.tensor.is_contiguous() or _last(leaf) + 1 == int(np.prod(leaf.spec.sizes))
    )


def _last(leaf: TensorLeaf) -> int:
    return sum((n - 1) * s for n, s in zip(leaf.spec.sizes, leaf.spec.strides, strict=True))


def _span(leaf: TensorLeaf) -> tuple[int, int]:
    size = leaf.dtype.itemsize
    return leaf.spec.offset * size, (leaf.spec.offset + _last(leaf) + 1) * size
