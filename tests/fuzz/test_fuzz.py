"""A few hundred programs of the fuzzer, drawn by Hypothesis, which shrinks what fails.

`python -m tests.fuzz` runs as many as one likes.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import LENGTH, program_of
from tests.fuzz.grammar import write
from tests.fuzz.program import Program, Sight, difference, run
from tests.fuzz.shrink import fails, shrink
from tests.support import DEVICE

EXAMPLES = int(os.environ.get("TORCH_TPU_FUZZ_EXAMPLES", "200"))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(st.data())
def test_programs(data: st.DataObject) -> None:
    program = write(lambda n: data.draw(st.integers(0, n - 1)), LENGTH)
    found = fails(program, DEVICE)
    assert found is None, f"{found}\n{program.script()}"


def test_the_same_seed_writes_the_same_program() -> None:
    assert program_of(3, 5) == program_of(3, 5) != program_of(3, 6)


BASE = "t0 = torch.arange(6.0).to(D)"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("t1 = t0[1:] + 1e-4", "t1 = t0[1:] + 0"),
        ("t1 = t0[1:].clone()", "t1 = t0[1:]"),
        ("t1 = t0.view(2, 3).t().contiguous()", "t1 = t0.view(2, 3).t().clone()"),
        ("t1 = t0.fill_(0)", "t1 = t0.fill_(0).fill_(0)"),
        ("t1 = t0.view(5)", "t1 = t0.view(6)"),
    ],
)
def test_differences_are_seen(wrong: str, right: str) -> None:
    """Values, aliases, strides, versions and exceptions."""
    program = Program([BASE, right])
    expected: Sight = run(program, "cpu")
    assert difference(program, run(program, DEVICE), expected) is None
    assert difference(program, run(Program([BASE, wrong]), DEVICE), expected) is not None


def test_shrinking_keeps_what_matters() -> None:
    program = Program([BASE, "t1 = t0 + 1", "t2 = t0 * 2", "t3 = t2 + 1"])
    small = shrink(program, lambda p: "t2 = t0 * 2" in p.lines and BASE in p.lines)
    assert small.lines == [BASE, "t2 = t0 * 2"]
