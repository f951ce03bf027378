"""FX graphs and decompositions over JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from tests.lowering_mode import to_jax, to_torch
from torch_tpu import dtypes
from torch_tpu.lowering import graph, registry
from torch_tpu.lowering.decompositions import decompose

aten = torch.ops.aten


def run(graph_module: torch.fx.GraphModule, *inputs: torch.Tensor, key: Any = None) -> list[Any]:
    with jax.enable_x64(True):
        return graph.lower_graph(graph_module)(*map(to_jax, inputs), key=key)


def close(got: list[Any], expected: Any) -> None:
    leaves = tree_leaves(expected, is_leaf=lambda x: x is None)
    assert len(got) == len(leaves)
    for array, tensor in zip(got, leaves, strict=True):
        if tensor is None:
            assert array is None
        else:
            assert array.dtype == dtypes.storage_dtype(tensor.dtype)
            torch.testing.assert_close(to_torch(array, tensor.dtype), tensor)


def test_a_traced_function() -> None:
    weight = torch.randn(3, 4)

    def fn(x: torch.Tensor, flags: torch.Tensor) -> Any:
        first, second = (x @ weight).split(2, 1)
        largest, where = first.max(1)
        return [(first + 1).relu(), None], (largest, where, second * flags, torch.tensor(2.5) * x)

    x, flags = torch.randn(5, 3), torch.tensor([True, False])
    graph_module = make_fx(fn)(x, flags)
    assert any(node.op == "get_attr" for node in graph_module.graph.nodes)
    close(run(graph_module, x, flags), fn(x, flags))


def test_results_have_the_declared_dtypes() -> None:
    x = torch.randn(4).to(torch.bfloat16)
    (got,) = run(make_fx(lambda x: x.exp() * 3)(x), x)
    assert got.dtype == jnp.bfloat16


def test_arguments_by_name() -> None:
    traced = torch.fx.Graph()
    x = traced.placeholder("x")
    out = traced.call_function(aten.slice.Tensor, (x,), {"end": 3, "start": 1})
    traced.output(out)
    module = torch.fx.GraphModule(torch.nn.Module(), traced)
    close(run(module, torch.arange(5)), [torch.arange(5)[1:3]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64], ids=str)
def test_constants(dtype: torch.dtype) -> None:
    with jax.enable_x64(True):
        for tensor in (
            torch.tensor([[0, 1, 2]]).to(dtype).t(),
            torch.tensor(3).to(dtype),
            torch.zeros(0, 2).to(dtype),
        ):
            close([graph.array_of(tensor)], [tensor])


def test_random_ops_need_a_key_each() -> None:
    x = torch.zeros(1000)
    module = make_fx(lambda x: (torch.rand_like(x), torch.rand_like(x)))(x)
    with pytest.raises(ValueError, match="pass key="):
        run(module, x)
    first, second = run(module, x, key=jax.random.key(0))
    assert not np.array_equal(first, second)
    assert 0.4 < float(first.mean()) < 0.6


def test_an_op_that_cannot_be_lowered_is_named() -> None:
    x = torch.eye(3)
    with pytest.raises(NotImplementedError, match="aten.nonzero"):
        run(make_fx(torch.nonzero)(x), x)


def test_ops_without_a_lowering_are_decomposed_within_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(3, 4).abs(), torch.randn(3, 4)
    module = make_fx(lambda x, y: aten.aminmax(aten.lerp(x, y, 0.25), dim=1))(x, y)
    _without(monkeypatch, "aten::lerp.Scalar", "aten::aminmax")
    close(run(module, x, y), torch.aminmax(torch.lerp(x, y, 0.25), dim=1))


def _without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    registry.names()
    for name in names:
        monkeypatch.delitem(registry._TABLE, name, raising=False)


X, Y = torch.rand(3, 4), torch.rand(3, 4)
DECOMPOSED: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.logit.default, (X, 1e-3), {}),  # a reference that leaves prims
    (aten.aminmax.default, (X,), {"dim": 1}),  # several results
    (aten.logspace.default, (0, 1, 5), {}),  # no tensors
    (aten.block_diag.default, ([X, Y],), {}),  # lists of tensors
    (aten.renorm.default, (X, 2, 0, 1.0), {}),
    (aten.linalg_cross.default, (X[:, :3], Y[:, :3]), {}),
    (
        aten.nll_loss2d_forward.default,
        (torch.rand(2, 3, 4, 4), torch.randint(3, (2, 4, 4)), None, 1, -100),
        {},
    ),
    (aten.take.default, (X, torch.tensor([1, 2])), {}),
    (aten._foreach_addcdiv.Scalar, ([X], [Y], [X + 1]), {}),  # a composite kernel of C++
]


@pytest.mark.parametrize("op,args,kwargs", DECOMPOSED, ids=[str(case[0]) for case in DECOMPOSED])
def test_decompositions(monkeypatch: pytest.MonkeyPatch, op: Any, args: Any, kwargs: Any) -> None:
    _without(monkeypatch, graph.name_of(op))
    module = decompose(op, args, kwargs)
    assert module is not None
    assert all(node.target != op for node in module.graph.nodes)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    close(run(module, *tensors), op(*args, **kwargs))


def test_strides_of_arguments_do_not_count() -> None:
    module = decompose(aten.take.default, (X.t(), torch.tensor([1])), {})
    assert module is not None
    close(run(module, X.t().contiguous(), torch.tensor([1])), [X.t().take(torch.tensor([1]))])


@pytest.mark.parametrize(
    "op,args",
    [
        (aten.bernoulli.p, (X, 0.5)),  # draws
        (aten.rrelu_with_noise_functional.default, (X, X, 0.1, 0.2, True)),  # its parts draw
        (aten.nonzero.default, (X,)),  # needs the data
        (aten.linalg_lu_factor_ex.default, (X[:, :3],)),  # has no parts
        (aten.addr.default, (X, X, X)),  # is an error
    ],
    ids=lambda case: str(case) if isinstance(case, torch._ops.OpOverload) else "args",
)
def test_no_decomposition(monkeypatch: pytest.MonkeyPatch, op: Any, args: tuple[Any, ...]) -> None:
    _without(monkeypatch, graph.name_of(op))
    assert decompose(op, args, {}) is None


def test_prims() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    prims = torch.ops.prims

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        whole = [prims.sum(x, [0, 1, 2]), prims.amax(x, [1]), prims.var(x, [0, 2], 1), prims.prod(x, [2])]
        views = [prims.broadcast_in_dim(x, [2, 5, 3, 4], [0, 2, 3]), prims.collapse(x, 1, 2)]
        views += [prims.split_dim(x, 2, 2), prims.transpose(x, [2, 0, 1]), prims.rev(x, [0])]
        number = prims.convert_element_type(x * 5, torch.int32)
        return whole, views, prims.div(number, number * 0 + 2), prims.where(x > y, x, prims.pow(y.abs(), x))

    close(run(make_fx(fn)(x, y), x, y), fn(x, y))


def test_allocations_have_a_shape_and_dtype() -> None:
    x = torch.randn(2, 3)

    def fn(x: torch.Tensor) -> Any:
        return x.new_empty(4), torch.empty(2, 5, dtype=torch.int8), torch.empty_like(x, dtype=torch.float64)

    got = run(make_fx(fn)(x), x)
    assert [(a.shape, a.dtype.name) for a in got] == [
        ((4,), "float32"),
        ((2, 5), "int8"),
        ((2, 3), "float64"),
    ]
