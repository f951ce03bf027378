"""Pooling. Maxima carry PyTorch's flat index of the image: the first maximum wins, and the last NaN.

All pooling here is separable: one dimension after another is cut into windows and folded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower
from torch_tpu.runtime import client

#: A longer window is gathered and reduced, not folded slice by slice.
_LONG_WINDOW = 64


@dataclass(frozen=True)
class Windows:
    """The windows along one dimension: window i covers start + i * stride + j * dilation, j < kernel.

    Positions outside [0, size) are padding.
    """

    size: int
    count: int
    kernel: int
    stride: int
    start: int
    dilation: int = 1

    def positions(self) -> np.ndarray:
        """(count, kernel): where each window reads; padding is negative or >= size."""
        first = self.start + np.arange(self.count)[:, None] * self.stride
        return first + np.arange(self.kernel) * self.dilation

    def padded(self, x: jax.Array, axis: int, fill: Any) -> jax.Array:
        """x with `fill` around it along `axis`, so that every window lies inside."""
        last = self.start + (self.count - 1) * self.stride + (self.kernel - 1) * self.dilation
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (-self.start, last + 1 - self.size, 0)
        return lax.pad(x, jnp.asarray(fill, x.dtype), config)

    def slices(self, x: jax.Array, axis: int, fill: Any) -> list[jax.Array]:
        """The j-th element of every window, for each j."""
        x = self.padded(x, axis, fill)
        span = (self.count - 1) * self.stride + 1
        return [
            lax.slice_in_dim(x, j * self.dilation, j * self.dilation + span, self.stride, axis)
            for j in range(self.kernel)
        ]


def _full(values: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * rank if len(values) == 1 else values


def _count(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    count = -(-span // stride) + 1 if ceil_mode else span // stride + 1
    # With ceil_mode the last window still starts inside the image or its left padding.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + pad else count


def _windows(
    shape: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, rank: int
) -> list[Windows]:
    kernel, padding, dilation = (_full(v, rank) for v in (kernel, padding, dilation))
    stride = _full(stride, rank) if stride != [] and stride != () else kernel
    return [
        Windows(n, _count(n, k, s, p, d, ceil_mode), k, s, -p, d)
        for n, k, s, p, d in zip(shape[-rank:], kernel, stride, padding, dilation, strict=True)
    ]


# Maxima

Best = tuple[jax.Array, jax.Array]


def _better(old: Best, new: Best) -> Best:
    """The larger of two (value, index); index -1 is padding. `new` comes later in the window."""
    wins = ((new[0] > old[0]) | jnp.isnan(new[0]) | (old[1] < 0)) & (new[1] >= 0)
    return jnp.where(wins, new[0], old[0]), jnp.where(wins, new[1], old[1])


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _fold_max(best: Best, axis: int, windows: Windows) -> Best:
    value, index = best
    values = windows.slices(value, axis, _lowest(value.dtype))
    indices = windows.slices(index, axis, -1)
    result = (values[0], indices[0])
    for later in zip(values[1:], indices[1:], strict=True):
        result = _better(result, later)
    return result


def _reduce_max(best: Best, axis: int, positions: jax.Array | np.ndarray) -> Best:
    """As `_fold_max`, for any (count, kernel) array of positions; negative ones are padding."""
    picked = [jnp.take(a, jnp.maximum(positions, 0), axis) for a in best]
    shape = [1] * picked[0].ndim
    shape[axis : axis + 2] = positions.shape
    inside = jnp.reshape(jnp.asarray(positions) >= 0, shape)
    start = (jnp.asarray(_lowest(best[0].dtype), best[0].dtype), jnp.asarray(-1, best[1].dtype))
    values = (jnp.where(inside, picked[0], start[0]), jnp.where(inside, picked[1], -1))
    return lax.reduce(values, start, _better_of_any_order, (axis + 1,))


def _better_of_any_order(a: Best, b: Best) -> Best:
    later = jnp.where(b[1] > a[1], True, False)
    one, two = _better(a, b), _better(b, a)
    return jnp.where(later, one[0], two[0]), jnp.where(later, one[1], two[1])


def _flat_indices(x: jax.Array, rank: int) -> jax.Array:
    sizes = x.shape[x.ndim - rank :]
    return jnp.broadcast_to(jnp.arange(math.prod(sizes), dtype=_index_dtype(sizes)).reshape(sizes), x.shape)


def _index_dtype(sizes: Sequence[int]) -> Any:
    return jnp.int32 if math.prod(sizes) < 2**31 else jnp.int64


def _max_pool(x: jax.Array, windows: Sequence[Windows]) -> Best:
    best = (x, _flat_indices(x, len(windows)))
    for back, w in enumerate(reversed(windows), 1):
        axis = x.ndim - back
        if w.kernel <= _LONG_WINDOW:
            best = _fold_max(best, axis, w)
        else:
            positions = w.positions()
            best = _reduce_max(best, axis, np.where((positions < 0) | (positions >= w.size), -1, positions))
    return best


@lower("aten::max_pool2d_with_indices")
def max_pool2d(
    self: jax.Array,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Best:
    return _max_pool(self, _windows(self.shape, kernel_size, stride, padding, dilation, ceil_mode, 2))


@lower("aten::max_pool3d_with_indices")
def max_pool3d(
    self: jax.Array,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Best:
    return _max_pool(self, _windows(self.shape, kernel_size, stride, padding, dilation, ceil_mode, 3))


def _scatter_add(grad: jax.Array, indices: jax.Array, like: jax.Array, rank: int) -> jax.Array:
    """Adds grad at flat `indices` of the trailing `rank` dimensions of an image of like's shape."""
    planes = math.prod(like.shape[: like.ndim - rank])
    size = math.prod(like.shape[like.ndim - rank :])
    zero = jnp.zeros((planes, size), dtypes.compute_dtype(grad.dtype))
    per_plane = math.prod(grad.shape[grad.ndim - rank :])
    rows = jnp.arange(planes)[:, None]
    added = zero.at[rows, indices.reshape(planes, per_plane)].add(
        grad.reshape(planes, per_plane).astype(zero.dtype)
    )
    return added.reshape(like.shape)


def _placed_add(grad: jax.Array, indices: jax.Array, windows: Sequence[Windows]) -> jax.Array:
    """As `_scatter_add` for a pooling's own indices: one padded array per window element, no scatter."""
    parts = []
    for element in itertools.product(*(range(w.kernel) for w in windows)):
        flat, config = np.zeros((), np.int64), [(0, 0, 0)] * (grad.ndim - len(windows))
        for w, j in zip(windows, element, strict=True):
            positions = w.positions()[:, j]
            flat = flat[..., None] * w.size + positions
            config.append((int(positions[0]), int(w.size - 1 - positions[-1]), w.stride - 1))
        chosen = jnp.where(indices == flat, grad, 0)
        parts.append(lax.pad(chosen, jnp.zeros((), grad.dtype), config))
    return _sum(parts)


def _max_pool_backward(
    grad: jax.Array, x: jax.Array, windows: Sequence[Windows], indices: jax.Array
) -> jax.Array:
    # A TPU scatters one element after another.
    if client.platform() == "tpu" and math.prod(w.kernel for w in windows) <= _LONG_WINDOW:
        return _placed_add(grad.astype(dtypes.compute_dtype(grad.dtype)), indices, windows)
    return _scatter_add(grad, indices, x, len(windows))


@lower("aten::max_pool2d_with_indices_backward")
def max_pool2d_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    windows = _windows(self.shape, kernel_size, stride, padding, dilation, ceil_mode, 2)
    return _max_pool_backward(grad_output, self, windows, indices)


@lower("aten::max_pool3d_with_indices_backward")
def max_pool3d_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: jax.Array,
) -> jax.Array:
    windows = _windows(self.shape, kernel_size, stride, padding, dilation, ceil_mode, 3)
    return _max_pool_backward(grad_output, self, windows, indices)


# Averages


def _avg_pool(
    x: jax.Array, windows: Sequence[Windows], pads: Sequence[int], include_pad: bool, divisor: int | None
) -> jax.Array:
    total = x.astype(dtypes.compute_dtype(x.dtype))
    for back, w in enumerate(reversed(windows), 1):
        parts = w.slices(total, x.ndim - back, 0) if w.kernel <= _LONG_WINDOW else None
        total = _sum(parts) if parts is not None else _window_sum(total, x.ndim - back, w)
    area = np.ones((), np.int64)
    for w, pad in zip(windows, pads, strict=True):
        extra = pad if include_pad else 0
        first = w.start + np.arange(w.count) * w.stride
        inside = np.minimum(first + w.kernel, w.size + extra) - np.maximum(first, -extra)
        area = area[..., None] * inside
    area = np.asarray(divisor) if divisor is not None else area
    return _divide(total, area)


def _sum(parts: Sequence[jax.Array]) -> jax.Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _window_sum(x: jax.Array, axis: int, w: Windows) -> jax.Array:
    size, stride = [1] * x.ndim, [1] * x.ndim
    size[axis], stride[axis] = w.kernel, w.stride
    x = w.padded(x, axis, 0)
    return lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, size, stride, "VALID")


def _divide(total: jax.Array, area: np.ndarray) -> jax.Array:
    return lax.div(total, jnp.broadcast_to(jnp.asarray(area, total.dtype), total.shape))


def _avg_pool_any(
    x: jax.Array, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: Any, rank: int
) -> jax.Array:
    windows = _windows(x.shape, kernel, stride, padding, 1, ceil, rank)
    return _avg_pool(x, windows, _full(padding, rank), include, divisor)


@lower("aten::avg_pool2d")
def avg_pool2d(
    self: jax.Array,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    return _avg_pool_any(
        self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2
    )


@lower("aten::avg_pool3d")
def avg_pool3d(
    self: jax.Array,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> jax.Array:
    return _avg_pool_any(
        self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3
    )


def _transposed(fn: Any, grad: jax.Array, like: jax.Array) -> jax.Array:
    """The transpose of the linear function `fn` of an array of like's shape."""
    grad = grad.astype(dtypes.compute_dtype(grad.dtype))
    return jax.linear_transpose(fn, jax.ShapeDtypeStruct(like.shape, grad.dtype))(grad)[0]


@lower("aten::avg_pool2d_backward")
def avg_pool2d_backward(grad_output: jax.Array, self: jax.Array, *how: Any) -> jax.Array:
    return _transposed(lambda x: avg_pool2d(x, *how), grad_output, self)


@lower("aten::avg_pool3d_backward")
def avg_pool3d_backward(grad_output: jax.Array, self: jax.Array, *how: Any) -> jax.Array:
    return _transposed(lambda x: avg_pool3d(x, *how), grad_output, self)


# Adaptive pooling: window i covers [floor(i * size / count), ceil((i + 1) * size / count)).


def _adaptive_positions(size: int, count: int) -> np.ndarray:
    """(count, longest window): positions, -1 after a window's end."""
    start = np.arange(count) * size // count
    end = -(-(np.arange(count) + 1) * size // count)
    positions = start[:, None] + np.arange(max((end - start).max(initial=0), 1))
    return np.where(positions < end[:, None], positions, -1)


def _adaptive_mean(x: jax.Array, axis: int, count: int) -> jax.Array:
    positions = _adaptive_positions(x.shape[axis], count)
    if (positions >= 0).all() and positions.size == x.shape[axis]:
        return x.reshape(*x.shape[:axis], *positions.shape, *x.shape[axis + 1 :]).mean(axis + 1)
    shape = [1] * (x.ndim + 1)
    shape[axis : axis + 2] = positions.shape
    inside = (positions >= 0).reshape(shape)
    picked = jnp.where(inside, jnp.take(x, np.maximum(positions, 0), axis), 0)
    return picked.sum(axis + 1) / jnp.asarray(inside.sum(axis + 1), x.dtype)


def _adaptive_avg_pool(x: jax.Array, output_size: Sequence[int]) -> jax.Array:
    x = x.astype(dtypes.compute_dtype(x.dtype))
    for axis, count in enumerate(output_size, x.ndim - len(output_size)):
        x = _adaptive_mean(x, axis, count)
    return x


@lower("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_avg_pool(self: jax.Array, output_size: Sequence[int]) -> jax.Array:
    return _adaptive_avg_pool(self, output_size)


@lower("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return _transposed(lambda x: _adaptive_avg_pool(x, grad_output.shape[-2:]), grad_output, self)


@lower("aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad_output: jax.Array, self: jax.Array) -> jax.Array:
    return _transposed(lambda x: _adaptive_avg_pool(x, grad_output.shape[-3:]), grad_output, self)


@lower("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(self: jax.Array, output_size: Sequence[int]) -> Best:
    rank = len(output_size)
    best = (self, _flat_indices(self, rank))
    for back, count in enumerate(reversed(output_size), 1):
        axis = self.ndim - back
        best = _reduce_max(best, axis, _adaptive_positions(self.shape[axis], count))
    return best


@lower("aten::adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output: jax.Array, self: jax.Array, indices: jax.Array) -> jax.Array:
    return _scatter_add(grad_output, indices, self, 2)


@lower("aten::adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output: jax.Array, self: jax.Array, indices: jax.Array) -> jax.Array:
    return _scatter_add(grad_output, indices, self, 3)


# Fractional pooling: windows start where random samples in [0, 1) put them.


def _fractional_starts(sample: jax.Array, size: int, count: int, kernel: int) -> jax.Array:
    """(count,) starts for one sample; the last window ends with the image."""
    if count == 1:
        return jnp.full(1, size - kernel)
    alpha = jnp.asarray((size - kernel) / (count - 1), sample.dtype)
    steps = jnp.arange(count).astype(sample.dtype)
    starts = ((steps + sample) * alpha).astype(jnp.int32) - (sample * alpha).astype(jnp.int32)
    return starts.at[-1].set(size - kernel)


def _fractional_max_pool(
    x: jax.Array, kernel: Sequence[int], output_size: Sequence[int], samples: jax.Array
) -> Best:
    rank = len(kernel)
    batched = x.reshape(-1, *x.shape[-rank:])
    samples = samples.reshape(-1, rank)[: batched.shape[0]]

    def plane(image: jax.Array, sample: jax.Array) -> Best:
        best = (image, _flat_indices(image, rank))
        for axis in reversed(range(rank)):
            # PyTorch's samples name the last dimension first in 2-D, the first dimension first in 3-D.
            u = sample[rank - 1 - axis] if rank == 2 else sample[axis]
            starts = _fractional_starts(u, image.shape[axis], output_size[axis], kernel[axis])
            best = _reduce_max(best, axis, starts[:, None] + jnp.arange(kernel[axis]))
        return best

    value, index = jax.vmap(plane)(batched, samples)
    shape = (*x.shape[:-rank], *output_size)
    return value.reshape(shape), index.reshape(shape)


@lower("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(
    self: jax.Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: jax.Array
) -> Best:
    return _fractional_max_pool(self, kernel_size, output_size, random_samples)


@lower("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward")
def fractional_max_pool_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: jax.Array,
) -> jax.Array:
    return _scatter_add(grad_output, indices, self, len(kernel_size))


# Unpooling


def _unpool(x: jax.Array, indices: jax.Array, output_size: Sequence[int]) -> jax.Array:
    rank = len(output_size)
    batch, planes = x.shape[:-rank], math.prod(x.shape[:-rank])
    zero = jnp.zeros((planes, math.prod(output_size)), x.dtype)
    per_plane = math.prod(x.shape[-rank:])
    placed = zero.at[jnp.arange(planes)[:, None], indices.reshape(planes, per_plane)].set(
        x.reshape(planes, per_plane)
    )
    return placed.reshape(*batch, *output_size)


@lower("aten::max_unpool2d")
def max_unpool2d(self: jax.Array, indices: jax.Array, output_size: Sequence[int]) -> jax.Array:
    return _unpool(self, indices, output_size)


@lower("aten::max_unpool3d")
def max_unpool3d(
    self: jax.Array, indices: jax.Array, output_size: Sequence[int], stride: Any, padding: Any
) -> jax.Array:
    return _unpool(self, indices, output_size)
