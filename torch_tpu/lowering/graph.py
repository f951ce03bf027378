"""FX graphs of ATen ops (as make_fx and AOTAutograd give them) as functions over JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from torch_tpu import dtypes
from torch_tpu.lowering import decompositions, registry

#: Evaluates one node: (arguments, keyword arguments, PRNG key or None) -> result.
_Step = Callable[[Sequence[Any], dict[str, Any], Any], Any]


def lower_graph(graph_module: GraphModule) -> Callable[..., list[jax.Array | None]]:
    """A function over JAX arrays that evaluates `graph_module`, a graph without mutation.

    It takes the graph's placeholders in order and returns the leaves of its output, None where the
    output is None. `key`, a PRNG key, is needed if an op in the graph draws random numbers; each
    such op gets a key of its own. Ops without a lowering are decomposed here.

    Raises NotImplementedError if an op has neither a lowering nor a decomposition.
    """
    nodes = list(graph_module.graph.nodes)
    steps = {node: _step(node, i) for i, node in enumerate(nodes) if node.op == "call_function"}
    constants = {node: _constant(graph_module, node) for node in nodes if node.op == "get_attr"}
    last_uses = _last_uses(nodes)

    def run(*inputs: Any, key: Any = None) -> list[jax.Array | None]:
        values, given = dict(constants), iter(inputs)
        for node in nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "call_function":
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = _as_declared(steps[node](args, kwargs, key), node.meta.get("val"))
            elif node.op == "output":
                return tree_leaves(map_arg(node.args[0], values.__getitem__), is_leaf=lambda x: x is None)
            for dead in last_uses.get(node, ()):
                values.pop(dead, None)
        raise ValueError("lower_graph(): the graph has no output node")

    return run


def _last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """By node, the values that nothing after it needs: a long graph keeps no dead arrays."""
    last = {used: node for node in nodes for used in node.all_input_nodes}
    dead: dict[Node, list[Node]] = {}
    for used, node in last.items():
        if used.op != "get_attr":
            dead.setdefault(node, []).append(used)
    return dead


def _step(node: Node, number: int) -> _Step:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):  # operator.getitem and arithmetic of sizes
        assert callable(target)
        return lambda args, kwargs, key: target(*args, **kwargs)
    found = registry.find(name_of(target))
    if found is None:
        return _decomposed(node, target)

    def call(args: Sequence[Any], kwargs: dict[str, Any], key: Any) -> Any:
        positional, keywords = _in_schema_order(target, args, kwargs)
        if not found.random:
            return registry.call(found, positional, keywords)
        if key is None:
            raise ValueError(f"lower_graph(): {target} draws random numbers; pass key=")
        return registry.call(found, positional, keywords, jax.random.fold_in(key, number))

    return call


def _decomposed(node: Node, op: torch._ops.OpOverload) -> _Step:
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    inner = decompositions.decompose(op, args, kwargs)
    if inner is None:
        raise NotImplementedError(f"{op} has neither a lowering nor a decomposition into ops that have one")
    run, expected = lower_graph(inner), node.meta["val"]

    def call(args: Sequence[Any], kwargs: dict[str, Any], key: Any) -> Any:
        arrays = [x for x in tree_leaves((args, kwargs)) if isinstance(x, jax.Array)]
        results = run(*arrays)
        return results if isinstance(expected, (list, tuple)) else results[0]

    return call


def name_of(op: torch._ops.OpOverload) -> str:
    """The op's name in the table of lowerings."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _in_schema_order(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Move arguments that are given by name, but not keyword-only, to their places."""
    kwargs, positional = dict(kwargs), list(args)
    declared = [a for a in op._schema.arguments if not a.kwarg_only]
    while any(a.name in kwargs for a in declared):
        argument = declared[len(positional)]
        positional.append(kwargs.pop(argument.name, argument.default_value))
    return positional, kwargs


def _as_declared(value: Any, declared: Any) -> Any:
    """Arrays in the dtypes that the graph's metadata states."""
    if isinstance(declared, torch.Tensor) and isinstance(value, jax.Array):
        return dtypes.cast(value, declared.dtype)
    if isinstance(declared, (list, tuple)):
        return [_as_declared(v, d) for v, d in zip(value, declared, strict=True)]
    return value


def _constant(graph_module: GraphModule, node: Node) -> Any:
    value: Any = graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if isinstance(value, torch.Tensor):
        return array_of(value)
    return lower_graph(value) if isinstance(value, GraphModule) else value


def array_of(tensor: torch.Tensor) -> jax.Array:
    """The contents of a tensor as an array to be baked into a program."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    bits = flat.view(torch.uint8).numpy().view(dtypes.storage_dtype(tensor.dtype))
    return jnp.asarray(bits.reshape(tuple(tensor.shape)))
