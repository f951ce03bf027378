"""With TORCH_TPU_KEEP_MEMORY=1 the CPU client's freed memory is kept until it is given back."""

from __future__ import annotations

import ctypes

import pytest

from tests.device.subprocesses import run

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives freed memory back at once"
)

#: Prints the MB that 20 results of 64 MB faulted in, and the MB that `release` gave back.
SCRIPT = """
    import resource
    import numpy as np, torch, torch_tpu
    from torch_tpu.runtime import client, compiler, memory, transfer
    if {early_thread}:
        torch.set_num_threads(2)
        torch.nn.Linear(1000, 1000)(torch.ones(100, 1000)).sum().backward()
    client.devices()
    x = transfer.zeros((16 << 20,), np.float32)
    program = compiler.compile_program(lambda x: [x + 1], [((16 << 20,), np.float32)])
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    def resident():
        return int(open("/proc/self/statm").read().split()[1])
    for _ in range(40):
        program(x).block_until_ready()
    before = faults()
    for _ in range(20):
        program(x).block_until_ready()
    faulted, before = faults() - before, resident()
    memory.release()
    print(*(pages * resource.getpagesize() >> 20 for pages in (faulted, before - resident())))
    """
ALL = 20 * 64


@pytest.mark.parametrize("early_thread", [False, True])
def test_results_reuse_freed_memory_until_it_is_released(early_thread: bool) -> None:
    script = SCRIPT.format(early_thread=early_thread)
    faulted, released = map(int, run(script, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_KEEP_MEMORY="1").split())
    assert faulted < ALL / 4
    assert released >= 60


@pytest.mark.parametrize("setting", ["", "0"])
def test_the_allocator_is_left_alone_unless_asked(setting: str) -> None:
    script = SCRIPT.format(early_thread=False)
    faulted, _ = map(int, run(script, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_KEEP_MEMORY=setting).split())
    assert faulted >= ALL
