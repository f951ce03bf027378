"""A compiled program: the callable that runs it, and its form as bytes.

Private JAX used here, because no public name gives it (jax 0.10):

- `Compiled._executable.create_cpp_call(Compiled._params)`: the C++ callable behind `Compiled.__call__`
  (1 us cheaper per call); the public `Compiled` itself is used where it is missing.
- `serialize_executable._JaxPjrtUnpickler`: `deserialize_and_load` cannot load a program onto another
  device than the one it was compiled for.
- `client.deserialize_executable` and `DeviceList`, which that class itself uses, and
  `jax._src.compiler.get_compile_options`: `jax.extend.backend` has it too, but imports Pallas (30 ms).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import jax
from jax._src.compiler import get_compile_options
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.experimental import serialize_executable

Program = Callable[..., Any]


class WrongDevice(Exception):
    """The client loaded a program for another device than the one it was asked for."""


def callable_of(compiled: jax.stages.Compiled) -> Program:
    """The cheapest callable of a compiled program; it takes arrays on the program's device."""
    try:
        call = compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        call = None
    return call or compiled


def dump(compiled: jax.stages.Compiled, extra: Any) -> bytes:
    """A compiled program, and `extra` (anything that pickles), as bytes.

    Raises some exception for programs that only this process can run (host callbacks).
    """
    return pickle.dumps((serialize_executable.serialize(compiled), extra), protocol=pickle.HIGHEST_PROTOCOL)


def load(payload: bytes, device: Any) -> tuple[Program, Any]:
    """What `dump` made, loaded onto `device`, which need not be the one it was compiled for.

    Raises WrongDevice when the client cannot move it there, and whatever unpickling raises when the
    bytes are not of this version.
    """
    (serialized, in_tree, out_tree), extra = pickle.loads(payload)
    unloaded, args_info, no_kwargs = _Unpickler(serialized, device).load()
    loaded = unloaded.load()
    if loaded.xla_executable.local_devices() != [device]:
        raise WrongDevice(f"the program did not load onto {device}")
    compiled = jax.stages.Compiled(loaded, [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)
    return callable_of(compiled), extra


class _Unpickler(serialize_executable._JaxPjrtUnpickler):
    """Puts `device` wherever the pickle names the one device it was compiled for."""

    def __init__(self, serialized: bytes, device: Any) -> None:
        super().__init__(io.BytesIO(serialized), device.client, [device])
        self.device = device

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "device":
            return self.device
        if pid[0] == "exec":
            owner = self.device.client
            options = get_compile_options(1, 1, device_assignment=[[self.device.id]], backend=owner)
            return owner.deserialize_executable(pid[1], xla_client.DeviceList((self.device,)), options)
        return super().persistent_load(pid)
