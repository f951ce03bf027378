"""How an op is served: by which ATen ops, and what each of them is on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.eager.forms import form, full_name
from torch_tpu.lowering import data_dependent, registry


class Served(TorchDispatchMode):
    """Collects the ATen ops that are called in it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(full_name(func))
        return func(*args, **(kwargs or {}))


def kind(name: str) -> str:
    """ "lowering", "decomposition", "host" (a shape that depends on data) or "PyTorch" (views, factories)."""
    if _is_pytorch_s_own(name):
        return "PyTorch"
    functional = form(name).name or name
    if functional in data_dependent.HOST:
        return "host"
    return "lowering" if registry.find(functional) is not None else "decomposition"


def _is_pytorch_s_own(name: str) -> bool:
    """Whether the op has no boxed kernel on the device: views, metadata, factories."""
    dump = torch._C._dispatch_dump(name)
    return not any("PrivateUse1:" in line and "boxed kernel" in line for line in dump.splitlines())
