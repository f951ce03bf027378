"""Norms and their gradients; which batch norms write running statistics."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.lowering.compare import same
from tests.lowering_mode import LoweringMode, to_jax, to_torch
from torch_tpu.lowering import registry
from torch_tpu.lowering.normalization import SILENT_WRITES

EPS = 1e-3


def _gradients(fn: Any, *inputs: torch.Tensor) -> Any:
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    y = fn(*inputs)
    grad = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) % 5 - 2
    return [y, *torch.autograd.grad(y, inputs, grad)]


def _same_with_gradients(fn: Any, *inputs: torch.Tensor) -> None:
    expected = _gradients(fn, *inputs)
    with LoweringMode() as mode:
        got = _gradients(fn, *inputs)
    assert len(mode.lowered) >= 2, mode.lowered
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def _call(name: str, *args: Any) -> list[np.ndarray | None]:
    found = registry.find(name)
    assert found is not None
    with jax.enable_x64(True):
        values = [to_jax(a) if isinstance(a, torch.Tensor) else a for a in args]
        return [r if r is None else np.asarray(r) for r in registry.call(found, values, {})]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_and_group_norm(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(4, 6, 5, dtype=dtype), torch.randn(5, dtype=dtype), torch.randn(5, dtype=dtype)
    _same_with_gradients(lambda x, w, b: F.layer_norm(x, (5,), w, b, EPS), x, w, b)
    _same_with_gradients(lambda x: F.layer_norm(x, (6, 5)), x)
    w, b = torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)
    _same_with_gradients(lambda x, w, b: F.group_norm(x, 3, w, b, EPS), x, w, b)
    _same_with_gradients(lambda x: F.group_norm(x, 2), x)


def test_rms_norm_op_and_its_gradient() -> None:
    x, w, g = torch.randn(3, 5), torch.randn(5), torch.randn(3, 5)
    expected = F.rms_norm(x, (5,), w, EPS)
    y, rstd = _call("aten::_fused_rms_norm", x, [5], w, EPS)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    x, w = x.requires_grad_(), w.requires_grad_()
    expected = torch.autograd.grad(F.rms_norm(x, (5,), w, EPS), (x, w), g)
    got = _call("aten::_fused_rms_norm_backward", g, x, [5], torch.tensor(rstd), w, [True, True])
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (2, 3, 4, 5)])
def test_batch_norm_and_its_silent_writes(training: bool, shape: tuple[int, ...]) -> None:
    x, w, b = torch.randn(shape), torch.randn(3), torch.randn(3)
    mean, var = torch.randn(3), torch.rand(3) + 0.5
    got = _call("aten::native_batch_norm", x, w, b, mean, var, training, 0.1, EPS)
    new_mean, new_var = mean.clone(), var.clone()
    expected = torch.native_batch_norm(x, w, b, new_mean, new_var, training, 0.1, EPS)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-5)
    assert SILENT_WRITES["aten::native_batch_norm"] == ("running_mean", "running_var")
    if not training:
        assert got[3] is None and got[4] is None
        return
    for one, other in zip(got[1:], (*expected[1:], new_mean, new_var), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gradient(training: bool) -> None:
    x, w, b = torch.randn(4, 3, 6), torch.randn(3), torch.randn(3)
    mean, var = torch.randn(3), torch.rand(3) + 0.5
    fn = lambda x, w, b: torch.ops.aten._native_batch_norm_legit_functional(  # noqa: E731
        x, w, b, mean, var, training, 0.1, EPS
    )
    out, save_mean, save_invstd, *_ = fn(x, w, b)
    for mask in ([True, True, True], [False, True, False]):
        args = (out, x, w, mean, var, save_mean, save_invstd, training, EPS, mask)
        expected = torch.ops.aten.native_batch_norm_backward(*args)
        got = _call("aten::native_batch_norm_backward", *args)
        for one, other, wanted in zip(got, expected, mask, strict=True):
            assert (one is not None) == wanted
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_synchronised_batch_norm_equals_one_over_the_whole_batch() -> None:
    x, g, w, b = torch.randn(6, 3, 4), torch.randn(6, 3, 4), torch.randn(3), torch.randn(3)
    mean, var = torch.zeros(3), torch.ones(3)
    whole = _call("aten::native_batch_norm", x, w, b, mean, var, True, 0.1, EPS)
    by_input = _call(
        "aten::native_batch_norm_backward",
        g,
        x,
        w,
        mean,
        var,
        *map(torch.tensor, whole[1:3]),
        True,
        EPS,
        [True] * 3,
    )
    parts = (slice(0, 2), slice(2, 6))
    stats = [_call("aten::batch_norm_stats", x[p], EPS) for p in parts]
    means, invstds = (torch.tensor(np.stack([s[i] for s in stats])) for i in (0, 1))
    counts = torch.tensor([8.0, 16.0])
    joined = _call(
        "aten::batch_norm_gather_stats_with_counts", x, means, invstds, mean, var, 0.1, EPS, counts
    )
    for one, other in zip(joined, whole[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    m, i = (torch.tensor(a) for a in joined[:2])
    y = registry.find("aten::batch_norm_elemt")
    assert y is not None
    out = to_torch(y.fn(*map(to_jax, (x[2:], w, b, m, i)), EPS), torch.float32)
    np.testing.assert_allclose(out, whole[0][2:], rtol=1e-4, atol=1e-4)  # type: ignore[index]
    sums = [_call("aten::batch_norm_backward_reduce", g[p], x[p], m, i, w, True, True, True) for p in parts]
    dy, xmu, by_w, by_b = (torch.tensor(a + c) for a, c in zip(*sums, strict=True))
    np.testing.assert_allclose(by_w, by_input[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_b, by_input[2], rtol=1e-4, atol=1e-4)
    elemt = registry.find("aten::batch_norm_backward_elemt")
    assert elemt is not None
    back = to_torch(elemt.fn(*map(to_jax, (g[:2], x[:2], m, i, w, dy, xmu, counts))), torch.float32)
    np.testing.assert_allclose(back, by_input[0][:2], rtol=1e-4, atol=1e-4)  # type: ignore[index]


def test_weight_norm() -> None:
    v, g = torch.randn(4, 3, 2), torch.randn(4, 1, 1)
    same(lambda: torch._weight_norm_interface(v, g, 0))
    _, norms = torch._weight_norm_interface(v, g, 0)
    same(lambda: torch.ops.aten._weight_norm_interface_backward(v + 1, v, g, norms, 0))
