"""Every optimizer of torch.optim, in each implementation, follows PyTorch's CPU steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

from tests.support import DEVICE, assert_same

STEPS = 4
#: Muon orthogonalises in bfloat16; LBFGS divides by differences of nearly equal gradients.
TOLERANCES = {"Muon": (2e-2, 1e-3), "LBFGS": (1e-3, 1e-4)}


def _configurations() -> list[Any]:
    """(info, keyword arguments, implementation) of all that takes dense gradients."""
    found = []
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue
        kinds = ["for-loop", *(x for x in ("foreach", "fused") if x in info.supported_impls)]
        for number, given in enumerate(info.optim_inputs_func(device="cpu")):
            for kind in kinds:
                if not given.kwargs.get("capturable"):
                    name = f"{info.optim_cls.__name__}-{number}-{kind}"
                    found.append(pytest.param(info, dict(given.kwargs), kind, id=name))
    return found


def _arguments(kwargs: dict[str, Any], kind: str, info: OptimizerInfo, device: str) -> dict[str, Any]:
    flags = {x: kind == x for x in ("foreach", "fused") if x in info.supported_impls}
    if kind == "fused" and device == "cpu" and "cpu" not in info.supports_fused_on:
        flags["fused"] = False
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    return {**moved, **flags}


def _train(info: OptimizerInfo, arguments: dict[str, Any], device: str) -> list[torch.Tensor]:
    """Parameters and state after a few steps on a small model; closures where they are needed.

    In double precision: quotients and line searches amplify the rounding of single precision.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).double().to(device)
    parameters = [p for p in model.parameters() if p.ndim == 2 or info.optim_cls.__name__ != "Muon"]
    optimizer = info.optim_cls(parameters, **arguments)
    x, y = torch.randn(6, 5).double().to(device), torch.randn(6, 3).double().to(device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        closure()
        optimizer.step(closure) if info.step_requires_closure else optimizer.step()
    state = [v for p in parameters for _, v in sorted(optimizer.state[p].items(), key=lambda kv: str(kv[0]))]
    return [x.detach().cpu() for x in [*parameters, *state] if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize(("info", "kwargs", "kind"), _configurations())
def test_steps(info: OptimizerInfo, kwargs: dict[str, Any], kind: str) -> None:
    expected = _train(info, _arguments(kwargs, kind, info, "cpu"), "cpu")
    actual = _train(info, _arguments(kwargs, kind, info, DEVICE), DEVICE)
    rtol, atol = TOLERANCES.get(info.optim_cls.__name__, (1e-6, 1e-7))
    assert_same(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_state_dict_moves_between_devices(make: Any) -> None:
    def run(first: str, second: str) -> torch.Tensor:
        p = torch.linspace(-1, 1, 5, device=first).requires_grad_()
        optimizer = make([p], lr=0.1, **({"momentum": 0.9} if make is torch.optim.SGD else {}))
        (p**2).sum().backward()
        optimizer.step()
        q = p.detach().to(second, copy=True).requires_grad_()
        other = make([q], lr=0.1, **({"momentum": 0.9} if make is torch.optim.SGD else {}))
        other.load_state_dict(optimizer.state_dict())
        (q**2).sum().backward()
        other.step()
        return q.detach().cpu()

    expected = run("cpu", "cpu")
    assert_same(run("cpu", DEVICE), expected)
    assert_same(run(DEVICE, "cpu"), expected)


def test_schedulers_with_tensor_learning_rates() -> None:
    def run(device: str) -> torch.Tensor:
        p = torch.ones(3, device=device, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=torch.tensor(0.1), foreach=False)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=10, cycle_momentum=False)
        for _ in range(5):
            optimizer.zero_grad()
            (p**3).sum().backward()
            optimizer.step()
            schedule.step()
        return p.detach().cpu()

    assert_same(run(DEVICE), run("cpu"))
