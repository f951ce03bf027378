"""Autocast's policies and GradScaler."""

import pytest
import torch
import torch.nn.functional as F


def test_default_dtype() -> None:
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    x = torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        assert (x @ x).dtype == torch.bfloat16
        assert F.linear(x, x).dtype == torch.bfloat16
        assert (x + x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_policies(dtype: torch.dtype) -> None:
    x = torch.rand(4, 4, device="tpu") + 0.5
    low = x.to(dtype)
    with torch.autocast("tpu", dtype=dtype):
        assert torch.mm(x, x).dtype == dtype
        assert torch.exp(low).dtype == torch.float32
        assert F.layer_norm(low, (4,)).dtype == torch.float32
        assert low.sum().dtype == torch.float32
        assert F.softmax(low, -1).dtype == torch.float32
        assert torch.norm(low).dtype == torch.float32
        assert torch.norm(low, dim=0).dtype == torch.float32
        assert torch.addcmul(low, x, low).dtype == torch.float32
        assert torch.mm(x.double(), x.double()).dtype == torch.float64
        with torch.autocast("tpu", enabled=False):
            assert torch.mm(x, x).dtype == torch.float32


def test_casts_do_not_reach_other_devices() -> None:
    x = torch.randn(4, 4)
    with torch.autocast("tpu"):
        assert (x @ x).dtype == torch.float32


def test_binary_cross_entropy_is_banned() -> None:
    x = torch.rand(4, device="tpu")
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_unsupported_dtype_disables_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="tpu Autocast only supports"):
        torch.autocast("tpu", dtype=torch.int8)


def test_module_shortcuts() -> None:
    x = torch.randn(4, 4, device="tpu")
    with torch.tpu.amp.autocast():
        assert (x @ x).dtype == torch.bfloat16
    assert torch.tpu.amp.GradScaler(init_scale=4.0).get_scale() == 4.0


def test_gradients_keep_the_parameters_dtype() -> None:
    model = torch.nn.Linear(8, 8).tpu()
    with torch.autocast("tpu"):
        loss = model(torch.randn(2, 8, device="tpu")).float().pow(2).mean()
    loss.backward()
    assert model.weight.grad is not None and model.weight.grad.dtype == torch.float32


def test_grad_scaler() -> None:
    model = torch.nn.Linear(4, 1).tpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=1)
    x = torch.ones(2, 4, device="tpu")
    before = model.weight.detach().cpu().clone()
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad.cpu(), torch.full((1, 4), 2.0))
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.2)
    assert scaler.get_scale() == 16.0
    optimizer.zero_grad()
    scaler.scale(model(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.2)
    assert scaler.get_scale() == 8.0
