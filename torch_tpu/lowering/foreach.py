"""Lowerings of `_foreach_*` ops: the lowering of one element's op over the elements of the lists.

They are derived from PyTorch's list of ops at import. The gradient scaler's two ops end the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_tpu.lowering import reductions, registry
from torch_tpu.lowering.registry import lower

Array = jax.Array

_PREFIX = "aten::_foreach_"
#: Overloads of the op that serves one element, in the order of preference.
_KINDS = (".Tensor", "", ".Tensor_Tensor")
#: List ops whose element op is another one than the name says: the exponent steers the program.
_ELEMENTS = {"pow.Scalar": "aten::pow.Tensor_Scalar"}
#: List ops that have a lowering of their own below.
_OWN = {"clone", "copy", "max", "norm.Scalar", "powsum.Scalar"}


def list_ops() -> dict[str, str]:
    """The functional `_foreach_*` ops and, for each, the op that serves one element."""
    existing = set(torch._C._dispatch_get_all_op_names())
    found = {}
    for name in sorted(x for x in existing if x.startswith(_PREFIX)):
        base, _, overload = name.removeprefix(_PREFIX).partition(".")
        if base.endswith("_") or overload.endswith("out") or name.removeprefix(_PREFIX) in _OWN:
            continue
        candidates = [f"aten::{base}{kind}" for kind in _KINDS]
        element = _ELEMENTS.get(name.removeprefix(_PREFIX))
        found[name] = element or next(x for x in candidates if x in existing)
    return found


def _over_lists(element: str) -> Callable[..., list[Array]]:
    def lowering(*args: Any, **kwargs: Any) -> list[Array]:
        served = registry.find(element)
        assert served is not None, element
        count = max(len(x) for x in args if isinstance(x, (list, tuple)))
        rows = zip(*(_spread(x, count) for x in args), strict=True)
        return [served.fn(*row, **kwargs) for row in rows]

    return lowering


def _spread(value: Any, count: int) -> list[Any]:
    """A value for each of `count` elements: those of a list or vector, or the one value for all."""
    vector = isinstance(value, jax.Array) and value.ndim == 1
    return list(value) if vector or isinstance(value, (list, tuple)) else [value] * count


for _name, _element in list_ops().items():
    lower(_name, static=("exponent",) if _name.endswith("pow.Scalar") else ())(_over_lists(_element))


@lower("aten::_foreach_clone")
def foreach_clone(self: list[Array]) -> list[Array]:
    return list(self)


@lower("aten::_foreach_copy")
def foreach_copy(self: list[Array], src: list[Array], non_blocking: bool = False) -> list[Array]:
    return [jnp.broadcast_to(value, x.shape) for x, value in zip(self, src, strict=True)]


@lower("aten::_foreach_max")
def foreach_max(self: list[Array]) -> list[Array]:
    return [jnp.max(x) for x in self]


@lower("aten::_foreach_norm.Scalar", static=("ord",))
def foreach_norm(self: list[Array], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Array]:
    return [reductions.vector_norm(x, ord, dtype=dtype) for x in self]


@lower("aten::_foreach_powsum.Scalar", static=("ord",))
def foreach_powsum(self: list[Array], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Array]:
    return [reductions.powsum(x, ord, dtype=dtype) for x in self]


# --- the gradient scaler ------------------------------------------------------------------------


@lower("aten::_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(self: list[Array], found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
    """The gradients times `inv_scale`, and 1 where any gradient has an infinity or NaN."""
    found = found_inf != 0
    for x in self:
        found = found | ~jnp.all(jnp.isfinite(x))
    factor = inv_scale.reshape(())
    scaled = [x if x.size == 0 else x.astype(factor.dtype) * factor for x in self]
    return scaled, found.astype(found_inf.dtype)


@lower("aten::_amp_update_scale")
def amp_update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: int,
) -> tuple[Array, Array]:
    """The next scale and the count of steps since it changed; a scale that would overflow stays."""
    overflowed = found_inf != 0
    steps = growth_tracker + 1
    grows = ~overflowed & (steps == growth_interval)
    grown = self * scale_growth_factor
    larger = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflowed, self * scale_backoff_factor, jnp.where(grows, larger, self))
    return scale, jnp.where(overflowed | grows, 0, steps)
