"""One training step of an MLP (784-512-512-10, batch 64, SGD): time, first use, peak memory."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import KEPT, PLAIN, Candidate, Cases, Result, arguments, compare, table, write_json

WIDTHS = (784, 512, 512, 10)
BATCH = 64
LR = 0.01


def torch_step(device: str) -> Any:
    """A function that does one step on `device` and waits for it; returns the loss tensor."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, o in zip(WIDTHS, WIDTHS[1:], strict=False):
        layers += [nn.Linear(i, o), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    images = torch.rand(BATCH, WIDTHS[0]).to(device)
    labels = (torch.arange(BATCH) % WIDTHS[-1]).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            torch.accelerator.synchronize()
        return loss

    return step


def cpu() -> Cases:
    return {"step": torch_step("cpu")}


def tpu() -> Cases:
    return {"step": torch_step("tpu")}


def jax_jit() -> Cases:
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), len(WIDTHS))
    shapes = list(zip(WIDTHS, WIDTHS[1:], strict=False))
    state = [
        (jax.random.normal(k, s) * s[0] ** -0.5, jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=False)
    ]
    images = jax.random.uniform(keys[-1], (BATCH, WIDTHS[0]))
    labels = jnp.arange(BATCH) % WIDTHS[-1]

    def loss_of(parameters: Any) -> Any:
        x = images
        for i, (weight, bias) in enumerate(parameters):
            x = x @ weight + bias
            x = jax.nn.relu(x) if i < len(parameters) - 1 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()

    @jax.jit
    def update(parameters: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters)
        return jax.tree.map(lambda p, g: p - LR * g, parameters, gradients), loss

    def step() -> None:
        nonlocal state
        state, loss = update(state)
        loss.block_until_ready()
        state[0][0].block_until_ready()

    return {"step": step}


def main() -> None:
    options = arguments(__doc__, rounds=15)
    with TemporaryDirectory() as empty:
        candidates = [
            Candidate("CPU eager", "cpu", PLAIN),
            Candidate("CPU eager, memory kept", "cpu", {**PLAIN, **KEPT}),
            Candidate("jax.jit", "jax_jit", PLAIN),
            Candidate("tpu Strict", "tpu", {"TORCH_TPU_CACHE_DIR": empty}),
        ]
        results = compare("benchmarks.training", candidates, options.rounds, options.cores)
    Console().print(table("MLP training step", "ms", lambda _, seconds: seconds * 1e3, results))
    Console().print(_first_use(results))
    write_json(options.json, results)


def _first_use(results: list[Result]) -> Table:
    grid = Table(
        "", "first step (s)", "peak memory (MiB)", title="First use, empty cache", title_justify="left"
    )
    for result in results:
        grid.add_row(result.name, f"{result.first['step']:.2f}", f"{result.peak / 2**20:.0f}")
    return grid


if __name__ == "__main__":
    main()
