"""From a function to a program: results, dtypes, donation, settings, devices, threads."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_tpu.runtime import compiler, transfer

LONG = ((4,), np.int64)
FLOAT = ((4,), np.float32)

pytestmark = pytest.mark.usefixtures("cache_dir")


def longs() -> jax.Array:
    return transfer.to_device(torch.arange(4) + 2**40)


def test_one_result_is_bare_and_others_are_tuples() -> None:
    x = longs()
    one = compiler.compile_program(lambda x: [x + 1], [LONG])(x)
    two = compiler.compile_program(lambda x: (x + 1, x * 2), [LONG])(x)
    none = compiler.compile_program(lambda x: [], [LONG])(x)
    assert isinstance(one, jax.Array) and one.dtype == np.int64
    np.testing.assert_array_equal(np.asarray(one), np.arange(4) + 2**40 + 1)
    assert isinstance(two, tuple) and [r.dtype for r in two] == [np.int64, np.int64]
    assert none == ()


def test_results_have_no_weak_type_and_stay_on_the_device() -> None:
    program = compiler.compile_program(lambda: [jnp.asarray(2.5) * 2, 3], [])
    for result in program():
        assert not result.weak_type and result.committed


def test_users_jax_settings_do_not_matter_and_are_restored() -> None:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        program = compiler.compile_program(lambda x, y: [x[None] + y], [LONG, FLOAT])
        assert jax.config.jax_numpy_dtype_promotion == "strict"  # type: ignore[attr-defined]
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]
    assert program(longs(), transfer.to_device(torch.ones(4))).dtype == np.float32


def test_donated_memory_is_taken_and_what_fits_nothing_is_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = compiler.compile_program(lambda x, y, z: [x + 1], [LONG, FLOAT, LONG], donate=(0, 1, 2))
    x, y, z = longs(), transfer.to_device(torch.ones(4)), longs()
    program(x, y, z)
    assert [a.is_deleted() for a in (x, y, z)] == [True, False, False]


def test_errors_of_the_function_come_through_and_do_not_block_the_key() -> None:
    def broken(x: Any) -> Any:
        raise NotImplementedError("no such op")

    for _ in range(2):
        with pytest.raises(NotImplementedError, match="no such op"):
            compiler.compile_program(broken, [LONG], cache_key="broken")
    assert compiler.compile_program(lambda x: [x], [LONG], cache_key="broken")(longs()).shape == (4,)


def test_wrong_arguments_are_errors() -> None:
    program = compiler.compile_program(lambda x: [x + 1], [LONG])
    with pytest.raises(TypeError):
        program(transfer.to_device(torch.ones(4)))


def test_threads_that_want_one_key_compile_it_once() -> None:
    calls: list[int] = []

    def slow(x: Any) -> list[Any]:
        calls.append(1)
        time.sleep(0.2)
        return [x + 1]

    programs: list[Any] = []

    def work() -> None:
        programs.append(compiler.compile_program(slow, [LONG], cache_key="threads"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Traced once for the results' shapes; JAX reuses that trace.
    assert len(calls) == 1
    assert len(programs) == 4 and len(set(map(id, programs))) == 1


def test_stats_tell_compiled_from_loaded() -> None:
    first = len(compiler.stats.records)
    keep = compiler.compile_program(lambda x: [x - 3], [LONG], cache_key="stats", name="aten::sub")
    assert compiler.load_program("stats", name="aten::sub") is not None
    compiled, loaded = compiler.stats.records[first:]
    assert (compiled.name, compiled.source, loaded.source) == ("aten::sub", "compiled", "disk")
    assert compiled.trace_s > 0 and compiled.xla_s > 0 and loaded.trace_s == 0 and loaded.xla_s > 0
    assert compiler.stats.seconds() > compiled.xla_s and compiler.stats.count("disk") >= 1
    del keep


def test_programs_without_a_key_are_known_by_their_content(cache_dir: Path) -> None:
    def adding(constant: np.ndarray) -> Any:
        return compiler.compile_program(lambda x: [x + constant], [((5000,), np.float64)])

    zeros = transfer.zeros((5000,), np.float64)
    one, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 7.0
    for constant in (one, other):
        np.testing.assert_array_equal(np.asarray(adding(constant)(zeros)), constant)
    assert len(list(cache_dir.iterdir())) == 2
    before = compiler.stats.count("compiled")
    np.testing.assert_array_equal(np.asarray(adding(other)(zeros)), other)
    assert compiler.stats.count("compiled") == before


def test_matmul_precision_follows_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def product(x: Any) -> list[Any]:
        seen.append(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
        return [x @ x]

    monkeypatch.setattr(compiler.client, "platform", lambda: "tpu")
    old = torch.get_float32_matmul_precision()
    try:
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            compiler.compile_program(product, [((4, 4), np.float32)], cache_key="product")
    finally:
        torch.set_float32_matmul_precision(old)
    assert seen == ["highest", "high", "default"]


@pytest.mark.parametrize("elements", [16, 100_000], ids=["tiny", "large"])
def test_effort_does_not_change_results(elements: int) -> None:
    def work(x: Any) -> list[Any]:
        return [jnp.tanh(x) * jnp.exp(-x), x.reshape(4, -1).T, x.sum()]

    x = torch.randn(elements)
    results = compiler.compile_program(work, [((elements,), np.float32)])(transfer.to_device(x))
    expected = (x.tanh() * (-x).exp(), x.view(4, -1).T, x.sum())
    for result, want in zip(results, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(result)), want)
