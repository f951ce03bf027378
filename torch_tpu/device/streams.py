"""Streams and events.

Programs of one device run in the order in which they were started, on whatever stream; a program that reads
a value of another device waits for it. So streams never run ahead of each other, and waiting for an event
costs nothing; they exist so that code written with them runs unchanged, and events tell when work is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_tpu.device.devices import DeviceLike, _device_index


class Stream(torch.Stream):
    """A stream of `device` (default: the current one). `priority` has no effect."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device("tpu", _device_index(device)), priority=priority)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(metaclass=_EventType):
    """A point in a device's work: `record`, then `query`, `wait`, `synchronize` and `elapsed_time`.

    With `enable_timing`, `elapsed_time` gives milliseconds by the host's clock at completion. The other flags
    have no effect. What is made is a `torch.Event`: its methods take no subclass as an argument.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event("tpu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """This thread's current stream of `device`."""
    return torch.accelerator.current_stream(_device_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream of `device` that is current where no other was chosen."""
    index = _device_index(device)
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` and its device this thread's current ones; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Context manager: `stream` and its device are the current ones inside; None changes nothing."""
    if stream is None:
        yield
        return
    with stream:
        yield
