"""The table of lowerings: one pure function over JAX arrays per functional ATen op.

    @lower("aten::_softmax")
    def softmax(x, dim, half_to_float): ...

A lowering gets the op's arguments in schema order (keyword-only ones by name): tensors as arrays of
the tensor's own shape and dtype, static arguments as Python objects, and numbers either as Python
numbers or, when their value is run-time data, as weakly typed 0-d arrays. Either kind behaves like a
Python number in `jnp` arithmetic; never branch on one unless it is named in `static`.
The caller casts results to the op's result dtype and derives in-place, `out=` and view forms.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_tpu import dtypes

#: Arguments that say where or how a result lies, not what it is: dropped unless a lowering names them.
PLACEMENT = frozenset(
    {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
)
#: Scalar arguments that take part in type promotion, besides tensors.
_PROMOTING = frozenset({"self", "other", "exponent", "min", "max"})


@dataclass(frozen=True)
class Lowering:
    """How one op is served.

    fn: the function over JAX arrays, promotion included.
    static: names of number arguments that are part of the key (all ints are, unless in `dynamic`).
    dynamic: names of int arguments that are run-time data.
    random: the first parameter is a JAX PRNG key.
    accepts: the parameters' names. One called `contiguous` is told whether the first tensor was.
    """

    fn: Callable[..., Any]
    static: frozenset[str] = frozenset()
    dynamic: frozenset[str] = frozenset()
    random: bool = False
    accepts: frozenset[str] = frozenset()


_TABLE: dict[str, Lowering] = {}
_FAMILIES: list[str] = []  # modules with lowerings, set by lowering/__init__.py


def lower(
    *names: str,
    promote: str | None = None,
    static: Iterable[str] = (),
    dynamic: Iterable[str] = (),
    random: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the lowering of the ops `names` ("aten::add.Tensor").

    promote: None, or how inputs are cast before the call, in PyTorch's words: "default" (the common
    dtype, 16-bit floats computed in float32), "no_opmath" (the common dtype itself),
    "int_to_float" (integers become the default float dtype, then as "default").
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = _promoting(fn, promote) if promote else fn
        accepts = frozenset(inspect.signature(fn).parameters)
        for name in names:
            if name in _TABLE:
                raise ValueError(f"{name} has two lowerings: {_TABLE[name].fn!r} and {fn!r}")
            _TABLE[name] = Lowering(wrapped, frozenset(static), frozenset(dynamic), random, accepts)
        return wrapped

    return register


def _promoting(fn: Callable[..., Any], kind: str) -> Callable[..., Any]:
    if kind not in ("default", "no_opmath", "int_to_float"):
        raise ValueError(f"promote: expected 'default', 'no_opmath' or 'int_to_float', got {kind!r}")
    names = list(inspect.signature(fn).parameters)

    def promotes(name: str, x: Any) -> bool:
        return (isinstance(x, jax.Array) and not dtypes.is_number(x)) or (
            dtypes.is_number(x) and (name in _PROMOTING)
        )

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        named = list(zip(names, args, strict=False)) + list(kwargs.items())
        dtype = dtypes.result_type(x for name, x in named if promotes(name, x))
        if kind == "int_to_float" and not (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.get_default_dtype()
        own = dtypes.JAX_DTYPE.get(dtype) if kind == "no_opmath" else None
        target = own or dtypes.compute_dtype(dtype)

        def convert(x: Any) -> Any:
            if isinstance(x, bool) or not (isinstance(x, jax.Array) or dtypes.is_number(x)):
                return x
            return dtypes.cast(x, target)

        return fn(*map(convert, args), **{k: convert(v) for k, v in kwargs.items()})

    return wrapped


@functools.cache
def _load() -> None:
    for module in _FAMILIES:
        importlib.import_module(module)


def find(name: str) -> Lowering | None:
    """The lowering of the functional op `name` ("aten::add.Tensor"), or None."""
    _load()
    return _TABLE.get(name)


def names() -> list[str]:
    """All ops that have a lowering, sorted."""
    _load()
    return sorted(_TABLE)


def call(lowering: Lowering, args: list[Any], kwargs: dict[str, Any], key: Any = None) -> Any:
    """Call a lowering, leaving out what it does not name of PLACEMENT and adding the PRNG key."""
    kept = {k: v for k, v in kwargs.items() if k not in PLACEMENT or k in lowering.accepts}
    return lowering.fn(*((key, *args) if lowering.random else args), **kept)


def constant(value: Any, dtype: Any) -> jax.Array:
    """A number, static or run-time, as a 0-d array of `dtype`."""
    return dtypes.cast(jnp.asarray(value), dtype)
