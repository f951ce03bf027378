"""The CPU client's freed memory is kept, can be given back, and the user can say no."""

from __future__ import annotations

import ctypes

import pytest

from tests.device.subprocesses import run

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives freed memory back at once"
)

SCRIPT = """
    import resource
    import numpy as np
    from torch_tpu.runtime import client, compiler, memory, transfer
    x = transfer.zeros((16 << 20,), np.float32)
    program = compiler.compile_program(lambda x: [x + 1], [((16 << 20,), np.float32)])
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
    for _ in range(3):
        program(x).block_until_ready()
    before = faults()
    for _ in range(4):
        program(x).block_until_ready()
    print((faults() - before) * resource.getpagesize() >> 20)
    before = resident()
    memory.release()
    print(before - resident())
    """


def test_results_reuse_freed_memory_until_it_is_released() -> None:
    faulted, released = map(int, run(SCRIPT, TORCH_TPU_PLATFORM="cpu").split())
    assert faulted < 32  # MB, of four results of 64 MB
    assert released >= 60


def test_it_can_be_turned_off() -> None:
    faulted, _ = map(int, run(SCRIPT, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_KEEP_MEMORY="0").split())
    assert faulted > 200
