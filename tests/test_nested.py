"""Nested tensors, strided and jagged, agree with the CPU, their gradients too, and need no fallback."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import DEVICE, assert_same, assert_same_parts, counting

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


class Makers:
    """Tensors of one device, the same on each; what a program asks for with gradients is in `leaves`."""

    def __init__(self, device: str, layout: torch.layout) -> None:
        self.device, self.layout = device, layout
        self.leaves: list[torch.Tensor] = []
        self.random = torch.Generator().manual_seed(0)

    def dense(self, *sizes: int) -> torch.Tensor:
        x = torch.randn(*sizes, generator=self.random).to(self.device).requires_grad_()
        self.leaves.append(x)
        return x

    def nested(self, *sizes: int, lengths: tuple[int, ...] = (3, 5, 1)) -> torch.Tensor:
        parts = [torch.randn(n, *sizes, generator=self.random) for n in lengths]
        x = torch.nested.nested_tensor(parts, layout=self.layout, device=self.device, requires_grad=True)
        self.leaves.append(x)
        return x

    def ints(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def module(self, module: nn.Module) -> nn.Module:
        module = copy.deepcopy(module).to(self.device)
        self.leaves.extend(module.parameters())
        return module


def plain(x: Any) -> Any:
    """Dense parts on the host."""
    if isinstance(x, torch.Tensor) and x.is_nested:
        return [part.detach().cpu() for part in x.unbind()]
    if isinstance(x, (tuple, list)):
        return [plain(y) for y in x]
    return x.detach().cpu() if isinstance(x, torch.Tensor) else x


def results(program: str, layout: torch.layout, device: str) -> list[Any]:
    """What the program gives on a device, and the gradients of its leaves."""
    torch.manual_seed(0)
    makers = Makers(device, layout)
    makes = {"nested": makers.nested, "dense": makers.dense, "module": makers.module, "ints": makers.ints}
    value = eval(program, {**globals(), **makes, "D": device})
    found = [plain(value)]
    if isinstance(value, torch.Tensor) and value.requires_grad:
        parts = value.unbind() if value.is_nested else [value]
        sum(((part * part).sum() for part in parts), torch.zeros((), device=device)).backward()
        found += [plain(x.grad) for x in makers.leaves]
    return found


ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
BOTH = """
nested(4)
nested(2, 4).unbind()[1]
nested(4) * 2 + 1
nested(4).relu()
nested(4).sin()
F.gelu(nested(4))
F.dropout(nested(4), 0.5, False)
nested(4).to(torch.float64)
nested(4).clone()
nested(4).detach()
torch.nested.to_padded_tensor(nested(4), -1.0)
torch.nested.to_padded_tensor(nested(2, 3), 0.0)
F.softmax(nested(4), -1)
F.layer_norm(nested(4), (4,), dense(4), dense(4))
F.linear(nested(4), dense(5, 4), dense(5))
F.linear(nested(4), dense(3, 4))
nested(2, 4).transpose(-1, -2)
nested(4).cpu().to(D)
nested(4).is_contiguous()
module(nn.Linear(4, 3))(nested(4))
module(nn.LayerNorm(4))(nested(4))
""".strip().splitlines()
STRIDED = """
nested(4)._nested_tensor_size().tolist()
nested(4) + nested(4)
nested(4) * nested(4)
torch.bmm(nested(4).detach(), dense(3, 4, 2).detach())
nested(4) - nested(4)
torch.matmul(nested(4), nested(4).transpose(1, 2))
torch.bmm(nested(4), nested(4).transpose(1, 2))
torch.matmul(nested(2, 4).detach(), nested(4, 3).detach())
nested(4).sum(-1, keepdim=True)
nested(4).reshape(3, -1, 2, 2)
nested(4).select(0, 1)
nested(4)[0]
torch.nested.as_nested_tensor([dense(2, 3), dense(1, 3)])
torch.nested.to_padded_tensor(nested(4), 2.0, (3, 7, 6))
torch._nested_tensor_from_mask(dense(2, 3, 4).detach(), torch.tensor([[1, 1, 0], [1, 1, 1]], device=D).bool())
torch._nested_tensor_from_mask_left_aligned(dense(1, 2, 3), torch.tensor([[1, 0]], device=D).bool())
F.scaled_dot_product_attention(*[nested(2, 4) for _ in range(3)])
module(ATTENTION)(*[nested(4).detach()] * 3, need_weights=False)[0]
torch.ones_like(nested(4))
nested(4).detach().fill_(2)
nested(4).detach().copy_(nested(4).detach())
torch.nested.nested_tensor([], device=D).numel()
torch.nested.nested_tensor([torch.ones(0, 2), torch.ones(1, 2)], device=D).to_padded_tensor(3.0)
""".strip().splitlines()
JAGGED = """
nested(4).values()
nested(4).offsets()
nested(4).detach().sum(-1)
nested(2, 4).detach().sum(1)
nested(2, 4).detach().mean(1)
F.layer_norm(nested(2, 4), (4,))
nested(4).mean(-1)
torch.cat([x := nested(4), x], -1)
(lambda x: x * torch.sigmoid(x))(nested(4))
F.scaled_dot_product_attention(*[nested(2, 4).transpose(1, 2)] * 3)
torch.nested.narrow(dense(3, 6, 2).detach(), 1, ints(0, 1, 2), 3, layout=torch.jagged).contiguous()
torch.nested.nested_tensor_from_jagged(dense(9, 4), ints(0, 3, 8, 9))
torch.nested.nested_tensor_from_jagged(dense(9, 4), ints(0, 0, 9)).to_padded_tensor(1.0)
torch.ops.aten._padded_dense_to_jagged_forward(dense(2, 3, 4).detach(), [ints(0, 2, 5)])
torch.ops.aten._padded_dense_to_jagged_forward(dense(2, 3, 4).detach(), [ints(0, 2, 5)], 5)
torch.ops.aten._jagged_to_padded_dense_forward(dense(5, 4).detach(), [ints(0, 1, 5)], [2], 9.0)
torch.ops.aten._jagged_to_padded_dense_forward(dense(0, 4).detach(), [ints(0, 0)], [2], 9.0)
module(nn.Embedding(7, 3))(torch.nested.nested_tensor_from_jagged(ints(0, 1, 2, 6, 5), ints(0, 3, 5)))
""".strip().splitlines()
CASES = [
    *((program, layout) for program in BOTH for layout in (torch.strided, torch.jagged)),
    *((program, torch.strided) for program in STRIDED),
    *((program, torch.jagged) for program in JAGGED),
]


@pytest.mark.parametrize("program, layout", CASES, ids=lambda x: str(x))
def test_agrees_with_the_cpu(program: str, layout: torch.layout) -> None:
    expected = results(program, layout, "cpu")
    with counting() as counted:
        actual = results(program, layout, DEVICE)
    assert_same_parts(actual, expected)
    assert not counted.fallbacks


@pytest.mark.parametrize("mask", [None, torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)])
def test_transformer_encoder(mask: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 4, 8)
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
        encoder.to(DEVICE)
        with counting() as counted:
            actual = encoder(x.to(DEVICE), src_key_padding_mask=None if mask is None else mask.to(DEVICE))
    assert_same(actual.cpu(), expected)
    assert not counted.fallbacks


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum(0),
        lambda x: x @ x,
        lambda x: F.layer_norm(x, (3,), torch.ones(3, device=x.device), torch.ones(3, device=x.device)),
        lambda x: x + torch.nested.nested_tensor([torch.ones(2, 4)] * 3, device=x.device),
        lambda x: x.reshape(3, 1, 2),
        lambda x: x.view(-1),
    ],
)
def test_refuses_what_the_cpu_refuses(call: Any) -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError):
            call(Makers(device, torch.strided).nested(4))
