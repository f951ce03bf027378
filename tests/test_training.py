"""Whole training loops follow PyTorch's CPU; checkpointing, AMP and weight tying work as on any device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support import DEVICE, assert_same, counting, to

Batch = tuple[torch.Tensor, ...]


class Net(nn.Module):
    """A small residual conv net."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.block = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        x = F.relu(self.down(x))
        x = F.relu(x + self.block(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Translator(nn.Module):
    """A transformer encoder and decoder with a causal mask and tied output weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(17, 16)
        self.core = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 17, bias=False)
        self.out.weight = self.words.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = self.core.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = self.core(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True)
        return self.out(hidden).flatten(0, 1)


def _mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
    return model, (torch.randn(16, 20), torch.randint(10, (16,)))


def _conv() -> tuple[nn.Module, Batch]:
    return Net(), (torch.randn(8, 1, 12, 12), torch.randint(10, (8,)))


def _transformer() -> tuple[nn.Module, Batch]:
    source, target = torch.randint(17, (3, 6)), torch.randint(17, (3, 5))
    return Translator(), (source, target, target.roll(-1, 1).flatten())


def _losses(model: nn.Module, batch: Batch, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*batch[:-1]), batch[-1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [_mlp, _conv, _transformer])
def test_follows_the_cpu(make: Callable[[], tuple[nn.Module, Batch]]) -> None:
    model, batch = make()
    other = to(model)
    with counting() as counted:
        actual = _losses(other, to(batch))
    expected = _losses(model, batch)
    assert actual == pytest.approx(expected, rel=1e-4)
    assert actual[-1] < actual[0]
    state = {k: v.cpu() for k, v in other.state_dict().items()}
    assert_same(state, dict(model.state_dict()), rtol=1e-4, atol=1e-5)
    assert not counted.fallbacks


def test_evaluation_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.inference_mode():
        expected = model(x, src_key_padding_mask=padding)
        actual = to(model)(to(x), src_key_padding_mask=to(padding))
    assert_same(actual.cpu()[~padding], expected[~padding], rtol=1e-4, atol=1e-5)


def test_recurrent_net() -> None:
    model, x = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True), torch.randn(3, 5, 6)
    other = to(model)
    for net, data in ((model, x), (other, to(x))):
        out, (h, c) = net(data)
        (out.sum() + (h * c).sum()).backward()
    actual = {k: p.grad.cpu() for k, p in other.named_parameters()}
    assert_same(actual, {k: p.grad for k, p in model.named_parameters()}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_dropout(reentrant: bool) -> None:
    """The gradient's mask is the mask of the output: one forward draw, replayed."""
    x = torch.ones(200, device=DEVICE, requires_grad=True)
    out = checkpoint(lambda y: F.dropout(y * 2, 0.5), x, use_reentrant=reentrant)
    out.sum().backward()
    assert x.grad is not None
    assert_same(x.grad, out.detach())
    assert 0 < int((out == 0).sum()) < 200


def test_dropout_scales_and_is_off_in_evaluation() -> None:
    layer, x = nn.Dropout(0.25), torch.ones(4000, device=DEVICE)
    y = layer(x)
    assert y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert 0.2 < (y == 0).float().mean().item() < 0.3
    assert layer.eval()(x) is x or torch.equal(layer(x), x)


def test_autocast_trains_in_bfloat16() -> None:
    model, batch = _mlp()
    model, batch = to(model), to(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
            out = model[0](batch[0])
            assert out.dtype == torch.bfloat16
            loss = F.cross_entropy(model(batch[0]), batch[1])
        assert loss.dtype == torch.float32
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses[-1] < losses[0]


def test_bfloat16_model() -> None:
    model, (x, y) = _mlp()
    model = to(model).to(torch.bfloat16)
    loss = F.cross_entropy(model(to(x).bfloat16()), to(y))
    loss.backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.bfloat16}


def test_grad_scaler_skips_steps_with_infinite_gradients() -> None:
    p = torch.ones(3, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler(torch.device(DEVICE).type, init_scale=4.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert p.tolist() == pytest.approx([0.9] * 3)
    assert scaler.get_scale() == 2.0


def test_tied_weights_stay_tied() -> None:
    model = Translator().to(DEVICE)
    assert model.out.weight is model.words.weight
    assert len({p.data_ptr() for p in model.parameters()}) == len(list(model.parameters()))
    with torch.no_grad():
        model.words.weight.add_(1)
    assert torch.equal(model.out.weight, model.words.weight)


def test_state_dict_round_trip(tmp_path: Path) -> None:
    model, batch = _conv()
    source = to(model)
    _losses(source, to(batch), steps=1)
    torch.save(source.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {x.device.type for x in loaded.values()} == {torch.device(DEVICE).type}
    target = Net().to(DEVICE)
    target.load_state_dict(loaded)
    assert torch.equal(target.eval()(to(batch)[0]), source.eval()(to(batch)[0]))
    on_cpu = torch.load(tmp_path / "model.pt", map_location="cpu", weights_only=True)
    assert_same(on_cpu, {k: v.cpu() for k, v in source.state_dict().items()}, rtol=0, atol=0)


def test_double_backward() -> None:
    grads = []
    for device in ("cpu", DEVICE):
        x = torch.linspace(-1, 1, 6, device=device).requires_grad_()
        (first,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        grads.append(x.grad.cpu())
    assert_same(grads[1], grads[0])


def test_gradient_accumulation_and_hooks() -> None:
    p = torch.ones(3, device=DEVICE, requires_grad=True)
    seen: list[float] = []
    p.register_hook(lambda g: seen.append(g.sum().item()))
    for factor in (1.0, 2.0):
        (p * factor).sum().backward()
    assert p.grad is not None and p.grad.tolist() == [3.0] * 3
    assert seen == [3.0, 6.0]


def test_functional_transforms() -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)

    def loss(row: torch.Tensor) -> torch.Tensor:
        return (row.sin() * row).sum()

    for transform in (torch.func.vmap(torch.func.grad(loss)), torch.func.vmap(torch.func.jacrev(torch.sin))):
        assert_same(transform(to(x)).cpu(), transform(x))
