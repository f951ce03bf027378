"""List ops: each element comes out as from the single op, whatever is shared and whatever is listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from tests.lowering.compare import INF, NAN, same
from torch_tpu.lowering import foreach, registry

XS = [torch.tensor([1.0, -2.0]), torch.tensor([[0.5]]), torch.tensor(3.0)]
YS = [torch.tensor([2.0, 4.0]), torch.tensor([[5.0]]), torch.tensor(0.25)]


def test_every_list_op_has_a_lowering_for_its_elements() -> None:
    ops = foreach.list_ops()
    assert len(ops) > 70
    assert [element for element in ops.values() if registry.find(element) is None] == []
    assert all(registry.find(name) is not None for name in ops)


@pytest.mark.parametrize(
    "op",
    [
        lambda x, y: torch._foreach_add(x, y, alpha=3),
        lambda x, y: torch._foreach_add(x, 2),
        lambda x, y: torch._foreach_add(x, [1.0, 2.0, 3.0]),
        lambda x, y: torch._foreach_add(x, torch.tensor(0.5), alpha=2),
        lambda x, y: torch._foreach_sub(x, y, alpha=2),
        lambda x, y: torch._foreach_mul(x, y),
        lambda x, y: torch._foreach_div(x, [1.0, 2.0, 4.0]),
        lambda x, y: torch._foreach_addcmul(x, y, y, value=0.5),
        lambda x, y: torch._foreach_addcmul(x, y, y, [0.5, 1.0, 2.0]),
        lambda x, y: torch._foreach_addcdiv(x, y, y, torch.tensor([0.5, 1.0, 2.0])),
        lambda x, y: torch._foreach_lerp(x, y, 0.25),
        lambda x, y: torch._foreach_lerp(x, y, y),
        lambda x, y: torch._foreach_pow(y, 2),
        lambda x, y: torch._foreach_pow(y, [2.0, 0.5, -1.0]),
        lambda x, y: torch._foreach_pow(2.0, x),
        lambda x, y: torch._foreach_pow(y, x),
        lambda x, y: torch._foreach_clamp_min(x, 0.75),
        lambda x, y: torch._foreach_maximum(x, y),
        lambda x, y: torch._foreach_sqrt(y),
        lambda x, y: torch._foreach_neg(x),
        lambda x, y: torch._foreach_sign(x),
        lambda x, y: torch._foreach_norm(x, 1),
        lambda x, y: torch._foreach_norm(x, INF, dtype=torch.float64),
        lambda x, y: torch._foreach_max(x),
    ],
)
def test_list_op(op: Callable[..., Any]) -> None:
    same(op, XS, YS)


def test_mixed_dtypes_promote_element_by_element() -> None:
    same(lambda x: torch._foreach_mul(x, 0.5), [torch.tensor([3]), torch.tensor([3.0]).bfloat16()])


def test_unscaling_finds_what_is_not_finite() -> None:
    unscale = registry.find("aten::_amp_foreach_non_finite_check_and_unscale")
    assert unscale is not None
    for bad, flag in ((1.0, 0.0), (INF, 1.0), (NAN, 1.0)):
        grads = [jnp.asarray([2.0, 4.0]), jnp.asarray([bad])]
        scaled, found = unscale.fn(grads, jnp.zeros(1), jnp.asarray([0.5]))
        assert scaled[0].tolist() == [1.0, 2.0] and found.tolist() == [flag]


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 4])
def test_the_scale_grows_and_backs_off(found: float, tracker: int) -> None:
    scale, count = torch.tensor([8.0]), torch.tensor([tracker], dtype=torch.int32)
    args = (2.0, 0.5, 5)
    lowering = registry.find("aten::_amp_update_scale")
    assert lowering is not None
    got = lowering.fn(jnp.asarray([8.0]), jnp.asarray([tracker], jnp.int32), jnp.asarray([found]), *args)
    torch._amp_update_scale_(scale, count, torch.tensor([found]), *args)
    assert [x.tolist() for x in got] == [scale.tolist(), count.tolist()]
