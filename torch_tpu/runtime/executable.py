"""A compiled program: what runs it, and its form as bytes.

Private JAX used here, because no public name gives it (jax 0.10):

- `Compiled._executable.create_cpp_call(Compiled._params)`: the C++ callable behind `Compiled.__call__`
  (1 us cheaper per call); the public `Compiled` itself is used where it is missing.
- `Compiled._executable.unsafe_call`: the executable and the handlers of its results, which
  `Compiled.__call__` itself ends with. Called straight from the core they cost 0.7 us less per call than
  the C++ callable, which looks at every argument first; it is used where they are missing.
- `serialize_executable._JaxPjrtUnpickler`: `deserialize_and_load` cannot load a program onto another
  device than the one it was compiled for.
- `client.deserialize_executable` and `DeviceList`, which that class itself uses, and
  `jax._src.compiler.get_compile_options`: `jax.extend.backend` has it too, but imports Pallas (30 ms).
- `jaxlib.lapack.prepare_lapack_call`: JAX looks up SciPy's LAPACK when it lowers a program that calls it;
  a program from the disk is not lowered, and would call a null pointer.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.compiler import get_compile_options
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.experimental import serialize_executable
from jaxlib import lapack

from torch_tpu.runtime import client


class WrongDevice(Exception):
    """The client loaded a program for another device than the one it was asked for."""


class Program:
    """A compiled program. Called with arrays on its device it gives one array, or a tuple of them.

    call: does the same with less overhead, and takes NumPy arrays too.
    execute, handlers: `execute([arrays]).consume_with_handlers(handlers)` gives the list of results; the
        cheapest way, for arrays on the device only. None where JAX does not have it for this program.
    """

    __slots__ = ("__weakref__", "call", "execute", "handlers")

    def __init__(self, compiled: jax.stages.Compiled) -> None:
        self.call: Callable[..., Any] = _cpp_call(compiled) or compiled
        self.execute, self.handlers = _direct(compiled)

    def __call__(self, *arrays: Any) -> Any:
        return self.call(*arrays)


def most_loaded() -> int:
    """How many programs a process may hold. XLA's CPU client maps about four regions of memory for each."""
    try:
        regions = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return sys.maxsize
    return regions // 8 if client.platform() == "cpu" else sys.maxsize


def _cpp_call(compiled: jax.stages.Compiled) -> Callable[..., Any] | None:
    try:
        return compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        return None


def _direct(compiled: jax.stages.Compiled) -> tuple[Any, Any]:
    try:
        executable: Any = compiled._executable
        last = executable.unsafe_call
        special = last.ordered_effects or last.has_unordered_effects or last.has_host_callbacks or last.mut
        drops_arguments = len(last.kept_var_idx) != len(jax.tree.leaves(compiled.args_info))
        if special or drops_arguments:
            return None, None
        return last.xla_executable.execute_sharded, list(last.out_handler.handlers)
    except AttributeError:
        return None, None


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
    if b"lapack_" in serialized:
        lapack.prepare_lapack_call("getrf_ffi", np.float32)
    unloaded, args_info, no_kwargs = _Unpickler(serialized, device).load()
    loaded = unloaded.load()
    if loaded.xla_executable.local_devices() != [device]:
        raise WrongDevice(f"the program did not load onto {device}")
    compiled = jax.stages.Compiled(loaded, [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)
    return Program(compiled), extra


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
