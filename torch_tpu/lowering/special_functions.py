"""Lowerings of ATen's special functions: error, gamma and Bessel functions, orthogonal polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_tpu.lowering.pointwise import binary, overloads, to_inexact, unary, wide
from torch_tpu.lowering.registry import lower
from torch_tpu.runtime import client

Array = jax.Array

# --- error functions and entropy ----------------------------------------------------------------


def erfcx(x: Array) -> Array:
    """exp(x^2) erfc(x): from its asymptotic series where erfc has lost its digits."""
    size = jnp.abs(x)
    near = jnp.minimum(size, 8)
    far = jnp.maximum(size, 8)
    series = jnp.ones_like(x)
    for k in range(16, 0, -1):
        series = 1 - series * (2 * k - 1) / (2 * far * far)
    positive = jnp.where(size < 8, _exp_square(near) * lax.erfc(near), series / (far * math.sqrt(math.pi)))
    return jnp.where(x < 0, 2 * _exp_square(x) - positive, positive)


def _exp_square(x: Array) -> Array:
    """exp(x^2), with x split so that the square of its leading part is exact."""
    lead = jnp.round(x * 16) / 16
    return jnp.exp(lead * lead) * jnp.exp((x - lead) * (x + lead))


def entropy(x: Array) -> Array:
    return jnp.where(x > 0, -x * jnp.log(jnp.where(x > 0, x, 1)), jnp.where(x == 0, 0, -jnp.inf + x * 0))


# --- gamma functions ----------------------------------------------------------------------------


def digamma(x: Array) -> Array:
    pole = jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jnp.nan)
    return jnp.where((x <= 0) & (x == jnp.floor(x)), pole, lax.digamma(x))


def trigamma(x: Array) -> Array:
    """zeta(2, x), reflected for x < 1/2."""
    reflected = x < 0.5
    sine = jnp.sin(math.pi * x) / math.pi
    value = zeta(jnp.asarray(2, x.dtype), jnp.where(reflected, 1 - x, x))
    return jnp.where(reflected, 1 / (sine * sine) - value, value)


@lower("aten::polygamma")
def polygamma(n: int, self: Array) -> Array:
    x = wide(to_inexact(self))
    if n < 2:
        return trigamma(x) if n else digamma(x)
    value = math.exp(math.lgamma(n + 1)) * zeta(jnp.asarray(n + 1, x.dtype), x)
    return value if n % 2 else -value


@lower("aten::mvlgamma")
def mvlgamma(self: Array, p: int) -> Array:
    x = wide(to_inexact(self))
    constant = jnp.asarray(p * (p - 1) / 4 * math.log(math.pi), x.dtype)
    return sum((lax.lgamma(x - j / 2) for j in range(p)), constant)


def zeta(x: Array, q: Array) -> Array:
    """The Hurwitz zeta function, the sum over k of (q + k)^-x, by Euler and Maclaurin."""
    x, q = jnp.broadcast_arrays(x, q)
    pole = (q <= 0) & (q == jnp.floor(q))
    start = jnp.where(jnp.isfinite(q) & ~pole, q, 1)

    def add_term(state: tuple[Array, Array]) -> tuple[Array, Array]:
        end, total = state
        near = end < _ASYMPTOTIC
        return jnp.where(near, end + 1, end), jnp.where(near, total + lax.pow(end, -x), total)

    state = (start, jnp.zeros_like(x))
    end, total = lax.while_loop(lambda state: jnp.any(state[0] < _ASYMPTOTIC), add_term, state)
    tail = lax.pow(end, 1 - x) / (x - 1) + lax.pow(end, -x) / 2
    factor, power = x, lax.pow(end, -x - 1)
    for j, bernoulli in enumerate(_BERNOULLI):
        tail = tail + bernoulli * factor * power
        factor = factor * (x + 2 * j + 1) * (x + 2 * j + 2)
        power = power / (end * end)
    value = jnp.where(q == jnp.inf, 0, total + tail)
    value = jnp.where((q <= 0) & (x != jnp.floor(x)), jnp.nan, value)
    value = jnp.where(pole, jnp.inf, jnp.where(jnp.isnan(q) | (q == -jnp.inf), jnp.nan, value))
    return jnp.where(x == 1, jnp.inf, jnp.where(x < 1, jnp.nan, value))


#: From here on the Euler-Maclaurin tail is exact to double precision.
_ASYMPTOTIC = 10
#: B_2j / (2j)! for j = 1, 2, ...
_BERNOULLI = [b / math.factorial(2 * j + 2) for j, b in enumerate(
    [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510])]  # fmt: skip


# --- Bessel functions ---------------------------------------------------------------------------
# Up to _FAR: Bessel's integrals by the trapezoid rule, which converges exponentially on a period.
# Beyond it: Hankel's asymptotic series.

_FAR = 25.0
_TERMS = 20
_ANGLES = np.arange(33) * (math.pi / 64)
_STEP = np.where((np.arange(33) == 0) | (np.arange(33) == 32), 0.5, 1) / 32  # integral over pi / 2 is 1


def _hankel(order: int) -> list[float]:
    """a_k of Hankel's series for Bessel functions of integer `order`."""
    found = [1.0]
    for k in range(1, _TERMS):
        found.append(found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _weights(order: int) -> np.ndarray:
    """Weights at _ANGLES of Neumann's series for Y: a sum of J_2k or J_2k+1 over k >= 1."""
    total = np.zeros_like(_ANGLES)
    for k in range(1, 33):
        share = (k + 0.5) / (k * (k + 1)) if order else 1 / k
        wave = np.sin((2 * k + 1) * _ANGLES) if order else np.cos(2 * k * _ANGLES)
        total += (-1) ** k * share * wave
    return 4 / math.pi * total * _STEP


def _integrate(weights: np.ndarray, function: Callable[[Array], Array], nodes: np.ndarray, x: Array) -> Array:
    """sum_j weights[j] * function(x * nodes[j])."""
    values = function(x[..., None] * jnp.asarray(nodes, x.dtype))
    return jnp.sum(values * jnp.asarray(weights, x.dtype), axis=-1)


def _far_bessel(order: int, x: Array) -> tuple[Array, Array]:
    """(J, Y) of `order` for x >= _FAR."""
    series = _hankel(order)
    p = sum((-1) ** (k // 2) * series[k] / x**k for k in range(0, _TERMS, 2))
    q = sum((-1) ** (k // 2) * series[k] / x**k for k in range(1, _TERMS, 2))
    phase = x - (order / 2 + 0.25) * math.pi
    scale = jnp.sqrt(2 / (math.pi * x))
    sine, cosine = jnp.sin(phase), jnp.cos(phase)
    return scale * (p * cosine - q * sine), scale * (p * sine + q * cosine)


def _near_j(order: int, x: Array) -> Array:
    if order:
        return _integrate(_STEP * np.sin(_ANGLES), jnp.sin, np.sin(_ANGLES), x)
    return _integrate(_STEP, jnp.cos, np.sin(_ANGLES), x)


def bessel_j(order: int) -> Callable[[Array], Array]:
    def function(x: Array) -> Array:
        size = jnp.abs(x)
        near = _near_j(order, jnp.minimum(size, _FAR))
        far = _far_bessel(order, jnp.maximum(size, _FAR))[0]
        value = jnp.where(size <= _FAR, near, jnp.where(jnp.isinf(size), 0, far))
        return jnp.where(x < 0, -value, value) if order else value

    return function


def bessel_y(order: int) -> Callable[[Array], Array]:
    weights = _weights(order)

    def function(x: Array) -> Array:
        small = jnp.clip(x, jnp.finfo(x.dtype).tiny, _FAR)
        wave = jnp.sin if order else jnp.cos
        series = _integrate(weights, wave, np.sin(_ANGLES), small)
        log = jnp.log(small / 2) + (np.euler_gamma - order)
        pole = _near_j(0, small) / small if order else 0
        near = 2 / math.pi * (log * _near_j(order, small) - pole) - series
        far = _far_bessel(order, jnp.maximum(x, _FAR))[1]
        value = jnp.where(x <= _FAR, near, jnp.where(jnp.isinf(x), 0, far))
        return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, value))

    return function


def scaled_bessel_k(order: int) -> Callable[[Array], Array]:
    """exp(x) K(x): series in x up to 2, then an integral over cosh t, then Hankel's series."""

    def function(x: Array) -> Array:
        small = jnp.clip(x, jnp.finfo(x.dtype).tiny, 2)
        middle, far = jnp.clip(x, 2, _FAR), jnp.maximum(x, _FAR)
        nodes = 0.1 * np.arange(40)
        weights = np.where(nodes == 0, 0.05, 0.1) * np.cosh(order * nodes)
        integral = _integrate(weights, lambda v: jnp.exp(-v), np.cosh(nodes) - 1, middle)
        series = jnp.sqrt(math.pi / (2 * far)) * sum(a / far**k for k, a in enumerate(_hankel(order)))
        value = jnp.where(x <= _FAR, integral, jnp.where(jnp.isinf(x), 0, series))
        value = jnp.where(x <= 2, jnp.exp(small) * _near_k(order, small), value)
        return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, value))

    return function


def _near_k(order: int, x: Array) -> Array:
    """K of `order` for 0 < x <= 2, by its power series in x / 2."""
    half = x / 2
    log, square = jnp.log(half) + np.euler_gamma, half * half
    harmonic, term, total = 0.0, jnp.ones_like(x), jnp.zeros_like(x)
    for k in range(16):
        share = harmonic + (harmonic + 1 / (k + 1) if order else harmonic)
        coefficient = (log - share / 2) / ((k + 1) if order else 1)
        total = total + term * coefficient
        term = term * square / (k + 1) ** 2
        harmonic += 1 / (k + 1)
    return 1 / x + half * total if order else -total


def bessel_k(order: int) -> Callable[[Array], Array]:
    scaled = scaled_bessel_k(order)
    return lambda x: jnp.exp(-x) * scaled(x)


def airy_ai(x: Array) -> Array:
    """Ai(x), in float64: its power series near 0, an integral up to 8, asymptotic series beyond."""
    x64 = x.astype(jnp.float64)
    size = jnp.abs(x64)
    zeta = 2 / 3 * size * jnp.sqrt(size)
    nodes = 0.1 * np.arange(40)
    weights = np.where(nodes == 0, 0.05, 0.1) * np.cosh(nodes / 3)
    middle = jnp.clip(zeta, 1.5, 16)
    integral = jnp.exp(-middle) * _integrate(weights, lambda v: jnp.exp(-v), np.cosh(nodes) - 1, middle)
    middle_value = jnp.sqrt(size / 3) / math.pi * integral
    far = jnp.maximum(zeta, 15)
    scale = 1 / (math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(jnp.maximum(size, 1))))
    decaying = jnp.exp(-far) / 2 * sum((-1) ** k * u / far**k for k, u in enumerate(_AIRY))
    p = sum((-1) ** (k // 2) * _AIRY[k] / far**k for k in range(0, len(_AIRY), 2))
    q = sum((-1) ** (k // 2) * _AIRY[k] / far**k for k in range(1, len(_AIRY), 2))
    waving = jnp.sin(far + math.pi / 4) * p - jnp.cos(far + math.pi / 4) * q
    right = jnp.where(size < 8, middle_value, scale * decaying)
    value = jnp.where(x64 > 2, right, jnp.where(x64 < -8, scale * waving, _near_airy(jnp.clip(x64, -8, 2))))
    return jnp.where(jnp.isinf(x64), jnp.nan, value).astype(x.dtype)


def _near_airy(x: Array) -> Array:
    """Ai by its power series in x^3."""
    cube, even, odd = x * x * x, jnp.ones_like(x), x
    total = _AI_0 * even + _DAI_0 * odd
    for k in range(1, 40):
        even = even * cube / ((3 * k - 1) * (3 * k))
        odd = odd * cube / ((3 * k) * (3 * k + 1))
        total = total + _AI_0 * even + _DAI_0 * odd
    return total


#: Ai(0) and Ai'(0).
_AI_0 = 3 ** (-2 / 3) / math.gamma(2 / 3)
_DAI_0 = -(3 ** (-1 / 3)) / math.gamma(1 / 3)
#: u_k of the asymptotic series of Ai.
_AIRY = [1.0]
for _k in range(1, 16):
    _AIRY.append(_AIRY[-1] * (6 * _k - 5) * (6 * _k - 3) * (6 * _k - 1) / (216 * _k * (2 * _k - 1)))


def _erfinv(x: Array) -> Array:
    """In double precision on a CPU: XLA's for float32 is off by 5e-6 near 1."""
    wide_enough = client.platform() != "cpu" or x.dtype == np.float64
    return lax.erf_inv(x) if wide_enough else lax.erf_inv(x.astype(np.float64)).astype(x.dtype)


def spherical_j0(x: Array) -> Array:
    value = jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x))
    return jnp.where(jnp.isinf(x), 0, value)


unary(
    {
        "erf": lax.erf,
        "erfc": lax.erfc,
        "erfinv": _erfinv,
        "special_erfcx": erfcx,
        "special_entr": entropy,
        "special_ndtri": jsp.ndtri,
        "special_log_ndtr": jsp.log_ndtr,
        "lgamma": lax.lgamma,
        "digamma": digamma,
        "i0": jsp.i0,
        "special_i0e": jsp.i0e,
        "special_i1": jsp.i1,
        "special_i1e": jsp.i1e,
        "special_modified_bessel_i0": jsp.i0,
        "special_modified_bessel_i1": jsp.i1,
        "special_modified_bessel_k0": bessel_k(0),
        "special_modified_bessel_k1": bessel_k(1),
        "special_scaled_modified_bessel_k0": scaled_bessel_k(0),
        "special_scaled_modified_bessel_k1": scaled_bessel_k(1),
        "special_bessel_j0": bessel_j(0),
        "special_bessel_j1": bessel_j(1),
        "special_bessel_y0": bessel_y(0),
        "special_bessel_y1": bessel_y(1),
        "special_spherical_bessel_j0": spherical_j0,
        "special_airy_ai": airy_ai,
    },
    promote="int_to_float",
)
binary(
    {"igamma": jsp.gammainc, "igammac": jsp.gammaincc, "special_zeta": zeta},
    promote="int_to_float",
)

# --- orthogonal polynomials ---------------------------------------------------------------------

Step = Callable[[Any, Array, Array, Array], Array]


def _chebyshev(k: Any, x: Array, last: Array, before: Array) -> Array:
    return 2 * x * last - before


def _hermite_h(k: Any, x: Array, last: Array, before: Array) -> Array:
    return 2 * (x * last - k * before)


def _hermite_he(k: Any, x: Array, last: Array, before: Array) -> Array:
    return x * last - k * before


def _laguerre(k: Any, x: Array, last: Array, before: Array) -> Array:
    return ((2 * k + 1 - x) * last - k * before) / (k + 1)


def _legendre(k: Any, x: Array, last: Array, before: Array) -> Array:
    return ((2 * k + 1) * x * last - k * before) / (k + 1)


def polynomial(first: Callable[[Array], Array], step: Step) -> Callable[[Array, Array], Array]:
    """P_n(x) where P_0 is 1, P_1 is first(x) and P_k+1 is step(k, x, P_k, P_k-1); 0 for n < 0."""

    def function(x: Array, n: Array) -> Array:
        x, n = jnp.broadcast_arrays(x, n)
        n = jnp.trunc(n).astype(jnp.int32)

        def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            k, last, before = state
            following = step(k.astype(x.dtype), x, last, before)
            running = k < n
            return k + 1, jnp.where(running, following, last), jnp.where(running, last, before)

        state = (jnp.asarray(1, jnp.int32), first(x), jnp.ones_like(x))
        _, value, _ = lax.while_loop(lambda s: s[0] < jnp.max(n, initial=0), advance, state)
        return jnp.where(n > 0, value, (n == 0).astype(x.dtype))

    return function


_POLYNOMIALS: dict[str, tuple[Callable[[Array], Array], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, _hermite_h),
    "hermite_polynomial_he": (lambda x: x, _hermite_he),
    "laguerre_polynomial_l": (lambda x: 1 - x, _laguerre),
    "legendre_polynomial_p": (lambda x: x, _legendre),
}


def _shifted(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, n: function(2 * x - 1, n)


for _name, (_first, _step) in _POLYNOMIALS.items():
    binary({f"special_{_name}": polynomial(_first, _step)}, promote="int_to_float")
    if overloads(f"special_shifted_{_name}"):
        binary({f"special_shifted_{_name}": _shifted(polynomial(_first, _step))}, promote="int_to_float")
