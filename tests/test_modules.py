"""Every module of PyTorch's `module_db`: forward, backward and state agree with the CPU."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils._pytree import tree_leaves

from tests.support import DEVICE, assert_same, to

INFOS = [pytest.param(info, id=info.name) for info in module_db]
#: Inputs of a module that are tried: the first few, and the last.
INPUTS = 4


def _inputs(info: ModuleInfo, training: bool) -> list[ModuleInput]:
    torch.manual_seed(zlib.crc32(info.name.encode()))
    arguments = {"device": "cpu", "dtype": torch.float32, "requires_grad": True, "training": training}
    made = [x for x in info.module_inputs_func(info, **arguments) if x.forward_input is not None]
    return made if len(made) <= INPUTS else [*made[: INPUTS - 1], made[-1]]


def _build(info: ModuleInfo, given: ModuleInput, training: bool) -> nn.Module:
    torch.manual_seed(1)
    module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    return module.float().train(training)


def _quiet(module: nn.Module) -> None:
    """Random layers draw other numbers on each device: their probability becomes zero."""
    for part in module.modules():
        if isinstance(getattr(part, "p", None), float) and isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0


def _run(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """Outputs, gradients of inputs and parameters, and buffers afterwards."""
    outputs = module(*args, **kwargs)
    tensors = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if tensors:
        torch.autograd.backward(tensors, [torch.ones_like(x) for x in tensors])
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return {
        "outputs": [x.detach() for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)],
        "input gradients": [x.grad for x in inputs],
        "parameter gradients": {k: p.grad for k, p in module.named_parameters()},
        "buffers": dict(module.named_buffers()),
    }


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", INFOS)
def test_forward_and_backward(info: ModuleInfo, training: bool) -> None:
    inputs = _inputs(info, training)
    for given in inputs if training or info.train_and_eval_differ else inputs[:1]:
        module = _build(info, given, training)
        _quiet(module)
        call = (given.forward_input.args, given.forward_input.kwargs)
        lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters())
        if lazy:
            with torch.no_grad():
                module(*to(call, "cpu")[0], **to(call, "cpu")[1])
        other = to(module)
        expected = _run(module, *to(call, "cpu"))
        actual = _run(other, *to(call))
        for part, value in expected.items():
            _close(actual[part], value, f"{part} of {given.desc or given.constructor_input.args}")


def _close(actual: Any, expected: Any, where: str) -> None:
    try:
        assert_same(actual, expected, rtol=1e-4, atol=2e-5)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from None


@pytest.mark.parametrize("info", [x for x in INFOS if not x.values[0].is_lazy])
def test_made_on_the_device(info: ModuleInfo) -> None:
    """`device=` of the constructor, and a state dict there and back."""
    given = _inputs(info, True)[0]
    source = _build(info, given, True)
    keywords = given.constructor_input.kwargs
    try:
        made = info.module_cls(*given.constructor_input.args, **keywords, device=DEVICE)
    except TypeError:
        made = to(source)
    made.load_state_dict(source.state_dict())
    assert {x.device.type for x in made.state_dict().values() if isinstance(x, torch.Tensor)} <= {DEVICE}
    assert_same({k: v.cpu() for k, v in made.state_dict().items()}, dict(source.state_dict()))
