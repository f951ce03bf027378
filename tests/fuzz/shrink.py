"""Making a failing program small."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.program import Program, difference, run


def fails(program: Program, device: str) -> str | None:
    """How `program` on `device` differs from the CPU, or None."""
    expected = run(program, "cpu")
    try:
        return difference(program, run(program, device), expected)
    except Exception as error:  # reading a result back failed
        return f"{type(error).__name__}: {error}"


def shrink(program: Program, failing: Callable[[Program], bool]) -> Program:
    """Drop statements while `failing` holds, the last ones first."""
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(program.lines))):
            smaller = Program(program.lines[:index] + program.lines[index + 1 :], program.inexact)
            if failing(smaller):
                program, changed = smaller, True
    return program
