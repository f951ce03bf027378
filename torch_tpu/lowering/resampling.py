"""Interpolation and grid sampling.

Interpolation is separable: along each dimension every output is a weighted sum of a few inputs, whose
positions and weights are known when the program is built.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

_SCALES = ("scales", "scales_d", "scales_h", "scales_w")


@dataclass(frozen=True)
class Taps:
    """positions, weights: (outputs, taps) arrays; weights None stands for one tap of weight 1."""

    positions: np.ndarray
    weights: np.ndarray | None = None

    def apply(self, x: jax.Array, axis: int) -> jax.Array:
        if self.weights is None:
            return _pick(x, self.positions[:, 0], axis)
        shape = [1] * x.ndim
        shape[axis] = -1
        total: Any = 0
        for tap in range(self.positions.shape[1]):
            weight = jnp.asarray(self.weights[:, tap].reshape(shape), x.dtype)
            total = total + _pick(x, self.positions[:, tap], axis) * weight
        return total

    def apply_to_bytes(self, x: jax.Array, axis: int) -> jax.Array:
        """As `apply` for bytes held in int32: PyTorch's (and Pillow's) fixed-point sums, rounded to bytes."""
        if self.weights is None:
            return self.apply(x, axis)
        # Taps that the image's border moved to one place count as one.
        equal = self.positions[:, :, None] == self.positions[:, None, :]
        weights = np.where(np.tril(equal, -1).any(2), 0, (equal * self.weights[:, None, :]).sum(2))
        bits = next((b for b in range(22) if 0.5 + weights.max() * 2 ** (b + 1) >= 2**15), 22)
        scaled = np.trunc(weights * 2.0**bits + np.copysign(0.5, weights)).astype(np.int32)
        total = Taps(self.positions, scaled).apply(x, axis) + (1 << bits >> 1)
        return jnp.clip(total >> bits, 0, 255)


def _pick(x: jax.Array, positions: np.ndarray, axis: int) -> jax.Array:
    """x at static positions along axis; whole-number repetition needs no gather."""
    size = x.shape[axis]
    times, rest = divmod(len(positions), size)
    if rest == 0 and (positions == np.repeat(np.arange(size), times)).all():
        return jnp.repeat(x, times, axis)
    return jnp.take(x, positions, axis)


def _ratio(size: int, count: int, align_corners: bool, scale: float | None, real: type) -> Any:
    """Input steps per output step, in the precision PyTorch computes it."""
    if align_corners:
        return real(size - 1) / real(count - 1) if count > 1 else real(0)
    return real(1 / scale) if scale is not None and scale > 0 else real(size) / real(count)


def _nearest_taps(size: int, count: int, scale: float | None, exact: bool) -> Taps:
    ratio = _ratio(size, count, False, scale, np.float32)
    steps = np.arange(count, dtype=np.float32) + np.float32(0.5 if exact else 0)
    positions = np.minimum(np.floor(steps * ratio).astype(np.int64), size - 1)
    if not exact and count in (size, 2 * size):
        positions = np.arange(count) * size // count
    return Taps(positions[:, None])


def _centers(count: int, ratio: Any, align_corners: bool, real: type) -> np.ndarray:
    steps: Any = np.arange(count, dtype=real)
    return steps * ratio if align_corners else (steps + real(0.5)) * ratio - real(0.5)


def _linear_taps(size: int, count: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    if size == count:
        return Taps(np.arange(size)[:, None])
    ratio = _ratio(size, count, align_corners, scale, real)
    center = np.maximum(_centers(count, ratio, align_corners, real), 0)
    low = np.minimum(center.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(center - low.astype(real), 0, 1)
    return Taps(np.stack([low, high], 1), np.stack([1 - part, part], 1))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel with parameter a."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic_taps(size: int, count: int, align_corners: bool, scale: float | None, real: type) -> Taps:
    ratio = _ratio(size, count, align_corners, scale, real)
    center = _centers(count, ratio, align_corners, real)
    low = np.floor(center)
    offsets = np.arange(-1, 3)
    weights = _cubic((center - low)[:, None] - offsets.astype(real), -0.75)
    positions = np.clip(low.astype(np.int64)[:, None] + offsets, 0, size - 1)
    return Taps(positions, weights)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic_filter(x: np.ndarray) -> np.ndarray:
    return _cubic(x, -0.5)


def _antialias_taps(
    kernel: Callable[[np.ndarray], np.ndarray],
    width: int,
    size: int,
    count: int,
    align_corners: bool,
    scale: float | None,
    real: type,
) -> Taps:
    """The kernel (nonzero on (-width / 2, width / 2)) stretched to the output's step when shrinking."""
    ratio = _ratio(size, count, align_corners, scale, real)
    stretch = max(ratio, real(1))
    support = real(width * 0.5) * stretch
    center = ratio * (np.arange(count, dtype=real) + real(0.5))
    low = np.maximum((center - support + real(0.5)).astype(np.int64), 0)
    high = np.minimum((center + support + real(0.5)).astype(np.int64), size)
    positions = low[:, None] + np.arange(max(int((high - low).max(initial=0)), 1))
    x = (positions.astype(real) - center[:, None] + real(0.5)) / stretch
    weights = np.where(positions < high[:, None], kernel(x), 0)
    weights = weights / weights.sum(1, keepdims=True)
    return Taps(np.minimum(positions, size - 1), weights.astype(real))


Maker = Callable[..., Taps]
_FILTERS: dict[str, Maker] = {
    "upsample_linear1d": _linear_taps,
    "upsample_bilinear2d": _linear_taps,
    "upsample_trilinear3d": _linear_taps,
    "upsample_bicubic2d": _cubic_taps,
    "_upsample_bilinear2d_aa": functools.partial(_antialias_taps, _triangle, 2),
    "_upsample_bicubic2d_aa": functools.partial(_antialias_taps, _cubic_filter, 4),
    "_upsample_lanczos2d_aa": functools.partial(_antialias_taps, _lanczos, 6),
}


def _full_scales(scales: Sequence[float | None], rank: int) -> tuple[float | None, ...]:
    return tuple(scales) if scales else (None,) * rank


def _interpolate(
    make: Maker, x: jax.Array, output_size: Sequence[int], align_corners: bool, scales: Sequence[Any]
) -> jax.Array:
    rank, sizes = len(output_size), x.shape[2:]
    scales = _full_scales(scales, rank)
    real: Any = (
        np.float32 if x.dtype.itemsize < 8 and not jnp.issubdtype(x.dtype, jnp.integer) else np.float64
    )
    if jnp.issubdtype(x.dtype, jnp.integer):
        value, apply = x.astype(jnp.int32), Taps.apply_to_bytes
    else:
        value, apply = x.astype(dtypes.compute_dtype(x.dtype)), Taps.apply
    # The last dimension first, as PyTorch's kernels do.
    for d in reversed(range(rank)):
        taps = make(sizes[d], output_size[d], align_corners, scales[d], real)
        value = apply(taps, value, x.ndim - rank + d)
    return value


def _transposed(fn: Callable[[jax.Array], jax.Array], grad: jax.Array, shape: Sequence[int]) -> jax.Array:
    grad = grad.astype(dtypes.compute_dtype(grad.dtype))
    return jax.linear_transpose(fn, jax.ShapeDtypeStruct(tuple(shape), grad.dtype))(grad)[0]


def _register(name: str, make: Maker) -> None:
    @lower(f"aten::{name}", static=_SCALES)
    def forward(
        self: jax.Array, output_size: Sequence[int], align_corners: bool, *scales: Any, **named: Any
    ) -> jax.Array:
        return _interpolate(make, self, output_size, align_corners, (*scales, *named.values()))

    @lower(f"aten::{name}_backward", static=_SCALES)
    def backward(
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: Any,
        **named: Any,
    ) -> jax.Array:
        fn = lambda x: _interpolate(make, x, output_size, align_corners, (*scales, *named.values()))  # noqa: E731
        return _transposed(fn, grad_output, input_size)


def _nearest(exact: bool, x: jax.Array, output_size: Sequence[int], scales: Sequence[Any]) -> jax.Array:
    rank, sizes = len(output_size), x.shape[2:]
    scales = _full_scales(scales, rank)
    for d in range(rank):
        x = _nearest_taps(sizes[d], output_size[d], scales[d], exact).apply(x, x.ndim - rank + d)
    return x


def _register_nearest(name: str, exact: bool) -> None:
    @lower(f"aten::{name}", static=_SCALES)
    def forward(self: jax.Array, output_size: Sequence[int], *scales: Any, **named: Any) -> jax.Array:
        return _nearest(exact, self, output_size, (*scales, *named.values()))

    @lower(f"aten::{name}_backward", static=_SCALES)
    def backward(
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *scales: Any,
        **named: Any,
    ) -> jax.Array:
        fn = lambda x: _nearest(exact, x, output_size, (*scales, *named.values()))  # noqa: E731
        return _transposed(fn, grad_output, input_size)


for _name, _make in _FILTERS.items():
    _register(_name, _make)
for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", True)


# Grid sampling: input (N, C, *sizes), grid (N, *out, rank) with x first, in [-1, 1].

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1


def _unnormalize(coordinate: jax.Array, size: int, align_corners: bool) -> jax.Array:
    if align_corners:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _clip(x: jax.Array, size: int) -> jax.Array:
    """Clipped to the image, with no gradient at the border or outside."""
    # x is the second operand of the last choice, so that NaN becomes 0 as in PyTorch.
    return jnp.where(x >= size - 1, size - 1, jnp.where(x > 0, x, 0))


def _reflect(x: jax.Array, low: float, high: float) -> jax.Array:
    """x reflected at low and high as often as needed."""
    span = high - low
    if span <= 0:
        return jnp.zeros_like(x)
    distance = jnp.abs(x - low)
    extra = jnp.fmod(distance, span)
    flips = jnp.floor(distance / span)
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _inside_image(x: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == _ZEROS:
        return x
    if padding != _BORDER:
        x = _reflect(x, 0, size - 1) if align_corners else _reflect(x, -0.5, size - 0.5)
    return _clip(x, size)


def _read(image: jax.Array, positions: Sequence[jax.Array]) -> jax.Array:
    """image (C, *sizes) at float positions, each (*out): (C, *out); 0 outside the image."""
    sizes, inside, flat = image.shape[1:], jnp.ones((), bool), jnp.zeros((), jnp.int32)
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position <= size - 1)
        flat = flat * size + jnp.clip(jnp.nan_to_num(position), 0, max(size - 1, 0)).astype(jnp.int32)
    values = image.reshape(image.shape[0], math.prod(sizes))[:, jnp.where(inside, flat, 0)]
    return jnp.where(inside, values, 0)


def _sample_linear(image: jax.Array, at: Sequence[jax.Array], limit: Callable) -> jax.Array:
    at = [limit(x, size) for x, size in zip(at, image.shape[1:], strict=True)]
    low = [jnp.floor(x) for x in at]
    total: Any = 0
    for corner in np.ndindex(*(2,) * len(at)):
        weight: Any = 1
        for x, base, bit in zip(at, low, corner, strict=True):
            weight = weight * (x - base if bit else base + 1 - x)
        total = total + weight * _read(image, [base + bit for base, bit in zip(low, corner, strict=True)])
    return total


def _sample_nearest(image: jax.Array, at: Sequence[jax.Array], limit: Callable) -> jax.Array:
    at = [jnp.round(limit(x, size)) for x, size in zip(at, image.shape[1:], strict=True)]
    return _read(image, at)


def _sample_cubic(image: jax.Array, at: Sequence[jax.Array], limit: Callable) -> jax.Array:
    low = [jnp.floor(x) for x in at]
    total: Any = 0
    for tap in np.ndindex(*(4,) * len(at)):
        weight: Any = 1
        for x, base, offset in zip(at, low, tap, strict=True):
            weight = weight * _cubic_weight(x - base, offset - 1)
        places = [base + offset - 1 for base, offset in zip(low, tap, strict=True)]
        places = [limit(p, size) for p, size in zip(places, image.shape[1:], strict=True)]
        total = total + weight * _read(image, places)
    return total


def _cubic_weight(part: jax.Array, offset: int) -> jax.Array:
    """The weight of the input `offset` steps after floor(x), where part = x - floor(x)."""
    a, x = -0.75, (part - offset if offset <= 0 else offset - part)
    if offset in (0, 1):
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _grid_sample(x: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    sizes = x.shape[2:]
    limit = lambda p, size: _inside_image(p, size, padding, align_corners)  # noqa: E731
    sample = {_BILINEAR: _sample_linear, _NEAREST: _sample_nearest}.get(mode, _sample_cubic)

    def one(image: jax.Array, where: jax.Array) -> jax.Array:
        # The grid's last dimension names the last image dimension first.
        at = [
            _unnormalize(where[..., len(sizes) - 1 - d], size, align_corners) for d, size in enumerate(sizes)
        ]
        return sample(image, at, limit)

    return jax.vmap(one)(x, grid)


@lower("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::_grid_sampler_2d_cpu_fallback")
def grid_sampler(
    input: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    dtype = dtypes.compute_dtype(input.dtype)
    return _grid_sample(
        input.astype(dtype), grid.astype(dtype), interpolation_mode, padding_mode, align_corners
    )


@lower("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: jax.Array,
    input: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array | None]:
    fn = lambda x, g: grid_sampler(x, g, interpolation_mode, padding_mode, align_corners)  # noqa: E731
    dtype = dtypes.compute_dtype(input.dtype)
    _, backward = jax.vjp(fn, input.astype(dtype), grid.astype(dtype))
    by_input, by_grid = backward(grad_output.astype(dtype))
    return by_input if output_mask[0] else None, by_grid if output_mask[1] else None
