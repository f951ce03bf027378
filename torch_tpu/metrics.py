"""`torch.tpu.metrics`: counters of everything that costs.

torch.tpu.metrics.snapshot()   # a dict
torch.tpu.metrics.report()     # a table
torch.tpu.metrics.reset()
"""

from __future__ import annotations

import sys
from typing import Any

from torch_tpu import _C

__all__ = ["programs", "report", "reset", "snapshot"]

_first_program = 0  # of the runtime's records, since the last reset


def snapshot() -> dict[str, Any]:
    """All counters since the last reset.

    ops: op calls that reached the device. plan_hits, plan_misses: by their plans. programs_run: executions.
    programs_dropped: programs unloaded, as a process can hold only so many; loaded again when called.
    programs_compiled, compile_seconds: by XLA in this process, tracing included. disk_hits: programs loaded
    from the on-disk cache. fallbacks: {op: calls that ran on the CPU}. synchronizations: times the host
    waited for the device; synchronization_lines: {(file, line): times}. bytes_to_device, bytes_from_device:
    moved by copies. values_shared: copies that cost nothing, as they share a Value. values_copied: Values
    copied before donation.
    """
    result: dict[str, Any] = _C.metrics_snapshot()
    lines = result.pop("synchronizations")
    records = _records()
    result["synchronizations"] = sum(lines.values())
    result["synchronization_lines"] = lines
    result["programs_compiled"] = sum(r.source == "compiled" for r in records)
    result["disk_hits"] = sum(r.source == "disk" for r in records)
    result["compile_seconds"] = sum(r.trace_s + r.xla_s for r in records)
    return result


def programs() -> list[Any]:
    """Each program made ready since the last reset: name, trace_s and xla_s (seconds), source."""
    return list(_records())


def reset() -> None:
    """Set all counters to zero. Plans and programs stay."""
    global _first_program
    _C.metrics_reset()
    _first_program += len(_records())


def _records() -> list[Any]:
    compiler = sys.modules.get("torch_tpu.runtime.compiler")  # not loaded before the first program
    return compiler.stats.records[_first_program:] if compiler is not None else []


def report() -> None:
    """Print the counters as a table, with fallbacks by op and synchronisations by Python line."""
    from rich.console import Console
    from rich.table import Table

    counters = snapshot()
    table = Table("counter", "value", title="torch.tpu.metrics")
    lines = counters.pop("synchronization_lines")
    fallbacks = counters.pop("fallbacks")
    for name, value in counters.items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else f"{value:,}")
    table.add_row("fallbacks to the CPU", f"{sum(fallbacks.values()):,}")
    console = Console()
    if not console.is_terminal:
        console.width = 160  # paths with their lines
    console.print(table)
    for title, counts in (("fallbacks by op", fallbacks), ("synchronisations by line", lines)):
        if counts:
            detail = Table(title.split(" by ")[1], "times", title=title)
            for what, count in sorted(counts.items(), key=lambda item: -item[1])[:20]:
                detail.add_row(what if isinstance(what, str) else f"{what[0]}:{what[1]}", f"{count:,}")
            console.print(detail)
