"""Devices: how many, which is current, what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.runtime import client

#: How a device may be named: an index, "tpu:1", a torch.device, or None for the current one.
DeviceLike = int | str | torch.device | None


@dataclass(frozen=True)
class TpuDeviceProperties:
    """What a device is. `coords` and `core_on_chip` are a TPU's place in its slice, None elsewhere."""

    name: str
    platform: str
    total_memory: int
    process_index: int
    coords: tuple[int, ...] | None
    core_on_chip: int | None


def _device_index(device: DeviceLike, optional: bool = True) -> int:
    """The index that `device` names. Raises ValueError for another device type, or None if not `optional`."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "tpu":
            raise ValueError(f"expected <device> to be a tpu device, got {device}")
        device = device.index
    if device is not None:
        return int(device)
    if not optional:
        raise ValueError("expected <device> to have an index, got 'tpu'")
    return current_device()


def device_count() -> int:
    """The number of devices of this process. Starts the device only where it cannot be known without."""
    return 0 if _C.in_bad_fork() else int(_C.device_count())


def is_available() -> bool:
    """True when there is a device: on every machine, since the CPU client serves where there is no TPU."""
    try:
        return device_count() > 0
    except RuntimeError:
        return False


def init() -> None:
    """Starts the device now. Raises RuntimeError when it does not start, and in a forked child."""
    client.devices()


def is_initialized() -> bool:
    """True once the device has started in this process."""
    return client.started() and not _C.in_bad_fork()


def current_device() -> int:
    """The index of this thread's current device."""
    return int(_C.current_device())


def set_device(device: DeviceLike) -> None:
    """Makes `device` this thread's current one; a negative index changes nothing."""
    index = _device_index(device)
    if index >= 0:
        _C.exchange_device(index)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for everything that was started on `device`.

    Raises RuntimeError, naming the op, for the first of it that failed.
    """
    _C.synchronize(_device_index(device))


class device:  # noqa: N801  (named as in torch.cuda)
    """Context manager: `device` is the current one inside. None or a negative index changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else _device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = int(_C.exchange_device(self.idx))

    def __exit__(self, *_: object) -> None:
        if self.idx >= 0:
            _C.exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: the device of `obj`, a tensor or storage, is the current one inside.

    Objects that are not on a tpu change nothing.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "tpu" else None)


def get_device_properties(device: DeviceLike = None) -> TpuDeviceProperties:
    """The properties of `device`. Starts the device."""
    index = _device_index(device)
    _check(index)
    found = client.devices()[index]
    coords = getattr(found, "coords", None)
    return TpuDeviceProperties(
        name=found.device_kind,
        platform=client.platform(),
        total_memory=client.memory_limit(index),
        process_index=found.process_index,
        coords=None if coords is None else tuple(coords),
        core_on_chip=getattr(found, "core_on_chip", None),
    )


def _check(index: int) -> None:
    if not 0 <= index < device_count():
        raise AssertionError(f"invalid device tpu:{index}: this process has {device_count()} tpu device(s)")


def get_device_name(device: DeviceLike = None) -> str:
    """The model of `device`, e.g. "TPU v5 lite"; "cpu" on the CPU client."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """What `device` can do, as `torch.accelerator.get_device_capability` says it: "supported_dtypes"."""
    return torch.accelerator.get_device_capability(_device_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may compute in."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every client computes in bfloat16."""
    return True
