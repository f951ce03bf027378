"""Running a script in a fresh interpreter: for what a process can do only once, or only at its start."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(script: str, **environment: str) -> str:
    """The standard output of `script`; fails with its standard error when it exits with an error."""
    done = run_unchecked(script, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_unchecked(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `script` with `environment` added to this process's."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
