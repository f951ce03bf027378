"""Running a program on a device, what is seen of it afterwards, and comparing two such sights."""

from __future__ import annotations

import dataclasses
import functools
from types import CodeType
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass
class Program:
    """lines: statements in order. inexact: tensors whose numbers are compared closely, not exactly."""

    lines: list[str]
    inexact: set[str] = dataclasses.field(default_factory=set)

    def script(self) -> str:
        """The program as a script that prints each tensor."""
        body = "\n".join(self.lines)
        return f'import torch\nD = "tpu"\n{body}\nfor k, v in sorted(globals().items()):\n    ' + (
            'if k[0] == "t" and k[1:].isdigit():\n        print(k, v.stride(), v.storage_offset(), v)'
        )


@dataclasses.dataclass
class Sight:
    """What a program left: its tensors, and the exception type of each statement that raised."""

    tensors: Tensors
    errors: dict[int, str]


@functools.lru_cache(maxsize=65536)
def _code(line: str) -> CodeType:
    return compile(line, "<program>", "exec")


def step(line: str, names: dict[str, Any]) -> str | None:
    """Run one statement; returns the name of the exception type that it raised."""
    try:
        exec(_code(line), names)
    except Exception as error:
        return type(error).__name__
    return None


def run(program: Program, device: str) -> Sight:
    names: dict[str, Any] = {"torch": torch, "D": device}
    errors = {}
    with torch.no_grad():
        for index, line in enumerate(program.lines):
            raised = step(line, names)
            if raised:
                errors[index] = raised
    return Sight(tensors_in(names), errors)


def tensors_in(names: dict[str, Any]) -> Tensors:
    return {k: v for k, v in names.items() if isinstance(v, torch.Tensor)}


def difference(program: Program, actual: Sight, expected: Sight) -> str | None:
    """The first difference between two sights of `program`, or None."""
    if actual.errors != expected.errors:
        return f"statements that raise: {actual.errors}, expected {expected.errors}"
    for name, theirs in expected.tensors.items():
        ours = actual.tensors[name]
        if _facts(ours) != _facts(theirs):
            return f"{name}: {_facts(ours)}, expected {_facts(theirs)}"
        if not _equal(ours.cpu(), theirs, name in program.inexact):
            return f"{name}: {ours.cpu().tolist()}, expected {theirs.tolist()}"
    if _aliases(actual.tensors) != _aliases(expected.tensors):
        return f"aliases {_aliases(actual.tensors)}, expected {_aliases(expected.tensors)}"
    return None


def _facts(x: torch.Tensor) -> dict[str, Any]:
    strides = [s if n > 1 and x.numel() else None for n, s in zip(x.shape, x.stride(), strict=True)]
    return {
        "dtype": x.dtype,
        "shape": tuple(x.shape),
        "strides": strides,
        "offset": x.storage_offset(),
        "version": x._version,
        "conj": x.is_conj(),
        "neg": x.is_neg(),
    }


def _equal(ours: torch.Tensor, theirs: torch.Tensor, inexact: bool) -> bool:
    ours, theirs = ours.resolve_conj().resolve_neg(), theirs.resolve_conj().resolve_neg()
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return inexact or torch.equal(ours, theirs)  # inexact: the bits of rounded floats
    if not inexact:
        return torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True)
    size = theirs.abs().nan_to_num(0, 0, 0).max().item() if theirs.numel() else 0.0
    return torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * max(1.0, size), equal_nan=True)


def _aliases(tensors: Tensors) -> list[list[str]]:
    """Names grouped by the storage that they share."""
    groups: dict[int, list[str]] = {}
    for name, x in sorted(tensors.items()):
        groups.setdefault(x.untyped_storage()._cdata, []).append(name)
    return sorted(groups.values())
