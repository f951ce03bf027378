"""Cases spread over worker processes, with a time limit each; results go to the report."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.opinfo.report import Report
from tests.opinfo.worker import serve

Task = tuple[str, str, list[str]]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.opinfo.worker"])


@dataclasses.dataclass
class _Slot:
    """A worker process, the task it has, and the variant that it is at."""

    process: Any
    connection: Connection
    task: Task | None = None
    variant: str | None = None
    since: float = 0.0


class Runner:
    """Runs tasks. `timeout`: seconds that one case may take before its worker is ended."""

    def __init__(self, report: Report, device: str, limit: int, timeout: float) -> None:
        self._report, self._device, self._limit, self._timeout = report, device, limit, timeout
        self._queue: collections.deque[Task] = collections.deque()
        self._counts: collections.Counter[str] = collections.Counter()

    def run(self, tasks: list[Task], workers: int) -> None:
        self._queue.extend(tasks)
        slots = [self._start() for _ in range(min(workers, len(tasks)))]
        with _progress() as progress:
            bar = progress.add_task("", total=sum(len(t[2]) for t in tasks))
            try:
                while slots:
                    slots = [x for slot in self._turn(slots) if (x := slot) is not None]
                    done = sum(self._counts.values())
                    progress.update(bar, completed=done, description=self._describe(slots))
                    self._report.save(every=5.0)
            finally:
                for slot in slots:
                    slot.process.kill()
                self._report.save()

    def _describe(self, slots: list[_Slot]) -> str:
        at = " ".join(f"{s.task[0]}:{s.task[1]}" for s in slots if s.task)
        passed, failed, skipped = (self._counts[x] for x in ("pass", "fail", "skip"))
        return f"[green]{passed} pass[/] [red]{failed} fail[/] {skipped} skip  {at[:60]}"

    def _start(self) -> _Slot:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=serve, args=(theirs, self._device, self._limit), daemon=True)
        process.start()
        theirs.close()
        slot = _Slot(process, ours)
        self._give(slot)
        return slot

    def _give(self, slot: _Slot) -> bool:
        """Hand the next task to an idle worker; False (and its end) when there is none."""
        slot.task, slot.variant, slot.since = None, None, time.monotonic()
        if not self._queue:
            slot.connection.send(None)
            return False
        slot.task = self._queue.popleft()
        slot.connection.send(slot.task)
        return True

    def _turn(self, slots: list[_Slot]) -> list[_Slot | None]:
        """Wait for messages; returns the slots, replaced where a worker ended."""
        ready = wait([s.connection for s in slots], timeout=0.5)
        return [self._serve(slot, slot.connection in ready) for slot in slots]

    def _serve(self, slot: _Slot, ready: bool) -> _Slot | None:
        if not ready:
            late = slot.task is not None and time.monotonic() - slot.since > self._timeout
            return self._lost(slot, f"timeout: more than {self._timeout:.0f} s") if late else slot
        try:
            message = slot.connection.recv()
        except (EOFError, OSError):
            slot.process.join()
            return self._lost(slot, f"crash: the process ended with {slot.process.exitcode}")
        return self._heard(slot, message)

    def _heard(self, slot: _Slot, message: tuple[Any, ...]) -> _Slot | None:
        if message[0] == "start":
            slot.variant, slot.since = message[1], time.monotonic()
        elif message[0] == "done":
            self._record(slot, message[1], message[2])
        elif message[1] and self._queue:  # idle, and too large
            slot.connection.send(None)
            return self._start()
        elif not self._give(slot):
            return None
        return slot

    def _record(self, slot: _Slot, variant: str, result: dict[str, Any]) -> None:
        assert slot.task is not None
        name, dtype, variants = slot.task
        self._report.add(name, dtype, variant, result)
        self._counts[result["status"]] += 1
        slot.task, slot.variant = (name, dtype, [v for v in variants if v != variant]), None

    def _lost(self, slot: _Slot, why: str) -> _Slot | None:
        """A worker that crashed or hung: its case failed, the rest of its task goes to a new one."""
        slot.process.kill()
        if slot.task is not None and slot.task[2]:
            variant = slot.variant or slot.task[2][0]
            self._record(slot, variant, {"status": "fail", "samples": 0, "failed": 1, "error": why})
            if slot.task[2]:
                self._queue.appendleft(slot.task)
        return self._start() if self._queue else None


def _progress() -> Progress:
    text = TextColumn("{task.description}")
    return Progress(BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn(), text)
