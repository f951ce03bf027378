"""The main job on real input: a sentence-embedding model, and a conv net trained on digits.

Both parts are ordinary PyTorch; the device is one word. The command ends with what the device did.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from torch_tpu.tools.demo import digits, embeddings

TARGET_ACCURACY = 0.97
TOLERANCE = 1e-4  # largest difference of a normalised embedding from the CPU's


def run(device: str, epochs: int) -> int:
    """Runs both parts on `device`; returns the exit status: 0 when every promise of the demo held."""
    console = Console()
    torch.manual_seed(0)
    started = time.perf_counter()
    console.rule(f"1. all-MiniLM-L6-v2 on device {device}")
    difference = embeddings.run(device, console)
    embedded = time.perf_counter()
    console.rule(f"2. a conv net learns handwritten digits on device {device}")
    accuracy = digits.run(device, epochs, console)
    trained = time.perf_counter()

    counters = torch.get_device_module("tpu").metrics.snapshot() if device.startswith("tpu") else {}
    console.print(_summary(device, embedded - started, trained - embedded, difference, accuracy, counters))
    console.print(_next_steps())
    broken = _broken_promises(difference, accuracy, counters)
    for promise in broken:
        console.print(f"[bold red]failed:[/] {promise}")
    return 1 if broken else 0


def _broken_promises(difference: float, accuracy: float, counters: dict[str, Any]) -> list[str]:
    broken = []
    if difference > TOLERANCE:
        broken.append(f"embeddings differ from the CPU's by {difference:.2e}, more than {TOLERANCE:.0e}")
    if accuracy <= TARGET_ACCURACY:
        broken.append(f"test accuracy {accuracy:.2%} is not above {TARGET_ACCURACY:.0%}")
    if counters.get("fallbacks"):
        broken.append(f"ops that ran on the CPU: {', '.join(sorted(counters['fallbacks']))}")
    return broken


def _summary(
    device: str,
    embedding_seconds: float,
    training_seconds: float,
    difference: float,
    accuracy: float,
    counters: dict[str, Any],
) -> Table:
    table = Table(title="What happened", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("device", _describe(device))
    table.add_row("seconds", f"{embedding_seconds:.1f} embeddings, {training_seconds:.1f} training")
    table.add_row("largest difference from the CPU", f"{difference:.1e}")
    table.add_row("test accuracy", f"{accuracy:.2%}")
    if counters:
        table.add_row("ops dispatched", f"{counters['ops']:,}")
        made = f"{counters['programs_compiled']} compiled, {counters['disk_hits']} from disk"
        table.add_row("programs", f"{made}, in {counters['compile_seconds']:.1f} s")
        fallbacks = counters["fallbacks"]
        table.add_row("CPU fallbacks", ", ".join(f"{op} x{n}" for op, n in fallbacks.items()) or "none")
    return table


def _describe(device: str) -> str:
    if not device.startswith("tpu"):
        return device
    from torch_tpu.runtime import client

    return f"{torch.device(device)} (PJRT platform: {client.platform()})"


def _next_steps() -> Panel:
    return Panel(
        "torch-tpu demo                     once more: nothing is compiled again\n"
        'your own script                    with "cuda" changed to "tpu"\n'
        "torch.tpu.metrics.report()         what a script made the device do\n"
        'torch.tpu.set_eager_mode("debug")  errors that name the op and the line\n'
        "TORCH_TPU_LOG=compiles python ...  why each program was compiled",
        title="Try next",
        title_align="left",
        expand=False,
    )
