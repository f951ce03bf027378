"""The device's name, its registration and what `import torch` costs and says."""

import subprocess
import sys

import torch

import torch_tpu
from tests.device.subprocesses import run, run_unchecked

WITHOUT_AUTOLOAD = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_the_accelerator_is_tpu() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.is_available()
    assert torch.get_device_module("tpu") is torch.tpu
    assert sys.modules["torch.tpu"] is torch.tpu


def test_tensors_modules_and_storages_have_tpu_methods() -> None:
    x = torch.ones(3)
    y = x.tpu()
    assert y.is_tpu and not x.is_tpu and y.device == torch.device("tpu", 0)
    module = torch.nn.Linear(2, 2).tpu()
    assert all(p.is_tpu for p in module.parameters())
    assert y.untyped_storage().is_tpu
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 1), [3, 2])
    assert packed.tpu().is_tpu


def test_registering_again_does_nothing() -> None:
    torch_tpu._autoload()
    assert torch.ones(1, device="tpu").item() == 1


def test_import_starts_nothing_and_prints_nothing() -> None:
    out = run("""
        import sys, torch, torch_tpu
        assert torch.tpu.is_available() and torch.tpu.device_count() == 1
        torch.manual_seed(3)
        assert "jax" not in sys.modules, "jax was imported"
        assert not torch.tpu.is_initialized()
    """)
    assert out == ""


def test_manual_import_without_autoload() -> None:
    run(
        """
        import torch
        assert not hasattr(torch, "tpu")
        import torch_tpu
        assert torch.ones(2, device="tpu").sum().item() == 2
        """,
        **WITHOUT_AUTOLOAD,
    )


def test_package_imported_before_torch() -> None:
    run("import torch_tpu, torch; assert torch.tpu.device_count() == 1")


def test_another_privateuse1_package_is_named() -> None:
    done = run_unchecked(
        """
        import torch
        torch.utils.rename_privateuse1_backend("npu")
        import torch_tpu
        """,
        **WITHOUT_AUTOLOAD,
    )
    assert "another package has already made PrivateUse1 the device 'npu'" in done.stderr


def test_import_after_a_backward_explains_itself() -> None:
    done = run_unchecked(
        """
        import torch
        torch.ones(1, requires_grad=True).sum().backward()
        import torch_tpu
        """,
        **WITHOUT_AUTOLOAD,
    )
    assert done.returncode != 0
    assert "torch_tpu was imported after a backward pass" in done.stderr


def test_forked_child_says_what_to_do() -> None:
    out = run("""
        import os, warnings, torch
        warnings.simplefilter("ignore")
        x = torch.ones(2, device="tpu")
        torch.tpu.synchronize()
        assert (x + 1).sum().item() == 4
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                torch.ones(2, device="tpu")
            except RuntimeError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.wait()
        print(os.read(read, 1000).decode())
    """)
    assert "Cannot re-initialize TPU in forked subprocess" in out


def test_names_of_compat() -> None:
    missing = [name for name in torch.tpu.__all__ if name != "metrics" and not hasattr(torch.tpu, name)]
    assert missing == []


def test_import_time_is_small() -> None:
    script = "import time, torch; t = time.perf_counter(); import torch_tpu; print(time.perf_counter() - t)"
    env = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
    times = [float(subprocess.check_output([sys.executable, "-c", env + script])) for _ in range(3)]
    assert min(times) < 0.3, times
