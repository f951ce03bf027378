"""`torch.tpu`: devices, streams, events, memory, random numbers and modes, like `torch.cuda`'s.

Importing it starts nothing. The device starts at the first use of a tensor on it, or with `init()`.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.device import amp, memory, random
from torch_tpu.device.devices import (
    TpuDeviceProperties,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.device.modes import (
    EagerMode,
    Precision,
    _set_modes_from_environment,
    precision,
    set_eager_mode,
    set_fallback,
    set_index_checks,
)
from torch_tpu.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.device.streams import Event, Stream, current_stream, default_stream, set_stream, stream

__all__ = [
    "EagerMode",
    "Event",
    "Precision",
    "Stream",
    "TpuDeviceProperties",
    "amp",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "metrics",
    "precision",
    "random",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_fallback",
    "set_index_checks",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

# Parts of the package that are reached through `torch.tpu` and imported at their first use.
_PARTS = ("metrics",)


class _Module(types.ModuleType):
    """Names of `torch.tpu` whose value is asked for at each use."""

    @property
    def eager_mode(self) -> EagerMode:
        """The current `EagerMode`."""
        return EagerMode(_C.eager_mode())

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        """The default generator of each device."""
        return tuple(_C.default_generator(index) for index in range(device_count()))

    @property
    def _initialized(self) -> bool:
        return is_initialized()

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            return importlib.import_module(f"torch_tpu.{name}")
        raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    """True in a process that was forked from one that had started the device."""
    return bool(_C.in_bad_fork())


def _lazy_init() -> None:
    """Called by PyTorch before the first tensor is made on the device; raises where that cannot be."""
    _C.check_fork()
    if not _C.device_count():
        raise RuntimeError("torch.tpu: this process has no tpu device")


def _exchange_device(index: int) -> int:
    return int(_C.exchange_device(index)) if index >= 0 else -1


_maybe_exchange_device = _exchange_device


def _after_fork_in_child() -> None:
    client = sys.modules.get("torch_tpu.runtime.client")
    if client is not None and client.started():
        _C.set_bad_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
_set_modes_from_environment()
sys.modules[__name__].__class__ = _Module
