"""Bad input gets PyTorch's own error: the CPU's kernel is asked, on zeros, when a plan cannot be made.

Meta kernels check less than kernels that compute, and word their errors in their own way.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torch_tpu.eager.forms import Form
from torch_tpu.eager.metadata import Arguments
from torch_tpu.eager.program import TensorLeaf, leaves

#: Ops that refuse tensors of several dtypes only where they compute, so that meta kernels let them pass.
_STRICT = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "lerp", "sub"),
        "convolution",
        *(
            "index_put",
            "index_copy",
            "index_add",
            "scatter",
            "scatter_add",
            "scatter_reduce",
            "gather",
            "take",
        ),
        *("put", "index_select", "embedding", "masked_scatter", "nll_loss_forward", "nll_loss2d_forward"),
    }
)
_MOST_BYTES = 1 << 28  # of arguments that are made on the host to ask the CPU


def better(form: Form, args: list[Any], error: Exception) -> Exception:
    """The CPU's error for this call, or `error` where the CPU has none."""
    return _asked(form, args) or error


def check_dtypes(form: Form, args: list[Any]) -> None:
    """Raise what the CPU raises where tensors of several dtypes meet in an op that wants one."""
    base = (form.name or "").removeprefix("aten::").partition(".")[0]
    if base in _STRICT and len({leaf.dtype for leaf in leaves(args) if isinstance(leaf, TensorLeaf)}) > 1:
        error = _asked(form, args)
        if error is not None and "not implemented for" not in str(error):  # what the CPU lacks, we may have
            raise error


def _asked(form: Form, args: list[Any]) -> Exception | None:
    tensors = [leaf for leaf in leaves(args) if isinstance(leaf, TensorLeaf)]
    seeded = torch.Tag.nondeterministic_seeded in form.op.tags  # would advance the CPU's generator
    if seeded or sum(leaf.nbytes for leaf in tensors) > _MOST_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Arguments(args, "cpu").call(form)
    except Exception as error:
        return error.with_traceback(None)
    return None
