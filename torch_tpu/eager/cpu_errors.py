"""Bad input gets PyTorch's own error: the CPU's kernel is asked, on zeros, when a plan cannot be made.

Meta kernels check less than kernels that compute, and word their errors in their own way.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_tpu.eager.forms import Form, form
from torch_tpu.eager.metadata import Arguments
from torch_tpu.eager.program import NumberLeaf, TensorLeaf, leaves

#: Ops that refuse tensors of several dtypes only where they compute, so that meta kernels let them pass.
_STRICT = frozenset(  # fmt: skip
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "lerp",
        "sub",
        "convolution",
        "index_put",
        "index_copy",
        "index_add",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "gather",
        "take",
        "put",
        "index_select",
        "embedding",
        "masked_scatter",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "complex",
        "polar",
    }
)
#: Ops whose second tensor is a mask.
_MASKED = frozenset({"masked_fill", "masked_scatter", "masked_select"})
#: Ops that refuse integers or bools only there.
_INEXACT = frozenset(  # fmt: skip
    {
        "_softmax",
        "_log_softmax",
        "gelu",
        "softplus",
        "silu",
        "mish",
        "elu",
        "hardswish",
        "log_sigmoid_forward",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "lerp",
        "hypot",
        "logaddexp",
        "logaddexp2",
        "sub",
        "rsub",
        "pow",
        "native_layer_norm",
        "native_batch_norm",
        "native_group_norm",
        "__lshift__",
        "__rshift__",
        "bitwise_left_shift",
        "bitwise_right_shift",
    }
)
_NAMES = {
    **{torch.bool: "Bool", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int"},
    **{torch.int64: "Long", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"},
    **{torch.float64: "Double", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"},
}
_MOST_BYTES = 1 << 28  # of arguments that are made on the host to ask the CPU


def better(which: Form, args: list[Any], error: Exception) -> Exception:
    """The CPU's error for this call, or `error` where the CPU has none."""
    return _ask(which, args)[1] or error


def accepted(which: Form, args: list[Any], error: Exception) -> Any:
    """The CPU's results on zeros, where a meta kernel refuses what the CPU takes; else raises its error."""
    results, refusal = _ask(which, args)
    if refusal is not None or results is None:
        raise refusal or error
    return results


def check_dtypes(which: Form, args: list[Any]) -> None:
    """Raise what the CPU raises for dtypes that an op refuses only where it computes."""
    base = (which.name or "").removeprefix("aten::").partition(".")[0]
    found = [leaf.dtype for leaf in leaves(args) if isinstance(leaf, TensorLeaf)]
    kinds = {leaf.kind for leaf in leaves(args) if isinstance(leaf, NumberLeaf)}
    inexact = "b" not in kinds and all(dtype.is_floating_point or dtype.is_complex for dtype in found)
    mixed = base in _STRICT and len(set(found)) > 1
    scaled = base in ("add", "sub", "rsub") and _has_odd_alpha(which, args)
    strict = mixed or scaled or _has_odd_mask(base, found) or (base in _INEXACT and not inexact)
    imaginary = "c" in kinds or any(dtype.is_complex for dtype in found)  # they have no order
    if strict or imaginary:
        error = _ask(which, args)[1]
        if error is not None and _concerns_dtypes(error, found, strict, imaginary):
            raise error


def check_masks(which: Form, args: list[Any]) -> None:
    """Raise what the CPU raises for the dtype of a mask, or of the `out=` of `nonzero`."""
    base = (which.name or "").removeprefix("aten::").partition(".")[0]
    found = [leaf.dtype for leaf in leaves(args) if isinstance(leaf, TensorLeaf)]
    error = _ask(which, args)[1] if _has_odd_mask(base, found) else None
    if error is not None:
        raise error


def _has_odd_mask(base: str, found: list[torch.dtype]) -> bool:
    if base == "nonzero":
        return found[1:] not in ([], [torch.int64])
    return base in _MASKED and found[1:2] != [torch.bool]


def _concerns_dtypes(error: Exception, found: list[torch.dtype], strict: bool, imaginary: bool) -> bool:
    """False where we may have what the CPU lacks for these dtypes, and where it refuses zeros."""
    lacks = "not implemented for" in str(error)
    if imaginary and (lacks or not strict):
        return lacks or "omplex" in str(error)
    usual = all(dtype in _NAMES for dtype in found)
    return not lacks or (usual and not all(dtype.is_floating_point for dtype in found))


def _has_odd_alpha(which: Form, args: list[Any]) -> bool:
    """True where `alpha` is no integer, which not every dtype takes."""
    named = zip(which.op._schema.arguments, args, strict=True)
    return any(a.name == "alpha" and isinstance(v, NumberLeaf) and v.kind != "i" for a, v in named)


def check_cast(which: Form, meta: Arguments) -> None:
    """Raise where an in-place op computes in a dtype that the tensor it writes cannot take."""
    try:
        results = meta.call(form(which.name or ""))
    except Exception:
        return  # this form has no meta kernel
    written = tree_leaves([meta.args[i] for i in which.written])
    for result, tensor in zip(tree_leaves(results), written, strict=False):
        if isinstance(result, torch.Tensor) and not torch.can_cast(result.dtype, tensor.dtype):
            raise RuntimeError(
                f"result type {_NAMES.get(result.dtype, result.dtype)} can't be cast "
                f"to the desired output type {_NAMES.get(tensor.dtype, tensor.dtype)}"
            )


def _ask(which: Form, args: list[Any]) -> tuple[Any, Exception | None]:
    """The CPU's results on zeros and its error: one of the two, or neither where it is not asked."""
    tensors = [leaf for leaf in leaves(args) if isinstance(leaf, TensorLeaf)]
    if sum(leaf.nbytes for leaf in tensors) > _MOST_BYTES:
        return None, None
    try:
        # What draws random numbers must not advance the CPU's generator.
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Arguments(args, "cpu").call(which), None
    except Exception as error:
        return None, error.with_traceback(None)
