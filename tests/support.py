"""What several test files use."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

import torch_tpu._C

#: The device under test. "cpu" checks the tests themselves: PyTorch's CPU against itself.
DEVICE = os.environ.get("TORCH_TPU_TEST_DEVICE", "tpu")


def to(tree: Any, device: str = DEVICE) -> Any:
    """A copy of modules and tensors in `tree` on `device`; tensors are leaves that keep requires_grad."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to(device, copy=True).requires_grad_(x.requires_grad)
        return copy.deepcopy(x).to(device) if isinstance(x, torch.nn.Module) else x

    return tree_map(move, tree)


def assert_same(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Values, dtypes and shapes of two trees agree; the device does not matter."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, check_device=False, equal_nan=True)


def assert_same_parts(actual: Any, expected: Any) -> None:
    """Lists agree item by item: tensors as `assert_same` has it, everything else by `==`."""
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            assert_same_parts(a, b)
    elif isinstance(expected, torch.Tensor):
        assert_same(actual, expected)
    else:
        assert actual == expected


@dataclasses.dataclass
class Counted:
    """What a `counting()` block did: plans made (and so programs compiled), and ops run on the CPU."""

    plans: int = 0
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def counting() -> Iterator[Counted]:
    counted = Counted()
    before = torch_tpu._C.metrics_snapshot()
    yield counted
    after = torch_tpu._C.metrics_snapshot()
    counted.plans = after["plan_misses"] - before["plan_misses"]
    old = before["fallbacks"]
    counted.fallbacks = {k: n - old.get(k, 0) for k, n in after["fallbacks"].items() if n > old.get(k, 0)}
