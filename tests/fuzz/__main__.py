"""python -m tests.fuzz --programs 20000 --seed 0: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from tests.fuzz.campaign import Campaign


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Differential fuzzer.")
    parser.add_argument("--programs", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    console = Console()
    campaign = Campaign(options.device, options.seed, options.programs, console)
    campaign.run(options.workers)
    console.print(f"{options.programs} programs, {campaign.failures} failures")
    sys.exit(campaign.failures > 0)


if __name__ == "__main__":
    main()
