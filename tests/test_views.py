"""Views share their base's storage, and writes through any of them are seen by all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support import DEVICE, assert_same

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(1, 2, 0),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[:, 1],
    "view": lambda x: x.view(4, 6),
    "flat": lambda x: x.view(-1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (5, 2), 1),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "narrow of transpose": lambda x: x.transpose(1, 2).narrow(1, 1, 2),
    "int32 bits": lambda x: x.view(torch.int32),
    "bytes": lambda x: x.view(torch.uint8),
    "split": lambda x: x.split(2, dim=2)[1],
    "0-dim": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, 3:],
    "chain": lambda x: x[1:].permute(2, 0, 1)[::2, :, 1:].unsqueeze(-1),
}


def _base() -> torch.Tensor:
    return torch.arange(24, dtype=torch.float32).view(2, 3, 4)


@pytest.mark.parametrize("name", VIEWS)
def test_read(name: str) -> None:
    base = _base()
    expected, actual = VIEWS[name](base), VIEWS[name](base.to(DEVICE))
    assert actual.stride() == expected.stride()
    assert actual.storage_offset() == expected.storage_offset()
    assert_same(actual.cpu(), expected)
    assert_same((actual + 1).cpu(), expected + 1)


@pytest.mark.parametrize("name", VIEWS)
def test_write(name: str) -> None:
    """In-place arithmetic, fill, and copy through a view change the base and other views."""
    results = []
    for device in ("cpu", DEVICE):
        base = _base().to(device)
        view, other = VIEWS[name](base), base.flatten()
        view.add_(3)
        first = base.clone()
        view.copy_(view.clone().flip(-1) if view.ndim else view)
        second = other.clone()
        view.zero_()
        assert view.data_ptr() == VIEWS[name](base).data_ptr()
        results.append((first.cpu(), second.cpu(), base.cpu(), base._version))
    assert_same(results[1][:3], results[0][:3])
    assert results[1][3] == results[0][3]


def test_version_counter_is_shared() -> None:
    base = _base().to(DEVICE)
    view = base[0].t()
    view.mul_(2)
    base.add_(1)
    assert base._version == view._version == 2


def test_expanded_reads_and_refuses_writes() -> None:
    row = torch.arange(3.0, device=DEVICE)
    wide = row.expand(4, 3)
    assert wide.stride() == (0, 1)
    row.add_(1)
    assert_same(wide.cpu(), torch.arange(1.0, 4.0).expand(4, 3).contiguous())
    with pytest.raises(RuntimeError, match="single memory location"):
        wide.add_(1)


def test_overlapping_windows_see_writes() -> None:
    base = torch.arange(6.0, device=DEVICE)
    windows = base.unfold(0, 3, 1)
    base[2] = 10
    assert_same(windows.sum(1).cpu(), torch.tensor([11.0, 14.0, 17.0, 12.0]))


def test_partial_overlap_is_refused() -> None:
    base = torch.arange(6.0, device=DEVICE)
    with pytest.raises(RuntimeError, match="some elements"):
        base[1:].add_(base[:-1])


def test_copy_between_slices_of_one_tensor() -> None:
    base = torch.arange(6.0, device=DEVICE)
    base[:3] = base[3:]
    assert base.tolist() == [3, 4, 5, 3, 4, 5]


def test_conjugate_and_negative_views() -> None:
    expected = torch.tensor([1 + 2j, 3 - 4j])
    actual = expected.to(DEVICE)
    lazy = actual.conj()
    assert lazy.is_conj() and lazy.data_ptr() == actual.data_ptr()
    assert lazy.imag.is_neg()
    assert_same(lazy.imag.cpu(), expected.conj().imag.clone())
    lazy.imag.add_(1)
    expected.conj().imag.add_(1)
    assert_same(actual.cpu(), expected)
    torch.view_as_real(actual)[..., 0] = 7
    assert actual.real.tolist() == [7, 7]


def test_channels_last() -> None:
    x = torch.arange(48.0).view(2, 3, 4, 2)
    y = x.to(DEVICE).contiguous(memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last) and y.stride() == (24, 1, 6, 3)
    assert (y + 1).stride() == y.stride()
    y.mul_(2)
    y[:, 1] += 5
    x = x * 2
    x[:, 1] += 5
    assert_same(y.cpu(), x.contiguous(memory_format=torch.channels_last))


def test_set_and_data() -> None:
    x, y = torch.ones(3, device=DEVICE), torch.arange(4.0, device=DEVICE)
    x.data = y
    x.add_(1)
    assert y.tolist() == [1, 2, 3, 4]
    z = torch.empty(0, device=DEVICE).set_(y.untyped_storage(), 1, (2,), (2,))
    z.zero_()
    assert x.tolist() == [1, 0, 3, 0]


def test_resize() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    x.resize_(4)
    assert x.tolist() == [0, 1, 2, 3]
    x.resize_(2, 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    x.resize_(10)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


def test_swap_tensors() -> None:
    x, y = torch.zeros(2, device=DEVICE), torch.ones(3, device=DEVICE)
    torch.utils.swap_tensors(x, y)
    assert x.tolist() == [1, 1, 1] and y.tolist() == [0, 0]


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(2, 3, device=DEVICE)
        y = x.t()[1:]
        y.add_(1)
    assert x.is_inference() and x.tolist() == [[1, 2, 2], [1, 2, 2]]


def test_gradients_through_written_views() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        x = torch.arange(12.0, device=device).view(3, 4).requires_grad_()
        y = x * 2
        y[1:].t().mul_(torch.tensor([3.0, 5.0], device=device))
        y.diagonal().pow_(2)
        y[:, 0] = x[:, 1]
        y.sum().backward()
        grads.append(x.grad.cpu())
    assert_same(grads[1], grads[0])


def test_in_place_on_a_saved_tensor_raises() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_out_forms() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    target = torch.zeros(3, 2, device=DEVICE)
    torch.add(x, 1, out=target.t())
    assert target.tolist() == [[1, 4], [2, 5], [3, 6]]
    grown = torch.empty(0, device=DEVICE)
    assert torch.mm(x, x.t(), out=grown) is grown
    assert grown.tolist() == [[5, 14], [14, 50]]
