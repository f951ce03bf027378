"""Convolutions of every rank, their transposes and their gradients.

One bilinear map `y = conv(x, w)` gives all ops: a transposed convolution is the gradient of `conv` by `x`,
and its gradients are `conv` and the gradient by `w`. A TPU or GPU gets XLA's own convolution (`direct`).
XLA's CPU client is fast only at ungrouped 2-D convolutions of images larger than their kernel; there
`portioned` makes everything else of those, of matrix products and of multiplications.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower
from torch_tpu.runtime import client

#: Results of at most so many positions are a matrix product on a CPU.
_SMALL_IMAGE = 49
#: Results of more than so many positions are one matrix product per image.
_LARGE_IMAGE = 256
#: Kernels of at most so many elements are unrolled on a CPU.
_FEW_SLICES = 64
#: Groups of fewer input channels are left to XLA's own gradient by the kernel.
_FEW_CHANNELS = 16


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


def slices(x: jax.Array, kernel: Sequence[int], geometry: Geometry) -> list[jax.Array]:
    """For each kernel position, in order, the elements of the image it meets: (N, C, *out)."""
    n, c = x.shape[:2]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 2 + [(lo, hi, 0) for lo, hi in geometry.padding])
    out = out_sizes(x.shape[2:], kernel, geometry.stride, geometry.dilation)
    parts = []
    for position in itertools.product(*map(range, kernel)):
        start = [p * d for p, d in zip(position, geometry.dilation, strict=True)]
        stop = [b + (m - 1) * s + 1 for b, m, s in zip(start, out, geometry.stride, strict=True)]
        parts.append(lax.slice(x, (0, 0, *start), (n, c, *stop), (1, 1, *geometry.stride)))
    return parts


def _is_tiled(kernel: Sequence[int], geometry: Geometry) -> bool:
    """Windows that touch without overlap or padding: a reshape cuts them."""
    plain = all(p == (0, 0) for p in geometry.padding) and set(geometry.dilation) <= {1}
    return plain and tuple(kernel) == geometry.stride


def _patches(x: jax.Array, kernel: Sequence[int], geometry: Geometry) -> jax.Array:
    """(N, C * kernel elements, *out)."""
    (n, c), rank = x.shape[:2], len(kernel)
    if not _is_tiled(kernel, geometry):
        parts = slices(x, kernel, geometry)
        return jnp.stack(parts, 2).reshape(n, c * len(parts), *parts[0].shape[2:])
    out = [size // k for size, k in zip(x.shape[2:], kernel, strict=True)]
    for axis, (m, k) in enumerate(zip(out, kernel, strict=True), 2):
        x = lax.slice_in_dim(x, 0, m * k, axis=axis)
    x = x.reshape(n, c, *itertools.chain(*zip(out, kernel, strict=True)))
    x = x.transpose(0, 1, *range(3, 2 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    return x.reshape(n, c * math.prod(kernel), *out)


def multiplied(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv` as a matrix product with all windows of the image; for groups == 1."""
    patches = _patches(x, w.shape[2:], geometry)
    (n, k, *out), o = patches.shape, w.shape[0]
    w = w.reshape(o, k)
    if math.prod(out) <= _LARGE_IMAGE:
        rows = jnp.moveaxis(patches, 1, -1).reshape(-1, k) @ w.T
        return jnp.moveaxis(rows.reshape(n, *out, o), -1, 1)
    # One product per image, and the client transposes neither images nor result (3 to 10 times faster).
    y = jnp.matmul(jnp.broadcast_to(w, (n, o, k)), patches.reshape(n, k, -1))
    return y.reshape(n, o, *out)


def depthwise(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv` as a sum of slices times numbers; for one input channel per group."""
    x = jnp.repeat(x, w.shape[0] // x.shape[1], 1)
    factors = w.reshape(w.shape[0], -1, *(1,) * (x.ndim - 2))
    return _sum(part * factors[:, i] for i, part in enumerate(slices(x, w.shape[2:], geometry)))


def _depthwise_image_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], geometry: Geometry
) -> jax.Array:
    """As the transpose of `depthwise`, by reading slices of grad instead of adding to the image."""
    padding = []
    for size, m, k, s, d, (lo, _) in zip(
        shape[2:],
        grad.shape[2:],
        w.shape[2:],
        geometry.stride,
        geometry.dilation,
        geometry.padding,
        strict=True,
    ):
        before = d * (k - 1) - lo
        padding.append((before, size + d * (k - 1) - before - ((m - 1) * s + 1)))
    spread = [(0, 0, 0)] * 2 + [(0, 0, s - 1) for s in geometry.stride]
    grad = lax.pad(grad, jnp.zeros((), grad.dtype), spread)
    ones = (1,) * len(padding)
    flipped = jnp.flip(w, range(2, w.ndim))
    y = depthwise(grad, flipped, Geometry(ones, tuple(padding), geometry.dilation, w.shape[0]))
    return y.reshape(shape[0], shape[1], -1, *shape[2:]).sum(2)


def _folded(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """A 3-D `conv` as a 2-D one: slices along depth become channels, depth becomes part of the batch."""
    (n, c, _, *image), (o, _, depth, *kernel) = x.shape, w.shape
    along = Geometry(
        (geometry.stride[0], 1, 1), (geometry.padding[0], (0, 0), (0, 0)), (geometry.dilation[0], 1, 1), 1
    )
    x = jnp.stack([part.swapaxes(1, 2) for part in slices(x, (depth, 1, 1), along)], 2)
    flat = Geometry(geometry.stride[1:], geometry.padding[1:], geometry.dilation[1:], 1)
    m = x.shape[1]
    y = portioned(x.reshape(n * m, depth * c, *image), w.swapaxes(1, 2).reshape(o, depth * c, *kernel), flat)
    return y.reshape(n, m, *y.shape[1:]).swapaxes(1, 2)


def _split(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """A grouped `conv` as one per group."""
    single = replace(geometry, groups=1)
    pairs = zip(jnp.split(x, geometry.groups, 1), jnp.split(w, geometry.groups, 0), strict=True)
    return jnp.concatenate([portioned(a, b, single) for a, b in pairs], 1)


def portioned(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv` in the form that XLA's CPU client runs fastest."""
    kernel = w.shape[2:]
    if _is_depthwise(w, geometry):
        return depthwise(x, w, geometry)
    if geometry.groups > 1:
        return _split(x, w, geometry)
    if len(kernel) == 3:
        return _folded(x, w, geometry)
    padded = [a + lo + hi for a, (lo, hi) in zip(x.shape[2:], geometry.padding, strict=True)]
    out = math.prod(out_sizes(padded, kernel, geometry.stride, geometry.dilation))
    small = out <= _SMALL_IMAGE and math.prod(kernel) <= _FEW_SLICES
    return (multiplied if small or math.prod(kernel) == 1 or _is_tiled(kernel, geometry) else direct)(
        x, w, geometry
    )


def _is_depthwise(w: jax.Array | jax.ShapeDtypeStruct, geometry: Geometry) -> bool:
    return geometry.groups > 1 and w.shape[1] == 1 and math.prod(w.shape[2:]) <= _FEW_SLICES


def _sum(parts: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, parts)


def out_sizes(
    padded: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """Sizes of a convolution's result over an image of sizes `padded`."""
    return [
        (a - d * (k - 1) - 1) // s + 1 for a, k, s, d in zip(padded, kernel, stride, dilation, strict=True)
    ]


def _on_cpu() -> bool:
    return client.platform() == "cpu"


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    return (portioned if _on_cpu() else direct)(x, w, geometry)


def image_gradient(grad: jax.Array, w: jax.Array, shape: Sequence[int], geometry: Geometry) -> jax.Array:
    """The gradient of `conv` by an image of `shape`."""
    if _on_cpu() and _is_depthwise(w, geometry):
        return _depthwise_image_gradient(grad, w, shape, geometry)
    if not jnp.issubdtype(grad.dtype, jnp.inexact):
        return _exact_image_gradient(grad, w, shape, geometry)
    image = jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    return jax.linear_transpose(lambda x: conv(x, w, geometry), image)(grad)[0]


def _exact_image_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], geometry: Geometry
) -> jax.Array:
    """For integers, which JAX does not transpose: each kernel position adds to the elements that it met."""
    (n, groups), kernel, out = (grad.shape[0], geometry.groups), w.shape[2:], grad.shape[2:]
    grad = grad.reshape(n, groups, -1, *out)
    w = w.reshape(groups, -1, w.shape[1], math.prod(kernel))
    # High padding is negative where output padding is larger than padding.
    padded = [size + lo + max(hi, 0) for size, (lo, hi) in zip(shape[2:], geometry.padding, strict=True)]
    image = jnp.zeros((n, shape[1], *padded), grad.dtype)
    for i, position in enumerate(itertools.product(*map(range, kernel))):
        start = [p * d for p, d in zip(position, geometry.dilation, strict=True)]
        met = (slice(b, b + (m - 1) * s + 1, s) for b, m, s in zip(start, out, geometry.stride, strict=True))
        part = jnp.einsum("ngo...,goc->ngc...", grad, w[..., i]).reshape(n, shape[1], *out)
        image = image.at[(slice(None), slice(None), *met)].add(part)
    inner = (slice(lo, lo + size) for size, (lo, _) in zip(shape[2:], geometry.padding, strict=True))
    return image[(slice(None), slice(None), *inner)]


def kernel_gradient(grad: jax.Array, x: jax.Array, shape: Sequence[int], geometry: Geometry) -> jax.Array:
    """The gradient of `conv` by a kernel of `shape`."""
    kernel = jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    unrolled = math.prod(shape[2:]) <= _FEW_SLICES and not _is_tiled(shape[2:], geometry)
    large = math.prod(grad.shape[2:]) > _SMALL_IMAGE and (geometry.groups == 1 or shape[1] >= _FEW_CHANNELS)
    if _on_cpu() and unrolled and large:
        return _kernel_gradient_by_image(grad, x, shape, geometry)
    return jax.linear_transpose(lambda w: conv(x, w, geometry), kernel)(grad)[0]


def _kernel_gradient_by_image(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], geometry: Geometry
) -> jax.Array:
    """One matrix product (a group) with the windows of one image at a time: they stay in the cache.

    XLA's own is a convolution with a kernel as large as the image: 2 to 5 times slower.
    """
    groups = geometry.groups

    def add(total: jax.Array, image: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        g, windows = image[0], _patches(image[1][None], shape[2:], geometry)
        g, windows = g.reshape(*total.shape[:2], -1), windows.reshape(groups, total.shape[2], -1)
        return total + jnp.einsum("gom,gkm->gok", g, windows), None

    nothing = jnp.zeros((groups, shape[0] // groups, math.prod(shape[1:])), grad.dtype)
    return lax.scan(add, nothing, (grad, x))[0].reshape(*shape)


def _geometry(
    rank: int, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Geometry:
    def full(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) * (rank if len(values) == 1 else 1)

    for name, values, least in (
        ("padding", padding, 0),
        ("output_padding", output_padding, 0),
        ("stride", stride, 1),
        ("dilation", dilation, 1),
    ):
        if any(v < least for v in values):
            raise RuntimeError(f"convolution: expected {name} of at least {least}, got {list(values)}")
    extra = full(output_padding) if transposed else (0,) * rank
    for e, s, d in zip(extra, full(stride), full(dilation), strict=True):
        if e >= max(s, d):
            raise RuntimeError(f"output padding {e} must be smaller than stride {s} or dilation {d}")
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
    """16-bit floats as float32 on a CPU; elsewhere XLA itself accumulates them in float32."""
    return [a.astype(dtypes.compute_dtype(a.dtype)) if _on_cpu() else a for a in arrays]


def _check_arrays(x: jax.Array, w: jax.Array, bias: jax.Array | None, transposed: bool) -> None:
    if x.dtype == jnp.bool_:
        raise NotImplementedError("convolution: not implemented for bool")
    if 0 in w.shape[:2] and not transposed:
        raise RuntimeError(f"convolution: expected a weight with channels, got {list(w.shape)}")
    if bias is not None and bias.ndim != 1:
        raise RuntimeError(f"convolution: expected bias to be 1-dimensional, got {list(bias.shape)}")


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
    _check_arrays(input, weight, bias, transposed)
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
