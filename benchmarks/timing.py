"""What the benchmarks share: each candidate in a process of its own, measured in interleaved rounds.

A candidate names a function of the benchmark's module that returns its cases: {case: run}, where
run() does the work once and waits for the result. All candidates start first and then take turns,
round by round, so that a change in the machine's load meets all of them alike; an idle one sleeps.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

Cases = dict[str, Callable[[], object]]

PLAIN = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # PyTorch without this project
KEPT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "2147483647",
    "MALLOC_TRIM_THRESHOLD_": "2147483647",
}
_SHORTEST = 0.02  # seconds that one measurement lasts at least


@dataclass(frozen=True)
class Candidate:
    """A column of the result: `make` is the function's name, `environment` is set before it starts."""

    name: str
    make: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """Seconds of a candidate: `rounds` and `first` by case; peak memory in bytes."""

    name: str
    rounds: dict[str, list[float]]
    first: dict[str, float]
    peak: int

    def median(self, case: str) -> float:
        return statistics.median(self.rounds[case])


def arguments(description: str | None, rounds: int) -> argparse.Namespace:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    parser.add_argument("--cores", type=int, help="cores that each process may use (default: all)")
    parser.add_argument("--json", type=Path, help="also write all measurements to this file")
    return parser.parse_args()


def compare(module: str, candidates: list[Candidate], rounds: int, cores: int | None) -> list[Result]:
    """Measures the candidates of `module` in turn; one that lacks a package is left out with a note."""
    workers = []
    for candidate in candidates:
        worker = _Worker(module, candidate, cores)
        if worker.missing:
            Console(stderr=True).print(f"{candidate.name} left out: {worker.missing}")
        else:
            workers.append(worker)
    for _ in track(range(rounds), description="measuring", console=Console(stderr=True)):
        for case in workers[0].result.rounds:
            for worker in workers:
                worker.measure(case)
    return [worker.finish() for worker in workers]


class _Worker:
    """The parent's end of a candidate's process."""

    def __init__(self, module: str, candidate: Candidate, cores: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, module, candidate.make, cores))
        with environment(candidate.environment):
            self._process.start()
        theirs.close()  # so that a process that dies ends recv() with EOFError
        first, self.missing = self._connection.recv()
        self.result = Result(candidate.name, {case: [] for case in first}, first, 0)

    def measure(self, case: str) -> None:
        self._connection.send(case)
        self.result.rounds[case].append(self._connection.recv())

    def finish(self) -> Result:
        self._connection.send(None)
        self.result.peak = self._connection.recv()
        self._process.join()
        return self.result


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the processes started meanwhile."""
    before = dict(os.environ)
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", **values})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(connection: Connection, module: str, make: str, cores: int | None) -> None:
    """A candidate's process: makes its cases, then measures the one it is asked for."""
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    try:
        cases: Cases = getattr(importlib.import_module(module), make)()
        first = {case: _seconds(run, 1) for case, run in cases.items()}
    except ImportError as error:
        connection.send(({}, str(error)))
        return
    connection.send((first, ""))
    calls = {case: max(1, round(_SHORTEST / _seconds(run, 3))) for case, run in cases.items()}
    while (case := connection.recv()) is not None:
        connection.send(_seconds(cases[case], calls[case]))
    connection.send(peak_memory())


def _seconds(run: Callable[[], object], calls: int) -> float:
    """Mean seconds of `calls` calls."""
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - started) / calls


def fresh_process(function: Callable[..., Any], *args: object, env: Mapping[str, str] | None = None) -> Any:
    """What `function(*args)` returns in a new process, which inherits nothing but the environment."""
    with environment(env or {}), multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def memory() -> int:
    """Resident memory of this process in bytes."""
    return _status("VmRSS")


def peak_memory() -> int:
    """The largest resident memory of this process, since it began or the last `reset_peak_memory`."""
    return _status("VmHWM")


def reset_peak_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status: expected a line {name}")


def table(title: str, unit: str, scale: Callable[[str, float], float], results: list[Result]) -> Table:
    """Medians in `unit`, each with its ratio to the first candidate's."""
    base, cases = results[0], results[0].rounds
    grid = Table(title=f"{title} ({unit}; x: times {base.name})", title_justify="left")
    grid.add_column("")
    for case in cases:
        grid.add_column(case, justify="right")
    for result in results:
        medians = [(case, result.median(case)) for case in cases]
        cells = [
            f"{scale(case, seconds):.2f}  {seconds / base.median(case):.2f}x" for case, seconds in medians
        ]
        grid.add_row(result.name, *cells)
    return grid


def write_json(path: Path | None, document: object) -> None:
    """Writes `document` (Results, or anything JSON has) where the user asked for it."""
    if path:
        path.write_text(json.dumps(document, default=vars, indent=1) + "\n")
