"""Ops without a lowering, as graphs of ops that have one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch._decomp.decompositions
import torch._refs.fft
import torch._refs.linalg
import torch._refs.nn.functional
import torch._refs.special
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tpu.lowering import registry

_log = logging.getLogger(__name__)
_Table = dict[OpOverload, Callable[..., Any]]


def decompose(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule | None:
    """`op` called with `args` and `kwargs` as a graph of ops that all have lowerings, without mutation.

    Tensors (of any device; only their shapes and dtypes count) are the graph's placeholders, in the
    order in which they occur; everything else is part of the graph. The output is what op returns.
    None: there is no such graph (no decomposition, it needs the data, or it draws random numbers).
    """
    if torch.Tag.nondeterministic_seeded in op.tags:
        return None
    try:
        with torch.no_grad(), torch.device("cpu"), FakeTensorMode(allow_non_fake_inputs=True):
            return _trace(op, args, kwargs)
    except Exception as error:  # whatever a decomposition cannot do, the CPU can
        _log.debug("%s has no decomposition: %r", op, error)
        return None


def _trace(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule | None:
    leaves, structure = tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    leaves = [torch.device("cpu") if isinstance(x, torch.device) else x for x in leaves]
    # Contiguous: the lowering sees values, not strides.
    fakes = [torch.empty(leaves[i].shape, dtype=leaves[i].dtype) for i in places]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        new_args, new_kwargs = tree_unflatten(filled, structure)
        return op(*new_args, **new_kwargs)

    table = {k: v for k, v in _table().items() if not _has_lowering(k)}
    table[op] = _decomposition(op)
    graph_module = _functional(call, fakes, table)
    # Composite kernels serve where the tables have nothing: one more round for each level of them.
    while missing := _missing(graph_module):
        added = {o: _decomposition(o) for o in missing if o not in table and _composite_key(o)}
        if len(added) < len(missing):
            _log.debug("%s decomposes into %s, which have no lowering", op, missing)
            return None
        table |= added
        graph_module = _functional(graph_module, fakes, table)
    return graph_module


def _functional(fn: Callable[..., Any], fakes: list[torch.Tensor], table: _Table) -> GraphModule:
    graph_module = make_fx(fn, decomposition_table=table, tracing_mode="fake")(*fakes)
    if any(o._schema.is_mutable for o in _ops(graph_module)):
        pure = functionalize(graph_module, remove="mutations_and_views")
        graph_module = make_fx(pure, decomposition_table=table, tracing_mode="fake")(*fakes)
    graph_module.graph.eliminate_dead_code()
    return graph_module


def _ops(graph_module: GraphModule) -> Iterable[OpOverload]:
    return (n.target for n in graph_module.graph.nodes if isinstance(n.target, OpOverload))


def _missing(graph_module: GraphModule) -> set[OpOverload]:
    """Ops that have no lowering, or that may not occur: a decomposition would use a wrong generator."""
    return {
        o for o in _ops(graph_module) if not _has_lowering(o) or torch.Tag.nondeterministic_seeded in o.tags
    }


def _has_lowering(op: OpOverload) -> bool:
    schema = op._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return registry.find(name) is not None


@functools.cache
def _table() -> _Table:
    """PyTorch's decompositions in Python, references included."""
    return {op: fn for op, fn in decomposition_table.items() if isinstance(op, OpOverload)}


def _composite_key(op: OpOverload) -> DispatchKey | None:
    if op.namespace == "prims" or torch.Tag.nondeterministic_seeded in op.tags:
        return None  # a prim's kernel is the ATen op that led to it
    keys = (DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeImplicitAutograd)
    return next((key for key in keys if op.has_kernel_for_dispatch_key(key)), None)


def _decomposition(op: OpOverload) -> Callable[..., Any]:
    """How to compute `op` from others. Raises NotImplementedError."""
    if op in _table():
        return _table()[op]
    key = _composite_key(op)
    if key is None:
        raise NotImplementedError(f"{op} has no decomposition")
    return functools.partial(op._op_dk, key)
