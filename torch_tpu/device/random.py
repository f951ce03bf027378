"""Random numbers: a generator per device, seeded by `torch.manual_seed` like all others.

A state is a CPU tensor of 16 bytes: the 64-bit seed and the 64-bit count of random ops so far.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_tpu import _C
from torch_tpu.device.devices import DeviceLike, _device_index, current_device, device_count


def _unsigned(seed: int) -> int:
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise RuntimeError(f"manual_seed(): expected a seed in [-2**63, 2**64 - 1], got {seed}")
    return seed % 2**64


def _generator(device: DeviceLike) -> torch.Generator:
    return _C.default_generator(_device_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _C.manual_seed(current_device(), _unsigned(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. Starts no device."""
    _C.manual_seed_all(_unsigned(seed))


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    seed()
    manual_seed_all(initial_seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: DeviceLike = "tpu") -> torch.Tensor:
    """The state of the generator of `device`: a CPU tensor, 16 of uint8."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "tpu") -> None:
    """Sets the state of the generator of `device` to one that `get_rng_state` gave."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the devices in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
