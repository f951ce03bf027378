"""Many programs spread over worker processes; a crash is the failure of one program."""

from __future__ import annotations

import multiprocessing
import random
import warnings
from multiprocessing.connection import Connection, wait

import torch
from rich.console import Console
from rich.progress import Progress

from tests.fuzz.grammar import write
from tests.fuzz.program import Program, run
from tests.fuzz.shrink import fails, shrink

LENGTH = 9


def program_of(seed: int, index: int) -> Program:
    draws = random.Random(f"{seed}:{index}")
    return write(draws.randrange, LENGTH)


def _check(connection: Connection, device: str, seed: int, indices: range) -> None:
    """The worker: sends each index before it runs, and (index, difference, script) of a failure."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for index in indices:
        connection.send(index)
        program = program_of(seed, index)
        if fails(program, device):
            small = shrink(program, lambda p: _sound(p) and fails(p, device) is not None)
            connection.send((index, fails(small, device), small.script()))
    connection.send(None)


def _sound(program: Program) -> bool:
    """Whether no statement lacks a name that an earlier one should have made."""
    return "NameError" not in run(program, "cpu").errors.values()


class Campaign:
    """Programs 0 to `count` of `seed`, spread over worker processes."""

    def __init__(self, device: str, seed: int, count: int, console: Console) -> None:
        self._device, self._seed, self._count, self._console = device, seed, count, console
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.fuzz.campaign"])
        self.failures = 0

    def run(self, workers: int) -> None:
        live = {self._start(i, workers): i for i in range(workers)}  # the index that each is at
        with Progress(console=self._console) as progress:
            bar = progress.add_task("programs", total=self._count)
            while live:
                for connection in [x for x in wait(list(live)) if isinstance(x, Connection)]:
                    message = self._receive(connection)
                    if isinstance(message, int):
                        live[connection] = message
                        progress.advance(bar)
                    elif isinstance(message, tuple):
                        self._show(*message)
                    else:
                        index = live.pop(connection)
                        if message == "crash":
                            self._show(index, "the process crashed", self._script(index))
                            live[self._start(index + workers, workers)] = index + workers

    def _start(self, first: int, step: int) -> Connection:
        ours, theirs = self._context.Pipe()
        indices = range(first, self._count, step)
        arguments = (theirs, self._device, self._seed, indices)
        self._context.Process(target=_check, args=arguments, daemon=True).start()
        theirs.close()
        return ours

    @staticmethod
    def _receive(connection: Connection) -> object:
        try:
            return connection.recv()
        except EOFError:
            return "crash"

    def _script(self, index: int) -> str:
        return program_of(self._seed, index).script() if index < self._count else ""

    def _show(self, index: int, difference: str, script: str) -> None:
        self.failures += 1
        self._console.rule(f"program {index} of seed {self._seed}")
        self._console.print(difference + "\n" + script, markup=False, highlight=False)
