"""Each lowering of a view, joining or padding op gives what PyTorch's kernel gives on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.lowering_mode import to_jax, to_torch
from torch_tpu.lowering import registry, shapes
from torch_tpu.lowering.graph import name_of

aten = torch.ops.aten


def arange(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, int(np.prod(shape)) + 1).reshape(shape).to(dtype)


def check(op: Any, *args: Any, **kwargs: Any) -> None:
    lowering = registry.find(name_of(op))
    assert lowering is not None, f"{op} has no lowering"
    expected = tree_leaves(op(*args, **kwargs))
    with jax.enable_x64(True):
        arrays = tree_map(lambda x: to_jax(x) if isinstance(x, torch.Tensor) else x, (list(args), kwargs))
        got = tree_leaves(registry.call(lowering, *arrays))
        assert len(got) == len(expected)
        for array, tensor in zip(got, expected, strict=True):
            assert array.shape == tuple(tensor.shape)
            torch.testing.assert_close(to_torch(array, tensor.dtype), tensor.resolve_conj().resolve_neg())


X, COMPLEX = arange(2, 3, 4), torch.complex(arange(2, 3), arange(2, 3) + 7)
VIEWS: dict[str, list[tuple[Any, ...]]] = {
    "as_strided": [(X, [2, 2], [1, 3], 4), (X, [3, 3], [1, 1])],
    "diagonal": [(X,), (X, -1, 1, 2), (X, 1, -1, 0), (X, 9)],
    "expand": [(X[:, :1], [2, 5, 4]), (X, [6, -1, 3, 4])],
    "permute": [(X, [2, 0, -2])],
    "select.int": [(X, 1, -1)],
    "slice.Tensor": [(X, 1, 1), (X, -1, -3, 9, 2), (X, 0, 2, 1)],
    "split.Tensor": [(X, 3, -1)],
    "split_with_sizes": [(X, [1, 0, 3], 2)],
    "squeeze": [(X[:, :1],)],
    "squeeze.dim": [(X[:, :1], 1), (X, 1)],
    "squeeze.dims": [(X[:1, :1], [0, -2])],
    "t": [(X[0],), (X[0, 0],)],
    "transpose.int": [(X, 0, -1)],
    "unbind.int": [(X, 1)],
    "unfold": [(X, 2, 3, 1), (X, 2, 2, 2)],
    "unsqueeze": [(X, -1)],
    "view": [(X, [6, -1]), (X[:0], [0, 5])],
    "view.dtype": [(X, torch.int16), (X, torch.float64)],
    "view_as_complex": [(arange(3, 2),)],
    "view_as_real": [(COMPLEX,)],
}


def test_every_view_has_a_case() -> None:
    assert VIEWS.keys() == set(shapes._VIEWS)


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_their_copies(name: str) -> None:
    packet, _, overload = name.partition(".")
    for args in VIEWS[name]:
        for form in (packet, f"{packet}_copy"):
            check(getattr(getattr(aten, form), overload or "default"), *args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_joining(dtype: torch.dtype) -> None:
    a, b = arange(2, 3, dtype=dtype), arange(2, 5, dtype=torch.uint8)
    check(aten.cat.default, [a, torch.zeros(0), b], 1)
    check(aten.cat.default, [torch.zeros(0, dtype=dtype)])
    check(aten.stack.default, [a, b[:, :3]], -1)
    check(aten.block_diag.default, [a, b, a[0], a[0, 0]])
    check(aten._chunk_cat.default, [arange(5, 3, dtype=dtype), arange(2, 3, 2, dtype=dtype)], 0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
def test_rearranging(dtype: torch.dtype) -> None:
    x = arange(2, 8, 4, 6, dtype=dtype)
    check(aten.flip.default, x, [0, -1])
    check(aten.roll.default, x, [5])
    check(aten.roll.default, x, [1, -2, 9], [0, -1, 2])
    for k in range(-1, 5):
        check(aten.rot90.default, x, k, [-1, 1])
    check(aten.repeat.default, x[0, 0], [2, 1, 3])
    check(aten.repeat.default, x[0, 0], [2, 0, 3])
    check(aten.channel_shuffle.default, x, 4)
    check(aten.pixel_shuffle.default, x, 2)
    check(aten.pixel_unshuffle.default, x, 2)
    for k in (-2, 0, 3):
        check(aten.tril.default, x, k)
        check(aten.triu.default, x, k)
        check(aten.diag_embed.default, x[0, 0], k, 0, -1)


def test_scatter_into_views() -> None:
    x = arange(3, 4, 5)
    check(aten.slice_scatter.default, x, -x[:, 1::2], 1, 1, 9, 2)
    check(aten.select_scatter.default, x, -x[:, 0], 1, -1)
    check(aten.diagonal_scatter.default, x, -x.diagonal(1, 0, 2), 1, 0, 2)
    check(aten.as_strided_scatter.default, x, arange(2, 3), [2, 3], [20, 2], 3)


def test_backward_of_views() -> None:
    check(aten.slice_backward.default, arange(3, 2), [3, 7], 1, 1, 6, 3)
    check(aten.select_backward.default, arange(3, 5), [3, 4, 5], 1, -2)
    check(aten.diagonal_backward.default, arange(4, 3), [3, 4, 5], 1, 0, -1)
    check(aten.unfold_backward.default, arange(3, 5, 3), [3, 7], 1, 3, 1)


def test_copies() -> None:
    check(aten.copy.default, X, arange(3, 1, dtype=torch.int64))
    check(aten._to_copy.default, COMPLEX, dtype=torch.complex128)
    check(aten._to_copy.default, X, dtype=torch.int8)
    check(aten.clone.default, X)
    check(aten._conj_copy.default, COMPLEX)
    check(aten._neg_view_copy.default, COMPLEX)
    check(aten._reshape_alias.default, X, [4, 6], [6, 1])


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_by_edges(kind: str, dims: int) -> None:
    op = getattr(aten, f"{kind}_pad{dims}d")
    backward = getattr(aten, f"{kind}_pad{dims}d_backward")
    for batch in ((2, 2), (2,)):
        x = arange(*batch, *(4, 5, 6)[:dims])
        for padding in ([2, 1, 0, 3, 1, 1], [-1, 2, 1, -2, 0, -1]):
            check(op.default, x, padding[: 2 * dims])
            check(backward.default, op(x, padding[: 2 * dims]) ** 2, x, padding[: 2 * dims])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_padding_by_a_constant(dtype: torch.dtype) -> None:
    x = arange(2, 3, 4, dtype=dtype)
    for padding in ([1, 2], [-1, 2, 3, -2], [0, -4], []):
        check(aten.constant_pad_nd.default, x, padding, 1)


def test_patches() -> None:
    window = ([2, 3], [2, 1], [1, 2], [1, 2])  # kernel, dilation, padding, stride
    for x in (arange(2, 3, 5, 6), arange(3, 5, 6)):
        check(aten.im2col.default, x, *window)
        check(aten.col2im.default, aten.im2col(x, *window) + 0.5, [5, 6], *window)
