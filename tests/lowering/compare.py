"""Compare a PyTorch program run through the lowerings with the same program on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from tests.lowering_mode import LoweringMode, to_torch
from torch_tpu.lowering import registry

INF, NAN = float("inf"), float("nan")
#: A few floats of each kind that rules are about.
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, 7.25, INF, -INF, NAN]


def same(program: Callable[..., Any], *inputs: Any, **tolerances: float) -> None:
    """`program(*inputs)` gives the same through the lowerings, and no op of it lacks one."""
    expected = program(*inputs)
    with LoweringMode() as mode:
        got = program(*inputs)
    assert mode.lowered and not mode.missing, (mode.lowered, mode.missing)
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerances)


def traced(name: str, *args: Any, dtype: torch.dtype, **kwargs: Any) -> torch.Tensor:
    """The lowering of `name` under jit, where every array and float in `args` is run-time data."""
    found = registry.find(name)
    assert found is not None, name

    def program(*data: Any) -> Any:
        values = iter(data)
        full = [next(values) if isinstance(x, (jax.Array, float)) else x for x in args]
        return registry.call(found, full, kwargs)

    with jax.enable_x64(True):
        return to_torch(jax.jit(program)(*(x for x in args if isinstance(x, (jax.Array, float)))), dtype)


def drawn(name: str, *args: Any, dtype: torch.dtype, seed: int = 0, **kwargs: Any) -> torch.Tensor:
    """The first result of a random op's lowering with the key of `seed`."""
    found = registry.find(name)
    assert found is not None and found.random, name
    with jax.enable_x64(True):
        result = registry.call(found, list(args), kwargs, key=jax.random.key(seed))
        return to_torch(result[0] if isinstance(result, tuple) else result, dtype)
