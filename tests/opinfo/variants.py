"""What is computed from a sample: the same on every device.

Each variant turns a placed call into an `Observed`; `applies` says which (op, dtype) have it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.refs import PythonRefInfo
from torch.utils._pytree import tree_leaves, tree_map

from tests.opinfo.place import Call, each_tensor


class Inapplicable(Exception):
    """This sample has no such variant; the text says why."""


@dataclasses.dataclass
class Observed:
    """values: compared as numbers. layouts: tensors whose strides are compared as well."""

    values: list[Any]
    layouts: list[Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """samples: the op's method that gives them: "sample_inputs", "reference_inputs" or "error_inputs"."""

    compute: Callable[[Any, Call], Observed]
    applies: Callable[[Any, torch.dtype], bool]
    grad: bool = False
    samples: str = "sample_inputs"


def _always(op: Any, dtype: torch.dtype) -> bool:
    return True


def forward(op: Any, call: Call) -> Observed:
    result = call.run(op)
    return Observed(tree_leaves(call.process(result)), tree_leaves(result))


def backward(op: Any, call: Call) -> Observed:
    outputs = [x for x in tree_leaves(call.process(call.run(op))) if _differentiable(x)]
    leaves = tree_leaves((call.input, call.args, call.kwargs))
    inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    if not outputs or not inputs:
        raise Inapplicable("nothing to differentiate")
    cotangents = [_cotangent(x) for x in outputs]
    grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return Observed([*outputs, *grads], [])


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad and (x.is_floating_point() or x.is_complex())


def _cotangent(x: torch.Tensor) -> torch.Tensor:
    """The same numbers for the same shape on every device, made without its random numbers."""
    if x.layout != torch.strided or x.is_nested:
        return torch.ones_like(x)
    ramp = torch.linspace(-1, 1, max(x.numel(), 1), dtype=torch.float64)[: x.numel()].add(0.3).sin()
    return ramp.reshape(x.shape).to(x.dtype).to(x.device)


def inplace(op: Any, call: Call) -> Observed:
    method = op.get_inplace()
    if call.broadcasts:
        raise Inapplicable("the input would be broadcast")
    target = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call.input)
    result = dataclasses.replace(call, input=target).run(method)
    written = [x for x in tree_leaves(target) if isinstance(x, torch.Tensor)]
    returned = [result is target, *(x._version for x in written)]
    return Observed([*returned, *written], written)


def out(op: Any, call: Call) -> Observed:
    """`out=` of the right shape, of no elements (resized), and with strides of its own (kept)."""
    result = call.run(op)
    observed = Observed([], [])
    for make in (torch.empty_like, _empty, lambda x: noncontiguous_like(torch.empty_like(x))):
        target = tree_map(lambda x, make=make: make(x) if isinstance(x, torch.Tensor) else x, result)
        places = [x.data_ptr() for x in tree_leaves(target)]
        call.run(op, out=target)
        written = tree_leaves(target)
        if make is not _empty:
            observed.values.append([x.data_ptr() for x in written] == places)
        observed.values += tree_leaves(call.process(target))
        observed.layouts += written
    return observed


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype, device=x.device)


def _through(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Call], Observed]:
    """The forward on tensors changed by `change` into equal ones that lie differently."""

    def compute(op: Any, call: Call) -> Observed:
        before = tree_leaves((call.input, call.args, call.kwargs))
        changed = each_tensor(call, change)
        after = tree_leaves((changed.input, changed.args, changed.kwargs))
        if all(x is y or not _lies_differently(x, y) for x, y in zip(before, after, strict=True)):
            raise Inapplicable("no argument to which this applies")
        return forward(op, changed)

    return compute


def _lies_differently(x: Any, y: Any) -> bool:
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return False
    return (x.stride(), x.is_conj(), x.is_neg()) != (y.stride(), y.is_conj(), y.is_neg())


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.ndim]) if x.ndim in formats else x


def _conj(x: torch.Tensor) -> torch.Tensor:
    return x.conj().resolve_conj().conj() if x.is_complex() else x


def _negated(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-x) if x.is_floating_point() or x.is_complex() else x


def _form(name: str) -> Variant:
    """The forward by another spelling of the op: a method, an operator."""

    def compute(op: Any, call: Call) -> Observed:
        if not isinstance(call.input, torch.Tensor):
            raise Inapplicable("the input is not a tensor")
        result = call.run(getattr(op, name))
        return Observed(tree_leaves(call.process(result)), tree_leaves(result))

    def applies(op: Any, dtype: torch.dtype) -> bool:
        return getattr(op, name, None) is not None

    return Variant(compute, applies)


def error(op: Any, call: Call) -> Observed:
    """What the op raises, and whether it is what PyTorch's tests expect."""
    assert call.error is not None
    kind, pattern = call.error
    try:
        for x in tree_leaves(call.run(op)):
            if isinstance(x, torch.Tensor):
                x.cpu()  # what only the device can see is raised when the host waits for it
    except Exception as raised:
        expected = isinstance(raised, kind) and re.search(pattern, str(raised)) is not None
        return Observed([expected or f"{type(raised).__name__}: {raised}"], [])
    return Observed(["no error"], [])


def _has_errors(op: Any, dtype: torch.dtype) -> bool:
    """Error inputs have dtypes of their own: they are run once, under the op's first dtype."""
    first = min(op.supported_dtypes("cpu"), key=lambda x: (x != torch.float32, str(x)))
    return op.error_inputs_func is not None and dtype == first


def _has_gradients(op: Any, dtype: torch.dtype) -> bool:
    if isinstance(op, PythonRefInfo):  # what it differentiates are the ops that it calls
        return False
    return bool(op.supports_autograd) and dtype in op.supported_backward_dtypes("cpu")


VARIANTS: dict[str, Variant] = {
    "forward": Variant(forward, _always),
    "backward": Variant(backward, _has_gradients, grad=True),
    "inplace": Variant(inplace, lambda op, dtype: op.get_inplace() is not None),
    "out": Variant(out, lambda op, dtype: bool(op.supports_out) and not isinstance(op, PythonRefInfo)),
    "noncontiguous": Variant(_through(noncontiguous_like), _always),
    "channels_last": Variant(_through(_channels_last), _always),
    "conj": Variant(_through(_conj), lambda op, dtype: dtype.is_complex),
    "neg": Variant(_through(_negated), lambda op, dtype: dtype.is_floating_point or dtype.is_complex),
    "method": _form("method_variant"),
    "operator": _form("operator_variant"),
    "reference": Variant(
        forward, lambda op, dtype: op.reference_inputs_func is not None, samples="reference_inputs"
    ),
    "error": Variant(error, _has_errors, samples="error_inputs"),
}
