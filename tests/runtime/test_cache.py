"""The on-disk cache: shared, verified, bounded, and never a reason to fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.device.subprocesses import run
from torch_tpu.runtime import cache, client, compiler, transfer

SPEC = ((4,), np.int64)
#: A program made in a fresh process; its function may only be called where the entry is not there yet.
USER = """
    import numpy as np, torch
    from torch_tpu.runtime import client, compiler, transfer
    def fn(x):
        if {forbidden}:
            raise AssertionError("traced")
        return [x * 3]
    program = compiler.compile_program(fn, [((4,), np.int64)], cache_key="times 3", device={device})
    result = program(transfer.to_device(torch.arange(4) + 2**40, {device}))
    print((np.asarray(result) - 3 * 2**40).tolist(), result.devices() == {{client.devices()[{device}]}})
    """


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.program"))


def make(constant: int = 1, key: str = "plus") -> Any:
    extra = {"constant": constant}
    return compiler.compile_program(lambda x: [x + constant], [SPEC], cache_key=key, extra=extra)


def forget() -> None:
    """As in a new process: no program is in memory."""
    compiler._programs.clear()


def test_roundtrip_with_extra(cache_dir: Path) -> None:
    make()
    found = compiler.load_program("plus")
    assert found is not None
    program, extra = found
    assert extra == {"constant": 1}
    np.testing.assert_array_equal(np.asarray(program(transfer.to_device(torch.arange(4)))), [1, 2, 3, 4])
    assert compiler.load_program("another") is None
    assert cache_dir.stat().st_mode & 0o777 == 0o700


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def foreign(data: bytes) -> bytes:
    return b"something else entirely"


def empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncated, flipped, foreign, empty])
def test_damaged_entry_is_replaced(cache_dir: Path, damage: Callable[[bytes], bytes]) -> None:
    make()
    (entry,) = entries(cache_dir)
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    forget()
    assert compiler.load_program("plus") is None
    assert not entry.exists()
    np.testing.assert_array_equal(np.asarray(make()(transfer.to_device(torch.arange(4)))), [1, 2, 3, 4])
    assert compiler.load_program("plus") is not None


def test_entry_of_another_format_is_replaced(cache_dir: Path) -> None:
    cache.store(compiler._entry("plus"), b"a checksum is no promise of a program")
    assert compiler.load_program("plus") is None
    assert entries(cache_dir) == []


def test_second_process_needs_no_tracing_and_may_use_another_device(cache_dir: Path) -> None:
    environment = {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CACHE_DIR": str(cache_dir)}
    first = run(USER.format(forbidden=False, device=0), **environment)
    second = run(USER.format(forbidden=True, device=0), **environment)
    third = run(USER.format(forbidden=True, device=2), **environment, TORCH_TPU_CPU_DEVICES="3")
    assert first == second == third == "[0, 3, 6, 9] True\n"
    assert len(entries(cache_dir)) == 1


def test_second_process_runs_what_calls_lapack(cache_dir: Path) -> None:
    script = """
        import torch, torch_tpu
        det = torch.linalg.det(torch.eye(3, device="tpu") * 2).item()
        print(det, torch.tpu.metrics.snapshot()["programs_compiled"])
        """
    environment = {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CACHE_DIR": str(cache_dir)}
    first, second = (run(script, **environment).split() for _ in range(2))
    assert first[0] == second[0] == "8.0"
    assert int(second[1]) == 0 < int(first[1])


def test_concurrent_processes_share_it(cache_dir: Path) -> None:
    script = textwrap.dedent(
        """
        import numpy as np, torch
        from torch_tpu.runtime import compiler, transfer
        x = transfer.to_device(torch.arange(4))
        for k in range(6):
            program = compiler.compile_program(lambda x: [x + k], [((4,), np.int64)], cache_key=f"plus {k}")
            assert np.asarray(program(x)).tolist() == [k, k + 1, k + 2, k + 3], k
        """
    )
    environment = os.environ | {"TORCH_TPU_PLATFORM": "cpu", "TORCH_TPU_CACHE_DIR": str(cache_dir)}
    running = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in running:
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
    assert len(entries(cache_dir)) == 6
    assert len(list(cache_dir.iterdir())) == 6, "temporary files were left behind"


def test_directory_that_cannot_be_written_is_only_read(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("unlink", "utime", "replace"):
        monkeypatch.setattr(cache.os, name, refuse)
    monkeypatch.setattr(cache.tempfile, "mkstemp", refuse)
    assert compiler.load_program("plus") is not None
    make(2, "plus 2")
    assert len(entries(cache_dir)) == 1


def test_directory_that_cannot_be_made_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "file" / "cache"))
    cache.directory.cache_clear()
    assert not cache.enabled()
    np.testing.assert_array_equal(np.asarray(make()(transfer.to_device(torch.arange(4)))), [1, 2, 3, 4])
    cache.directory.cache_clear()


def test_switched_off(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE", "0")
    make()
    assert compiler.load_program("plus") is None
    assert not cache_dir.exists() or entries(cache_dir) == []


def test_what_another_user_owns_is_not_read(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    (entry,) = entries(cache_dir)
    monkeypatch.setattr(cache.os, "geteuid", lambda: entry.stat().st_uid + 1)
    assert compiler.load_program("plus") is None
    cache.directory.cache_clear()
    assert cache.directory() is None
    assert entry.exists()


def test_key_holds_what_the_program_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        cache.fingerprint.cache_clear()
        return compiler._entry("op")

    base = key()
    assert key() == base != compiler._entry("op2")
    changes: list[tuple[Any, str, Any]] = [
        (torch, "__version__", "9.9"),
        (cache, "_sources", lambda: "other sources"),
        (cache, "_cpu_features", lambda: "other processor"),
        (client, "platform", lambda: "cuda"),
        (compiler, "matmul_precision", lambda: "high"),
        (torch, "get_default_dtype", lambda: torch.float64),
    ]
    seen = {base}
    for owner, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            seen.add(key())
    for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "--some_flag=1")
            seen.add(key())
    cache.fingerprint.cache_clear()
    assert len(seen) == 1 + len(changes) + 2


def test_least_recently_used_entries_go_first(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.enabled()
    for age, name in enumerate("abcd"):
        cache.store(name, bytes(1000))
        os.utime(cache_dir / f"{name}.program", (1000 - age, 1000 - age))
    leftover = cache_dir / "dead.tmp"
    leftover.write_bytes(bytes(10))
    os.utime(leftover, (1, 1))
    assert cache.load("d") is not None  # now the most recently used
    monkeypatch.setenv("TORCH_TPU_CACHE_SIZE", "3000")
    cache.trim()
    assert [p.stem for p in entries(cache_dir)] == ["a", "d"]
    assert not leftover.exists()


def test_size_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TPU_CACHE_SIZE", "4GiB")
    with pytest.raises(ValueError, match="expected a number of bytes, got '4GiB'"):
        cache.limit()


def test_program_that_calls_back_is_not_stored(cache_dir: Path) -> None:
    import jax

    def calling(x: Any) -> list[Any]:
        return [jax.pure_callback(lambda v: np.asarray(v) + 1, jax.ShapeDtypeStruct((4,), np.float32), x)]

    program = compiler.compile_program(calling, [((4,), np.float32)], cache_key="callback")
    np.testing.assert_array_equal(np.asarray(program(transfer.to_device(torch.ones(4)))), [2, 2, 2, 2])
    assert not cache_dir.exists() or entries(cache_dir) == []


@pytest.mark.parametrize("enabled", [True, False])
def test_a_process_may_use_more_programs_than_it_can_hold(cache_dir: Path, enabled: bool) -> None:
    script = """
        import threading, torch
        from torch_tpu.runtime import executable
        executable.most_loaded = lambda: 8

        def use():
            for i in [*range(1, 12)] * 2:
                assert (torch.ones(i, device="tpu") * 2 + 1).sum().item() == 3 * i
                x = torch.zeros(i, device="tpu")
                x.add_(1)
                assert x.tolist() == [1] * i

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(torch.tpu.metrics.snapshot()["programs_dropped"])
        """
    environment = {"TORCH_TPU_CACHE_DIR": str(cache_dir), "TORCH_TPU_CACHE": str(int(enabled))}
    assert int(run(script, TORCH_TPU_PLATFORM="cpu", **environment)) > 40
