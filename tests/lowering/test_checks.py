"""Indices out of range raise what the CPU raises: at the call in Debug Eager, else when it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from tests.device.subprocesses import run
from torch_tpu.lowering.checks import RULES

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


def _op(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _on_tpu(args: Any) -> list[Any]:
    return tree_map_only(torch.Tensor, lambda t: t.to("tpu"), list(args))


def _message(function: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        function()
    return caught.type, str(caught.value).split("\n")[0]


def test_every_rule_is_tried() -> None:
    same = {"_unsafe_index.Tensor", "_unsafe_index_put", "_index_put_impl", "scatter.reduce"}
    same |= {"scatter.value_reduce", "index_fill.int_Tensor", "embedding_renorm"}
    same |= {"_embedding_bag_forward_only", "nll_loss2d_forward"}
    same |= {"_grouped_mm"}  # the CPU does not check it: test_low_precision.py
    same |= {"_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward"}  # test_nested.py
    assert set(RULES) - set(CALLS) == {f"aten::{name}" for name in same}


@pytest.mark.parametrize("mode", ["debug", "strict"])
@pytest.mark.parametrize("name", CALLS)
def test_errors_are_the_cpus(name: str, mode: str) -> None:
    (make, numbers), op = CALLS[name], _op(name)

    def run(args: Any) -> None:
        with torch.tpu.set_eager_mode(mode):
            op(*args)
            assert mode == "strict"
            torch.tpu.synchronize()

    with torch.tpu.set_eager_mode(mode):
        op(*_on_tpu(make(0)))
        torch.tpu.synchronize()
    for number in numbers:
        args = make(number)
        assert _message(lambda args=args: run(_on_tpu(args))) == _message(lambda args=args: op(*args))
    torch.tpu.synchronize()  # each is raised once


@pytest.mark.parametrize("offsets", [[1], [0, 5]])
def test_offsets_of_bags(offsets: list[int]) -> None:
    call = (X, torch.tensor([0, 1]), torch.tensor(offsets))
    with torch.tpu.set_eager_mode("debug"):
        got = _message(lambda: aten._embedding_bag(*_on_tpu(call)))
    assert got == _message(lambda: aten._embedding_bag(*call))


def test_reading_the_result_reports_and_names_the_op() -> None:
    x = X.to("tpu")
    y = x[torch.tensor([7], device="tpu")] + 1
    with pytest.raises(IndexError, match=r"index 7 is out of bounds for dimension 0 with size 3") as caught:
        y.tolist()
    assert "aten::index.Tensor" in str(caught.value)
    assert "debug" in str(caught.value)
    assert y.isnan().all()  # reported once; the values are what XLA gives


def test_an_op_in_place_is_held_to_it_too() -> None:
    x = torch.zeros(3, device="tpu")
    x[torch.tensor([1, 5], device="tpu")] = 1.0
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        torch.accelerator.synchronize()
    assert x.tolist() == [0, 1, 0]


def test_the_first_of_many_findings_is_reported() -> None:
    x = X.to("tpu")
    for i in range(2000):
        torch.index_select(x, 0, torch.tensor([i], device="tpu") if i in (900, 1900) else _zero())
    with pytest.raises(IndexError):
        torch.tpu.synchronize()
    torch.tpu.synchronize()


def _zero() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int64, device="tpu")


def test_masks_and_empty_indices_are_no_trouble() -> None:
    x = X.to("tpu")
    assert x[torch.ones(3, dtype=torch.bool, device="tpu")].shape == (3, 4)
    assert x[torch.empty(0, dtype=torch.int64, device="tpu")].shape == (0, 4)
    torch.tpu.synchronize()


def test_switched_off() -> None:
    x, index = X.to("tpu"), torch.tensor([3], device="tpu")
    with torch.tpu.set_index_checks(False):
        y = x.index_select(0, index)
        torch.tpu.synchronize()
        assert y.isnan().all()
    x.index_select(0, index)
    with pytest.raises(IndexError):
        torch.tpu.synchronize()


def test_one_device_does_not_hear_of_another() -> None:
    script = """
        import torch
        x = torch.zeros(3, device="tpu:0")
        x[torch.tensor([5], device="tpu:0")]
        torch.ones(3, device="tpu:1").tolist()
        torch.tpu.synchronize(1)
        try:
            torch.tpu.synchronize(0)
        except IndexError as error:
            print("tpu:0" in str(error))
        """
    assert run(script, TORCH_TPU_PLATFORM="cpu", TORCH_TPU_CPU_DEVICES="2") == "True\n"
