"""Host memory behind the CPU client's arrays: kept by the process when it is freed, like on CUDA.

glibc gives a large freed block back to the system at once, and every new result of that size is then
faulted in again, page by page: two thirds of the time of a pointwise op on 64 MB. So before the CPU
client starts its threads, the C allocator is told to keep up to 1 GiB of freed memory and to serve
blocks up to 1 GiB from it. All threads then share one arena: the others cannot hold large blocks.

Measured, one core: ten pointwise ops on 16 M floats 305 -> 118 ms, one 38 -> 13, once about twenty
results were made (until then the kept memory grows); arrays up to 32 MB unchanged, as glibc keeps those
by itself. It costs resident memory: 383 -> 846 MB after these runs, of which `release` (which
`torch.tpu.empty_cache()` calls) gives all but 236 back in 0.1 s.

Threads of large CPU tensor operations that ran before the client started have arenas of their own, which
the client's threads then share, and little is gained. `TORCH_TPU_KEEP_MEMORY=1` sets the allocator at
`import torch_tpu` instead, before any; `TORCH_TPU_KEEP_MEMORY=0` leaves it alone. Only glibc needs this.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEPT = 1 << 30


def at_import() -> None:
    """What TORCH_TPU_KEEP_MEMORY=1 asks for; to be called when torch_tpu is imported."""
    if os.environ.get("TORCH_TPU_KEEP_MEMORY") == "1":
        keep()


def keep() -> bool:
    """Keep freed memory from now on; True when the allocator agreed. Must precede the client's threads."""
    mallopt = _libc("mallopt")
    if mallopt is None or os.environ.get("TORCH_TPU_KEEP_MEMORY") == "0":
        return False
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _KEPT), (_TRIM_THRESHOLD, _KEPT))
    return all(mallopt(*setting) == 1 for setting in settings)


def release() -> None:
    """Give freed memory that is still kept back to the system."""
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def _libc(function: str) -> Any:
    return getattr(ctypes.CDLL(None), function, None)
