"""Eager modes, precision and the fallback policy."""

import pytest
import torch

from tests.device.subprocesses import run, run_unchecked

EagerMode = torch.tpu.EagerMode
PRINT_MODE = "import torch; print(torch.tpu.eager_mode.name)"


def test_eager_mode_as_call_and_as_context() -> None:
    assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER
    with torch.tpu.set_eager_mode("debug"):
        assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
        assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
        with torch.tpu.set_eager_mode(EagerMode.DEFER_NEVER):
            assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER
        assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER
    torch.tpu.set_eager_mode("debug")
    assert torch.tpu.eager_mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    torch.tpu.set_eager_mode("strict")


@pytest.mark.parametrize("setter", [torch.tpu.set_eager_mode, torch.tpu.precision, torch.tpu.set_fallback])
def test_unknown_values_raise(setter) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\(\): expected <\w+> to be one of .*, got 'fast'"):
        setter("fast")


def test_environment() -> None:
    assert "BLOCKING" in run(PRINT_MODE, TORCH_TPU_EAGER_MODE="debug")
    assert "BLOCKING" in run(PRINT_MODE, TORCH_TPU_LAUNCH_BLOCKING="1")
    assert "FUSE" in run(PRINT_MODE, TORCH_TPU_DEFER_AND_FUSE="1")
    done = run_unchecked(PRINT_MODE, TORCH_TPU_EAGER_MODE="fast")
    assert "TORCH_TPU_EAGER_MODE: expected one of strict, debug, defer_and_fuse, got 'fast'" in done.stderr


def test_precision_follows_torch_and_is_overridden() -> None:
    from torch_tpu import _C

    assert _C.matmul_precision() == torch.tpu.Precision.HIGHEST.value
    with torch.tpu.precision("high"):
        assert _C.matmul_precision() == torch.tpu.Precision.HIGH.value
    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        assert _C.matmul_precision() == torch.tpu.Precision.DEFAULT.value
    torch.set_float32_matmul_precision("medium")
    try:
        assert _C.matmul_precision() == torch.tpu.Precision.DEFAULT.value
    finally:
        torch.set_float32_matmul_precision("highest")
