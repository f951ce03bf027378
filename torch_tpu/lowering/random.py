"""Lowerings of random ops. The same key gives the same numbers on every platform.

The bits are those of `jax.random.bits`, written out so that they fuse with what uses them: a tenth of
the time on the CPU client, and a quarter of the compilation.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Array = jax.Array
Key = Any


def _kind(dtype: torch.dtype | np.dtype | Any) -> np.dtype:
    """The dtype random numbers for a result of `dtype` are computed in: float32, or float64."""
    dtype = dtypes.TORCH_DTYPE[np.dtype(dtype)] if not isinstance(dtype, torch.dtype) else dtype
    return np.dtype(np.float64 if dtype in (torch.float64, torch.complex128) else np.float32)


def _digits(dtype: Any) -> int:
    """Bits of a significand, the implicit one included."""
    return int(jnp.finfo(dtype).nmant) + 1


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds: the uint32 counters (high, low) encrypted with a key of two words."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        x = x + words[(group + 1) % 3]
        y = y + words[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def bits(key: Key, shape: Any, width: int) -> Array:
    """Uniform unsigned integers of `width` (32 or 64) bits: word k is the encrypted number k."""
    shape = tuple(shape)
    counter = np.uint64 if math.prod(shape) > 2**32 else np.uint32
    index = jnp.zeros(shape, counter)
    for axis in range(len(shape)):
        stride = counter(math.prod(shape[axis + 1 :]))
        index = index + jax.lax.broadcasted_iota(counter, shape, axis) * stride
    high = (index >> counter(32)).astype(np.uint32) if counter is np.uint64 else jnp.zeros_like(index)
    x, y = threefry(jax.random.key_data(key), high, index.astype(np.uint32))
    return x ^ y if width == 32 else (x.astype(np.uint64) << np.uint64(32)) | y.astype(np.uint64)


def unit(key: Key, shape: Any, dtype: Any) -> Array:
    """Uniform in [0, 1) with all the bits `dtype` (a float dtype) has; never rounds to 1."""
    digits = _digits(dtype)
    width = 64 if digits > 32 else 32
    x = bits(key, shape, width)
    return (x >> x.dtype.type(width - digits)).astype(dtypes.compute_dtype(dtype)) * 2.0**-digits


def positive_unit(key: Key, shape: Any, dtype: Any) -> Array:
    """Uniform in (0, 1]."""
    return 1 - unit(key, shape, dtype)


# --- continuous distributions -------------------------------------------------------------------


@lower("aten::uniform", random=True)
def uniform(key: Key, self: Array, low: Any = 0.0, high: Any = 1.0) -> Array:
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        parts = (uniform(k, self.real, low, high) for k in jax.random.split(key))
        return jax.lax.complex(*parts)
    u = unit(key, self.shape, self.dtype)
    low, high = dtypes.cast(low, u.dtype), dtypes.cast(high, u.dtype)
    x = dtypes.cast(low + u * (high - low), self.dtype)
    return jnp.where((x >= high) & (low < high), dtypes.cast(low, self.dtype), x)


def _normal(key: Key, shape: Any, dtype: Any) -> Array:
    """Standard normal in the precision of `dtype`; complex ones have variance 1 in all."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = (_normal(k, shape, _kind(dtype)) for k in jax.random.split(key))
        return jax.lax.complex(*parts) * math.sqrt(0.5)
    u = unit(key, shape, _kind(dtype))
    centred = 2 * u - 1 + jnp.finfo(u.dtype).epsneg  # odd multiples of 2^-24 (or 2^-53), never -1 or 1
    return math.sqrt(2) * jax.lax.erf_inv(centred)


@lower("aten::normal_functional", random=True)
def normal_functional(key: Key, self: Array, mean: Any = 0.0, std: Any = 1.0) -> Array:
    return mean + std * _normal(key, self.shape, self.dtype)


@lower("aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", random=True)
def normal(key: Key, mean: Any, std: Any = 1.0) -> Array:
    arrays = [x for x in (mean, std) if not dtypes.is_number(x)]
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    return mean + std * _normal(key, shape, arrays[0].dtype)


@lower("aten::normal.float_float", random=True)
def normal_sized(key: Key, mean: Any, std: Any, size: list[int], dtype: torch.dtype | None = None) -> Array:
    return mean + std * randn(key, size, dtype)


@lower("aten::exponential", random=True)
def exponential(key: Key, self: Array, lambd: Any = 1.0) -> Array:
    return standard_exponential(key, self.shape, self.dtype) / lambd


def standard_exponential(key: Key, shape: Any, dtype: Any) -> Array:
    """Exponential with rate 1, never 0, so that it may divide."""
    kind = _kind(dtype)
    return jnp.maximum(-jnp.log(positive_unit(key, shape, kind)), jnp.finfo(kind).eps / 2)


@lower("aten::log_normal", random=True)
def log_normal(key: Key, self: Array, mean: Any = 1.0, std: Any = 2.0) -> Array:
    return jnp.exp(normal_functional(key, self, mean, std))


@lower("aten::cauchy", random=True)
def cauchy(key: Key, self: Array, median: Any = 0.0, sigma: Any = 1.0) -> Array:
    return median + sigma * jnp.tan(math.pi * (unit(key, self.shape, _kind(self.dtype)) - 0.5))


@lower("aten::_standard_gamma", random=True)
def standard_gamma(key: Key, self: Array, generator: None = None) -> Array:
    kind = _kind(self.dtype)
    return jnp.maximum(jax.random.gamma(key, self.astype(kind)), jnp.finfo(self.dtype).tiny)


@lower("aten::_standard_gamma_grad")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    kind = _kind(self.dtype)
    return jax.lax.random_gamma_grad(self.astype(kind), output.astype(kind))


@lower("aten::_sample_dirichlet", random=True)
def dirichlet(key: Key, self: Array, generator: None = None) -> Array:
    """Rows (the last dimension) that sum to 1, with concentrations `self`."""
    return jax.random.dirichlet(key, self.astype(_kind(self.dtype)))


# --- discrete distributions ---------------------------------------------------------------------


def _bernoulli(key: Key, p: Array, shape: Any) -> Array:
    p = jnp.asarray(p)
    kind = np.dtype(np.float64) if p.dtype == np.float64 and not p.weak_type else np.dtype(np.float32)
    return unit(key, shape, kind) < dtypes.cast(p, kind)


@lower("aten::bernoulli", random=True)
def bernoulli(key: Key, self: Array) -> Array:
    return _bernoulli(key, self, self.shape)


@lower("aten::bernoulli.p", "aten::bernoulli.Tensor", random=True)
def bernoulli_p(key: Key, self: Array, p: Any) -> Array:
    return _bernoulli(key, p, self.shape)


@lower("aten::geometric", random=True)
def geometric(key: Key, self: Array, p: Any) -> Array:
    """The number of trials until the first success, at least 1."""
    kind = _kind(self.dtype)
    trials = jnp.log(positive_unit(key, self.shape, kind)) / jnp.log1p(-dtypes.cast(p, kind))
    return jnp.maximum(jnp.ceil(trials), 1)


@lower("aten::poisson", random=True)
def poisson(key: Key, self: Array, generator: None = None) -> Array:
    return jax.random.poisson(key, self.astype(_kind(self.dtype)), dtype=np.int64)


@lower("aten::binomial", random=True)
def binomial(key: Key, count: Array, prob: Array, generator: None = None) -> Array:
    kind = _kind(count.dtype)
    count, prob = jnp.broadcast_arrays(count.astype(kind), prob.astype(kind))
    return jax.random.binomial(key, count, prob, dtype=kind)


@lower("aten::multinomial", random=True)
def multinomial(key: Key, self: Array, num_samples: int, replacement: bool = False) -> Array:
    """Indices [..., num_samples] drawn with probabilities in proportion to self [..., N]."""
    weights = self.astype(_kind(self.dtype))
    if replacement and num_samples > 1:
        return _by_inverse_cdf(key, weights, num_samples)
    race = weights / standard_exponential(key, weights.shape, weights.dtype)
    return jax.lax.top_k(race, num_samples)[1].astype(jnp.int64)


def _by_inverse_cdf(key: Key, weights: Array, count: int) -> Array:
    shape = (*weights.shape[:-1], count)
    rows = jnp.cumsum(weights, axis=-1).reshape(-1, weights.shape[-1])
    targets = unit(key, shape, weights.dtype).reshape(-1, count) * rows[:, -1:]
    index = jax.vmap(lambda row, target: jnp.searchsorted(row, target, side="right"))(rows, targets)
    last = weights.shape[-1] - 1 - jnp.argmax(weights[..., ::-1] > 0, axis=-1)
    return jnp.minimum(index.reshape(shape), last[..., None]).astype(jnp.int64)


# --- integers -----------------------------------------------------------------------------------


def below(key: Key, shape: Any, bound: Any) -> Array:
    """Uniform uint64 in [0, bound), by the high half of a 128-bit product; bound 0 stands for 2^64."""
    x = bits(key, shape, 64)
    bound = jnp.asarray(bound).astype(jnp.uint64)
    x_high, x_low = x >> 32, x & 0xFFFFFFFF
    b_high, b_low = bound >> 32, bound & 0xFFFFFFFF
    middle = x_high * b_low + ((x_low * b_low) >> 32)
    carry = x_low * b_high + (middle & 0xFFFFFFFF)
    high = x_high * b_high + (middle >> 32) + (carry >> 32)
    return jnp.where(bound == 0, x, high)


def _largest(dtype: Any) -> int:
    """The largest number `random_()` draws: of integers, or the last before floats skip integers."""
    if dtype == np.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max)
    return 2 ** _digits(dtype)


def _between(key: Key, shape: Any, low: Any, high: Any) -> Array:
    low, high = jnp.asarray(low).astype(jnp.int64), jnp.asarray(high).astype(jnp.int64)
    return low + below(key, shape, high - low).astype(jnp.int64)


@lower("aten::random", random=True)
def random(key: Key, self: Array) -> Array:
    return below(key, self.shape, np.uint64((_largest(self.dtype) + 1) % 2**64))


@lower("aten::random.from", random=True, dynamic=("from", "to"))
def random_from(key: Key, self: Array, low: Any, high: Any) -> Array:
    """Integers in [low, high); up to the largest of the dtype where `high` is None."""
    if high is None:
        last = np.int64(min(_largest(self.dtype), 2**63 - 1))
        start = jnp.asarray(low).astype(jnp.int64)
        span = last.astype(np.uint64) - start.astype(jnp.uint64) + jnp.uint64(1)
        return start + below(key, self.shape, span).astype(jnp.int64)
    return _between(key, self.shape, low, high)


@lower("aten::random.to", random=True, dynamic=("to",))
def random_to(key: Key, self: Array, high: Any) -> Array:
    return _between(key, self.shape, 0, high)


@lower("aten::randint", "aten::randint.generator", random=True, dynamic=("high",))
def randint(key: Key, high: Any, size: list[int]) -> Array:
    return _between(key, size, 0, high)


@lower("aten::randint.low", "aten::randint.low_generator", random=True, dynamic=("low", "high"))
def randint_low(key: Key, low: Any, high: Any, size: list[int]) -> Array:
    return _between(key, size, low, high)


@lower(*[f"aten::randint_like{kind}" for kind in ("", ".generator", ".Tensor", ".Tensor_generator")],
       random=True, dynamic=("high",))  # fmt: skip
def randint_like(key: Key, self: Array, high: Any) -> Array:
    return _between(key, self.shape, 0, high)


@lower("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype",
       random=True, dynamic=("low", "high"))  # fmt: skip
def randint_like_low(key: Key, self: Array, low: Any, high: Any) -> Array:
    return _between(key, self.shape, low, high)


@lower("aten::randperm", "aten::randperm.generator", random=True)
def randperm(key: Key, n: int, dtype: torch.dtype | None = None) -> Array:
    """The numbers below `n` as the low bits of random words, in the order of the words."""
    dtype = dtype or torch.int64
    most = round(2 / torch.finfo(dtype).eps) + 1 if dtype.is_floating_point else torch.iinfo(dtype).max
    if n > most:
        raise RuntimeError(f"randperm(): {dtype} holds integers up to {most}, but n is {n}")
    low = np.uint64((1 << max(n - 1, 0).bit_length()) - 1)
    words = (bits(key, (n,), 64) & ~low) | jax.lax.iota(np.uint64, n)
    return (jnp.sort(words) & low).astype(jnp.int64)


# --- tensors of standard numbers ----------------------------------------------------------------


def _sized(dtype: torch.dtype | None) -> np.dtype:
    return dtypes.JAX_DTYPE[torch.get_default_dtype() if dtype is None else dtype]


@lower("aten::rand", "aten::rand.generator", random=True)
def rand(key: Key, size: list[int], dtype: torch.dtype | None = None) -> Array:
    return uniform(key, jnp.zeros(tuple(size), _sized(dtype)))


@lower("aten::randn", "aten::randn.generator", random=True)
def randn(key: Key, size: list[int], dtype: torch.dtype | None = None) -> Array:
    return _normal(key, size, _sized(dtype))


@lower("aten::rand_like", "aten::rand_like.generator", random=True)
def rand_like(key: Key, self: Array, dtype: torch.dtype | None = None) -> Array:
    return uniform(key, self if dtype is None else dtypes.cast(self, dtype))


@lower("aten::randn_like", "aten::randn_like.generator", random=True)
def randn_like(key: Key, self: Array, dtype: torch.dtype | None = None) -> Array:
    return _normal(key, self.shape, self.dtype if dtype is None else _sized(dtype))


# --- dropout ------------------------------------------------------------------------------------


@lower("aten::native_dropout", random=True)
def native_dropout(key: Key, input: Array, p: Any, train: bool | None) -> tuple[Array, Array]:
    """(input with a share `p` of it zeroed and the rest scaled up, the bool mask of what was kept)."""
    if train is False:
        return input, jnp.ones(input.shape, bool)
    return _dropout(key, input, 1 - dtypes.cast(p, np.float32))


@lower("aten::_fused_dropout", random=True)
def fused_dropout(key: Key, self: Array, p: Any) -> tuple[Array, Array]:
    """Like native_dropout, but `p` is the share that is kept."""
    return _dropout(key, self, dtypes.cast(p, np.float32))


def _dropout(key: Key, x: Array, keep: Array) -> tuple[Array, Array]:
    mask = unit(key, x.shape, np.float32) < keep
    scale = jnp.where(keep > 0, 1 / keep, 0)
    wide = x.astype(dtypes.compute_dtype(x.dtype))
    return jnp.where(mask, wide * scale.astype(wide.dtype), 0), mask


@lower("aten::native_dropout_backward")
def native_dropout_backward(grad_output: Array, mask: Array, scale: Any) -> Array:
    return jnp.where(mask, grad_output.astype(dtypes.compute_dtype(grad_output.dtype)) * scale, 0)


@lower("aten::rrelu_with_noise_functional", random=True)
def rrelu_with_noise(
    key: Key,
    self: Array,
    noise: Array,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> tuple[Array, Array]:
    """Leaky relu with a random slope per element; `noise` out is the slope, 1 where self > 0."""
    if not training:
        return jnp.where(self > 0, self, self * ((lower + upper) / 2)), noise
    slope = lower + (upper - lower) * unit(key, self.shape, _kind(self.dtype))
    slope = jnp.where(self > 0, 1, slope)
    return self * slope, slope
