"""Makes PyTorch's PrivateUse1 the device "tpu"."""

from __future__ import annotations

import sys

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

NAME = "tpu"


def register() -> None:
    """Names the device, loads its C++ part and gives tensors, modules and storages their `.tpu()`.

    Raises RuntimeError when another package has taken PrivateUse1, and when the autograd engine already
    runs: it has made its threads, and none is for this device.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken == NAME and "torch.tpu" in sys.modules:
        return
    if taken != "privateuseone":
        raise RuntimeError(
            f"torch_tpu cannot register the device 'tpu': another package has already made PrivateUse1 the "
            f"device {taken!r}, and PyTorch has room for one such device in a process. Uninstall one of the "
            "two packages, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import only the one that you need."
        )
    from torch_tpu import device
    from torch_tpu.device import flex_attention, printing, storages
    from torch_tpu.runtime import memory

    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, device)
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    storages.register()
    printing.register()
    flex_attention.register()
    memory.keep_if_asked()
    torch.set_autocast_dtype(NAME, torch.bfloat16)
