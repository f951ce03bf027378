"""Seeds, states and generators."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def draw(generator: torch.Generator | None = None) -> list[float]:
    return torch.rand(5, device="tpu", generator=generator).tolist()


def test_manual_seed_reseeds_the_device() -> None:
    torch.manual_seed(1)
    first, second = draw(), draw()
    assert first != second
    torch.manual_seed(1)
    assert draw() == first
    torch.tpu.manual_seed(1)
    assert draw() == first and torch.tpu.initial_seed() == 1
    torch.tpu.manual_seed_all(2)
    assert draw() != first


def test_negative_and_too_large_seeds() -> None:
    torch.tpu.manual_seed(-1)
    assert torch.tpu.initial_seed() == 2**64 - 1
    with pytest.raises(RuntimeError, match="expected a seed in"):
        torch.tpu.manual_seed(2**64)


def test_random_seed() -> None:
    torch.tpu.seed()
    first = torch.tpu.initial_seed()
    torch.tpu.seed_all()
    assert torch.tpu.initial_seed() != first


def test_state() -> None:
    state = torch.tpu.get_rng_state()
    assert state.dtype == torch.uint8 and state.shape == (16,) and state.device.type == "cpu"
    first = draw()
    torch.tpu.set_rng_state(state)
    assert draw() == first
    torch.tpu.set_rng_state_all([state])
    assert torch.equal(torch.tpu.get_rng_state_all()[0], state)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError, match="must be a torch.ByteTensor"):
        torch.tpu.set_rng_state(torch.zeros(16))


def test_generator() -> None:
    generator = torch.Generator("tpu")
    assert generator.device == torch.device("tpu", 0)
    generator.manual_seed(7)
    assert generator.initial_seed() == 7 and generator.get_offset() == 0
    first = draw(generator)
    assert generator.get_offset() == 1
    generator.set_offset(0)
    assert draw(generator) == first
    clone = generator.clone_state()
    assert draw(clone) == draw(generator)
    shared = generator.graphsafe_get_state()
    draw(shared)
    assert shared.get_offset() == generator.get_offset()
    other = torch.Generator("tpu")
    other.set_state(generator.get_state())
    assert draw(other) == draw(generator)


def test_generators_leave_the_default_alone() -> None:
    state = torch.tpu.get_rng_state()
    draw(torch.Generator("tpu"))
    assert torch.equal(torch.tpu.get_rng_state(), state)
    assert torch.tpu.default_generators[0] is torch.tpu.default_generators[0]


def test_generator_of_another_device_raises() -> None:
    with pytest.raises(RuntimeError, match="Expected a '(tpu|privateuseone)' device type for generator"):
        draw(torch.Generator("cpu"))


def test_fork_rng() -> None:
    torch.manual_seed(4)
    with torch.random.fork_rng(device_type="tpu"):
        inside = draw()
    assert draw() == inside


def test_checkpoint_repeats_dropout() -> None:
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    z = torch.ones(64, device="tpu", requires_grad=True)
    w = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), z, use_reentrant=True)
    w.sum().backward()
    assert z.grad is not None
    assert torch.equal(z.grad.cpu(), w.detach().cpu())
