"""Times of completion: a thread per device takes the host's clock when a device has reached a point."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from typing import Any


class Stamp:
    """The time at which a device reached a point; known once it has."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._ns = 0

    def _set(self) -> None:
        self._ns = time.perf_counter_ns()
        self._done.set()

    def is_done(self) -> bool:
        """True once the point is reached."""
        return self._done.is_set()

    def wait(self) -> int:
        """Waits for the point; the host's clock then, in nanoseconds."""
        self._done.wait()
        return self._ns


class _Watcher(threading.Thread):
    """Waits for the points of one device, which are reached in the order in which they were made."""

    def __init__(self, device: int) -> None:
        super().__init__(name=f"torch_tpu-events-{device}", daemon=True)
        self.points: queue.SimpleQueue[tuple[Stamp, list[Any]] | None] = queue.SimpleQueue()
        self.start()
        atexit.register(self._end)  # a thread that waits in jaxlib while Python shuts down aborts the process

    def run(self) -> None:
        while (item := self.points.get()) is not None:
            point, arrays = item
            for array in arrays:
                _wait(array)
            del array, arrays, item
            point._set()

    def _end(self) -> None:
        self.points.put(None)
        self.join()


def _wait(array: Any) -> None:
    # An error is reported to whoever reads or synchronizes; here it only means that the work is over.
    # So does a donated array: whatever took it is a later point's business.
    try:
        array.block_until_ready()
    except Exception:
        return


def _is_ready(array: Any) -> bool:
    return array.is_deleted() or array.is_ready()


_watchers: dict[int, _Watcher] = {}
_lock = threading.Lock()


def stamp(device: int, arrays: list[Any]) -> Stamp:
    """The time at which all `arrays` of `device` will have been computed; now if they are."""
    point = Stamp()
    if all(_is_ready(array) for array in arrays):
        point._set()
        return point
    with _lock:
        watcher = _watchers.get(device) or _watchers.setdefault(device, _Watcher(device))
    watcher.points.put((point, arrays))
    return point
