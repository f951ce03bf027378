"""python -m tests.opinfo --report report.json: see the package's docstring."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from tests.opinfo.page import write_page
from tests.opinfo.report import Report, show, write_html
from tests.opinfo.runner import Runner, Task
from tests.opinfo.worker import cases


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [x for x in text.split(",") if x]

    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description="PyTorch's OpInfo samples.")
    parser.add_argument("--report", type=Path, required=True, help="JSON file; a rerun continues it")
    parser.add_argument("--html", type=Path, help="also write a page")
    parser.add_argument("--docs", type=Path, help="also write docs/ops.md")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--ops", type=words, default=[], help="comma-separated names in op_db; default all")
    parser.add_argument("--dtypes", type=words, default=[], help="such as float32,int64; default all")
    parser.add_argument("--variants", type=words, default=[], help="such as forward,backward; default all")
    parser.add_argument("--max-samples", type=int, default=12, help="samples a case, evenly chosen")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a case may take")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="every N-th task, from the I-th")
    parser.add_argument("--rerun-failed", action="store_true", help="run recorded failures again")
    parser.add_argument("--summary", action="store_true", help="print what the report holds; run nothing")
    return parser.parse_args()


def _tasks(options: argparse.Namespace, report: Report) -> list[Task]:
    """What is asked for and not yet in the report."""

    def open_case(op: str, dtype: str, variant: str) -> bool:
        known = report.results.get((op, dtype, variant))
        return known is None or (options.rerun_failed and known["status"] == "fail")

    shard, shards = map(int, options.shard.split("/"))
    chosen = list(cases(options.ops, options.dtypes, options.variants))[shard::shards]
    left = [(op, dtype, [v for v in vs if open_case(op, dtype, v)]) for op, dtype, vs in chosen]
    return [task for task in left if task[2]]


def main() -> None:
    options = _arguments()
    console = Console()
    report = Report(options.report, options.device)
    if not options.summary:
        runner = Runner(report, options.device, options.max_samples, options.timeout)
        runner.run(_tasks(options, report), options.workers)
    show(report, console)
    if options.html:
        write_html(report, options.html)
    if options.docs:
        write_page(report, options.docs)


if __name__ == "__main__":
    main()
