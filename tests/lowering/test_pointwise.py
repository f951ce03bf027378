"""Elementwise arithmetic keeps PyTorch's rules for NaN, signs, integers, bools and promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from tests.lowering.compare import EDGES, INF, NAN, same, traced

FLOATS = torch.tensor(EDGES)
OTHERS = FLOATS.roll(5)
INTS = torch.tensor([0, 1, -1, 7, -7, 8, 100, -100])
DIVISORS = torch.tensor([1, 3, -3, 2, -2, 5, 7, -9])
COMPLEX = torch.complex(torch.tensor([0.0, 1.0, -2.0, 3.0]), torch.tensor([0.0, -1.0, 0.5, 2.0]))
BOOLS = torch.tensor([True, False, True, False])

Unary = Callable[[torch.Tensor], torch.Tensor]
Binary = Callable[[torch.Tensor, Any], torch.Tensor]


@pytest.mark.parametrize(
    "op",
    [torch.sign, torch.sgn, torch.frac, torch.round, torch.trunc, torch.floor, torch.ceil, torch.abs,
     torch.neg, torch.signbit, torch.isnan, torch.isinf, torch.isposinf, torch.isneginf,
     torch.logical_not, torch.angle, torch.nan_to_num, torch.sinc, torch.reciprocal, torch.rsqrt,
     torch.exp2, torch.log1p, torch.log2, torch.log10, torch.sigmoid, torch.atanh],
)  # fmt: skip
def test_unary_on_edge_values(op: Unary) -> None:
    same(op, FLOATS)


@pytest.mark.parametrize(
    "op",
    [torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.floor_divide,
     torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.copysign, torch.hypot,
     torch.heaviside, torch.xlogy, torch.eq, torch.lt, torch.logical_xor, torch.logaddexp, torch.clamp_min],
)  # fmt: skip
def test_binary_on_edge_values(op: Binary) -> None:
    same(op, FLOATS, OTHERS)


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.bfloat16])
def test_division_rounds_as_asked(mode: str | None, dtype: torch.dtype) -> None:
    same(lambda a, b: torch.div(a, b, rounding_mode=mode), INTS.to(dtype), DIVISORS.to(dtype))


@pytest.mark.parametrize("op", [torch.remainder, torch.fmod, torch.floor_divide, torch.gcd, torch.lcm])
def test_integer_division_family(op: Binary) -> None:
    same(op, INTS, DIVISORS)


@pytest.mark.parametrize("shift", [0, 3, 63, 64, -1])
def test_shifts_beyond_the_width(shift: int) -> None:
    for ints in (INTS, INTS.to(torch.uint8)):
        same(lambda x: (x << shift, x >> shift), ints)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 0.5, -0.5, -1, -2, 2.5, True])
def test_powers_with_a_number(exponent: float) -> None:
    same(lambda x: x**exponent, torch.tensor([0.0, 1.5, 2.0, 3.0, INF, NAN]))


def test_integer_powers_wrap_and_invert() -> None:
    base = torch.tensor([0, 1, -1, 2, -3, 7, 3, -1])
    same(torch.pow, base, torch.tensor([0, -5, -3, -1, 5, 40, 64, 10]))
    same(lambda x: x**5, base)
    same(lambda x: 2**x, torch.tensor([0, 1, 5, 62]))


def test_a_run_time_number_promotes_like_a_number() -> None:
    ints = jnp.asarray([1, 2, 3])
    assert traced("aten::add.Tensor", ints, 0.5, dtype=torch.float32).tolist() == [1.5, 2.5, 3.5]
    half = traced("aten::mul.Tensor", jnp.asarray([1.0, 3.0], jnp.bfloat16), 1 / 3, dtype=torch.bfloat16)
    assert torch.equal(half, torch.tensor([1.0, 3.0], dtype=torch.bfloat16) * (1 / 3))


def test_a_zero_dim_tensor_does_not_widen() -> None:
    same(torch.add, torch.ones(3, dtype=torch.bfloat16), torch.tensor(1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [1, 2, -3])
def test_alpha_scales_the_second_operand(alpha: int) -> None:
    for op in (torch.add, torch.sub, torch.rsub):
        same(lambda a, b, op=op: op(a, b, alpha=alpha), INTS, DIVISORS)


def test_bool_arithmetic() -> None:
    same(lambda a, b: (a + b, a * b, a | b, a ^ b, ~a), BOOLS, BOOLS.flip(0).roll(1))


def test_lerp_is_exact_at_both_ends() -> None:
    start, end = torch.tensor([1e8, -1.0]), torch.tensor([1.0, 3.0])
    for weight in (0.0, 0.25, 0.75, 1.0):
        same(lambda a, b, weight=weight: torch.lerp(a, b, weight), start, end)


@pytest.mark.parametrize("op", [torch.sgn, torch.abs, torch.angle, torch.sqrt, torch.log1p, torch.exp2,
                                torch.reciprocal, torch.rsqrt, torch.sinc])  # fmt: skip
def test_complex_unary(op: Unary) -> None:
    same(op, COMPLEX)


def test_complex_powers() -> None:
    same(lambda x: (x**2, x**2.5, torch.pow(x, x)), COMPLEX)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (None, 0.5), (NAN, 1.0), (3.0, -3.0)])
def test_clamp(low: float | None, high: float | None) -> None:
    same(lambda x: torch.clamp(x, low, high), FLOATS)


def test_selection_by_masks() -> None:
    mask = FLOATS > 0
    same(lambda x: (x.masked_fill(mask, 9), torch.where(mask, x, OTHERS), torch.where(mask, x, 2)), FLOATS)
    same(lambda x: torch.where(mask, 1, x), INTS.float().repeat(2)[:12])


@pytest.mark.parametrize("decimals", [-1, 0, 2])
def test_round_to_decimals(decimals: int) -> None:
    same(lambda x: torch.round(x, decimals=decimals), torch.tensor([123.456, -0.125, 5.0, 15.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_next_representable_number(dtype: torch.dtype) -> None:
    same(torch.nextafter, FLOATS.to(dtype), OTHERS.to(dtype), rtol=0, atol=0)


def test_mantissa_and_exponent() -> None:
    same(torch.frexp, torch.tensor([0.0, 1.0, -6.0, 0.3, 1e30]))
    same(torch.ldexp, torch.tensor([1.0, -3.0]), torch.tensor([4, -2]))
