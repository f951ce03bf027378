"""Microseconds per op: what one small op costs on device tpu, beside PyTorch's CPU and JAX.

A chain of 200 ops (add, mul, relu, tanh on 16x16), one of 50 matmuls (64x64), and `add; sum; item`.
Each chain ends with waiting for its result. "bare programs" runs the programs of Strict from Python with
nothing around them: what Strict takes beyond that is its recording of the op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from benchmarks.timing import PLAIN, Candidate, Cases, arguments, compare, table, write_json

OPS = {"200 small ops": 200, "50 matmuls": 50, "add; sum; item": 1}
CANDIDATES = [
    Candidate("CPU eager", "cpu", PLAIN),
    Candidate("tpu Strict", "tpu"),
    Candidate("bare programs", "bare"),
    Candidate("jax.jit per op", "jax_jit", PLAIN),
    Candidate("jax.numpy", "jax_numpy", PLAIN),
    Candidate("torchax", "torchax", PLAIN),
]


def chains(
    add: Callable[..., Any],
    mul: Callable[..., Any],
    relu: Callable[..., Any],
    tanh: Callable[..., Any],
    matmul: Callable[..., Any],
    total: Callable[[Any], float],
    wait: Callable[[Any], object],
    small: tuple[Any, Any],
    square: tuple[Any, Any],
) -> Cases:
    """The three cases over one library's functions and arrays."""

    def small_ops() -> None:
        x, y = small
        for _ in range(50):
            x = tanh(relu(mul(add(x, y), y)))
        wait(x)

    def matmuls() -> None:
        x, y = square
        for _ in range(50):
            x = matmul(x, y)
        wait(x)

    def item() -> None:
        total(small[0])

    return dict(zip(OPS, (small_ops, matmuls, item), strict=True))


def _torch_cases(device: str, wait: Callable[[Any], object]) -> Cases:
    import torch

    small = (torch.rand(16, 16, device=device), torch.rand(16, 16, device=device))
    square = (torch.rand(64, 64, device=device), torch.eye(64, device=device))
    return chains(
        torch.add,
        torch.mul,
        torch.relu,
        torch.tanh,
        torch.mm,
        lambda x: (x + 1).sum().item(),
        wait,
        small,
        square,
    )


def cpu() -> Cases:
    return _torch_cases("cpu", lambda x: None)


def tpu() -> Cases:
    import torch

    return _torch_cases("tpu", lambda x: torch.accelerator.synchronize())


def torchax() -> Cases:
    import torch

    packet = torch._ops.OpOverloadPacket
    lookup = packet.__getattr__

    def tolerant(self: Any, name: str) -> Any:
        return name if "name" in name and not name.startswith("_") else lookup(self, name)

    # torchax 0.0.13 names overloads of named tensors, which torch 2.13 no longer has.
    packet.__getattr__ = tolerant  # type: ignore[method-assign]
    import torchax as library

    with library.default_env():
        cases = _torch_cases("jax", lambda x: x.jax().block_until_ready())

    def inside(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            with library.default_env():
                run()

        return call

    return {name: inside(run) for name, run in cases.items()}


def _jax_cases(wrap: Callable[[Callable[..., Any]], Callable[..., Any]], one: Any = 1) -> Cases:
    import jax.numpy as jnp

    add, add_one, total = wrap(jnp.add), wrap(jnp.add), wrap(jnp.sum)
    small = (jnp.full((16, 16), 0.5), jnp.full((16, 16), 0.25))
    square = (jnp.full((64, 64), 0.5), jnp.eye(64))
    return chains(
        add,
        wrap(jnp.multiply),
        wrap(lambda x: jnp.maximum(x, 0)),
        wrap(jnp.tanh),
        wrap(jnp.matmul),
        lambda x: total(add_one(x, one)).item(),
        lambda x: x.block_until_ready(),
        small,
        square,
    )


def bare() -> Cases:
    from torch_tpu.runtime import client
    from torch_tpu.runtime.compiler import compile_program

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        program: Any = None

        def call(*arrays: Any) -> Any:
            nonlocal program
            if program is None:  # each function sees one shape
                program = compile_program(lambda *a: [function(*a)], [(x.shape, x.dtype) for x in arrays])
            return program.execute(list(arrays)).consume_with_handlers(program.handlers)[0]

        return call

    client.devices()
    import jax.numpy as jnp

    return _jax_cases(wrap, one=jnp.ones((), int))


def jax_jit() -> Cases:
    import jax

    return _jax_cases(jax.jit)


def jax_numpy() -> Cases:
    return _jax_cases(lambda function: function)


def main() -> None:
    options = arguments(__doc__, rounds=15)
    results = compare("benchmarks.dispatch", CANDIDATES, options.rounds, options.cores)
    per_op = table("One op", "µs per op", lambda case, seconds: seconds * 1e6 / OPS[case], results)
    Console().print(per_op)
    write_json(options.json, {"ops": OPS, "results": results})


if __name__ == "__main__":
    main()
