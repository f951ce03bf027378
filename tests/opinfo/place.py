"""Samples moved between devices, with strides, storage offsets and gradients as they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import ErrorInput
from torch.utils._pytree import tree_map

_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


@dataclasses.dataclass
class Call:
    """The arguments of one call of an op, and how its results are made comparable.

    error: the exception type and the pattern of its text, where the call must fail.
    """

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any] = lambda x: x
    broadcasts: bool = False
    error: tuple[type[Exception], str] | None = None

    @classmethod
    def of(cls, sample: Any) -> Call:
        """From PyTorch's SampleInput or ErrorInput."""
        if isinstance(sample, ErrorInput):
            expected = (sample.error_type, sample.error_regex)
            return dataclasses.replace(cls.of(sample.sample_input), error=expected)
        process, broadcasts = sample.output_process_fn_grad, bool(sample.broadcasts_input)
        return cls(sample.input, tuple(sample.args), dict(sample.kwargs), process, broadcasts)

    def map(self, fn: Callable[[Any], Any]) -> Call:
        """The call with `fn` applied to each leaf of its arguments."""
        changed = tree_map(fn, (self.input, self.args, self.kwargs))
        return dataclasses.replace(self, input=changed[0], args=changed[1], kwargs=changed[2])

    def run(self, fn: Callable[..., Any], **extra: Any) -> Any:
        return fn(self.input, *self.args, **{**self.kwargs, **extra})


def place(call: Call, device: str) -> Call:
    """A copy of `call` on `device`: fresh leaf tensors, device arguments renamed."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return tensor_to(x, device)
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return type(x)(device)
        if isinstance(x, torch.Generator):
            return torch.Generator(device).manual_seed(x.initial_seed())
        return x

    return call.map(leaf)


def tensor_to(x: torch.Tensor, device: str) -> torch.Tensor:
    """A leaf copy of `x` on `device` with its strides, storage offset and requires_grad."""
    source = x.detach()
    plain = source.layout == torch.strided and not source.is_nested
    if plain and not _is_dense(source) and not source.is_conj() and not source.is_neg():
        whole = torch.empty(0, dtype=x.dtype).set_(source.untyped_storage())
        moved = whole.to(device, copy=True).as_strided(x.size(), x.stride(), x.storage_offset())
    else:
        moved = source.to(device, copy=True)
    return moved.requires_grad_(x.requires_grad)


def _is_dense(x: torch.Tensor) -> bool:
    """Whether a plain copy keeps the strides."""
    return x.is_contiguous() or torch.empty_like(x).stride() == x.stride()


def widened(call: Call) -> Call:
    """The call in double precision."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in _WIDER:
            return x.detach().to(_WIDER[x.dtype]).requires_grad_(x.requires_grad)
        return _WIDER.get(x, x) if isinstance(x, torch.dtype) else x

    return call.map(leaf)


def each_tensor(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    """The call with `change` applied to its tensors, which stay leaves."""

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.is_nested:
            return x
        with torch.no_grad():
            return change(x.detach()).requires_grad_(x.requires_grad)

    return call.map(leaf)
