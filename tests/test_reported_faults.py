"""Faults that were found by trying to break the device, one test each."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

D = "tpu"


@pytest.mark.parametrize("divisor", [256, -1, 40000, 2**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_true_division_by_a_number_the_dtype_cannot_hold(dtype: torch.dtype, divisor: int) -> None:
    x = torch.arange(3, dtype=dtype)
    torch.testing.assert_close((x.to(D) / divisor).cpu(), x / divisor)


def test_bool_times_float_keeps_infinities() -> None:
    x, mask = torch.tensor([float("inf"), float("nan"), -1.0]), torch.tensor([False, True, False])
    torch.testing.assert_close((x.to(D) * mask.to(D)).cpu(), x * mask, equal_nan=True)


def test_foreach_in_place_counts_versions() -> None:
    x = torch.rand(3, device=D)
    torch._foreach_mul_([x], 2.0)
    assert x._version == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(3, device=d).int().mul_(2.5),
        lambda d: torch.ones(2, device=d).add_(1j),
        lambda d: torch.arange(3, device=d).bool().mul_(2),
        lambda d: torch.arange(2, device=d).softmax(0),
        lambda d: torch.arange(3, device=d).var(),
        lambda d: torch.ones(2, device=d).bool() - 2,
        lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
        lambda d: torch.ones(3, device=d).expand(2, 3).neg_(),
    ],
)
def test_refused_as_on_the_cpu(make: object) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        make("cpu")  # type: ignore[operator]
    with pytest.raises(expected.type) as got:
        make(D)  # type: ignore[operator]
    assert str(expected.value).split("\n")[0] in str(got.value)


@pytest.mark.parametrize("rows", [True, False])
def test_threads_that_write_one_storage(rows: bool) -> None:
    x = torch.ones(4, 8, device=D)

    def write(i: int) -> None:
        for _ in range(100):
            (x[i] if rows else x).add_(1)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        x.cpu()
    for thread in threads:
        thread.join()
    assert x.cpu().unique().tolist() == ([101.0] if rows else [401.0])


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_as_the_first_layer(train: bool) -> None:
    model, x = nn.BatchNorm1d(3).train(train), torch.randn(4, 3)
    (model(x) ** 3).sum().backward()
    other = nn.BatchNorm1d(3).train(train).to(D)
    (other(x.to(D)) ** 3).sum().backward()
    torch.testing.assert_close(other.weight.grad.cpu(), model.weight.grad)


def test_complex32_copies() -> None:
    x = torch.randn(3, 4, dtype=torch.chalf)
    torch.testing.assert_close(x.to(D)[:, 1:3].clone().cpu(), x[:, 1:3])
    torch.testing.assert_close(x.to(D).conj().clone().cpu(), x.conj().resolve_conj())


def test_decomposed_ops_take_host_numbers_as_data() -> None:
    x = torch.rand(4)
    for number in (2.5, 3.5):
        got = torch.special.xlog1py(x.to(D), torch.tensor(number)).cpu()
        torch.testing.assert_close(got, torch.special.xlog1py(x, number))


def test_in_place_metadata_ops() -> None:
    x = torch.arange(6.0, device=D).view(2, 3)
    x.transpose_(0, 1).add_(1)
    assert x.shape == (3, 2)
    assert x.cpu().tolist() == [[1, 4], [2, 5], [3, 6]]


def test_resized_out_and_factory_out() -> None:
    out = torch.empty(0, device=D)
    assert torch.linspace(0, 1, 5, out=out).cpu().tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert out.shape == (5,)


@pytest.mark.parametrize("contiguous", [True, False])
def test_gradient_of_det_by_layout(contiguous: bool) -> None:
    a = torch.rand(3, 3, dtype=torch.float64)
    grads = []
    for device in ("cpu", D):
        x = a.clone().to(device).requires_grad_()
        (x if contiguous else x.mT).det().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", ["add", "maximum", "where", "lerp"])
def test_a_resized_out_follows_the_order_of_the_inputs(name: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    arguments = {"where": (x > 1, x, x), "lerp": (x, x, 0.5)}.get(name, (x, x))
    expected = getattr(torch, name)(*arguments, out=torch.empty(0))
    moved = [a.to(D) if isinstance(a, torch.Tensor) else a for a in arguments]
    out = getattr(torch, name)(*moved, out=torch.empty(0, device=D))
    assert out.stride() == expected.stride() != expected.contiguous().stride()
    assert torch.equal(out.cpu(), expected)
