"""Threads that train, free and read at the same time get the results they get alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from tests.support import DEVICE, assert_same

THREADS = 8


def _train(number: int) -> list[torch.Tensor]:
    """The parameters after a few steps of a model whose weights and data depend on `number`."""
    generator = torch.Generator().manual_seed(number)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    x, y = torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)
    model, x, y = model.to(DEVICE), x.to(DEVICE), y.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def test_eight_threads_train_their_own_models() -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(_train, range(THREADS)))
    alone = [_train(i) for i in range(THREADS)]
    assert_same(together, alone, rtol=0, atol=0)


def test_first_use_of_an_op_from_many_threads() -> None:
    """All threads miss the same plan at once."""
    barrier = threading.Barrier(THREADS)

    def work(_: int) -> list[float]:
        x = torch.arange(7.0, device=DEVICE)
        barrier.wait()
        return (x.lerp(x * 3, 0.25) - 1).tolist()

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    assert results == [[1.5 * i - 1 for i in range(7)]] * THREADS


def test_tensors_freed_in_another_thread() -> None:
    tensors = [torch.full((100,), float(i), device=DEVICE) for i in range(50)]
    sums = [x.sum() for x in tensors]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    more = [x * 2 for x in sums]
    thread.join()
    assert [x.item() for x in more] == [200.0 * i for i in range(50)]


def test_gradients_from_backward_threads() -> None:
    """One graph a thread over shared leaves: gradients accumulate to the sum."""
    shared = torch.ones(5, device=DEVICE, requires_grad=True)

    def work(number: int) -> torch.Tensor:
        return torch.autograd.grad((shared * number).sum(), shared)[0]

    with ThreadPoolExecutor(THREADS) as pool:
        grads = list(pool.map(work, range(THREADS)))
    assert torch.stack(grads).sum(0).tolist() == [28.0] * 5


def test_no_grad_is_per_thread() -> None:
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (x * 2).requires_grad).result()
        assert not (x * 2).requires_grad
