"""Host memory behind the CPU client's arrays: whether the process keeps it when it is freed.

glibc gives a large freed block back to the system at once, and every new result of that size is then
faulted in again, page by page: two thirds of the time of a pointwise op on 64 MB. With
`TORCH_TPU_KEEP_MEMORY=1` the C allocator keeps up to 1 GiB of freed memory and serves blocks up to 1 GiB
from it. All threads then share one arena: the others cannot hold large blocks.

Measured, two cores, one run each, without and with it:

- one pointwise op on 4, 16 and 64 MB: 0.53 -> 0.31, 3.4 -> 1.8 and 20.5 -> 7.8 ms;
- a chain of 64x64 matmuls, where two threads then contend for the arena: 15.5 -> 20.9 us each;
- a conv net's training step on large images: peak 1.31 -> 2.16 times that of PyTorch's CPU.

PyTorch's own CPU has the same faults. So it is off unless the user asks for it, which must be before the
first thread starts: a variable that `import torch` reads. `release` (`torch.tpu.empty_cache()`) gives
back what is kept. Only glibc needs this.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEPT = 1 << 30


def keep_if_asked() -> None:
    """Keep freed memory from now on if TORCH_TPU_KEEP_MEMORY=1; to be called before threads start."""
    mallopt = _libc("mallopt")
    if mallopt is None or os.environ.get("TORCH_TPU_KEEP_MEMORY") != "1":
        return
    for setting in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _KEPT), (_TRIM_THRESHOLD, _KEPT)):
        mallopt(*setting)


def release() -> None:
    """Give freed memory that is still kept back to the system."""
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def _libc(function: str) -> Any:
    return getattr(ctypes.CDLL(None), function, None)
