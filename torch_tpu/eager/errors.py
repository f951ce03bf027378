"""Errors and warnings that name the op, its arguments and the user's line."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.eager.forms import overload


def describe(name: str, args: Sequence[Any]) -> str:
    """ "aten::mm(self: float32[2, 3], mat2: float32[4, 5])"."""
    parameters = overload(name)._schema.arguments
    shown = ", ".join(f"{p.name}: {_show(a)}" for p, a in zip(parameters, args, strict=False))
    return f"{name}({shown})"


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        where = "" if value.device.type == "tpu" else f" on {value.device}"
        return f"{dtype}{list(value.shape)}{where}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        shown = [_show(v) for v in value[:4]] + ["..."] * (len(value) > 4)
        return "[" + ", ".join(shown) + "]"
    return repr(value)


def user_line() -> str:
    """ "file:line" of the innermost Python line outside the libraries, or "" where there is none."""
    file, line = _C.user_line()
    return f"{file}:{line}" if file else ""


def explain(error: BaseException, name: str, args: Sequence[Any], debug: bool) -> None:
    """Add to an error what the call was: to its message in Debug Eager, else as a note."""
    line = user_line()
    text = f"in {describe(name, args)}" + (f" at {line}" if line else "")
    if debug and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n  {text}", *error.args[1:])
    else:
        error.add_note(text)


def announce_fallback(name: str, args: Sequence[Any], refuse: bool, first: bool) -> None:
    """Warn once per op that it runs on the CPU; NotImplementedError where the user wants that refused."""
    line = user_line()
    where = f" at {line}" if line else ""
    call = describe(name, args)
    if refuse:
        raise NotImplementedError(
            f"{name}: not implemented on device tpu, in {call}{where}. Fallbacks to the CPU are errors now; "
            f"torch.tpu.set_fallback('warn') runs it on the CPU."
        )
    if first:
        warnings.warn(
            f"<TorchTpu/Fallback/{name}> {name} has no program for device tpu and runs on the CPU, "
            f"in {call}{where}. torch.tpu.set_fallback('error') makes this an error.",
            stacklevel=2,
        )
