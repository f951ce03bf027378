"""Moving bytes: host to device, device to device, and reading a result on the host.

What the CPU client does with host memory, measured (jax 0.10.2), and the rules that follow:

- A host array that starts at a multiple of 64 bytes becomes the device's array without a copy, also as a
  direct argument of a program. It must never be written again; whoever writes it changes the array,
  even after the program that uses it was called. `to_device` therefore hands over a private clone.
- Other host arrays are copied; before the call returns when they are small (4 KB), later when they are
  large (256 KB). So a buffer that is reused for arguments must be small *and* misaligned on purpose
  (an address of 16 modulo 64, say); else each call needs a fresh one. On other clients: always a fresh one.
- Outside `jax.enable_x64`, 64-bit host data is cut to 32 bits: everything here runs inside.

In microseconds, on a 2 GHz core: `batched_device_put` 6 (and about 30 more, later, for giving lent memory
back), `jax.device_put` 45 to 150, dlpack 35 to 120; asking whether an array is ready 0.24, waiting for a
ready one 0.33, its address 0.16, `np.asarray` of a new result 5; dropping an array's last reference 1 to 5.

Private JAX used here: `xla_client.batched_device_put`, the function behind `jax.device_put`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import torch
from jax._src.lib import xla_client  # type: ignore[attr-defined]

from torch_tpu import dtypes
from torch_tpu.runtime import client, compiler
from torch_tpu.runtime.executable import Program

#: Integer torch dtypes of an itemsize, under which NumPy can look at any tensor's bits.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
#: Up to this many bytes a copy made by the client is cheaper than lending it memory (12 against 40 us).
_LENT = 16 << 10
#: Up to this many bytes zeros are sent from the host: a program would have to be compiled first.
_SENT = 1 << 20


@functools.lru_cache(maxsize=4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return jax.core.ShapedArray(shape, dtype)


def _put(host: np.ndarray, device: int) -> jax.Array:
    """`host` on the device; the caller gives the memory away."""
    where = client.placement(device)
    with jax.enable_x64(True):
        return xla_client.batched_device_put(
            _aval(host.shape, host.dtype), where, [host], [client.devices()[device]], True
        )


def to_device(tensor: torch.Tensor, device: int = 0) -> jax.Array:
    """A CPU tensor's elements as a dense device array of its shape and `dtypes.storage_dtype`.

    Returns at once; the tensor may be changed afterwards. Raises ValueError for tensors not on the CPU.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"to_device(): expected a CPU tensor, got one on {tensor.device}")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if dense.nbytes <= _LENT:
        host = _as_numpy(dense)
        return _put(np.frombuffer(host.tobytes(), host.dtype).reshape(host.shape), device)
    if dense.data_ptr() == tensor.data_ptr():
        dense = dense.clone()
    return _put(_as_numpy(dense), device)


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array of its storage dtype."""
    dtype = dtypes.storage_dtype(tensor.dtype)
    native = tensor.dtype in dtypes.JAX_DTYPE and dtype.isbuiltin == 1
    return tensor.numpy() if native else tensor.view(_BITS[dtype.itemsize]).numpy().view(dtype)


def zeros(shape: tuple[int, ...], dtype: Any, device: int = 0) -> jax.Array:
    """A device array of zeros of the NumPy dtype `dtype`."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size <= _LENT:
        return _put(np.frombuffer(bytes(size), dtype).reshape(shape), device)
    if client.platform() == "cpu" or size <= _SENT:
        return _put(torch.zeros(size, dtype=torch.uint8).numpy().view(dtype).reshape(shape), device)
    return _zeros_program(tuple(shape), dtype, device)()


@functools.cache
def _zeros_program(shape: tuple[int, ...], dtype: np.dtype, device: int) -> Program:
    def make() -> list[jax.Array]:
        return [jax.numpy.zeros(shape, dtype)]

    return compiler.compile_program(make, [], device=device, name="zeros", cache_key=f"zeros {shape} {dtype}")


def copy_on_device(array: jax.Array) -> jax.Array:
    """A copy in memory of its own on the same device, e.g. to donate it when others hold `array`."""
    return jax.device_put(array, array.sharding, may_alias=False)


def copy_to(array: jax.Array, device: int) -> jax.Array:
    """The array on device `device`; the array itself when it lies there already."""
    return jax.device_put(array, client.placement(device))


def host_view(array: jax.Array) -> tuple[int, Any]:
    """(address, keepalive): where the array's row-major bytes can be read on the host.

    Waits for the array, and raises its program's error if that failed. The bytes must not be written,
    and are there as long as keepalive is held.
    """
    if client.platform() == "cpu":
        array.block_until_ready()
        return array.unsafe_buffer_pointer(), array
    host = np.ascontiguousarray(array)
    return host.ctypes.data, host


def ready_scalars(data: bytes, device: int = 0) -> jax.Array:
    """Packed scalars as a uint32 array on the device. len(data) must be a multiple of 4."""
    return _put(np.frombuffer(data, np.uint32), device)
