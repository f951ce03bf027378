"""Warnings that PyTorch's kernels give whatever their input: its own, from a call on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

aten = torch.ops.aten


def _index_reduce() -> None:
    aten.index_reduce(torch.zeros(1), 0, torch.zeros(1, dtype=torch.int64), torch.zeros(1), "prod")


_CALLS: dict[str, Callable[[], object]] = {
    "aten::cholesky": lambda: aten.cholesky(torch.ones(1, 1)),
    "aten::index_reduce": _index_reduce,
    "aten::triangular_solve": lambda: aten.triangular_solve(torch.ones(1, 1), torch.ones(1, 1)),
}


def repeat(name: str | None) -> None:
    """Warn as the CPU does of the functional op `name`: once in a process, as PyTorch counts."""
    call = _CALLS.get(name or "")
    if call is not None:
        call()
