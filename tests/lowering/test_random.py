"""Random ops: the range, the mean and the spread of what they draw; the same key, the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from tests.lowering.compare import drawn, traced
from torch_tpu.lowering import registry
from torch_tpu.lowering.random import below, bits, unit

N = 20_000
F32 = torch.float32


def empty(dtype: Any = jnp.float32) -> jax.Array:
    return jnp.zeros(N, dtype)


MOMENTS = [
    ("aten::uniform", (), 0.5, 12**-0.5),
    ("aten::uniform", (-2.0, 4.0), 1.0, 6 * 12**-0.5),
    ("aten::normal_functional", (), 0.0, 1.0),
    ("aten::normal_functional", (3.0, 2.0), 3.0, 2.0),
    ("aten::exponential", (2.0,), 0.5, 0.5),
    ("aten::log_normal", (0.0, 0.5), 1.1331, 0.6039),
    ("aten::geometric", (0.25,), 4.0, 12**0.5),
    ("aten::bernoulli.p", (0.3,), 0.3, 0.21**0.5),
    ("aten::randn_like", (), 0.0, 1.0),
    ("aten::rand_like", (), 0.5, 12**-0.5),
    ("aten::random.from", (-5, 6), 0.0, 10**0.5),
    ("aten::random.to", (100,), 49.5, 28.866),
]


@pytest.mark.parametrize(("name", "args", "mean", "std"), MOMENTS)
def test_mean_and_spread(name: str, args: tuple[float, ...], mean: float, std: float) -> None:
    x = drawn(name, empty(), *args, dtype=torch.float64)
    assert x.mean().item() == pytest.approx(mean, abs=5 * std / N**0.5)
    assert x.std().item() == pytest.approx(std, rel=0.08)
    assert torch.equal(x, drawn(name, empty(), *args, dtype=torch.float64))
    assert not torch.equal(x, drawn(name, empty(), *args, dtype=torch.float64, seed=1))


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 0)])
def test_bits_are_those_of_jax(shape: tuple[int, ...]) -> None:
    key = jax.random.key(123)
    with jax.enable_x64(True):
        assert bits(key, shape, 32).tolist() == jax.random.bits(key, shape, jnp.uint32).tolist()
        assert bits(key, shape, 64).tolist() == jax.random.bits(key, shape, jnp.uint64).tolist()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_normal_numbers_follow_the_normal_law(dtype: Any) -> None:
    with jax.enable_x64(True):
        x = drawn("aten::normal_functional", empty(dtype), dtype=torch.float64)
    expected = torch.special.ndtr(x.sort().values)
    observed = (torch.arange(N) + 0.5) / N
    assert (expected - observed).abs().max() < 1.95 / N**0.5  # Kolmogorov's bound at 0.1 %


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16])
def test_unit_interval_excludes_one(dtype: Any) -> None:
    with jax.enable_x64(True):
        x = unit(jax.random.key(0), (200_000,), dtype).astype(dtype)
        assert float(x.min()) >= 0 and float(x.max()) < 1
        assert len(jnp.unique(x)) > (100 if jnp.finfo(dtype).bits == 16 else 190_000)


def test_uniform_bounds_in_half_precision() -> None:
    with jax.enable_x64(True):
        x = drawn("aten::uniform", empty(jnp.bfloat16), 1.0, 1.03, dtype=torch.bfloat16).float()
    assert x.min() >= 1 and x.max() < torch.tensor(1.03).bfloat16().float()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64, torch.bool])
def test_random_fills_the_range_of_the_dtype(dtype: torch.dtype) -> None:
    from torch_tpu.dtypes import JAX_DTYPE

    with jax.enable_x64(True):
        x = drawn("aten::random", empty(JAX_DTYPE[dtype]), dtype=dtype).double()
    top = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    assert x.min() >= 0 and x.max() <= top and x.mean().item() == pytest.approx(top / 2, rel=0.05)


def test_random_from_the_lowest_integer_up() -> None:
    with jax.enable_x64(True):
        x = drawn("aten::random.from", empty(jnp.int64), -(2**63), None, dtype=torch.int64)
    assert (x < 0).double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_bounded_integers_reach_every_value_and_no_other() -> None:
    x = drawn("aten::randint.low", -3, 4, [N], dtype=torch.int64)
    assert torch.equal(x.unique(), torch.arange(-3, 4))
    with jax.enable_x64(True):
        wide = below(jax.random.key(0), (N,), jnp.uint64(2**63 + 1))
        assert int(wide.max()) <= 2**63 and float(wide.mean()) == pytest.approx(2**62, rel=0.05)


def test_bounds_are_run_time_data() -> None:
    found = registry.find("aten::randint")
    assert found is not None and "high" in found.dynamic
    with jax.enable_x64(True):
        draw = jax.jit(lambda key, high: found.fn(key, high, [N]))
        assert int(draw(jax.random.key(0), 7).max()) == 6
        assert int(draw(jax.random.key(0), 2).max()) == 1


def test_permutation() -> None:
    x = drawn("aten::randperm", 500, dtype=torch.int64)
    assert torch.equal(x.sort().values, torch.arange(500)) and not torch.equal(x, torch.arange(500))


@pytest.mark.parametrize(("samples", "replacement"), [(1, False), (3, False), (4000, True)])
def test_multinomial_follows_its_weights(samples: int, replacement: bool) -> None:
    with jax.enable_x64(True):
        weights = jnp.tile(jnp.asarray([0.0, 1.0, 3.0, 6.0, 0.0], jnp.float32), (2000 // samples + 2, 1))
        x = drawn("aten::multinomial", weights, samples, replacement, dtype=torch.int64)
    assert set(x.unique().tolist()) == {1, 2, 3}
    if not replacement:
        assert all(len(set(row)) == samples for row in x.tolist())
    if replacement or samples == 1:
        shares = torch.bincount(x.flatten(), minlength=5) / x.numel()
        torch.testing.assert_close(shares, torch.tensor([0, 0.1, 0.3, 0.6, 0]), atol=0.04, rtol=0)


def test_dropout_keeps_its_share_and_scales_it() -> None:
    ones = jnp.ones(N)
    y = drawn("aten::native_dropout", ones, 0.25, True, dtype=F32)
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(y.unique(), torch.tensor([0.0, 4 / 3]))
    assert drawn("aten::native_dropout", ones, 1.0, True, dtype=F32).abs().max() == 0
    assert torch.equal(drawn("aten::native_dropout", ones, 0.25, False, dtype=F32), torch.ones(N))
    mask, grad = jnp.asarray([True, False]), jnp.asarray([2.0, 2.0])
    back = traced("aten::native_dropout_backward", grad, mask, 1.5, dtype=F32)
    assert back.tolist() == [3.0, 0.0]


def test_rrelu_draws_slopes_between_its_bounds() -> None:
    y = drawn("aten::rrelu_with_noise_functional", -jnp.ones(N), jnp.zeros(N), 0.2, 0.4, True, dtype=F32)
    assert -0.4 <= y.min() < -0.39 and -0.21 < y.max() <= -0.2


@pytest.mark.parametrize(
    ("name", "args", "mean"),
    [("aten::poisson", (3.5,), 3.5), ("aten::_standard_gamma", (2.5,), 2.5),
     ("aten::binomial", (10.0, 0.3), 3.0)],
)  # fmt: skip
def test_distributions_with_tensor_parameters(name: str, args: tuple[float, ...], mean: float) -> None:
    with jax.enable_x64(True):
        x = drawn(name, *(jnp.full(N, a, jnp.float32) for a in args), dtype=F32)
    assert x.mean().item() == pytest.approx(mean, rel=0.03) and x.min() >= 0


def test_dirichlet_rows_sum_to_one() -> None:
    with jax.enable_x64(True):
        x = drawn("aten::_sample_dirichlet", jnp.tile(jnp.asarray([1.0, 3.0]), (2000, 1)), dtype=F32)
    torch.testing.assert_close(x.sum(1), torch.ones(2000))
    assert x[:, 1].mean().item() == pytest.approx(0.75, abs=0.03)


def test_normal_with_tensor_parameters() -> None:
    with jax.enable_x64(True):
        x = drawn("aten::normal.Tensor_Tensor", jnp.full((N, 1), 5.0), jnp.asarray([0.0, 2.0]), dtype=F32)
    assert torch.equal(x[:, 0], torch.full((N,), 5.0))
    assert x[:, 1].std().item() == pytest.approx(2, rel=0.05)
