"""`torch-tpu demo | info | cache`: what a user runs from a shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="torch-tpu", description="A native PyTorch device for TPUs.")
    commands = parser.add_subparsers(dest="command", required=True)
    job = commands.add_parser("demo", help="a real model and a training run on device tpu")
    job.add_argument("--device", default="tpu", help='a PyTorch device (default "tpu")')
    job.add_argument("--epochs", type=int, default=15, help="passes over the digits (default 15)")
    commands.add_parser("info", help="versions, PJRT platform, devices, cache")
    disk = commands.add_parser("cache", help="the on-disk cache of compiled programs")
    disk.add_argument("action", choices=["info", "clear"])
    options = parser.parse_args(arguments)

    if options.command == "demo":
        from torch_tpu.tools import demo

        return demo.run(options.device, options.epochs)
    from torch_tpu.tools import status

    if options.command == "info":
        return status.info()
    return status.cache(options.action)


if __name__ == "__main__":
    raise SystemExit(main())
