"""Run PyTorch programs on CPU tensors through the lowerings alone: no device, no plans, no views.

`with LoweringMode() as mode:` evaluates each functional ATen op that has a lowering by that lowering
(under `jax.enable_x64`), and returns CPU tensors with the dtype and strides PyTorch's own kernel
gives. Ops without one run on the CPU and are counted in `mode.missing`.
"""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torch_tpu import dtypes
from torch_tpu.lowering import registry


def to_jax(x: torch.Tensor) -> jax.Array:
    raw = {torch.bfloat16: torch.uint16, torch.float16: torch.float16}
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    kind = dtypes.JAX_DTYPE[x.dtype]
    if x.dtype in raw or x.dtype.itemsize == 1:
        bits = x.view(raw.get(x.dtype, torch.uint8)).numpy()
        return jnp.asarray(bits.view(kind) if kind != np.bool_ else bits.astype(bool))
    return jnp.asarray(x.numpy())


def to_torch(x: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    array = np.array(dtypes.cast(x, dtype))
    if dtype in (torch.bfloat16,) or (dtype.itemsize == 1 and dtype.is_floating_point):
        bits = array.view(np.uint16 if dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(dtype)
    return torch.from_numpy(array)


class LoweringMode(TorchDispatchMode):
    """See the module's docstring. `only`: names of ops to lower; others run on the CPU."""

    def __init__(self, only: set[str] | None = None) -> None:
        super().__init__()
        self.only, self.missing, self.lowered = only, collections.Counter[str](), collections.Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        expected = func(*args, **kwargs)
        schema = func._schema
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        found = registry.find(name)
        writes = any(a.alias_info is not None for a in schema.arguments)
        if found is None or found.random or writes or (self.only is not None and name not in self.only):
            if found is None and not writes:
                self.missing[name] += 1
            return expected
        self.lowered[name] += 1
        with jax.enable_x64(True):
            convert = lambda x: self._leaf(x)  # noqa: E731
            result = registry.call(found, tree_map(convert, list(args)), tree_map(convert, kwargs))
            return self._like(expected, result, name)

    @staticmethod
    def _leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.ndim == 0 and getattr(x, "is_wrapped_number", lambda: False)():
                return x.item()
            return to_jax(x)
        return x

    def _like(self, expected: Any, result: Any, name: str) -> Any:
        if expected is None:
            return None
        if isinstance(expected, torch.Tensor):
            assert tuple(result.shape) == tuple(expected.shape), f"{name}: {result.shape} != {expected.shape}"
            out = torch.empty_strided(expected.shape, expected.stride(), dtype=expected.dtype)
            return out.copy_(to_torch(result, expected.dtype))
        return type(expected)(self._like(e, r, name) for e, r in zip(expected, result, strict=True))
