"""The choice of the client, its devices, and what a process must not do with it."""

from __future__ import annotations

import pytest

from tests.device.subprocesses import run, run_unchecked
from torch_tpu.runtime import client

CLEAN = {"TORCH_TPU_PLATFORM": "", "TORCH_TPU_CPU_DEVICES": "1", "JAX_PLATFORMS": "", "XLA_FLAGS": ""}


def test_explicit_platform_needs_no_jax_and_starts_nothing() -> None:
    out = run(
        """
        import sys
        from torch_tpu.runtime import client
        print(client.platform(), client.device_count(), client.started(), "jax" in sys.modules)
        """,
        **CLEAN | {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CPU_DEVICES": "3"},
    )
    assert out.split() == ["cpu", "3", "False", "False"]


@pytest.mark.parametrize(
    ("explicit", "jax_platforms", "libtpu", "hardware", "chosen"),
    [
        ("tpu", "cpu", False, False, "tpu"),
        ("CPU", "tpu", True, True, "cpu"),
        ("", "tpu,cpu", False, False, "tpu"),
        ("", "gpu", True, True, "cuda"),
        ("", "", True, True, "tpu"),
        ("", "", True, False, "cpu"),
        ("", "", False, True, "cpu"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch,
    explicit: str,
    jax_platforms: str,
    libtpu: bool,
    hardware: bool,
    chosen: str,
) -> None:
    monkeypatch.setenv("TORCH_TPU_PLATFORM", explicit)
    monkeypatch.setattr(client, "_jax_platforms", lambda: jax_platforms)
    monkeypatch.setattr(client, "_has_libtpu", lambda: libtpu)
    monkeypatch.setattr(client, "_has_tpu", lambda: hardware)
    assert client.platform.__wrapped__() == chosen


def test_unknown_platform_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_PLATFORM", "abacus")
    with pytest.raises(ValueError, match="expected one of tpu, cpu, cuda, got 'abacus'"):
        client.platform.__wrapped__()


@pytest.mark.parametrize("number", ["0", "-1", "two", ""])
def test_number_of_devices_is_checked(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv("TORCH_TPU_CPU_DEVICES", number)
    with pytest.raises(ValueError, match="TORCH_TPU_CPU_DEVICES"):
        client._cpu_devices_wanted()


def test_devices_and_their_memory_leave_jax_settings_alone() -> None:
    out = run(
        """
        from torch_tpu.runtime import client
        print(len(client.devices()), client.device_kind(2), client.memory_stats(0))
        import jax, jax.numpy as jnp
        print(jax.config.jax_enable_x64, jnp.arange(3).dtype, jax.config.jax_default_matmul_precision)
        """,
        **CLEAN | {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CPU_DEVICES": "3"},
    )
    assert out.splitlines() == ["3 cpu {}", "False int32 None"]


def test_jax_that_started_first_keeps_its_devices() -> None:
    script = """
        import jax
        jax.devices()
        from torch_tpu.runtime import client
        print(len(client.devices()))
        """
    enough = run(script, **CLEAN | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert enough.strip() == "1"
    few = run_unchecked(script, **CLEAN | {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CPU_DEVICES": "2"})
    assert 'jax.config.update("jax_num_cpu_devices", 2)' in few.stderr


def test_platform_that_cannot_start_says_what_to_do() -> None:
    failed = run_unchecked(
        "from torch_tpu.runtime import client; client.devices()",
        **CLEAN | {"TORCH_TPU_PLATFORM": "cuda", "JAX_PLATFORMS": "cpu"},
    )
    assert "the cuda platform did not start" in failed.stderr
    assert "TORCH_TPU_PLATFORM=cpu" in failed.stderr


@pytest.mark.parametrize("first", ["client.devices()", "jax.devices()"])
def test_forked_child_of_a_started_process_gets_an_error(first: str) -> None:
    out = run(
        f"""
        import os, warnings
        warnings.simplefilter("ignore")
        import jax
        from torch_tpu.runtime import client
        def child():
            pid = os.fork()
            if pid == 0:
                try:
                    print(client.in_bad_fork(), len(client.devices()), flush=True)
                except RuntimeError as error:
                    print(client.in_bad_fork(), error, flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        child()
        {first}
        child()
        print(client.in_bad_fork())
        """,
        **CLEAN | {"TORCH_TPU_PLATFORM": "cpu"},
    )
    before, after, parent = out.splitlines()
    assert before == "False 1"
    assert after.startswith("True Cannot re-initialize TPU in forked subprocess.") and "'spawn'" in after
    assert parent == "False"


def test_host_memory_is_bounded_by_the_machine() -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) << 10
    assert 0 < client._host_memory() <= total + (64 << 20)
