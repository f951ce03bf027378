"""How ops are run: eager mode, matmul precision, and what happens to unsupported ops. Process-wide.

Each setter takes effect when it is called, and is a context manager that restores what was there before.
"""

from __future__ import annotations

import enum
import os
import warnings
from collections.abc import Callable

from torch_tpu import _C


class EagerMode(enum.Enum):
    """When eager ops are handed to the device."""

    #: Strict: each op at once; execution is asynchronous.
    DEFER_NEVER = 0
    #: Debug: each op at once, and waited for; an error names the op, its arguments and the Python line.
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1
    #: Ops are collected and fused into one program per window.
    DEFER_AND_FUSE = 2


class Precision(enum.Enum):
    """Passes of a float32 matrix product on the TPU's bfloat16 units: one, three, or exact float32."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


_EAGER_NAMES = {
    "strict": EagerMode.DEFER_NEVER,
    "debug": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
    "defer_and_fuse": EagerMode.DEFER_AND_FUSE,
}
_PRECISION_NAMES = {member.name.lower(): member for member in Precision}
_FALLBACKS = ("warn", "error", "allow")


class _Setting:
    """A value that has been set; leaving its context sets what was there before."""

    def __init__(self, exchange: Callable[[int], int], value: int) -> None:
        self._exchange = exchange
        self._previous = exchange(value)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._exchange(self._previous)


def set_eager_mode(mode: EagerMode | str) -> _Setting:
    """Sets the eager mode: an `EagerMode`, or "strict", "debug" or "defer_and_fuse".

    Raises ValueError for anything else.
    """
    if isinstance(mode, str):
        if mode not in _EAGER_NAMES:
            raise ValueError(
                f"set_eager_mode(): expected <mode> to be one of {', '.join(_EAGER_NAMES)}, got {mode!r}"
            )
        mode = _EAGER_NAMES[mode]
    if EagerMode(mode) is EagerMode.DEFER_AND_FUSE:
        text = "<TorchTpu/Mode> DeferAndFuse does not fuse yet: ops run as in Strict Eager."
        warnings.warn(text, stacklevel=2)
    return _Setting(_C.exchange_eager_mode, EagerMode(mode).value)


def precision(value: Precision | str) -> _Setting:
    """Sets the precision of float32 matrix products on the tpu: a `Precision` or its name in lower case.

    Outside of it `torch.set_float32_matmul_precision` holds: "highest" is HIGHEST (the default), "high" is
    HIGH, "medium" is DEFAULT. Raises ValueError for anything else.
    """
    if isinstance(value, str):
        if value not in _PRECISION_NAMES:
            raise ValueError(
                f"precision(): expected <value> to be one of {', '.join(_PRECISION_NAMES)}, got {value!r}"
            )
        value = _PRECISION_NAMES[value]
    return _Setting(_C.exchange_precision, Precision(value).value)


def set_fallback(policy: str) -> _Setting:
    """Says what happens to ops that have no program for the tpu.

    "warn" (the default) runs them on the CPU with a warning, once per op; "allow" does so silently; "error"
    raises NotImplementedError instead. Raises ValueError for anything else.
    """
    if policy not in _FALLBACKS:
        raise ValueError(
            f"set_fallback(): expected <policy> to be one of {', '.join(_FALLBACKS)}, got {policy!r}"
        )
    return _Setting(_C.exchange_fallback_policy, _FALLBACKS.index(policy))


def set_index_checks(on: bool) -> _Setting:
    """Says whether programs look for indices out of range (they do, unless this or the environment says no).

    What they find is raised when the device is next waited for, as the CPU's own IndexError or RuntimeError;
    in Debug Eager at once. Reads at such an index give NaN (integers: the smallest value); writes there are
    dropped.
    """
    return _Setting(_C.exchange_index_checks, int(on))


def _set_modes_from_environment() -> None:
    if os.environ.get("TORCH_TPU_INDEX_CHECKS") == "0":
        set_index_checks(False)
    mode = os.environ.get("TORCH_TPU_EAGER_MODE", "").lower()
    if not mode and os.environ.get("TORCH_TPU_DEFER_AND_FUSE") == "1":
        mode = "defer_and_fuse"
    if not mode and os.environ.get("TORCH_TPU_LAUNCH_BLOCKING") == "1":
        mode = "debug"
    if mode in _EAGER_NAMES:
        set_eager_mode(mode)
    elif mode:
        raise ValueError(f"TORCH_TPU_EAGER_MODE: expected one of {', '.join(_EAGER_NAMES)}, got {mode!r}")
