"""Numbers that are only data compile nothing: plans are made for programs, not for values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support import DEVICE, counting

pytestmark = pytest.mark.skipif(DEVICE == "cpu", reason="PyTorch's CPU device compiles nothing")


def _model() -> nn.Module:
    layers = [nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3)]
    return nn.Sequential(*layers).to(DEVICE)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    x = torch.randn(batch, 12).to(DEVICE)
    y = torch.randint(3, (batch,)).to(DEVICE)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_learning_rate_schedule(make: type[torch.optim.Optimizer]) -> None:
    model = _model()
    optimizer = make(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for step in range(100):
        if step < 5:
            _step(model, optimizer, 8)
        else:
            with counting() as counted:
                _step(model, optimizer, 8)
            assert counted.plans == 0, f"step {step}"
        schedule.step()


def test_a_different_last_batch_costs_one_more_set() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        _step(model, optimizer, 8)
    with counting() as first:
        _step(model, optimizer, 5)
    assert first.plans > 0
    with counting() as later:
        for batch in (8, 8, 5, 8, 5):
            _step(model, optimizer, batch)
    assert later.plans == 0


def test_indexing_in_a_loop() -> None:
    """`s += x[i]` makes at most three programs a site: two offsets, and one for all others."""
    x = torch.arange(3000.0, device=DEVICE).view(1000, 3)
    total = torch.zeros(3, device=DEVICE)
    with counting() as counted:
        for i in range(1000):
            total += x[i]
    assert counted.plans <= 3
    assert total.tolist() == [1498500.0, 1499500.0, 1500500.0]


def test_writing_rows_in_a_loop() -> None:
    x = torch.zeros(100, 3, device=DEVICE)
    row = torch.ones(3, device=DEVICE)
    with counting() as counted:
        for i in range(100):
            x[i] = row
            x[i, 1] = float(i)
    assert counted.plans <= 7  # three a site, and one that makes the number
    assert x.sum().item() == 200 + sum(range(100))


def test_sliding_windows_in_a_loop() -> None:
    x = torch.arange(200.0, device=DEVICE)
    with counting() as counted:
        sums = [x[i : i + 10].sum() for i in range(100)]
    assert counted.plans <= 3
    assert [y.item() for y in sums] == [10.0 * i + 45 for i in range(100)]


def test_numbers_are_data() -> None:
    x = torch.ones(4, device=DEVICE)

    def use(number: float) -> None:
        y = x * number + number
        y.add_(x, alpha=number).clamp_(min=number, max=number + 1)
        torch.full((3,), number, device=DEVICE)
        x.masked_fill(x > number, number)
        nn.functional.leaky_relu(x, number)
        torch.lerp(x, y, number)

    use(0.3)
    use(0.7)
    with counting() as counted:
        for i in range(10):
            use(0.11 * i + 0.05)
    assert counted.plans == 0


def test_random_ops_compile_once() -> None:
    def draw() -> None:
        x = torch.randn(5, device=DEVICE)
        x.uniform_(-1, 1).bernoulli_(0.3)
        torch.randint(7, (5,), device=DEVICE)
        torch.randperm(5, device=DEVICE)
        nn.functional.dropout(x, 0.5)

    draw()
    with counting() as counted:
        for seed in range(5):
            torch.manual_seed(seed)
            draw()
    assert counted.plans == 0


def test_dropout_probability_is_data() -> None:
    x = torch.ones(1000, device=DEVICE, requires_grad=True)

    def drop(p: float) -> int:
        y = nn.functional.dropout(x, p)
        y.sum().backward()
        return int((y == 0).sum().item())

    drop(0.5)
    drop(0.4)  # its backward adds to a gradient that is there already
    with counting() as counted:
        dropped = [drop(p) for p in (0.1, 0.3, 0.6, 0.9)]
    assert counted.plans == 0
    assert dropped == sorted(dropped) and 30 < dropped[0] < 200 and dropped[-1] > 800


def test_a_slice_of_growing_length_is_another_program() -> None:
    """The counter counts: each new shape is one more plan."""
    x = torch.ones(50, device=DEVICE)
    with counting() as counted:
        for i in range(10, 20):
            x[:i].exp()
    assert counted.plans == 10
