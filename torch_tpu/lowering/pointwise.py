"""Lowerings of ATen's elementwise arithmetic, comparisons and selections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.registry import lower

Array = jax.Array


def is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def is_floating(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def to_inexact(x: Array) -> Array:
    """Integers and bools as the default float dtype; floats and complex numbers as they are."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else dtypes.cast(x, torch.get_default_dtype())


def wide(x: Array) -> Array:
    """`x` in the dtype PyTorch computes in: float32 for 16-bit floats."""
    return dtypes.cast(x, dtypes.compute_dtype(x.dtype))


def unary(table: dict[str, Callable[[Array], Array]], promote: str | None) -> None:
    """Register `aten::name` for each function of one array in `table`."""
    for name, function in table.items():

        def lowering(self: Array, function: Callable[[Array], Array] = function) -> Array:
            return function(self)

        lower(f"aten::{name}", promote=promote)(lowering)


def binary(table: dict[str, Callable[[Any, Any], Array]], promote: str | None) -> None:
    """Register the functional overloads of `aten::name` (.Tensor, .Scalar, ...) for each function."""
    for name, function in table.items():

        def lowering(self: Any, other: Any, function: Callable[[Any, Any], Array] = function) -> Array:
            return function(self, other)

        lower(*overloads(name), promote=promote)(lowering)


def overloads(name: str) -> list[str]:
    """The functional overloads of `aten::name`, as full names."""
    found = (x for x in torch._C._dispatch_get_all_op_names() if x.partition(".")[0] == f"aten::{name}")
    return sorted(x for x in found if "out" not in x.partition(".")[2].lower())


# --- arithmetic ---------------------------------------------------------------------------------


@lower("aten::add.Tensor", "aten::add.Scalar", promote="default")
def add(self: Array, other: Any, alpha: Any = 1) -> Array:
    return self + other * alpha


@lower("aten::sub.Tensor", "aten::sub.Scalar", promote="default")
def sub(self: Array, other: Any, alpha: Any = 1) -> Array:
    return self - other * alpha


@lower("aten::rsub.Tensor", "aten::rsub.Scalar", promote="default")
def rsub(self: Array, other: Any, alpha: Any = 1) -> Array:
    return other - self * alpha


@lower("aten::_add_relu.Tensor", "aten::_add_relu.Scalar", promote="default")
def add_relu(self: Array, other: Any, alpha: Any = 1) -> Array:
    return jnp.maximum(self + other * alpha, 0)


@lower("aten::div.Tensor", "aten::div.Scalar", promote="int_to_float")
def true_divide(self: Array, other: Any) -> Array:
    return to_inexact(self) / to_inexact(other)


def trunc_divide(self: Array, other: Array) -> Array:
    """The quotient rounded to the arrays' own dtype and then to zero, as on the CPU."""
    if not is_floating(self):
        return lax.div(*jnp.broadcast_arrays(self, other))
    limits = jnp.finfo(self.dtype)
    quotient = wide(self) / wide(other)
    return jnp.trunc(lax.reduce_precision(quotient, limits.nexp, limits.nmant))


def floor_divide(self: Array, other: Array) -> Array:
    """Python's floor division; for floats computed from the remainder, as the quotient may round up."""
    if not is_floating(self):
        return jnp.floor_divide(self, other)
    modulus = fmod(self, other)
    quotient = (self - modulus) / other
    quotient = jnp.where((modulus != 0) & ((other < 0) != (modulus < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    zero = jnp.copysign(jnp.zeros_like(floor), self / other)
    result = jnp.where(quotient != 0, floor, zero)
    return jnp.where(other == 0, self / other, result)


@lower("aten::div.Tensor_mode", "aten::div.Scalar_mode", promote="no_opmath")
def div_mode(self: Array, other: Any, rounding_mode: str | None) -> Array:
    if rounding_mode == "trunc":
        return trunc_divide(self, other)
    divide = floor_divide if rounding_mode == "floor" else true_divide
    return divide(wide(self), wide(other))


def fmod(self: Array, other: Array) -> Array:
    return lax.rem(*jnp.broadcast_arrays(self, other))


def remainder(self: Array, other: Array) -> Array:
    modulus = fmod(self, other)
    return jnp.where((modulus != 0) & ((modulus < 0) != (other < 0)), modulus + other, modulus)


def multiply(self: Array, other: Array) -> Array:
    return self * other


@lower("aten::pow.Tensor_Scalar", static=("exponent",))
def pow_number(self: Array, exponent: Any) -> Array:
    """self ** exponent; the exponent shapes the program, so that x ** 2 is x * x as in PyTorch."""
    self = dtypes.cast(self, dtypes.compute_dtype(dtypes.result_type([self, exponent])))
    inexact = jnp.issubdtype(self.dtype, jnp.inexact)
    if isinstance(exponent, (bool, int, float)) and self.dtype != jnp.bool_:
        if float(exponent).is_integer() and (-2 <= exponent <= 4 if inexact else exponent >= 0):
            return lax.integer_pow(self, int(exponent))
        if inexact and abs(exponent) == 0.5:
            return jnp.sqrt(self) if exponent > 0 else 1 / jnp.sqrt(self)
    return power(self, dtypes.cast(exponent, self.dtype))


@lower("aten::pow.Tensor_Tensor", "aten::pow.Scalar", promote="default")
def power(self: Any, exponent: Any) -> Array:
    self, exponent = jnp.broadcast_arrays(self, exponent)
    if self.dtype == jnp.bool_:
        return self | ~exponent
    if jnp.issubdtype(self.dtype, jnp.unsignedinteger):
        return _integer_power(self, exponent)
    if jnp.issubdtype(self.dtype, jnp.integer):
        inverse = jnp.where(self == 1, 1, jnp.where(self == -1, 1 - 2 * (exponent & 1), 0))
        return jnp.where(exponent < 0, inverse, _integer_power(self, jnp.maximum(exponent, 0)))
    if is_complex(self):
        result = jnp.exp(exponent * jnp.log(self))
        # Of the result's dtype from the start: a TPU's compiler aborts the process at complex128.
        zero, pole = np.array(0, self.dtype), np.array(complex(math.inf, math.nan), self.dtype)
        below = jnp.where(exponent.real < 0, pole, np.array(complex(math.nan, math.nan), self.dtype))
        return jnp.where(self == 0, jnp.where(exponent.real > 0, zero, below), result)
    return lax.pow(self, exponent)


def _integer_power(base: Array, exponent: Array) -> Array:
    """base ** exponent for exponents >= 0, modulo the width of the dtype, by repeated squaring."""

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, square, left = state
        return jnp.where(left & 1 != 0, result * square, result), square * square, left >> 1

    start = (jnp.ones_like(base), base, exponent)
    return lax.while_loop(lambda state: jnp.any(state[2] != 0), step, start)[0]


@lower("aten::addcmul", promote="default")
def addcmul(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    return self + tensor1 * value * tensor2


@lower("aten::addcdiv", promote="default")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    return self + tensor1 * value / tensor2


@lower("aten::lerp.Scalar", "aten::lerp.Tensor", promote="default")
def lerp(self: Array, end: Array, weight: Any) -> Array:
    step = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


def sgn(self: Array) -> Array:
    if not is_complex(self):
        return sign(self)
    size = jnp.abs(self)
    return jnp.where(size == 0, 0, self / jnp.where(size == 0, 1, size))


def sign(self: Array) -> Array:
    if self.dtype == jnp.bool_:
        return self
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


def reciprocal(self: Array) -> Array:
    return 1 / self


def _rounding(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(x) if is_floating(x) else x


def frac(self: Array) -> Array:
    return self - jnp.trunc(self)


@lower("aten::round.decimals")
def round_decimals(self: Array, decimals: int) -> Array:
    if not is_floating(self):
        return self
    x, scale = wide(self), 10.0 ** abs(decimals)
    return jnp.round(x / scale) * scale if decimals < 0 else jnp.round(x * scale) / scale


unary(
    {
        "abs": jnp.abs,
        "neg": jnp.negative,
        "sgn": sgn,
        "sign": sign,
        "ceil": _rounding(jnp.ceil),
        "floor": _rounding(jnp.floor),
        "round": _rounding(jnp.round),
        "trunc": _rounding(jnp.trunc),
        "frac": frac,
        "conj_physical": jnp.conj,
        "_conj_physical": jnp.conj,
        "signbit": lambda x: jnp.signbit(x) if is_floating(x) else x < 0,
        "isnan": jnp.isnan,
        "isinf": jnp.isinf,
        "isposinf": lambda x: x == jnp.inf if is_floating(x) else jnp.zeros(x.shape, bool),
        "isneginf": lambda x: x == -jnp.inf if is_floating(x) else jnp.zeros(x.shape, bool),
        "bitwise_not": jnp.bitwise_not,
        "logical_not": lambda x: x == 0,
    },
    promote="no_opmath",
)
binary(
    {
        "mul": multiply,
        "floor_divide": floor_divide,
        "remainder": remainder,
        "fmod": fmod,
        "maximum": jnp.maximum,
        "minimum": jnp.minimum,
        "fmax": jnp.fmax,
        "fmin": jnp.fmin,
        "gcd": jnp.gcd,
        "lcm": lambda a, b: jnp.abs(jnp.lcm(a, b)),
        "clamp_min": jnp.maximum,
        "clamp_max": jnp.minimum,
    },
    promote="default",
)

# --- elementary functions -----------------------------------------------------------------------


def exp2(self: Array) -> Array:
    return jnp.exp(self * math.log(2)) if is_complex(self) else jnp.exp2(self)


def _logarithm(base: float) -> Callable[[Array], Array]:
    """log in `base`: divided, not multiplied, so that powers of the base come out exact."""
    return lambda x: jnp.log(x) / jnp.asarray(math.log(base), x.real.dtype)


def sinc(self: Array) -> Array:
    x = self * jnp.asarray(math.pi, self.dtype)
    return jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x))


@lower("aten::angle", promote="int_to_float")
def angle(self: Array) -> Array:
    if is_complex(self):
        return jnp.angle(self)
    return jnp.where(jnp.isnan(self), self, jnp.where(self < 0, math.pi, 0).astype(self.dtype))


unary(
    {
        "reciprocal": reciprocal,
        "sqrt": jnp.sqrt,
        "rsqrt": lambda x: 1 / jnp.sqrt(x) if is_complex(x) else lax.rsqrt(x),
        "exp": jnp.exp,
        "exp2": exp2,
        "expm1": jnp.expm1,
        "log": jnp.log,
        "log1p": jnp.log1p,
        "log2": _logarithm(2),
        "log10": _logarithm(10),
        "sin": jnp.sin,
        "cos": jnp.cos,
        "tan": jnp.tan,
        "asin": jnp.arcsin,
        "acos": jnp.arccos,
        "atan": jnp.arctan,
        "sinh": jnp.sinh,
        "cosh": jnp.cosh,
        "tanh": jnp.tanh,
        "asinh": jnp.arcsinh,
        "acosh": jnp.arccosh,
        "atanh": jnp.arctanh,
        "sinc": sinc,
        "sigmoid": jax.nn.sigmoid,
        "deg2rad": lambda x: x * (math.pi / 180),
        "rad2deg": lambda x: x * (180 / math.pi),
    },
    promote="int_to_float",
)


def logaddexp(self: Array, other: Array) -> Array:
    """log(exp(self) + exp(other)); complex numbers are ordered by their real part."""
    if not is_complex(self):
        return jnp.logaddexp(self, other)
    swap = self.real < other.real
    high, low = jnp.where(swap, other, self), jnp.where(swap, self, other)
    return high + jnp.log1p(jnp.exp(low - high))


def logaddexp2(self: Array, other: Array) -> Array:
    return logaddexp(self * math.log(2), other * math.log(2)) / math.log(2)


def xlogy(self: Array, other: Array) -> Array:
    return _times_log(self, other, jnp.log)


def xlog1py(self: Array, other: Array) -> Array:
    return _times_log(self, other, jnp.log1p)


def _times_log(x: Array, y: Array, log: Callable[[Array], Array]) -> Array:
    return jnp.where(jnp.isnan(y), y, jnp.where(x == 0, 0, x * log(y)))


@lower("aten::ldexp.Tensor", promote="int_to_float")
def ldexp(self: Array, other: Array) -> Array:
    return self * lax.pow(*jnp.broadcast_arrays(jnp.asarray(2, self.dtype), other))


binary(
    {
        "atan2": jnp.arctan2,
        "hypot": jnp.hypot,
        "copysign": jnp.copysign,
        "logaddexp": logaddexp,
        "logaddexp2": logaddexp2,
        "xlogy": xlogy,
        "special_xlog1py": xlog1py,
    },
    promote="int_to_float",
)

# --- comparisons, logic, bits -------------------------------------------------------------------


def _logical(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(jnp.not_equal(a, 0), jnp.not_equal(b, 0))


def left_shift(self: Array, other: Array) -> Array:
    if is_floating(self):
        return self * lax.pow(jnp.asarray(2, self.dtype), other)
    return jnp.left_shift(self, other)


def right_shift(self: Array, other: Array) -> Array:
    if is_floating(self):
        return self / lax.pow(jnp.asarray(2, self.dtype), other)
    return jnp.right_shift(self, other)


def heaviside(self: Array, values: Array) -> Array:
    return jnp.where(self == 0, values, (self > 0).astype(values.dtype))


binary(
    {
        "eq": jnp.equal,
        "ne": jnp.not_equal,
        "lt": jnp.less,
        "le": jnp.less_equal,
        "gt": jnp.greater,
        "ge": jnp.greater_equal,
        "bitwise_and": jnp.bitwise_and,
        "bitwise_or": jnp.bitwise_or,
        "bitwise_xor": jnp.bitwise_xor,
        "bitwise_left_shift": left_shift,
        "bitwise_right_shift": right_shift,
        "__lshift__": left_shift,
        "__rshift__": right_shift,
        "heaviside": heaviside,
        "nextafter": jnp.nextafter,
    },
    promote="no_opmath",
)
binary(
    {
        "logical_and": _logical(jnp.logical_and),
        "logical_or": _logical(jnp.logical_or),
        "logical_xor": _logical(jnp.logical_xor),
    },
    promote=None,
)

# --- selections ---------------------------------------------------------------------------------


@lower("aten::where.self")
def where(condition: Array, self: Array, other: Array) -> Array:
    dtype = dtypes.result_type([self, other])
    return jnp.where(condition != 0, dtypes.cast(self, dtype), dtypes.cast(other, dtype))


@lower("aten::clamp", "aten::clamp.Tensor", promote="no_opmath")
def clamp(self: Array, min: Any = None, max: Any = None) -> Array:
    """A NaN bound gives NaN; where min > max the result is max."""
    if min is not None:  # by comparison: -0 is not raised to 0
        self = jnp.where((self < min) | (min != min), min, self)
    if max is not None:
        self = jnp.where((self > max) | (max != max), max, self)
    return self


@lower("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Any) -> Array:
    if jnp.iscomplexobj(value) and not is_complex(self) and self.dtype != jnp.bool_:
        raise RuntimeError(f"masked_fill(): value cannot be converted to type {self.dtype} without overflow")
    return jnp.where(mask, dtypes.cast(value, self.dtype), self)


@lower("aten::_masked_scale", promote="default")
def masked_scale(self: Array, mask: Array, scale: Any) -> Array:
    return self * mask * scale


@lower("aten::fill.Scalar", "aten::fill.Tensor")
def fill(self: Array, value: Any) -> Array:
    return jnp.broadcast_to(dtypes.cast(value, self.dtype), self.shape)


@lower("aten::zero")
def zero(self: Array) -> Array:
    return jnp.zeros_like(self)


@lower("aten::nan_to_num")
def nan_to_num(self: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    if is_complex(self):
        return lax.complex(nan_to_num(self.real, nan, posinf, neginf),
                           nan_to_num(self.imag, nan, posinf, neginf))  # fmt: skip
    if not is_floating(self):
        return self
    limits = jnp.finfo(self.dtype)

    def number(value: Any, default: Any) -> Array:
        return dtypes.cast(default if value is None else value, self.dtype)

    finite = jnp.where(jnp.isnan(self), number(nan, 0), self)
    finite = jnp.where(self == jnp.inf, number(posinf, limits.max), finite)
    return jnp.where(self == -jnp.inf, number(neginf, limits.min), finite)


# --- complex numbers and parts of floats --------------------------------------------------------


@lower("aten::complex", promote="no_opmath")
def complex_(real: Array, imag: Array) -> Array:
    if real.dtype == jnp.float16:  # complex32, which XLA lacks
        real, imag = real.astype(jnp.float32), imag.astype(jnp.float32)
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@lower("aten::polar", promote="no_opmath")
def polar(abs: Array, angle: Array) -> Array:
    abs, angle = jnp.broadcast_arrays(abs, angle)
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))


@lower("aten::frexp.Tensor", promote="default")
def frexp(self: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(self)
    return mantissa, exponent.astype(jnp.int32)
