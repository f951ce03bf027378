"""Fused optimizer steps against PyTorch's CPU kernels, with every number as run-time data."""

from typing import Any

import jax
import pytest
import torch

from tests.lowering_mode import to_jax, to_torch
from torch_tpu.lowering import registry

FLAGS = ("amsgrad", "maximize", "nesterov", "is_first_step")


def _lists(dtype: torch.dtype, positive: bool = False) -> list[torch.Tensor]:
    lists = [torch.randn(3, 4, dtype=dtype), torch.randn(5, dtype=dtype)]
    return [x.abs() for x in lists] if positive else lists


def _same(name: str, overload: str, lists: list[list[torch.Tensor]], **how: Any) -> None:
    """The lowering's lists equal those the in-place op leaves behind."""
    expected = [[x.clone() for x in entries] for entries in lists]
    getattr(getattr(torch.ops.aten, f"{name}_"), overload)(*expected, **how)
    found = registry.find(f"aten::{name}" + ("" if overload == "default" else f".{overload}"))
    assert found is not None
    flags = {k: v for k, v in how.items() if k in FLAGS or v is None}
    data = {k: to_jax(v) if isinstance(v, torch.Tensor) else v for k, v in how.items() if k not in flags}
    with jax.enable_x64(True):
        arrays = [[to_jax(x) for x in entries] for entries in lists]
        run = jax.jit(lambda lists, data: registry.call(found, lists, {**data, **flags}))
        got = run(arrays, data)
        loose = lists[0][0].dtype is torch.bfloat16
        for new, old in zip(got, expected, strict=False):
            result = [to_torch(x, y.dtype) for x, y in zip(new, old, strict=True)]
            torch.testing.assert_close(result, old, **({"rtol": 2e-2, "atol": 2e-2} if loose else {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("amsgrad", [True, False])
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("overload", ["default", "tensor_lr"])
def test_adam(name: str, overload: str, amsgrad: bool, dtype: torch.dtype) -> None:
    how = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": amsgrad}
    steps = [torch.tensor(3.0), torch.tensor(4.0)]
    largest = [x + 0.1 for x in _lists(dtype, True)] if amsgrad else []
    lists = [_lists(dtype), _lists(dtype), _lists(dtype), _lists(dtype, True), largest, steps]
    _same(
        name,
        overload,
        lists,
        lr=torch.tensor(0.01) if overload == "tensor_lr" else 0.01,
        amsgrad=amsgrad,
        grad_scale=torch.tensor(2.0) if amsgrad else None,
        found_inf=torch.tensor(0.0) if amsgrad else None,
        **how,
    )


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_sgd"])
def test_an_overflow_skips_the_step(name: str) -> None:
    f32 = torch.float32
    skip = {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(1.0), "lr": 0.1, "weight_decay": 0.1}
    if name == "_fused_sgd":
        how = {
            "momentum": 0.9,
            "dampening": 0.0,
            "nesterov": False,
            "maximize": False,
            "is_first_step": False,
        }
        _same(name, "default", [_lists(f32), _lists(f32), _lists(f32)], **how, **skip)
        return
    lists = [_lists(f32), _lists(f32), _lists(f32), _lists(f32, True), [], [torch.tensor(3.0)] * 2]
    how = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False, "maximize": False}
    _same(name, "default", lists, **how, **skip)


@pytest.mark.parametrize(
    ("momentum", "first", "nesterov"), [(0, False, False), (0.9, True, False), (0.9, False, True)]
)
@pytest.mark.parametrize("overload", ["default", "tensor_lr"])
def test_sgd(overload: str, momentum: float, first: bool, nesterov: bool) -> None:
    f32 = torch.float32
    _same(
        "_fused_sgd",
        overload,
        [_lists(f32), _lists(f32), _lists(f32) if momentum else []],
        weight_decay=0.1,
        momentum=momentum,
        lr=torch.tensor(0.1) if overload == "tensor_lr" else 0.1,
        dampening=0.0 if nesterov else 0.2,
        nesterov=nesterov,
        maximize=False,
        is_first_step=first,
        grad_scale=None,
        found_inf=None,
    )


@pytest.mark.parametrize("overload", ["default", "tensor_lr"])
def test_adagrad(overload: str) -> None:
    f32 = torch.float32
    _same(
        "_fused_adagrad",
        overload,
        [_lists(f32), _lists(f32), _lists(f32, True), [torch.tensor(3.0), torch.tensor(4.0)]],
        lr=torch.tensor(0.1) if overload == "tensor_lr" else 0.1,
        lr_decay=0.1,
        weight_decay=0.1,
        eps=1e-8,
        maximize=True,
        grad_scale=None,
        found_inf=None,
    )
