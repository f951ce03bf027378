"""What `torch-tpu info` and `torch-tpu cache` print and do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torch_tpu.runtime import cache as disk
from torch_tpu.runtime import client

PACKAGES = ("torch_tpu", "torch", "jax", "jaxlib", "libtpu", "numpy")


def info() -> int:
    """Prints versions, the PJRT platform, its devices and the settings in force; starts the client."""
    table = Table(show_header=False, title="torch_tpu", title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("python", platform.python_version())
    for name in PACKAGES:
        table.add_row(name, _version(name))
    started = time.perf_counter()
    devices = client.devices()
    table.add_row("PJRT platform", f"{client.platform()} (started in {time.perf_counter() - started:.1f} s)")
    for index, device in enumerate(devices):
        memory = f"{client.memory_limit(index) / 2**30:.1f} GiB"
        table.add_row(f"tpu:{index}", f"{device.device_kind}, {memory}")
    table.add_row("disk cache", _describe_cache())
    for name, value in sorted(os.environ.items()):
        if name.startswith("TORCH_TPU_"):
            table.add_row(name, value)
    Console().print(table)
    return 0


def cache(action: str) -> int:
    """`info` prints where the compiled programs lie and how many there are; `clear` deletes them."""
    console = Console()
    if action == "clear":
        files = _programs()
        for file in files:
            file.unlink(missing_ok=True)
        console.print(f"{len(files)} programs deleted")
    else:
        console.print(_describe_cache())
    return 0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _programs() -> list[Path]:
    root = disk.directory()
    return sorted(root.glob("*.program")) if root else []


def _describe_cache() -> str:
    if not disk.enabled():
        return "off"
    files = _programs()
    size = sum(file.stat().st_size for file in files)
    return (
        f"{len(files)} programs, {size / 2**20:.1f} of {disk.limit() / 2**20:.0f} MiB, in {disk.directory()}"
    )
