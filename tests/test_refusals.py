"""Bad arguments are refused with the CPU's type of error, when the host next waits at the latest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType, scaled_mm

from tests.support import DEVICE

NAMES = {"torch": torch, "F": F, "scaled_mm": scaled_mm, "S": ScalingType, "aten": torch.ops.aten}

CALLS = """
torch.histogramdd(ones(5), 2)
torch.histogramdd(ones(5, 2), [0, 1])
torch.histogramdd(ones(5, 2), [0, 1], range=[0., 1., 0., 1.])
torch.histogramdd(ones(5, 1), [-1])
torch.histogramdd(ones(5, 1), [ones(1)])
torch.histogramdd(ones(5, 1), [ints(0, 1, 2)])
torch.histogramdd(ones(5, 2), [2, 2], range=[1., 0., 0., 1.])
torch.histogramdd(ones(5, 1), [2], weight=ones(5).double())
torch.histogramdd(ones(5, 1).long(), 2)
torch.histogram(ones(4), 0)
torch.histogram(ones(4), ones(1))
aten._padded_dense_to_jagged_forward(ones(2, 3, 4), [ints(0, 2, 9)])
aten._padded_dense_to_jagged_forward(ones(2, 3, 4), [ints(0, 2, 5)], 99)
aten._padded_dense_to_jagged_forward(ones(2, 3, 4), [])
torch.nested.nested_tensor_from_jagged(ones(9, 4), ints(0, 5, 3, 9)).to_padded_tensor(0.)
F.conv2d(ones(2, 4, 6, 6), ones(6, 4, 3, 3), dilation=0)
F.conv2d(ones(2, 4, 6, 6), ones(6, 4, 3, 3), padding=-1)
F.conv2d(ones(2, 4, 6, 6), ones(6, 4, 3, 3), ones(6, 1))
F.conv2d(ones(2, 4, 6, 6), ones(0, 4, 3, 3))
F.conv2d(ones(2, 4, 6, 6).bool(), ones(6, 4, 3, 3).bool())
F.conv_transpose2d(ones(2, 4, 6, 6), ones(4, 6, 3, 3), dilation=0)
F.conv_transpose2d(ones(2, 4, 6, 6), ones(4, 6, 3, 3), stride=2, output_padding=-1)
torch.sparse.sampled_addmm(ones(2, 4, 5).to_sparse_csr(), ones(3, 4, 2), ones(3, 2, 5))
torch.sparse.sampled_addmm(ones(4, 5).long().to_sparse_csr(), ones(4, 2).long(), ones(2, 5).long())
torch.sparse.softmax(ones(3, 3).long().to_sparse(), 1)
scaled_mm(f8(16, 16), f8(16, 16), ones(1), S.TensorWise, ones(1, 16), S.RowWise)
scaled_mm(f8(16, 16), f8(16, 16), [], [], ones(1), S.TensorWise)
torch._scaled_mm(f8(16, 16), f8(16, 16), ones(1), ones(1), bias=ones(16, 16), out_dtype=torch.float32)
torch._scaled_mm(f8(16, 16), f8(16, 16), ones(1), ones(1), out_dtype=torch.int32)
torch._grouped_mm(ones(16, 8), ones(1, 8, 16), offs=ints(16).int(), out_dtype=torch.bfloat16)
""".strip().splitlines()
ON_THE_HOST = """
aten._nested_from_padded(ones(2, 3, 4), ints(3, 4, 1, 4).view(2, 2))
aten._nested_view_from_buffer(ones(8), *[torch.tensor([[2, 2], [2, 2]])] * 2, ints(0, 4))
""".strip().splitlines()


def run(program: str, device: str) -> None:
    def ones(*sizes: int) -> torch.Tensor:
        return torch.ones(*sizes, device=device)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, device=device)

    def f8(*sizes: int) -> torch.Tensor:
        return ones(*sizes).to(torch.float8_e4m3fn)

    eval(program, {**NAMES, "ones": ones, "ints": ints, "f8": f8})
    if device != "cpu":
        torch.accelerator.synchronize()


@pytest.mark.parametrize("program", CALLS)
def test_refused_as_on_the_cpu(program: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011
        run(program, "cpu")
    with pytest.raises(expected.type):
        run(program, DEVICE)


@pytest.mark.parametrize("program", ON_THE_HOST)
def test_sizes_of_nested_tensors_are_the_hosts(program: str) -> None:
    with pytest.raises(RuntimeError, match="CPU tensor"):
        run(program, DEVICE)


def test_no_columns_and_no_groups() -> None:
    assert torch.histogramdd(torch.ones(4, 0, device=DEVICE), []).hist.item() == 0
    a, b = torch.ones(16, 8, device=DEVICE), torch.ones(0, 8, 16, device=DEVICE)
    y = torch._grouped_mm(a, b, offs=torch.ones(0, dtype=torch.int32, device=DEVICE))
    assert y.shape == (16, 16) and not y.any()


def test_complex_numbers_fill_bools() -> None:
    x = torch.tensor([True, False], device=DEVICE)
    assert x.masked_fill(~x, 1j).tolist() == [True, True]
