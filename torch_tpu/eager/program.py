"""The function that a plan compiles: read through view specs, lower, write through view specs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core.primitives import convert_element_type_p

from torch_tpu import dtypes
from torch_tpu.lowering import strided
from torch_tpu.lowering.checks import Bound, first_outside
from torch_tpu.lowering.strided import ViewSpec
from torch_tpu.runtime import client

#: Words of random state at the head of the packed data.
RANDOM_WORDS = 4
_WIDE = {"i": np.int64, "u": np.uint64}
_WORDS = {"c": 4}  # of a number by kind; the others take two


@dataclass(frozen=True, eq=False)
class TensorLeaf:
    """A `tpu` tensor among the arguments.

    slot: which of the call's storages it is on. index: its place among the tensor leaves.
    """

    tensor: torch.Tensor
    slot: int
    index: int
    layout_dtype: torch.dtype
    layout_sizes: tuple[int, ...]
    nbytes: int
    spec: ViewSpec = field(init=False)

    def __post_init__(self) -> None:
        t = self.tensor
        spec = ViewSpec(tuple(t.shape), t.stride(), int(t.storage_offset()), t.dtype, t.is_conj(), t.is_neg())
        object.__setattr__(self, "spec", spec)

    def __repr__(self) -> str:
        return f"T{self.slot}[{self.layout_dtype}{self.layout_sizes} {self.spec}]"

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype."""
        return self.spec.dtype

    @property
    def covers(self) -> bool:
        """True when writing it replaces its whole storage."""
        return strided.covers(self.layout_dtype, self.layout_sizes, self.spec)


@dataclass(frozen=True, eq=False)
class NumberLeaf:
    """A run-time number: a Python number, or a 0-dim CPU tensor of `dtype`.

    kind: "i", "u" (an integer over int64's), "f", "b" or "c". index: its first word in the packed numbers.
    from_tensor: the op was given a tensor (a wrapped number when dtype is None).
    """

    value: Any
    kind: str
    index: int
    dtype: torch.dtype | None
    from_tensor: bool

    def __repr__(self) -> str:
        return f"N{self.kind}{self.index}[{self.dtype} {self.from_tensor}]"

    @property
    def end(self) -> int:
        """The word after its last one."""
        return self.index + _WORDS.get(self.kind, 2)

    def decode(self, words: jax.Array) -> jax.Array:
        """Its value from the packed numbers: weakly typed, or of `dtype`."""
        value = _decode(words[self.index : self.end], self.kind)
        if self.dtype is not None:
            return dtypes.cast(value, self.dtype)
        # Weak types have no public constructor; `lax.convert_element_type(value, float)` is strong.
        return convert_element_type_p.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def _decode(words: jax.Array, kind: str) -> jax.Array:
    if kind == "b":
        return words[0] != 0
    if kind == "c":
        parts = _decode(words[:2], "f"), _decode(words[2:], "f")
        if client.platform() == "tpu":  # whose compiler aborts the process at complex128
            parts = parts[0].astype(np.float32), parts[1].astype(np.float32)
        return jax.lax.complex(*parts)
    return jax.lax.bitcast_convert_type(words, _WIDE.get(kind, np.float64))


@dataclass
class FreshTensor:
    """A tensor that the plan makes: metadata as the core wants it."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    layout_sizes: tuple[int, ...]

    def astuple(self) -> tuple[Any, ...]:
        """In the order of FreshTensor in csrc/plan.h."""
        return self.dtype, self.sizes, self.strides, self.offset, self.layout_sizes

    def value(self, result: jax.Array) -> jax.Array:
        """Its Value: `result` in the layout's order."""
        spec = ViewSpec(self.sizes, self.strides, self.offset, self.dtype)
        base = None
        if not strided.covers(self.dtype, self.layout_sizes, spec):
            base = jnp.zeros(self.layout_sizes, dtypes.storage_dtype(self.dtype))
        return strided.write(base, self.dtype, spec, result, layout_sizes=self.layout_sizes)


def leaves(args: Any) -> Iterator[TensorLeaf | NumberLeaf]:
    """The leaves of an argument tree, in order."""
    if isinstance(args, (list, tuple)):
        for item in args:
            yield from leaves(item)
    elif isinstance(args, (TensorLeaf, NumberLeaf)):
        yield args


def flatten(results: Any) -> Iterator[Any]:
    """The items of nested lists of results, in order."""
    if isinstance(results, (list, tuple)):
        for item in results:
            yield from flatten(item)
    else:
        yield results


def map_leaves(args: Any, convert: Callable[[Any], Any]) -> Any:
    """The argument tree with `convert` applied to its leaves."""
    if isinstance(args, (list, tuple)):
        return [map_leaves(item, convert) for item in args]
    return convert(args) if isinstance(args, (TensorLeaf, NumberLeaf)) else args


@dataclass
class Program:
    """One op call as a function of the Values of its storages and of the packed data.

    compute: takes the argument tree with arrays in place of leaves, and a PRNG key; returns a flat list
        of results: first those of `fresh`, then the new contents of `written`.
    unread: indices of tensor leaves whose elements do not matter.
    offsets: indices of the tensor leaves whose storage offset is run-time data, in packed order; or None.
    bounds: what the arrays in place of leaves are held to. If anything, the last result is what was found.
    """

    args: list[Any]
    compute: Callable[[list[Any], Any], Sequence[Any]]
    fresh: list[FreshTensor]
    written: list[TensorLeaf]
    unread: frozenset[int]
    random: bool
    offsets: list[int] | None
    bounds: Callable[[list[Any]], list[Bound]] | None = None

    def __post_init__(self) -> None:
        found = list(leaves(self.args))
        self.tensors = [x for x in found if isinstance(x, TensorLeaf)]
        self.numbers = [x for x in found if isinstance(x, NumberLeaf)]
        self.slots = sorted(
            {t.slot for t in self.tensors if t.index not in self.unread}
            | {t.slot for t in self.written if not t.covers}
        )
        self.written_slots = list(dict.fromkeys(t.slot for t in self.written))
        self.packed = bool(self.random or self.offsets or self.numbers)

    def in_specs(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each parameter."""
        by_slot = {t.slot: t for t in [*self.tensors, *self.written]}
        specs = [(by_slot[s].layout_sizes, dtypes.storage_dtype(by_slot[s].layout_dtype)) for s in self.slots]
        if self.packed:
            specs.append(((self._number_words() + self._head_words(),), np.dtype(np.uint32)))
        return specs

    def _number_words(self) -> int:
        return max((n.end for n in self.numbers), default=0)

    def _head_words(self) -> int:
        return (RANDOM_WORDS if self.random else 0) + 2 * len(self.offsets or ())

    def donated(self) -> list[int]:
        """Parameters whose Value a new one replaces."""
        return [i for i, slot in enumerate(self.slots) if slot in self.written_slots]

    def results(self, *parameters: jax.Array) -> list[Any]:
        """What `compute` gives for these parameters."""
        words = parameters[-1] if self.packed else None
        return list(self.compute(self._arguments(parameters), self._key(words)))

    def traced_bounds(self) -> list[Bound]:
        """The bounds of its arguments, around tracers."""
        found: list[Bound] = []
        if self.bounds is not None:
            specs = [jax.ShapeDtypeStruct(*spec) for spec in self.in_specs()]
            jax.eval_shape(lambda *p: found.extend(self._bounded(p)), *specs)
        return found

    def _bounded(self, parameters: Sequence[jax.Array]) -> list[Bound]:
        return [] if self.bounds is None else self.bounds(self._arguments(parameters))

    def _arguments(self, parameters: Sequence[jax.Array]) -> list[Any]:
        """The argument tree with arrays in place of leaves."""
        bases = dict(zip(self.slots, parameters, strict=False))
        words = parameters[-1] if self.packed else None
        offsets = self._offsets(words)

        def read(leaf: Any) -> Any:
            if isinstance(leaf, NumberLeaf):
                assert words is not None
                return leaf.decode(words[self._head_words() :])
            if leaf.index in self.unread:
                return jnp.zeros(leaf.spec.sizes, dtypes.storage_dtype(leaf.spec.dtype))
            return strided.read(bases[leaf.slot], leaf.layout_dtype, leaf.spec, offsets.get(leaf.index))

        return map_leaves(self.args, read)

    def __call__(self, *parameters: jax.Array) -> list[jax.Array]:
        results = self.results(*parameters)
        fresh = [
            meta.value(_fit(r, meta.dtype, meta.sizes)) for meta, r in zip(self.fresh, results, strict=False)
        ]
        bases: dict[int, jax.Array | None] = dict(zip(self.slots, parameters, strict=False))
        offsets = self._offsets(parameters[-1] if self.packed else None)
        for leaf, result in zip(self.written, results[len(fresh) :], strict=True):
            value = _fit(result, leaf.spec.dtype, leaf.spec.sizes)
            bases[leaf.slot] = strided.write(
                bases.get(leaf.slot), leaf.layout_dtype, leaf.spec, value, offsets.get(leaf.index),
                layout_sizes=leaf.layout_sizes,
            )  # fmt: skip
        found = [first_outside(bound) for bound in self._bounded(parameters)]
        traps = [jnp.stack(found) if len(found) > 1 else found[0].reshape(1)] if found else []
        written = [bases[slot] for slot in self.written_slots]
        return [*fresh, *written, *traps]  # type: ignore[list-item]

    def _offsets(self, words: jax.Array | None) -> dict[int, jax.Array]:
        start = RANDOM_WORDS if self.random else 0
        return {
            leaf: _decode(words[start + 2 * i : start + 2 * i + 2], "i")  # type: ignore[index]
            for i, leaf in enumerate(self.offsets or ())
        }

    def _key(self, words: jax.Array | None) -> jax.Array | None:
        """One PRNG key of the generator's seed and offset."""
        if not self.random:
            return None
        assert words is not None
        key = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        return jax.random.fold_in(jax.random.fold_in(key, words[2]), words[3])


def _fit(result: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> jax.Array:
    """`result` with the dtype and shape that the op's metadata promises."""
    array = dtypes.cast(result, dtype)
    if array.shape == sizes:
        return array
    if array.size == 1 and math.prod(sizes) == 1:
        return array.reshape(sizes)
    if 0 in sizes:
        return jnp.zeros(sizes, array.dtype)
    if array.ndim > len(sizes):
        raise RuntimeError(f"lowering gave shape {array.shape} where the op's metadata says {sizes}")
    return jnp.broadcast_to(array, sizes)
