"""Resident memory: does a thousand steps of training make it grow, and what a step needs at its peak."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import (
    KEPT,
    PLAIN,
    arguments,
    fresh_process,
    memory,
    peak_memory,
    reset_peak_memory,
    write_json,
)
from benchmarks.training import torch_step

STEPS = 1000
EVERY = 100
MIB = 2**20


def growth(device: str) -> list[int]:
    """Resident bytes after every 100 steps of the MLP."""
    step = torch_step(device)
    samples = []
    for i in range(1, STEPS + 1):
        step().item()
        if i % EVERY == 0:
            samples.append(memory())
    return samples


def peak(device: str) -> int:
    """Bytes that three training steps of a conv net on large images add at their peak."""
    import torch
    from torch import nn

    torch.ones(4, device=device).sum().item()  # libraries and threads are no part of a step
    before = memory()
    reset_peak_memory()
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.rand(16, 3, 224, 224).to(device)
    labels = (torch.arange(16) % 10).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
    return peak_memory() - before


def main() -> None:
    options = arguments(__doc__, rounds=1)
    environments: dict[str, Any] = {
        "cpu": PLAIN,
        "cpu, memory kept": PLAIN | KEPT,
        "tpu": {},
        "tpu, memory kept": {"TORCH_TPU_KEEP_MEMORY": "1"},
    }
    samples = {name: fresh_process(growth, name[:3], env=env) for name, env in environments.items()}
    peaks = {name: fresh_process(peak, name[:3], env=env) for name, env in environments.items()}
    grown = Table(
        "", f"after step {EVERY}", f"after step {STEPS}", "growth", title="MLP, resident memory (MiB)"
    )
    for name, values in samples.items():
        first, last = values[0] / MIB, values[-1] / MIB
        grown.add_row(name, f"{first:.1f}", f"{last:.1f}", f"{last - first:+.1f}")
    largest = Table("", "MiB", "times cpu", title="Conv net training step, peak above the start")
    for name, value in peaks.items():
        largest.add_row(name, f"{value / MIB:.0f}", f"{value / peaks['cpu']:.2f}x")
    Console().print(grown, largest)
    write_json(options.json, {"growth": samples, "peak": peaks})


if __name__ == "__main__":
    main()
