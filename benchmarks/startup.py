"""What loading the device adds to `import torch`, and what the demo costs first and after that."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import PLAIN, arguments, environment, fresh_process, write_json

CHECK = "import torch, sys; assert 'jax' not in sys.modules, 'import torch loaded jax'"


def import_seconds(env: dict[str, str]) -> float:
    """Seconds of `import torch` in a new interpreter; raises when it prints something or loads jax."""
    with environment(env):
        started = time.perf_counter()
        output = subprocess.run([sys.executable, "-c", CHECK], check=True, capture_output=True, text=True)
    printed = output.stdout + output.stderr
    if printed:
        raise RuntimeError(f"import torch: expected no output, got {printed!r}")
    return time.perf_counter() - started


def demo() -> dict[str, Any]:
    """Runs the demo; its seconds, exit status and counters."""
    started = time.perf_counter()
    import torch

    from torch_tpu.tools import demo as job

    status = job.run("tpu", epochs=15)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "status": status} | torch.get_device_module("tpu").metrics.snapshot()


def main() -> None:
    options = arguments(__doc__, rounds=9)
    loads: dict[str, list[float]] = {"without": [], "with": []}
    import_seconds({})  # fills the page cache
    for _ in range(options.rounds):
        loads["without"].append(import_seconds(PLAIN))
        loads["with"].append(import_seconds({}))
    with TemporaryDirectory() as empty:
        runs = [fresh_process(demo, env={"TORCH_TPU_CACHE_DIR": empty}) for _ in range(2)]

    without, loaded = (statistics.median(loads[name]) for name in ("without", "with"))
    imports = Table("", "seconds", title=f"import torch, medians of {options.rounds} processes")
    imports.add_row("without the device", f"{without:.2f}")
    imports.add_row("with the device", f"{loaded:.2f}")
    imports.add_row("added", f"{loaded - without:+.2f}")
    demos = Table(
        "", "seconds", "ops", "compiled", "ms per compile", "from disk", "fallbacks", title="torch-tpu demo"
    )
    for name, run in zip(("empty cache", "second process"), runs, strict=True):
        compiled = run["programs_compiled"]
        each = f"{run['compile_seconds'] / compiled * 1e3:.0f}" if compiled else "-"
        counts = (str(run["ops"]), str(compiled), each, str(run["disk_hits"]), str(len(run["fallbacks"])))
        demos.add_row(name, f"{run['seconds']:.1f}", *counts)
    Console().print(imports, demos)
    write_json(options.json, {"import": loads, "demo": runs})


if __name__ == "__main__":
    main()
