"""Runs statements from a given one on, in a process that a fault of the TPU's compiler may abort."""

from __future__ import annotations

import os

os.environ.update(
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_LOG_DIR="disabled",
    JAX_PLATFORMS="cpu",
    TORCH_TPU_CACHE="0",
)

import json
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from torch_tpu.runtime import client, compiler

STATEMENTS = Path(__file__).with_name("statements.txt")


def statements() -> list[str]:
    """The lines of statements.txt, without comments."""
    lines = STATEMENTS.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def report(**fields: Any) -> None:
    """One line of JSON for the process that watches this one."""
    print(json.dumps(fields), flush=True)


def inputs() -> dict[str, Any]:
    """The names that statements use."""
    torch.manual_seed(0)
    shapes = {"x": (4, 8), "y": (8,), "image": (2, 3, 8, 8), "q": (1, 2, 16, 8), "long": (1, 1, 2048, 64)}
    named: dict[str, Any] = {name: torch.randn(shape).to("tpu") for name, shape in shapes.items()}
    for name in ("image", "q", "long"):
        named[name].requires_grad_()
    x = named["x"]
    named["square"] = (x @ x.T + 10 * torch.eye(4, device="tpu")).detach()
    named["z"] = torch.randn(3, dtype=torch.complex64).to("tpu")
    named["i"] = torch.tensor([0, 1]).to("tpu")
    named["dense"] = torch.nn.Linear(8, 4).to("tpu")
    return named | {"torch": torch, "F": F, "D": "tpu"}


def compile_too(topology: str) -> None:
    """From here on every new program is compiled for `topology`, too, as that platform lowers it."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    described = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, chips_per_host_bounds=(1, 1, 1)
    )
    where = SingleDeviceSharding(described.devices[0])
    usual = compiler._Build.lowered

    def lowered(self: Any) -> Any:
        program = usual(self)
        with mock.patch.object(client, "platform", lambda: "tpu"):
            with mock.patch.object(client, "placement", lambda _: where):
                again = usual(self)
            try:
                with compiler.tracing():
                    again.lowered.compile(compiler_options={"exec_time_optimization_effort": -1.0})
                report(program=self.name)
            except Exception as error:
                report(program=self.name, error=f"{type(error).__name__}: {error}"[:300])
        return program

    mock.patch.object(compiler._Build, "lowered", lowered).start()


def main(topology: str, first: int) -> None:
    """Runs the statements from number `first` on."""
    warnings.simplefilter("ignore")
    named = inputs()
    compile_too(topology)
    for number, statement in enumerate(statements()):
        if number < first:
            continue
        report(statement=number)
        try:
            exec(statement, named)
        except Exception as error:
            report(program=statement, error=f"{type(error).__name__}: {error}"[:300])
    report(done=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
