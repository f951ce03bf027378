"""How many programs loops make whose data changes and whose work does not. Exits 1 when it is too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.timing import arguments, write_json
from benchmarks.training import BATCH, WIDTHS


def programs() -> int:
    """Programs made so far in this process, whether compiled or read from the disk cache."""
    import torch

    counters = torch.get_device_module("tpu").metrics.snapshot()
    return counters["programs_compiled"] + counters["disk_hits"]


def count(function: Callable[[], object]) -> int:
    """Programs that a call of `function` makes."""
    before = programs()
    function()
    return programs() - before


def training_loop(batches: list[int]) -> Callable[[int], None]:
    """A function of the step's number: one step of an MLP whose learning rate and batch size vary."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(WIDTHS[0], 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
    images = torch.rand(BATCH, WIDTHS[0], device="tpu")
    labels = torch.arange(BATCH, device="tpu") % 10

    def step(i: int) -> None:
        size = batches[i % len(batches)]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[:size]), labels[:size])
        loss.backward()
        optimizer.step()
        schedule.step()

    return step


def changing_rate() -> tuple[str, int, int]:
    step = training_loop([BATCH])
    for i in range(3):
        step(i)
    made = count(lambda: [step(i) for i in range(100)])
    return "100 training steps, a new learning rate each, after 3 to warm up", made, 0


def indexing() -> tuple[str, int, int]:
    import torch

    x = torch.rand(1000, 8, device="tpu")
    s = torch.zeros(8, device="tpu")

    def loop() -> None:
        nonlocal s
        for i in range(1000):
            s += x[i]

    made = count(loop)
    torch.testing.assert_close(s, x.sum(0), rtol=1e-4, atol=1e-3)
    return "for i in range(1000): s += x[i]", made, 3


def last_batch() -> tuple[str, int, int]:
    step = training_loop([BATCH, BATCH, 17])
    for i in range(2):
        step(i)
    step(2)  # the set of programs for the smaller batch, once
    made = count(lambda: [step(i) for i in range(30)])
    return "ten more epochs whose last batch is smaller, after the first", made, 0


def numbers() -> tuple[str, int, int]:
    import torch

    def loop() -> None:
        for i in range(100):
            (torch.ones(4, device="tpu") * (0.5 + i)).add_(i, alpha=0.1 * i)

    return "100 times x * number, add_(number, alpha=number)", count(loop), 3


def main() -> None:
    options = arguments(__doc__, rounds=1)
    rows: list[Any] = [case() for case in (changing_rate, indexing, last_batch, numbers)]
    grid = Table("loop", "programs", "at most", title="Programs made")
    for name, made, limit in rows:
        grid.add_row(escape(name), f"[{'green' if made <= limit else 'bold red'}]{made}", str(limit))
    Console().print(grid)
    write_json(options.json, [{"loop": name, "programs": made, "limit": limit} for name, made, limit in rows])
    if any(made > limit for _, made, limit in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
