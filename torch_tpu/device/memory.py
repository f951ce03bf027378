"""Memory of a device: what live tensors take, and how much there is. `device` as in `torch.tpu.device`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.device.devices import DeviceLike, _device_index
from torch_tpu.runtime import client


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live storages."""
    return torch.accelerator.memory_allocated(_device_index(device))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The largest `memory_allocated` since the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(_device_index(device))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the device for tensors: those of live storages."""
    return torch.accelerator.memory_reserved(_device_index(device))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The largest `memory_reserved` since the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(_device_index(device))


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """All counters, named as in `torch.accelerator.memory_stats`."""
    return torch.accelerator.memory_stats(_device_index(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Starts the peaks anew at the current values."""
    torch.accelerator.reset_peak_memory_stats(_device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Starts the totals of allocations and frees anew at zero."""
    torch.accelerator.reset_accumulated_memory_stats(_device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes."""
    free, total = torch.accelerator.get_memory_info(_device_index(device))
    return free, total


def empty_cache() -> None:
    """Gives back to the system what no tensor holds any more."""
    from torch_tpu.runtime import memory

    torch.accelerator.empty_cache()
    memory.release()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the tensors of `device` to `fraction` (0 to 1) of its memory: more raises OutOfMemoryError."""
    if not isinstance(fraction, (int, float)):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, got {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = _device_index(device)
    _C.set_memory_limit(index, max(1, int(client.memory_limit(index) * fraction)))
