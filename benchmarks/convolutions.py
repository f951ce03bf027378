"""The convolutions of ResNet-18 (batch 4, 224x224 and 32x32 images) and their gradients: CPU and tpu."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import KEPT, PLAIN, Candidate, Cases, Result, arguments, compare, write_json

BATCH = 4
#: (input channels, image, kernel, stride, output channels) of each kind of layer.
LAYERS = (
    (3, 224, 7, 2, 64),
    (64, 56, 3, 1, 64),
    (64, 56, 3, 2, 128),
    (64, 56, 1, 2, 128),
    (128, 28, 3, 1, 128),
    (128, 28, 3, 2, 256),
    (256, 14, 3, 1, 256),
    (256, 14, 3, 2, 512),
    (512, 7, 3, 1, 512),
    (3, 32, 7, 2, 64),
    (64, 8, 3, 1, 64),
    (128, 4, 3, 1, 128),
    (256, 2, 3, 1, 256),
    (256, 2, 3, 2, 512),
    (512, 1, 3, 1, 512),
)
PARTS = ("forward", "by the image", "by the kernel")


def _name(layer: tuple[int, ...], part: str) -> str:
    channels, size, kernel, stride, out = layer
    return f"{channels} x {size}x{size}, {kernel}x{kernel} / {stride} -> {out}|{part}"


def _layer(layer: tuple[int, ...], device: str) -> Cases:
    import torch

    channels, size, kernel, stride, out = layer
    x = torch.randn(BATCH, channels, size, size).to(device)
    w = torch.randn(out, channels, kernel, kernel).to(device)
    geometry: tuple[Any, ...] = ([stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1)
    grad = torch.ops.aten.convolution(x, w, None, *geometry)

    def run(function: Callable[[], object]) -> None:
        function()
        if device != "cpu":
            torch.accelerator.synchronize()

    backward = functools.partial(torch.ops.aten.convolution_backward, grad, x, w, None, *geometry)
    work = (
        functools.partial(torch.ops.aten.convolution, x, w, None, *geometry),
        functools.partial(backward, [True, False, False]),
        functools.partial(backward, [False, True, False]),
    )
    return {_name(layer, p): functools.partial(run, f) for p, f in zip(PARTS, work, strict=True)}


def _all(device: str) -> Cases:
    return {name: run for layer in LAYERS for name, run in _layer(layer, device).items()}


def cpu() -> Cases:
    return _all("cpu")


def tpu() -> Cases:
    return _all("tpu")


def main() -> None:
    options = arguments(__doc__, rounds=9)
    candidates = [Candidate("CPU eager", "cpu", {**PLAIN, **KEPT}), Candidate("tpu Strict", "tpu", KEPT)]
    results = compare("benchmarks.convolutions", candidates, options.rounds, options.cores)
    Console().print(_table(*results))
    write_json(options.json, results)


def _table(theirs: Result, ours: Result) -> Table:
    grid = Table("layer", title="Convolutions: tpu, ms (x: times CPU eager)", title_justify="left")
    for part in PARTS:
        grid.add_column(part, justify="right")
    for layer in LAYERS:
        names = [_name(layer, part) for part in PARTS]
        medians = [(ours.median(x), theirs.median(x)) for x in names]
        grid.add_row(names[0].split("|")[0], *(f"{a * 1e3:.2f}  {a / b:.2f}x" for a, b in medians))
    return grid


if __name__ == "__main__":
    main()
