"""What happens once per key: from an op call to a plan."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch

from torch_tpu import _C, dtypes
from torch_tpu.eager import cpu_errors, cpu_warnings, log, metadata, numbers, overlap
from torch_tpu.eager.errors import announce_fallback, explain
from torch_tpu.eager.forms import Form, form, overload
from torch_tpu.eager.program import FreshTensor, NumberLeaf, Program, TensorLeaf, flatten, leaves, map_leaves
from torch_tpu.lowering import checks, data_dependent, decompositions, graph, registry, strided
from torch_tpu.lowering.normalization import SILENT_WRITES
from torch_tpu.runtime import client, compiler

__all__ = [
    "NumberLeaf",
    "TensorLeaf",
    "announce_fallback",
    "build",
    "check_numbers",
    "explain",
    "policy",
]

#: Ops whose index tensors may be on the CPU, as on every device.
_MOVES_HOST = frozenset(
    f"aten::{name}"
    for name in ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
)
#: Functional ops that take of `self` only its shape, besides the random ones.
_FILLS = frozenset({"aten::fill.Scalar", "aten::fill.Tensor", "aten::zero", "aten::copy"})


@dataclass(frozen=True)
class Policy:
    """How the core treats the arguments of an op; see Policy in csrc/plan.h.

    static_numbers: names of number arguments that are part of the key; None: all are.
    """

    static_numbers: frozenset[str] | None
    dynamic_ints: frozenset[str]
    moves_host: bool
    bounded: bool


def policy(name: str) -> Policy:
    """The policy of the op `name`."""
    functional = form(name).name or name
    lowering = registry.find(functional)
    base = functional.partition(".")[0]
    return Policy(
        lowering.static if lowering else None,
        lowering.dynamic if lowering else frozenset(),
        base in _MOVES_HOST,
        functional in checks.RULES,
    )


class Kind(enum.IntEnum):
    """Return::Kind in csrc/plan.h."""

    FRESH = 0
    ARGUMENT = 1
    NONE = 2
    LIST = 3
    INTEGER = 4


@dataclass
class PlanSpec:
    """A plan as the core reads it; see Plan in csrc/plan.h."""

    kind: str = "program"
    callable: Callable[..., Any] | None = None
    inputs: list[int] = field(default_factory=list)
    donated: list[bool] = field(default_factory=list)
    packed: bool = False
    random: bool = False
    offsets: bool = False
    fresh: list[tuple[Any, ...]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    returns: list[tuple[int, int]] = field(default_factory=list)
    resizes: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    offset_rules: list[tuple[int, int, int, int]] = field(default_factory=list)
    bounds: list[tuple[bool, str]] = field(default_factory=list)
    fits: list[tuple[int, torch.dtype]] = field(default_factory=list)
    asks: bool = False


check_numbers = numbers.check


def build(name: str, args: list[Any], device: int, offsets: list[int] | None) -> PlanSpec:
    """The plan of one call: `args` is its argument tree, in schema order.

    offsets: indices of tensor leaves whose storage offset becomes run-time data; None: part of the key.
    """
    which = form(name)
    cpu_warnings.repeat(which.name)
    if log.enabled():
        log.miss(name, {a.name: repr(v) for a, v in zip(which.op._schema.arguments, args, strict=True)})
    if which.name is not None and data_dependent.needs_host(which.name, args):
        cpu_errors.check_masks(which, args)
        return PlanSpec("host", _host_function(which, data_dependent.HOST[which.name]))
    if which.name is None or not _computable(args):
        return PlanSpec("fallback")
    _check_storages(name, args)
    overlap.check(which, args)
    if overlap.writes_twice(which, args):
        return PlanSpec("host", _one_by_one(which))
    try:
        return _program(which, args, name, device, offsets)
    except Exception as error:
        raise cpu_errors.better(which, args, error) from None


def _check_storages(name: str, args: list[Any]) -> None:
    """Raise where a storage was made smaller than a tensor on it."""
    for leaf in leaves(args):
        if isinstance(leaf, TensorLeaf) and 0 not in leaf.spec.sizes:
            spans = ((n - 1) * s for n, s in zip(leaf.spec.sizes, leaf.spec.strides, strict=True))
            needed = (leaf.spec.offset + sum(spans) + 1) * leaf.dtype.itemsize
            if needed > leaf.nbytes:
                raise RuntimeError(
                    f"{name}(): a tensor of shape {list(leaf.spec.sizes)} requires a storage of {needed} "
                    f"bytes, but its storage has {leaf.nbytes}: it was resized (untyped_storage().resize_)"
                )


def _program(which: Form, args: list[Any], name: str, device: int, offsets: list[int] | None) -> PlanSpec:
    cpu_errors.check_dtypes(which, args)
    rule = _rule(which)
    key = f"{name} {args!r} {offsets} {rule is not None}"
    known = compiler.load_program(key, device=device, name=name)
    if known is not None:
        program, spec = known
        return dataclasses.replace(spec, callable=program)
    return _Build(which, args, device, offsets, key, rule).plan()


def _rule(which: Form) -> checks.Rule | None:
    """What the op requires of index arguments, where that is checked."""
    return checks.RULES.get(which.name or "") if _C.index_checks() else None


def _computable(args: Any) -> bool:
    """False where XLA has no such dtype."""
    found = [leaf.spec.dtype if isinstance(leaf, TensorLeaf) else leaf.dtype for leaf in leaves(args)]
    found += [a for a in args if isinstance(a, torch.dtype)]
    return all(dtype is None or _has_dtype(dtype) for dtype in found)


def _has_dtype(dtype: torch.dtype) -> bool:
    # A TPU's compiler aborts the process at complex128.
    lacking = dtype is torch.complex128 and client.platform() == "tpu"
    return dtype in dtypes.JAX_DTYPE and not lacking


def _host_function(which: Form, function: Callable[..., Any]) -> Callable[..., Any]:
    """The op as a Python function of torch tensors, from a function that does its functional form."""

    def host(*args: Any) -> Any:
        inputs = [a for i, a in enumerate(args) if i not in which.outs]
        results = function(*inputs)
        if not which.written:
            return results
        outputs = results if isinstance(results, tuple) else (results,)
        for i, output in zip(which.written, outputs, strict=True):
            lists = isinstance(args[i], (list, tuple))
            for target, value in zip(args[i], output, strict=True) if lists else [(args[i], output)]:
                if which.outs and target.shape != value.shape:
                    target.resize_(value.shape)
                target.copy_(value)
        written = tuple(args[i] for i in which.written)
        return written if len(written) > 1 else written[0]

    return host


def _functional(which: Form) -> Callable[..., Any]:
    """The functional form of an `out=` op as a function of its arguments in schema order."""
    assert which.name is not None
    op = overload(which.name)
    arguments = [a for i, a in enumerate(which.op._schema.arguments) if i not in which.outs]

    def function(*inputs: Any) -> Any:
        named = list(zip(arguments, inputs, strict=True))
        keywords = {a.name: value for a, value in named if a.kwarg_only}
        return op(*(value for a, value in named if not a.kwarg_only), **keywords)

    return function


def _one_by_one(which: Form) -> Callable[..., Any]:
    """A foreach op in place as one call for each place of its lists, in order."""
    arguments = which.op._schema.arguments

    def host(*args: Any) -> Any:
        count = len(args[which.written[0]])
        for i in range(count):
            here = [a[i : i + 1] if isinstance(a, (list, tuple)) and len(a) == count else a for a in args]
            named = list(zip(arguments, here, strict=True))
            keywords = {a.name: value for a, value in named if a.kwarg_only}
            which.op(*(value for a, value in named if not a.kwarg_only), **keywords)
        written = tuple(args[i] for i in which.written)
        return written if len(written) > 1 else written[0]

    return host


Compute = Callable[[list[Any], Any], list[Any]]


def _other_shapes(after: Any, before: Any) -> bool:
    """Whether a call resizes tensors of a list that it writes."""
    if not isinstance(before, list):
        return False
    return any(tuple(a.shape) != b.spec.sizes for a, b in zip(after, before, strict=True))


class _Build:
    """One plan in the making."""

    def __init__(
        self,
        which: Form,
        args: list[Any],
        device: int,
        offsets: list[int] | None,
        key: str,
        rule: checks.Rule | None,
    ) -> None:
        self.form, self.args, self.device, self.offsets, self.key = which, args, device, offsets, key
        self.rule = rule
        self.arguments = which.op._schema.arguments
        assert which.name is not None
        self.name = which.name
        self.lowering = registry.find(self.name)
        self.random = bool(self.lowering and self.lowering.random and not self._drops_nothing())
        self.fresh: list[FreshTensor] = []
        self.kept: list[bool] = []  # by declared result that is no argument: false where it is switched off
        self.returns: list[tuple[int, int]] = []

    def _drops_nothing(self) -> bool:
        """True for attention without dropout: it draws no random numbers."""
        return any(a.name == "dropout_p" and v == 0.0 for a, v in zip(self.arguments, self.args, strict=True))

    def plan(self) -> PlanSpec:
        meta = metadata.Arguments(self.args, "meta")
        compute = self._compute()
        if compute is None:
            return PlanSpec("fallback")
        try:
            result = metadata.run(self.form, meta)
        except metadata.NoMetadata:
            return self._without_metadata(compute)
        except Exception as error:
            result = cpu_errors.accepted(self.form, self.args, error)
        resized = [
            i
            for i in self.form.outs
            if isinstance(meta.args[i], torch.Tensor) and tuple(meta.args[i].shape) != self.args[i].spec.sizes
        ]
        if any(_other_shapes(meta.args[i], self.args[i]) for i in self.form.outs):
            return PlanSpec("host", _host_function(self.form, _functional(self.form)))
        if resized:
            outs = self._resized(meta)
            return PlanSpec(resizes=[(i, tuple(outs[i].shape), outs[i].stride()) for i in resized])
        if self.form.in_place and self.name not in _FILLS and not self.random:
            cpu_errors.check_cast(self.form, meta)
        self._read_returns(result)
        if not all(_has_dtype(meta.dtype) for meta in self.fresh):
            return PlanSpec("fallback")
        return self._compiled(compute)

    def _resized(self, meta: metadata.Arguments) -> list[Any]:
        """The arguments after the call: meta kernels resize to contiguous, the CPU in the inputs' order."""
        tensors = [leaf.tensor for leaf in leaves(self.args) if isinstance(leaf, TensorLeaf)]
        if self.random or all(tensor.is_contiguous() for tensor in tensors):
            return meta.args
        cpu = metadata.Arguments(self.args, "cpu")
        try:
            metadata.run(self.form, cpu)
        except Exception:  # zeros are no good arguments of this op
            return meta.args
        return cpu.args

    def _without_metadata(self, compute: Compute) -> PlanSpec:
        """The op has no meta kernel: its results are its arguments, or what the lowering says."""
        returns = self.form.op._schema.returns
        if self.form.in_place and all(r.alias_info is not None for r in returns):
            self._read_returns((None,) * len(returns))
        elif self.form.outs:
            return PlanSpec("host", _host_function(self.form, _functional(self.form)))
        elif self.form.written or self.lowering is None:
            return PlanSpec("fallback")
        else:
            self._guess_returns()
        return self._compiled(compute)

    # --- results --------------------------------------------------------------------------------

    def _read_returns(self, result: Any) -> None:
        returns = self.form.op._schema.returns
        values = list(result) if len(returns) > 1 else [result][: len(returns)]
        for argument, mask in zip(self.arguments, self.args, strict=True):
            if argument.name in ("output_mask", "grad_input_mask"):  # what is not wanted is undefined
                values = [v if on else None for v, on in zip(values, mask, strict=True)]
        for declared, value in zip(returns, values, strict=True):
            if declared.alias_info is not None and declared.alias_info.is_write:
                self.returns.append((Kind.ARGUMENT, self._aliased(declared.alias_info)))
            else:
                self._read_value(value)

    def _guess_returns(self) -> None:
        """Results as the lowering gives them, where PyTorch has no meta kernel."""
        assert self.lowering is not None
        lowering = self.lowering

        def call(args: list[Any], key: Any) -> list[Any]:
            positional, keywords = self._split(args)
            return list(flatten(registry.call(lowering, positional, keywords, key)))

        probe = Program(self.args, call, [], [], frozenset(), self.random, None)
        with compiler.tracing():
            shapes = jax.eval_shape(
                probe.results, *(jax.ShapeDtypeStruct(*spec) for spec in probe.in_specs())
            )
        if len(self.form.op._schema.returns) == 1 and "List" in str(self.form.op._schema.returns[0].type):
            self.returns.append((Kind.LIST, len(shapes)))
        for shape in shapes:
            self.kept.append(shape is not None)
            if shape is None:
                self.returns.append((Kind.NONE, 0))
            else:
                self.returns.append((Kind.FRESH, len(self.fresh)))
                self.fresh.append(metadata.guessed(shape, dtypes.TORCH_DTYPE[shape.dtype]))

    def _aliased(self, alias: Any) -> int:
        names = alias.before_set
        return next(
            i
            for i in self.form.written
            if self.arguments[i].alias_info.before_set & names  # type: ignore[union-attr]
        )

    def _read_value(self, value: Any) -> None:
        if value is None:
            self.returns.append((Kind.NONE, 0))
            self.kept.append(False)
        elif isinstance(value, torch.Tensor):
            self.returns.append((Kind.FRESH, len(self.fresh)))
            self.fresh.append(metadata.fresh_tensor(value))
            self.kept.append(True)
        elif isinstance(value, (list, tuple)):
            self.returns.append((Kind.LIST, len(value)))
            for item in value:
                self._read_value(item)
        elif isinstance(value, int):
            self.returns.append((Kind.INTEGER, value))
            self.kept.append(False)
        else:
            raise NotImplementedError(
                f"{self.form.op}: a result of type {type(value).__name__} needs a host function"
            )

    def _written(self, compute: Compute) -> list[TensorLeaf]:
        indices = [*self.form.written, *self._silently_written(compute)]
        return [leaf for i in indices for leaf in leaves([self.args[i]]) if isinstance(leaf, TensorLeaf)]

    def _silently_written(self, compute: Compute) -> list[int]:
        """Arguments that this call writes though the schema does not say so."""
        silent = SILENT_WRITES.get(self.name)
        if silent is None:
            return []
        probe = Program(self.args, compute, self.fresh, [], frozenset(), False, None)
        count = len(self.fresh)
        written: list[Any] = []
        with compiler.tracing():
            specs = [jax.ShapeDtypeStruct(*spec) for spec in probe.in_specs()]
            jax.eval_shape(lambda *p: written.extend(probe.results(*p)[count:]), *specs)
        names = [a.name for a in self.arguments]
        present = [names.index(name) for name in silent if self.args[names.index(name)] is not None]
        declared = [leaf for i in self.form.written for leaf in leaves([self.args[i]])]
        return present if len(written) > len(declared) else []

    # --- the computation ------------------------------------------------------------------------

    def _split(self, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword-only arguments of the functional form."""
        positional, keywords = [], {}
        for i, (declared, value) in enumerate(zip(self.arguments, args, strict=True)):
            if i in self.form.outs:
                continue
            if declared.kwarg_only:
                keywords[declared.name] = value
            else:
                positional.append(value)
        return positional, keywords

    def _compute(self) -> Compute | None:
        lowering = self.lowering
        if lowering is not None:

            def lowered(args: list[Any], key: Any) -> list[Any]:
                positional, keywords = self._split(args)
                if "contiguous" in lowering.accepts:
                    keywords["contiguous"] = self.args[0].tensor.is_contiguous()
                return self._ordered(registry.call(lowering, positional, keywords, key))

            return lowered
        return self._decomposed()

    def _decomposed(self) -> Compute | None:
        """The op by others that have lowerings. Its numbers are in the key, but for 0-dim CPU tensors."""
        positional, keywords = self._split(map_leaves(self.args, metadata.tensor_on_meta))
        traced = decompositions.decompose(overload(self.name), tuple(positional), keywords)
        if traced is None:
            return None
        function = graph.lower_graph(traced)
        dtypes_of = [
            t.dtype for t in flatten([positional, *keywords.values()]) if isinstance(t, torch.Tensor)
        ]

        def decomposed(args: list[Any], key: Any) -> list[Any]:
            positional, keywords = self._split(args)
            arrays = [x for x in flatten([positional, *keywords.values()]) if isinstance(x, jax.Array)]
            return self._ordered(function(*map(dtypes.cast, arrays, dtypes_of)))

        return decomposed

    def _ordered(self, results: Any) -> list[Any]:
        """Fresh results first, then the new contents of written arguments; without what is switched off."""
        flat = list(flatten(results))
        declared, rest = flat[: len(self.kept)], flat[len(self.kept) :]
        fresh = [r for r, kept in zip(declared, self.kept, strict=True) if kept]
        return fresh + [r for r in rest if r is not None]

    def _unread(self) -> frozenset[int]:
        indices = set(self.form.outs)
        if self.form.in_place and (self.name in _FILLS or self.random):
            indices |= set(self.form.written)
        elif self.name in _FILLS:
            indices.add(0)
        return frozenset(
            leaf.index for i in indices for leaf in leaves([self.args[i]]) if isinstance(leaf, TensorLeaf)
        )

    def _compiled(self, compute: Compute) -> PlanSpec:
        program = Program(
            self.args, compute, self.fresh, self._written(compute), self._unread(), self.random, self.offsets,
            self._bounds if self.rule else None,
        )  # fmt: skip
        donated = program.donated()
        spec = PlanSpec(
            inputs=program.slots,
            donated=[i in donated for i in range(len(program.slots))],
            packed=program.packed,
            random=self.random,
            offsets=self.offsets is not None,
            fresh=[meta.astuple() for meta in self.fresh],
            results=[*range(len(self.fresh)), *(~slot for slot in program.written_slots)],
            returns=[(int(kind), index) for kind, index in self.returns],
            offset_rules=self._offset_rules(program),
            bounds=self._described_bounds(program),
            fits=numbers.fits(self.form, self.args, self._result_dtype(program)),
            asks=numbers.asks(self.form, self.args),
        )
        if not spec.results:
            return spec
        callable_ = compiler.compile_program(
            program, program.in_specs(), donate=donated, device=self.device, name=self.key.partition(" ")[0],
            cache_key=self.key, extra=spec,
        )  # fmt: skip
        return dataclasses.replace(spec, callable=callable_)

    def _bounds(self, args: list[Any]) -> list[checks.Bound]:
        assert self.rule is not None
        return list(self.rule(*self._split(args)[0]))

    def _described_bounds(self, program: Program) -> list[tuple[bool, str]]:
        with compiler.tracing():
            found = program.traced_bounds()
        return [(issubclass(bound.error, IndexError), bound.text) for bound in found]

    def _result_dtype(self, program: Program) -> torch.dtype | None:
        if self.fresh:
            return self.fresh[0].dtype
        return program.written[0].dtype if program.written else None

    def _offset_rules(self, program: Program) -> list[tuple[int, int, int, int]]:
        rules = []
        for leaf in program.tensors:
            if leaf.index in (self.offsets or ()):
                rule = strided.fits(leaf.layout_sizes, leaf.layout_dtype, leaf.spec)
                rules += [(leaf.index, *dim) for dim in rule.dims] if rule else []
        return rules
