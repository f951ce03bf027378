"""The results of all cases in one JSON file, and what they amount to."""

from __future__ import annotations

import collections
import html
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Key = tuple[str, str, str]


class Report:
    """Results by (op, dtype, variant), kept in `path`. Saving replaces the file in one step."""

    def __init__(self, path: Path, device: str) -> None:
        self._path, self._saved = path, time.monotonic()
        self.results: dict[Key, dict[str, Any]] = {}
        self.torch = torch.__version__
        self._about = {"device": device, "torch": self.torch}
        if path.exists():
            data = json.loads(path.read_text())
            if {k: data.get(k) for k in self._about} != self._about:
                raise ValueError(f"{path} has results of another device or torch; give another --report")
            for text, result in data["results"].items():
                op, dtype, variant = text.split("|")
                self.add(op, dtype, variant, result)

    def add(self, op: str, dtype: str, variant: str, result: dict[str, Any]) -> None:
        self.results[op, dtype, variant] = result

    def save(self, every: float = 0.0) -> None:
        """Write the file, unless that was done in the last `every` seconds."""
        if time.monotonic() - self._saved < every:
            return
        data = {**self._about, "results": {"|".join(k): v for k, v in sorted(self.results.items())}}
        scratch = self._path.with_name(self._path.name + ".part")
        scratch.write_text(json.dumps(data, indent=0))
        os.replace(scratch, self._path)
        self._saved = time.monotonic()

    def select(self, dtype: str = "", variant: str = "") -> Iterator[tuple[Key, dict[str, Any]]]:
        for key, result in self.results.items():
            if dtype in ("", key[1]) and variant in ("", key[2]):
                yield key, result


def _row(label: str, results: list[dict[str, Any]]) -> list[str]:
    ran = [r for r in results if r["status"] != "skip"]
    passed = sum(r["status"] == "pass" for r in ran)
    share = f"{100 * passed / len(ran):.1f} %" if ran else ""
    strides, skipped = sum("strides" in r for r in ran), len(results) - len(ran)
    return [label, str(len(ran)), str(passed), share, str(strides), str(skipped)]


def _table(title: str, report: Report, part: int) -> Table:
    table = Table("", "cases", "pass", "share", "other strides", "skipped", title=title)
    for label in sorted({key[part] for key in report.results}):
        table.add_row(*_row(label, [r for k, r in report.results.items() if k[part] == label]))
    table.add_row(*_row("all", list(report.results.values())), style="bold")
    return table


def causes(report: Report) -> list[tuple[str, int, list[Key]]]:
    """Failures grouped by error text without its numbers: (text, number of cases, their keys)."""
    groups: dict[str, list[Key]] = collections.defaultdict(list)
    for key, result in report.results.items():
        if result["status"] == "fail":
            text = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", result["error"])
            groups[text if len(text) < 110 else f"{text[:80]} ... {text[-30:]}"].append(key)
    return sorted(((t, len(k), k) for t, k in groups.items()), key=lambda x: -x[1])


def cost(report: Report) -> str:
    """What the run compiled, and how long XLA took."""
    results = report.results.values()
    compiled = sum(r.get("compiled", 0) for r in results)
    xla, seconds = (sum(r.get(name, 0.0) for r in results) for name in ("compile_seconds", "seconds"))
    warned = sum("warning" in r for r in results)
    return (
        f"{compiled:,} programs compiled in {xla:,.0f} s, tracing included, of {seconds:,.0f} s in all. "
        f"{warned:,} cases warn otherwise than the CPU."
    )


def show(report: Report, console: Console) -> None:
    """Print the tables and the most frequent causes of failure."""
    console.print(_table("by variant", report, 2))
    console.print(_table("by dtype", report, 1))
    falls = collections.Counter(x for r in report.results.values() for x in r.get("fallbacks", ()))
    ops = {k[0] for k, r in report.results.items() if r.get("fallbacks")}
    if falls:
        names = ", ".join(f"{x} ({n})" for x, n in falls.most_common(40))
        console.print(f"{len(ops)} ops used a CPU fallback; ATen ops that fell back (cases): {names}")
    console.print(cost(report))
    table = Table("cases", "ops", "error", title="most frequent failures")
    for text, count, keys in causes(report)[:25]:
        table.add_row(str(count), ", ".join(sorted({k[0] for k in keys})[:4]), text.replace("[", r"\["))
    if table.row_count:
        console.print(table)
    forward = [r for _, r in report.select("float32", "forward")]
    console.print("ops whose float32 forward passes: {2} of {1} ({3})".format(*_row("", forward)))


_STYLE = """<meta charset="utf-8"><title>OpInfo</title><style>body{font:14px sans-serif}td,th{padding:1px 4px}
table{border-collapse:collapse}td{border:1px solid #ddd;font:11px monospace}.fail{color:#b00;font-weight:bold}
.skip{color:#999}.pass{color:#080}.fb{background:#fe9}</style>"""


def write_html(report: Report, path: Path) -> None:
    """One page: a row for each op, a column for each dtype, a letter for each variant."""
    dtypes = sorted({k[1] for k in report.results}, key=lambda d: (d != "float32", d))
    cells: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for (op, dtype, variant), result in sorted(report.results.items()):
        style = result["status"] + (" fb" if result.get("fallbacks") else "")
        reason = result.get("error") or result.get("reason") or result.get("strides")
        reason = reason or result.get("warning") or ""
        falls = ", ".join(result.get("fallbacks", ()))
        title = html.escape(f"{variant}: {result['status']} {reason} {falls}", quote=True)
        cells[op, dtype].append(f'<span class="{style}" title="{title}">{variant[:2]}</span>')
    head = "".join(f"<th>{d}" for d in ["op", *dtypes])
    ops = sorted({k[0] for k in report.results})
    rows = ("".join(f"<td>{x}" for x in [op, *(" ".join(cells[op, d]) for d in dtypes)]) for op in ops)
    path.write_text(f"{_STYLE}<table><tr>{head}" + "".join(f"<tr>{r}" for r in rows) + "</table>")
