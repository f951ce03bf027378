"""Lowerings of view, joining and padding ops.

A view op's result is described by its strides, and PyTorch knows them: the op runs on a meta tensor of
the input's shape and `strided` reads (or writes) the array through the resulting spec.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry, strided
from torch_tpu.lowering.registry import lower

# --- views ----------------------------------------------------------------------------------------

#: View ops, by schema name. Each has the same lowering as its `_copy` form.
_VIEWS = (
    "as_strided",
    "diagonal",
    "expand",
    "permute",
    "select.int",
    "slice.Tensor",
    "split.Tensor",
    "split_with_sizes",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "t",
    "transpose.int",
    "unbind.int",
    "unfold",
    "unsqueeze",
    "view",
    "view.dtype",
    "view_as_complex",
    "view_as_real",
)
#: Other ops that give the elements of a view.
_LIKE_VIEWS = {
    "_unsafe_view": "view",
    "narrow_copy": "narrow",
    "unsafe_split.Tensor": "split.Tensor",
    "unsafe_split_with_sizes": "split_with_sizes",
}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _meta(shape: Sequence[int], dtype: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtypes.TORCH_DTYPE[np.dtype(dtype)], device="meta")


def _spec(view: torch.Tensor) -> strided.ViewSpec:
    return strided.ViewSpec(tuple(view.shape), view.stride(), int(view.storage_offset()), view.dtype)


def _view(op: Any, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
    """The result of the view op `op` (an aten overload) on `x`: one array or a list."""
    meta = _meta(x.shape, x.dtype)
    read = functools.partial(strided.read, x, meta.dtype)
    result = op(meta, *args, **kwargs)
    return read(_spec(result)) if isinstance(result, torch.Tensor) else [read(_spec(r)) for r in result]


def _copy_of(name: str) -> str:
    packet, dot, overload = name.partition(".")
    return f"{packet}_copy{dot}{overload}"


for _name, _view_name in ({n: n for n in _VIEWS} | {_copy_of(n): n for n in _VIEWS} | _LIKE_VIEWS).items():
    lower(f"aten::{_name}")(functools.partial(_view, _overload(_view_name)))


@lower("aten::_reshape_alias", "aten::_reshape_alias_copy", "aten::_reshape_copy")
def reshape(x: jax.Array, size: list[int], stride: Any = None) -> jax.Array:
    return _view(torch.ops.aten.view.default, x, size)


@lower(
    "aten::alias",
    "aten::alias_copy",
    "aten::clone",
    "aten::detach",
    "aten::detach_copy",
    "aten::lift",
    "aten::lift_fresh",
    "aten::lift_fresh_copy",
)
def identity(x: jax.Array) -> jax.Array:
    return x


@lower("aten::_conj", "aten::_conj_copy")
def conj(x: jax.Array) -> jax.Array:
    return jnp.conj(x)


@lower("aten::_neg_view", "aten::_neg_view_copy")
def neg_view(x: jax.Array) -> jax.Array:
    return -x


def _write(op: Any, x: jax.Array, src: jax.Array, *args: Any) -> jax.Array:
    """`x` with `src` stored through the view `op(x, *args)`."""
    meta = _meta(x.shape, x.dtype)
    return strided.write(x, meta.dtype, _spec(op(meta, *args)), dtypes.cast(src, x.dtype))


for _name, _view_name in {
    "as_strided_scatter": "as_strided",
    "diagonal_scatter": "diagonal",
    "select_scatter": "select.int",
    "slice_scatter": "slice.Tensor",
}.items():
    lower(f"aten::{_name}")(functools.partial(_write, _overload(_view_name)))


def _transposed(fn: Callable[[jax.Array], jax.Array], grad: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """The gradient of a linear `fn` of an array of `sizes` and grad's dtype."""
    (result,) = jax.linear_transpose(fn, jax.ShapeDtypeStruct(tuple(sizes), grad.dtype))(grad)
    return result


def _view_backward(op: Any, grad: jax.Array, input_sizes: list[int], *args: Any) -> jax.Array:
    return _transposed(lambda x: _view(op, x, *args), grad, input_sizes)


for _name in ("diagonal", "select.int", "slice.Tensor", "unfold"):
    _backward = _name.partition(".")[0] + "_backward"
    lower(f"aten::{_backward}")(functools.partial(_view_backward, _overload(_name)))


@lower("aten::copy")
def copy(x: jax.Array, src: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(dtypes.cast(src, x.dtype), x.shape)


@lower("aten::_to_copy")
def to_copy(x: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return x if dtype is None else dtypes.cast(x, dtype)


# --- joining --------------------------------------------------------------------------------------


def _promoted(tensors: Sequence[jax.Array]) -> list[jax.Array]:
    dtype = dtypes.result_type(tensors)
    return [dtypes.cast(x, dtype) for x in tensors]


@lower("aten::cat")
def cat(tensors: list[jax.Array], dim: int = 0) -> jax.Array:
    tensors = _promoted(tensors)
    # 1-d tensors without elements join with anything.
    kept = [x for x in tensors if x.shape != (0,)]
    return jnp.concatenate(kept, dim) if kept else tensors[0]


@lower("aten::stack", "aten::_stack")
def stack(tensors: list[jax.Array], dim: int = 0) -> jax.Array:
    return jnp.stack(_promoted(tensors), dim)


@lower("aten::_chunk_cat")
def chunk_cat(tensors: list[jax.Array], dim: int, num_chunks: int) -> jax.Array:
    dim %= tensors[0].ndim

    def chunked(x: jax.Array) -> jax.Array:
        missing = -x.shape[dim] % num_chunks
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, missing if d == dim else 0, 0) for d in range(x.ndim)])
        return x.reshape(*x.shape[:dim], num_chunks, -1)

    return jnp.concatenate([chunked(x) for x in _promoted(tensors)], -1)


@lower("aten::block_diag")
def block_diag(tensors: list[jax.Array]) -> jax.Array:
    blocks = [jnp.atleast_2d(x) for x in _promoted(tensors)]
    width, left, rows = sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        rows.append(jnp.pad(b, ((0, 0), (left, width - left - b.shape[1]))))
        left += b.shape[1]
    return jnp.concatenate(rows)


# --- rearranging ----------------------------------------------------------------------------------


@lower("aten::flip")
def flip(x: jax.Array, dims: list[int]) -> jax.Array:
    return jnp.flip(x, tuple(dims)) if x.ndim else x


@lower("aten::roll")
def roll(x: jax.Array, shifts: list[int], dims: Sequence[int] = ()) -> jax.Array:
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, tuple(shifts), tuple(dims))


@lower("aten::rot90")
def rot90(x: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(x, k, (dims[0], dims[1]))


@lower("aten::repeat")
def repeat(x: jax.Array, repeats: list[int]) -> jax.Array:
    return jnp.tile(x, tuple(repeats)) if repeats else x


@lower("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)


@lower("aten::pixel_shuffle")
def pixel_shuffle(x: jax.Array, upscale_factor: int) -> jax.Array:
    r, (*batch, c, h, w) = upscale_factor, x.shape
    n = math.prod(batch)
    x = x.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(*batch, c // r**2, h * r, w * r)


@lower("aten::pixel_unshuffle")
def pixel_unshuffle(x: jax.Array, downscale_factor: int) -> jax.Array:
    r, (*batch, c, h, w) = downscale_factor, x.shape
    n = math.prod(batch)
    x = x.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(*batch, c * r**2, h // r, w // r)


@lower("aten::tril")
def tril(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.tril(x, diagonal)


@lower("aten::triu")
def triu(x: jax.Array, diagonal: int = 0) -> jax.Array:
    return jnp.triu(x, diagonal)


@lower("aten::diag_embed")
def diag_embed(x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    n, ndim = x.shape[-1] + abs(offset), x.ndim + 1
    sizes = list(x.shape[:-1])
    for d in sorted((dim1 % ndim, dim2 % ndim)):
        sizes.insert(d, n)
    return _write(torch.ops.aten.diagonal.default, jnp.zeros(sizes, x.dtype), x, offset, dim1, dim2)


# --- padding --------------------------------------------------------------------------------------


def _pairs(padding: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """PyTorch's padding (last dimension first) as (low, high) of each of `ndim` dimensions."""
    given = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    return [(0, 0)] * (ndim - len(given)) + given


@lower("aten::constant_pad_nd")
def constant_pad_nd(x: jax.Array, pad: list[int], value: Any = 0) -> jax.Array:
    return lax.pad(x, registry.constant(value, x.dtype), [(a, b, 0) for a, b in _pairs(pad, x.ndim)])


def _reflect(x: jax.Array, low: int, high: int, d: int) -> tuple[jax.Array, jax.Array]:
    n = x.shape[d]
    first = lax.slice_in_dim(x, 1, low + 1, axis=d)
    last = lax.slice_in_dim(x, n - 1 - high, n - 1, axis=d)
    return lax.rev(first, (d,)), lax.rev(last, (d,))


def _replicate(x: jax.Array, low: int, high: int, d: int) -> tuple[jax.Array, jax.Array]:
    first, last = lax.slice_in_dim(x, 0, 1, axis=d), lax.slice_in_dim(x, x.shape[d] - 1, x.shape[d], axis=d)
    return jnp.repeat(first, low, d), jnp.repeat(last, high, d)


def _pad_edges(
    edges: Callable[..., tuple[jax.Array, jax.Array]], x: jax.Array, padding: list[int]
) -> jax.Array:
    """Pad `x` by what `edges` makes of it; a negative padding crops."""
    for d, (low, high) in enumerate(_pairs(padding, x.ndim)):
        if low > 0 or high > 0:
            first, last = edges(x, max(low, 0), max(high, 0), d)
            x = jnp.concatenate([first, x, last], d)
        x = lax.slice_in_dim(x, max(-low, 0), x.shape[d] - max(-high, 0), axis=d)
    return x


def _pad_edges_backward(edges: Any, grad: jax.Array, x: jax.Array, padding: list[int]) -> jax.Array:
    return _transposed(lambda y: _pad_edges(edges, y, padding), grad, x.shape)


for _name, _edges in {"reflection": _reflect, "replication": _replicate}.items():
    _ops = [f"aten::{_name}_pad{n}d" for n in (1, 2, 3)]
    lower(*_ops)(functools.partial(_pad_edges, _edges))
    lower(*(f"{op}_backward" for op in _ops))(functools.partial(_pad_edges_backward, _edges))


# --- patches --------------------------------------------------------------------------------------


@lower("aten::im2col")
def im2col(
    x: jax.Array, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> jax.Array:
    """Patches of x (..., C, H, W) as (..., C * kernel height * kernel width, number of patches)."""
    *batch, c, h, w = x.shape
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 2) + [(p, p, 0) for p in padding])
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip((h, w), kernel_size, dilation, padding, stride, strict=True)
    ]

    def patch(*position: int) -> jax.Array:
        out = x
        for axis, i, d, s, n in zip((-2, -1), position, dilation, stride, counts, strict=True):
            out = lax.slice_in_dim(out, i * d, i * d + (n - 1) * s + 1, s, out.ndim + axis)
        return out

    patches = [patch(i, j) for i in range(kernel_size[0]) for j in range(kernel_size[1])]
    return jnp.stack(patches, -3).reshape(*batch, c * math.prod(kernel_size), math.prod(counts))


@lower("aten::col2im")
def col2im(
    x: jax.Array,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> jax.Array:
    """The sum of the patches of x at their places in an image (..., C, *output_size)."""
    sizes = (*x.shape[:-2], x.shape[-2] // math.prod(kernel_size), *output_size)
    return _transposed(lambda y: im2col(y, kernel_size, dilation, padding, stride), x, sizes)
