"""Debug Eager's checks raise what the CPU raises, and nothing for arguments in range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.lowering.checks import CHECKS

aten = torch.ops.aten
X = torch.zeros(3, 4)
Make = Callable[[int], Any]

#: Calls of an op with a position that is in range for 0, and out of range for the numbers given.
CALLS: dict[str, tuple[Make, list[int]]] = {
    "aten::index.Tensor": (lambda i: (X, [None, torch.tensor([1, i])]), [4, -5]),
    "aten::index_put": (lambda i: (X, [torch.tensor([i])], torch.tensor(1.0)), [3, -4]),
    "aten::index_select": (lambda i: (X, 0, torch.tensor([0, i])), [3]),
    "aten::gather": (lambda i: (X, 1, torch.tensor([[0, i]])), [4, -1]),
    "aten::scatter.src": (lambda i: (X, -1, torch.tensor([[0, i]]), X), [4, -1]),
    "aten::scatter.value": (lambda i: (X, 0, torch.tensor([[i]]), 1.0), [3, -1]),
    "aten::scatter_add": (lambda i: (X, 0, torch.tensor([[i]]), X), [3]),
    "aten::scatter_reduce.two": (lambda i: (X, 0, torch.tensor([[i]]), X, "amax"), [3]),
    "aten::index_add": (lambda i: (X, 0, torch.tensor([i]), X[:1]), [3, -1]),
    "aten::index_copy": (lambda i: (X, 0, torch.tensor([i]), X[:1]), [3, -1]),
    "aten::index_fill.int_Scalar": (lambda i: (X, 0, torch.tensor([i]), 1.0), [3, -4]),
    "aten::index_reduce": (lambda i: (X, 0, torch.tensor([i]), X[:1], "amax"), [3]),
    "aten::take": (lambda i: (X, torch.tensor([i])), [12, -13]),
    "aten::put": (lambda i: (X, torch.tensor([i]), torch.tensor([1.0])), [12, -13]),
    "aten::embedding": (lambda i: (X, torch.tensor([[0, i]])), [3, -1]),
    "aten::_embedding_bag": (lambda i: (X, torch.tensor([0, i]), torch.tensor([0])), [3, -1]),
    "aten::nll_loss_forward": (lambda i: (X, torch.tensor([-100, i, 1]), None, 1, -100), [4, -1]),
    "aten::multi_margin_loss": (lambda i: (X, torch.tensor([0, i, 1])), [4, -1]),
    "aten::multilabel_margin_loss_forward": (lambda i: (X[0], torch.tensor([0, i, -1, -1]), 1), [4, -2]),
    "aten::masked_scatter": (lambda i: (X, X == 0, torch.zeros(12 - i)), [1]),
}


def _message(function: Callable[..., Any], *args: Any) -> tuple[type, str]:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        function(*args)
    return caught.type, str(caught.value).split("\n")[0]


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_the_cpus(name: str) -> None:
    make, numbers = CALLS[name]
    packet, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    CHECKS[name](*make(0))
    op(*make(0))
    for number in numbers:
        args = make(number)
        assert _message(CHECKS[name], *args) == _message(op, *args)


def test_masks_and_other_arguments_are_not_read() -> None:
    class NoReads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{func} was called")

    mask = X == 0
    with NoReads():
        CHECKS["aten::index.Tensor"](X, [mask])
        CHECKS["aten::index_put"](X, [None, None], X)


@pytest.mark.parametrize("offsets", [[1], [0, 5]])
def test_offsets_of_bags(offsets: list[int]) -> None:
    call = (X, torch.tensor([0, 1]), torch.tensor(offsets))
    assert _message(CHECKS["aten::_embedding_bag"], *call) == _message(aten._embedding_bag, *call)
