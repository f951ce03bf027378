"""docs/ops.md: every op of PyTorch's op_db, what serves it, and where it differs."""

from __future__ import annotations

import collections
import textwrap
from pathlib import Path
from typing import Any

from tests.opinfo.report import Key, Report, cost
from tests.opinfo.worker import cases

#: Columns of the table, and the variants that each sums up.
COLUMNS = {
    "forward": (
        *("forward", "noncontiguous", "channels_last", "conj", "neg"),
        *("method", "operator", "reference"),
    ),
    "backward": ("backward",),
    "in-place": ("inplace",),
    "out=": ("out",),
    "errors": ("error",),
}
#: Why an op falls back or fails, where there is a reason that holds.
REASONS = {
    "linalg.eig": "LAPACK driver; XLA has none for nonsymmetric matrices",
    "linalg.eigvals": "LAPACK driver; XLA has none for nonsymmetric matrices",
    "linalg.ldl_factor": "LAPACK driver; XLA has no Bunch-Kaufman factorisation",
    "linalg.ldl_factor_ex": "LAPACK driver; XLA has no Bunch-Kaufman factorisation",
    "linalg.ldl_solve": "LAPACK driver; XLA has no Bunch-Kaufman factorisation",
    "sparse.mm.reduce": "a reduction per row of a compressed tensor: on the CPU",
    "complex": "float16: the result is complex32, which XLA lacks",
    "native_layer_norm": "16-bit floats: statistics are float32, as on CUDA",
    "native_batch_norm": "16-bit floats: statistics are float32, as on CUDA",
    "_native_batch_norm_legit": "16-bit floats: statistics are float32, as on CUDA; out= on the CPU",
    "_batch_norm_with_update": "16-bit floats: statistics are float32, as on CUDA",
    "matrix_exp": "16-bit floats: the CPU's intermediate values overflow, ours do not",
    "special.bessel_j0": "float64: the CPU is off by up to 8e-7",
    "special.bessel_y1": "float64: the CPU is off by up to 8e-7",
}

_HEAD = """# Ops

Every entry of PyTorch's `op_db` and `python_ref_db` ({torch}; the second in the totals only), compared
with the CPU at PyTorch's own tolerances. Written by
`python -m tests.opinfo --report report.json --docs docs/ops.md`.

**served by**: *lowering*, a function of its own; *decomposition*, traced once through PyTorch's
decompositions to one program; *host*, several programs around one synchronisation, because a shape depends
on data; *PyTorch*, its own kernel without a program (views, factories); *CPU*, a fallback. **forward**
includes non-contiguous, channels_last, conj and neg inputs, methods and operators, and the inputs that
PyTorch keeps for its reference tests. **errors**: bad input raises what PyTorch's tests expect. A cell has
the number of dtypes that pass, and names those that do not. "-": PyTorch has no such form, or the CPU none
to compare with.
"""


def write_page(report: Report, path: Path) -> None:
    cells: dict[tuple[str, str], dict[str, bool]] = collections.defaultdict(dict)
    for (op, dtype, variant), result in report.results.items():
        column = next(c for c, variants in COLUMNS.items() if variant in variants)
        if result["status"] != "skip":
            passed = result["status"] == "pass"
            cells[op, column][dtype] = passed and cells[op, column].get(dtype, True)
    lines = [_HEAD.format(torch=f"PyTorch {report.torch}"), *_totals(report)]
    lines += ["| op | served by | " + " | ".join(COLUMNS) + " | note |", "| --- " * (len(COLUMNS) + 3) + "|"]
    for op in sorted({key[0] for key in report.results if not key[0].startswith("_refs.")}):
        row = [_cell(cells[op, column]) for column in COLUMNS]
        lines.append(f"| {op} | {_served(report, op)} | {' | '.join(row)} | {_note(report, op)} |")
    path.write_text("\n".join(lines) + "\n")


def _totals(report: Report) -> list[str]:
    ran = {k: r for k, r in report.results.items() if r["status"] != "skip"}
    passed = sum(r["status"] == "pass" for r in ran.values())
    by_cpu = sorted({k[0] for k, r in ran.items() if r.get("fallbacks") and not _is_complex32(k)})
    strides = sum("strides" in r for r in ran.values())
    samples = sum(r["samples"] for r in ran.values())
    if not ran:
        return ["Nothing was run.", ""]
    text = (
        f"{passed:,} of {len(ran):,} cases (op, dtype, variant), with {samples:,} samples in all, pass: "
        f"{100 * passed / len(ran):.2f} %. "
        f"{strides:,} of them have other strides. {len(by_cpu)} of {len({k[0] for k in ran})} ops fall back "
        f"to the CPU for some dtype other than complex32: {', '.join(by_cpu) or 'none'}."
    )
    return [*textwrap.wrap(f"{text} {cost(report)}", 120), "", *textwrap.wrap(_not_run(report), 120), ""]


def _not_run(report: Report) -> str:
    """What `op_db` has and the report has not, by dtype."""
    missing: collections.Counter[str] = collections.Counter()
    for op, dtype, variants in cases([], [], []):
        missing[dtype] += sum((op, dtype, variant) not in report.results for variant in variants)
    named = [f"{dtype} {count:,}" for dtype, count in missing.most_common() if count]
    if not named:
        return "Every case was run."
    return f"Not run for this page, {missing.total():,} cases: {', '.join(named)}."


def _is_complex32(key: Key) -> bool:
    return key[1] == "complex32"


def _cell(dtypes: dict[str, bool]) -> str:
    if not dtypes:
        return "-"
    failed = sorted(d for d, passed in dtypes.items() if not passed)
    return f"{len(dtypes) - len(failed)}" + (f", not {', '.join(failed)}" if failed else "")


def _served(report: Report, op: str) -> str:
    kinds: set[str] = set()
    for key, result in _of(report, op).items():
        if not _is_complex32(key):
            kinds |= set(result.get("served", ())) | ({"CPU"} if result.get("fallbacks") else set())
    return ", ".join(sorted(kinds - {"PyTorch"} or kinds))


def _note(report: Report, op: str) -> str:
    results = _of(report, op)
    failed = [r["error"] for r in results.values() if r["status"] == "fail"]
    falls = any(r.get("fallbacks") and not _is_complex32(k) for k, r in results.items())
    if op in REASONS and (failed or falls):
        return REASONS[op]
    return failed[0][:90].replace("|", "\\|").replace("\n", " ") if failed else ""


def _of(report: Report, op: str) -> dict[Key, dict[str, Any]]:
    return {k: r for k, r in report.results.items() if k[0] == op}
