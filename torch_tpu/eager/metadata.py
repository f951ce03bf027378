"""Metadata of an op's results, from PyTorch's own meta kernels."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from torch_tpu import _C
from torch_tpu.eager.forms import Form
from torch_tpu.eager.program import FreshTensor, NumberLeaf, TensorLeaf, map_leaves

#: Ops whose result is in channels_last where one of so many first arguments is.
_FORMAT_OF = {
    "_convolution": 2,
    "convolution": 2,
    "max_unpool2d": 1,
    "native_channel_shuffle": 1,
    "pixel_shuffle": 1,
    "reflection_pad2d": 1,
    "replication_pad2d": 1,
}


#: Ops whose meta kernels, as CUDA's, ask for strides and sizes that only its kernels need.
_STRICTER = frozenset({"aten::_grouped_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"})
_BATCH_NORMS = frozenset(
    f"aten::{name}"
    for name in ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
)
_TRAINING = 5  # place of `training` among their arguments


class NoMetadata(Exception):
    """The op has no meta kernel."""


class Arguments:
    """The arguments of a call on "meta" or "cpu" (zeros): what shares a storage does so there."""

    def __init__(self, args: list[Any], device: str) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._device = torch.device(device)
        self.args = map_leaves(args, self._convert)

    def _convert(self, leaf: TensorLeaf | NumberLeaf) -> Any:
        if isinstance(leaf, TensorLeaf):
            return self._tensor(leaf)
        if leaf.dtype is None:
            return leaf.value
        return torch.tensor(leaf.value, dtype=leaf.dtype)

    def _tensor(self, leaf: TensorLeaf) -> torch.Tensor:
        spec = leaf.spec
        if leaf.slot not in self._storages:
            whole = torch.zeros(leaf.nbytes, dtype=torch.uint8, device=self._device)
            self._storages[leaf.slot] = whole.untyped_storage()
        tensor = torch.empty(0, dtype=spec.dtype, device=self._device)
        tensor.set_(self._storages[leaf.slot], spec.offset, spec.sizes, spec.strides)
        if spec.conj:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if spec.neg else tensor

    def call(self, form: Form) -> Any:
        """The op's results for these arguments."""
        positional, keywords = [], {}
        for declared, value in zip(form.op._schema.arguments, self.args, strict=True):
            if declared.name == "device":
                value = self._device
            elif declared.name in ("generator", "pin_memory"):
                value = None
            elif isinstance(value, int | float | complex) and isinstance(declared.type, torch.TensorType):
                value = _C.wrapped_number(value)  # not every op takes a number for a tensor
            if declared.kwarg_only:
                keywords[declared.name] = value
            else:
                positional.append(value)
        with torch._C.DisableTorchFunction():
            return form.op(*positional, **keywords)


def tensor_on_meta(leaf: TensorLeaf | NumberLeaf) -> torch.Tensor:
    """A contiguous tensor of the leaf's shape and dtype; the default dtype for a Python number."""
    if isinstance(leaf, TensorLeaf):
        return torch.empty(leaf.spec.sizes, dtype=leaf.dtype, device="meta")
    dtype = torch.uint64 if leaf.kind == "u" else leaf.dtype
    return torch.tensor(leaf.value, dtype=dtype, device="meta")


def run(form: Form, meta: Arguments) -> Any:
    """The op's results on the device of `meta`. Raises what the op raises for bad arguments; NoMetadata."""
    if form.name in _STRICTER:
        raise NoMetadata(form.name)
    try:
        with warnings.catch_warnings():
            # The core resizes `out=` itself, and warns then.
            warnings.filterwarnings("ignore", message=".*An output with one or more elements was resized")
            return _in_format(form, meta, _without_statistics(form, meta, meta.call(form)))
    except (NotImplementedError, AttributeError) as error:  # some kernels in Python stumble over None
        raise NoMetadata(str(error)) from error


def _without_statistics(form: Form, meta: Arguments, result: Any) -> Any:
    """Batch norm in evaluation saves no statistics on the CPU; the meta kernel is CUDA's."""
    if (form.name or "").partition(".")[0] not in _BATCH_NORMS or meta.args[_TRAINING]:
        return result
    mean, deviation = result[1].new_empty(0), result[2].new_empty(0)
    return (result[0], mean, deviation, *result[3:])


def _in_format(form: Form, meta: Arguments, result: Any) -> Any:
    """The result in the memory format that the CPU gives it, where the meta kernel has another."""
    deciding = _FORMAT_OF.get((form.name or "").removeprefix("aten::"), 0)
    if form.written or not isinstance(result, torch.Tensor) or result.ndim not in (4, 5):
        return result
    last = torch.channels_last if result.ndim == 4 else torch.channels_last_3d
    for x in meta.args[:deciding]:
        if x.ndim == result.ndim and suggest_memory_format(x) == last:
            return result.contiguous(memory_format=last)
    return result


def fresh_tensor(meta: torch.Tensor) -> FreshTensor:
    """What the core needs to make a tensor like `meta`."""
    sizes, strides = tuple(meta.shape), tuple(meta.stride())
    layout = _C.dense_layout(sizes, strides)
    if layout is None:
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if meta.numel() else 0
        layout = (span,)
    return FreshTensor(meta.dtype, sizes, strides, 0, layout)


def guessed(result: Any, dtype: torch.dtype) -> FreshTensor:
    """Contiguous metadata for a result whose shape only the lowering knows."""
    sizes = tuple(result.shape)
    strides = tuple(itertools.accumulate([1, *(max(1, n) for n in sizes[:0:-1])], lambda a, b: a * b))[::-1]
    return FreshTensor(dtype, sizes, strides[: len(sizes)] if sizes else (), 0, sizes)
