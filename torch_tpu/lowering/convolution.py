"""Convolutions of every rank, their transposes and their gradients.

One bilinear map `y = conv(x, w)` gives all six ops: a transposed convolution is the gradient of `conv`
by `x`, and its gradients are `conv` and the gradient by `w`. The map has two formulations that XLA
treats very differently: `direct` leaves it to XLA, `unrolled` is strided slices and one matrix product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower


@dataclass(frozen=True)
class Geometry:
    """What a convolution does to the image: per dimension stride, (low, high) padding, dilation; groups."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int


def direct(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv` as XLA's own convolution: (N, C, *image), (O, C / groups, *kernel) -> (N, O, *out)."""
    spatial = "DHW"[-len(geometry.stride) :]
    return lax.conv_general_dilated(
        x,
        w,
        geometry.stride,
        geometry.padding,
        rhs_dilation=geometry.dilation,
        dimension_numbers=("NC" + spatial, "OI" + spatial, "NC" + spatial),
        feature_group_count=geometry.groups,
    )


def unrolled(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv` as a matrix product with one strided slice of the image per kernel position."""
    (n, c), (o, _, *kernel), groups = x.shape[:2], w.shape, geometry.groups
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 2 + [(lo, hi, 0) for lo, hi in geometry.padding])
    out = out_sizes(x.shape[2:], kernel, geometry.stride, geometry.dilation)
    slices = []
    for position in itertools.product(*map(range, kernel)):
        start = [p * d for p, d in zip(position, geometry.dilation, strict=True)]
        stop = [b + (m - 1) * s + 1 for b, m, s in zip(start, out, geometry.stride, strict=True)]
        slices.append(lax.slice(x, (0, 0, *start), (n, c, *stop), (1, 1, *geometry.stride)))
    patches = jnp.stack(slices, 2).reshape(n, groups, -1, math.prod(out))
    y = jnp.einsum("gok,ngkp->ngop", w.reshape(groups, o // groups, -1), patches)
    return y.reshape(n, o, *out)


def out_sizes(
    padded: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Sizes of a convolution's result over an image of sizes `padded`."""
    return [
        (a - d * (k - 1) - 1) // s + 1 for a, k, s, d in zip(padded, kernel, stride, dilation, strict=True)
    ]


def _formulation(x: Sequence[int], w: Sequence[int]) -> Callable[..., jax.Array]:
    """XLA's CPU client takes 100 times too long where a kernel is about as large as its image."""
    return direct


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    return _formulation(x.shape, w.shape)(x, w, geometry)


def image_gradient(grad: jax.Array, w: jax.Array, shape: Sequence[int], geometry: Geometry) -> jax.Array:
    """The gradient of `conv` by an image of `shape`."""
    formulation = _formulation(shape, w.shape)
    transpose = jax.linear_transpose(
        lambda x: formulation(x, w, geometry), jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    )
    return transpose(grad)[0]


def kernel_gradient(grad: jax.Array, x: jax.Array, shape: Sequence[int], geometry: Geometry) -> jax.Array:
    """The gradient of `conv` by a kernel of `shape`."""
    formulation = _formulation(x.shape, shape)
    transpose = jax.linear_transpose(
        lambda w: formulation(x, w, geometry), jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    )
    return transpose(grad)[0]


def _geometry(
    rank: int, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Geometry:
    def full(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * (rank if len(values) == 1 else 1)

    extra = full(output_padding) if transposed else (0,) * rank
    pads = tuple((p, p - e) for p, e in zip(full(padding), extra, strict=True))
    return Geometry(full(stride), pads, full(dilation), groups)


def _transposed_shape(x: Sequence[int], w: Sequence[int], geometry: Geometry) -> tuple[int, ...]:
    sizes = [
        (m - 1) * s + d * (k - 1) + 1 - lo - hi
        for m, k, s, d, (lo, hi) in zip(
            x[2:], w[2:], geometry.stride, geometry.dilation, geometry.padding, strict=True
        )
    ]
    return (x[0], w[1] * geometry.groups, *sizes)


def _compute(*arrays: jax.Array) -> list[jax.Array]:
    return [a.astype(dtypes.compute_dtype(a.dtype)) for a in arrays]


@lower("aten::convolution", "aten::convolution_overrideable")
def convolution(
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    rank = input.ndim - 2
    geometry = _geometry(rank, stride, padding, dilation, transposed, output_padding, groups)
    x, w = _compute(input, weight)
    if transposed:
        y = image_gradient(x, w, _transposed_shape(x.shape, w.shape, geometry), geometry)
    else:
        y = conv(x, w, geometry)
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


@lower("aten::_convolution")
def _convolution(*args: Any) -> jax.Array:
    return convolution(*args[:9])


@lower("aten::convolution_backward")
def convolution_backward(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, ...]:
    geometry = _geometry(input.ndim - 2, stride, padding, dilation, transposed, output_padding, groups)
    grad, x, w = _compute(grad_output, input, weight)
    if transposed:
        by_x = lambda: conv(grad, w, geometry)  # noqa: E731
        by_w = lambda: kernel_gradient(x, grad, w.shape, geometry)  # noqa: E731
    else:
        by_x = lambda: image_gradient(grad, w, x.shape, geometry)  # noqa: E731
        by_w = lambda: kernel_gradient(grad, x, w.shape, geometry)  # noqa: E731
    by_bias = lambda: grad.sum((0, *range(2, grad.ndim)))  # noqa: E731
    return tuple(
        f() if wanted else None for f, wanted in zip((by_x, by_w, by_bias), output_mask, strict=True)
    )


@lower("aten::convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: jax.Array, input: jax.Array, weight: jax.Array, *args: Any
) -> tuple[jax.Array | None, ...]:
    return convolution_backward(grad_output, input, weight, None, *args)
