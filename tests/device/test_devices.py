"""Devices of one process, and of one with two CPU devices."""

import pytest
import torch

from tests.device.subprocesses import run


def test_current_device() -> None:
    assert torch.tpu.current_device() == 0 == torch.accelerator.current_device_index()
    torch.tpu.set_device("tpu:0")
    torch.tpu.set_device(torch.device("tpu"))
    torch.tpu.set_device(-1)
    with torch.tpu.device(0), torch.tpu.device(None), torch.tpu.device_of(torch.ones(1)):
        assert torch.ones(1, device="tpu").device.index == 0


def test_wrong_devices_raise() -> None:
    with pytest.raises(RuntimeError, match=r"invalid device tpu:60: this process has 1 tpu device\(s\)"):
        torch.tpu.set_device(60)
    with pytest.raises(ValueError, match="expected <device> to be a tpu device, got cpu"):
        torch.tpu.synchronize("cpu")
    with pytest.raises(RuntimeError):
        torch.ones(1, device="tpu:60")
    with pytest.raises(AssertionError, match="invalid device tpu:7"):
        torch.tpu.get_device_properties(7)


def test_properties() -> None:
    properties = torch.tpu.get_device_properties()
    assert properties.name == torch.tpu.get_device_name(0)
    assert properties.total_memory > 2**20
    capability = torch.tpu.get_device_capability()
    assert torch.bfloat16 in capability["supported_dtypes"]
    assert torch.complex32 not in capability["supported_dtypes"]
    assert torch.tpu.is_bf16_supported()
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype()


def test_new_threads_start_on_device_0() -> None:
    import threading

    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


def test_two_devices() -> None:
    run(
        """
        import torch
        assert torch.tpu.device_count() == 2 == torch.accelerator.device_count()
        a, b = torch.arange(4.0, device="tpu:0"), torch.arange(4.0, device="tpu:1")
        assert (a + 1).device.index == 0 and (b + 1).device.index == 1
        assert torch.equal(a.cpu(), b.cpu()) and torch.equal(a.to("tpu:1"), b)
        a.copy_(b + 1)
        assert a.tolist() == [1, 2, 3, 4]
        with torch.tpu.device(1):
            assert torch.zeros(1, device="tpu").device.index == 1
            assert torch.tpu.current_stream().device.index == 1
            c = torch.ones(2).tpu()
        assert c.device.index == 1 and torch.tpu.current_device() == 0
        with torch.accelerator.device_index(1):
            assert torch.zeros(1, device="tpu").device.index == 1
        with torch.tpu.device_of(b):
            assert torch.tpu.current_device() == 1
        try:
            a + b
        except RuntimeError as error:
            assert "device" in str(error)
        else:
            raise AssertionError("an op took tensors of two devices")
        x = torch.ones(3, device="tpu:0", requires_grad=True)
        y = torch.full((3,), 2.0, device="tpu:1", requires_grad=True)
        (x.to("tpu:1") * y).sum().backward()
        assert x.grad.tolist() == [2, 2, 2] and x.grad.device.index == 0
        assert y.grad.tolist() == [1, 1, 1] and y.grad.device.index == 1
        assert len(torch.tpu.default_generators) == 2
        torch.tpu.manual_seed_all(5)
        first = torch.rand(4, device="tpu:0").cpu()
        assert torch.equal(first, torch.rand(4, device="tpu:1").cpu())
        before = torch.tpu.memory_allocated(1)
        d = torch.ones(1000, device="tpu:1")
        assert torch.tpu.memory_allocated(1) - before == 4000
        assert torch.tpu.memory_allocated(0) < 4000
        import io
        file = io.BytesIO()
        torch.save(d, file)
        file.seek(0)
        assert torch.load(file).device.index == 1
        file.seek(0)
        assert torch.load(file, map_location={"tpu:1": "tpu:0"}).device.index == 0
        """,
        TORCH_TPU_CPU_DEVICES="2",
        TORCH_TPU_PLATFORM="cpu",
    )
