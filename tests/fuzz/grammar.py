"""Writing a program, statement by statement, while running it on the CPU.

Shapes, dtypes and numbers come from small sets, so that many programs share the compiled programs
of a device. A statement whose meaning PyTorch leaves undefined (a write through overlapping memory
that PyTorch does not detect, rounding that decides a comparison) is not written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.fuzz.program import Program, step, tensors_in

#: Draws an integer in [0, n).
Pick = Callable[[int], int]

SHAPES = ((6,), (4, 6), (2, 3, 4), (2, 3, 2, 2), (), (0, 3), (1, 4))
DTYPES = ("float32", "float32", "float32", "int64", "int64", "int32", "bool", "complex64")
LIMIT = 1e4


class State:
    """The program so far, its tensors on the CPU, and draws."""

    def __init__(self, pick: Pick) -> None:
        self.pick, self.program = pick, Program([])
        self.names: dict[str, Any] = {"torch": torch, "D": "cpu"}
        self.floats: set[int] = set()  # storages made for floats: their integer views are bit patterns
        self.inexact: set[int] = set()  # storages whose floats the device may round differently

    def choose(self, options: Any) -> Any:
        """One of `options`; raises IndexError when there is none."""
        options = list(options)
        return options[self.pick(len(options)) if options else 0]

    def tensors(self) -> dict[str, torch.Tensor]:
        return tensors_in(self.names)

    def tensor(self, accept: Callable[[torch.Tensor], bool] = lambda x: True) -> tuple[str, torch.Tensor]:
        """One of the tensors that `accept` takes; raises IndexError when there is none."""
        found = [(k, x) for k, x in self.tensors().items() if accept(x)]
        if not found:
            raise IndexError("no such tensor")
        return found[self.pick(len(found))]

    def do(self, line: str, target: str, *reads: torch.Tensor, rounds: bool = False) -> None:
        """Add a statement that makes or writes `target` from `reads`, and run it.

        rounds: its results may be rounded differently on another device.
        """
        if step(line, self.names) is None and isinstance(self.names.get(target), torch.Tensor):
            # The CPU's vectorized and plain kernels disagree on the signs of zeros in -z.
            rounds = rounds or ("neg" in line and self.names[target].is_complex())
            self._note(self.names[target], rounds or not all(map(self.exact, reads)))
        self.program.lines.append(line)

    def _note(self, x: torch.Tensor, rounds: bool) -> None:
        if x.is_floating_point() or x.is_complex():
            if all(storage(y) != storage(x) or y is x for y in self.tensors().values()):
                self.floats.add(storage(x))
            if rounds:
                self.inexact.add(storage(x))

    def fresh(self) -> str:
        return f"t{sum(k[0] == 't' and k[1:].isdigit() for k in self.names)}"

    def exact(self, x: torch.Tensor) -> bool:
        return storage(x) not in self.inexact

    def number(self, x: torch.Tensor) -> bool:
        """Whether arithmetic on `x` is arithmetic: not a bit pattern, and of moderate size."""
        bits = storage(x) in self.floats and not (x.is_floating_point() or x.is_complex())
        wild = x.numel() > 0 and x.dtype.is_floating_point and not bool((x.abs() < LIMIT).all())
        return not bits and not wild

    def finish(self) -> Program:
        kept = {k for k, x in self.tensors().items() if not self.exact(x)}
        return Program(self.program.lines, kept)


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def cells(x: torch.Tensor) -> list[int]:
    """The byte addresses of the elements, in order, relative to the storage."""
    where = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        where = (where[:, None] + torch.arange(size) * stride).flatten()
    return [(x.storage_offset() + i) * x.element_size() for i in where.tolist()]


def writable(x: torch.Tensor) -> bool:
    """Whether each element has memory of its own."""
    where = cells(x)
    return len(set(where)) == len(where)


def apart(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `x` and `y` share no memory."""
    if storage(x) != storage(y):
        return True
    size = max(x.element_size(), y.element_size())
    return not {i // size for i in cells(x)} & {i // size for i in cells(y)}


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `x` and `y` are the same elements of the same memory."""
    return (storage(x), x.dtype, x.shape, x.stride(), x.storage_offset()) == (
        storage(y), y.dtype, y.shape, y.stride(), y.storage_offset()
    )  # fmt: skip


def write(pick: Pick, length: int) -> Program:
    """A random program of at most `length` statements after its first tensor."""
    from tests.fuzz.statements import KINDS, make

    state = State(pick)
    with torch.no_grad():
        make(state)
        for _ in range(length):
            kind = state.choose(KINDS)
            try:
                kind(state)
            except IndexError:  # no tensor to which this applies
                continue
    return state.finish()
