"""The command: watches workers, restarts them behind what aborted, and shows what does not compile."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.aot.worker import statements


def watch(topology: str, progress: Progress) -> dict[str, str]:
    """The error by program ("" where it compiled)."""
    found: dict[str, str] = {}
    total = len(statements())
    task = progress.add_task("compiling", total=total)
    first, done = 0, False
    while not done:
        command = [sys.executable, "-m", "tests.aot.worker", topology, str(first)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                if not line.startswith("{"):
                    continue
                fields = json.loads(line)
                done = done or "done" in fields
                first = fields.get("statement", first)
                progress.update(task, completed=first)
                if "program" in fields:
                    name, error = fields["program"], fields.get("error", "")
                    found[name] = found.get(name) or error
        if not done:
            found[statements()[first]] = f"the process ended with {worker.returncode}"
            first += 1
            done = first >= total
    progress.update(task, completed=total)
    return found


def main() -> int:
    """Returns the number of programs that do not compile, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.aot", description=__doc__)
    parser.add_argument("--topology", default="v5e:1x1", help="v5e:1x1, v6e:1x1, v5p:1x1x1, tpu7x:1x1x1")
    topology = parser.parse_args().topology
    console = Console()
    if importlib.util.find_spec("libtpu") is None:
        console.print("libtpu is not installed: pip install 'libtpu==0.0.42.1' (about 700 MB)")
        return 2
    with Progress(console=console) as progress:
        found = watch(topology, progress)
    failed = {name: error for name, error in found.items() if error}
    table = Table("program", "error", title=f"do not compile for {topology}")
    for name, error in sorted(failed.items()):
        table.add_row(name, error)
    if failed:
        console.print(table)
    console.print(f"{len(found) - len(failed)} of {len(found)} programs compile for {topology}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
