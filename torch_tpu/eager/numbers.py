"""Numbers that the CPU refuses by their value. They are run-time data: the core checks them at every call."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.eager.forms import Form, form
from torch_tpu.eager.metadata import Arguments
from torch_tpu.eager.program import NumberLeaf, TensorLeaf, map_leaves

#: Number arguments that must be representable in the result's dtype, by functional op.
_FIT_RESULT = {
    "add": ("alpha",),
    "sub": ("alpha",),
    "rsub": ("alpha",),
    "addr": ("beta", "alpha"),
    "clamp": ("min", "max"),
    "clamp_max": ("max",),
    "clamp_min": ("min",),
    "constant_pad_nd": ("value",),
    "fill": ("value",),
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "hardshrink": ("lambd",),
    "hardtanh": ("min_val", "max_val"),
    "index_add": ("alpha",),
    "index_fill": ("value",),
    "masked_fill": ("value",),
    "new_full": ("fill_value",),
    "scalar_tensor": ("s",),
    "scatter": ("value",),
    "threshold": ("threshold", "value"),
}
#: Those that must be so in the dtype in which the op computes: float32 for 16-bit floats.
_FIT_COMPUTED = {
    "addbmm": ("beta", "alpha"),
    "addcdiv": ("value",),
    "addcmul": ("value",),
    "addmm": ("beta", "alpha"),
    "addmv": ("beta", "alpha"),
    "baddbmm": ("beta", "alpha"),
    "celu": ("alpha",),
    "elu": ("alpha", "scale", "input_scale"),
    "leaky_relu": ("negative_slope",),
    "lerp": ("weight",),
    "softplus": ("beta", "threshold"),
    "softshrink": ("lambd",),
}
#: Random ops whose numbers are parameters of a distribution.
_DRAWS = frozenset(
    {"bernoulli", "cauchy", "exponential", "geometric", "log_normal"}
    | {"normal", "normal_functional", "randint", "randint_like", "random", "uniform"}
)


def _base(which: Form) -> str:
    return (which.name or "").removeprefix("aten::").partition(".")[0]


def fits(which: Form, args: list[Any], dtype: torch.dtype | None) -> list[tuple[int, torch.dtype]]:
    """Arguments (by index) whose numbers must be representable, and in which dtype.

    dtype: of the op's result; None where it has no tensor as result.
    """
    base = _base(which)
    if dtype is None or dtype is torch.bool:
        return []  # any number is a bool
    named = _FIT_RESULT.get(base)
    if named is None:
        named = _FIT_COMPUTED.get(base, ())
        dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return []  # float8 saturates
    return [
        (i, dtype)
        for i, (declared, value) in enumerate(zip(which.op._schema.arguments, args, strict=True))
        if declared.name in named and not isinstance(value, TensorLeaf) and value is not None
    ]


def asks(which: Form, args: list[Any]) -> bool:
    """True where the CPU is asked about each new set of run-time numbers."""
    return _base(which) in _DRAWS and any(isinstance(value, NumberLeaf) for value in args)


def check(name: str, args: list[Any]) -> None:
    """Raise what the CPU raises for the numbers of a call. It draws nothing: its tensors are empty."""

    def empty(leaf: TensorLeaf | NumberLeaf) -> Any:
        return torch.empty(0, dtype=leaf.dtype) if isinstance(leaf, TensorLeaf) else leaf

    which = form(name)
    declared = [a.name for a in which.op._schema.arguments]
    nothing = [[0] if a == "size" else value for a, value in zip(declared, args, strict=True)]
    Arguments(map_leaves(nothing, empty), "cpu").call(which)
