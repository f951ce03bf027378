"""torch.save, torch.load, storages, copies and pickles."""

import copy
import io
import pickle

import pytest
import torch


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_round_trip() -> None:
    x = torch.randn(3, 4, device="tpu")
    y = torch.load(saved(x), weights_only=True)
    assert y.device == x.device and torch.equal(x.cpu(), y.cpu())


@pytest.mark.parametrize("where", ["cpu", "tpu", "tpu:0", torch.device("tpu")])
def test_map_location(where: str | torch.device) -> None:
    x = torch.arange(6.0, device="tpu").view(2, 3)
    y = torch.load(saved({"x": x, "c": torch.ones(2)}), map_location=where)
    assert y["x"].device.type == torch.device(where).type == y["c"].device.type
    assert torch.equal(y["x"].cpu(), x.cpu())


def test_map_location_of_a_missing_device() -> None:
    with pytest.raises(RuntimeError, match="TPU device 9 but torch.tpu.device_count"):
        torch.load(saved(torch.ones(1)), map_location="tpu:9")


def test_views_stay_shared() -> None:
    x = torch.arange(12, device="tpu").view(3, 4)
    a, b = torch.load(saved([x, x.t()[1:]]))
    a.zero_()
    assert b.sum().item() == 0 and b.shape == (3, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3]).to(dtype)
    assert torch.equal(torch.load(saved(x.tpu()), map_location="cpu"), x)
    assert torch.equal(torch.load(saved(x), map_location="tpu").cpu(), x)


def test_models_and_optimizers() -> None:
    model = torch.nn.Linear(4, 2).tpu()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, device="tpu")).sum().backward()
    optimizer.step()
    other = torch.nn.Linear(4, 2).tpu()
    other_optimizer = torch.optim.AdamW(other.parameters())
    other.load_state_dict(torch.load(saved(model.state_dict())))
    other_optimizer.load_state_dict(torch.load(saved(optimizer.state_dict())))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
        assert torch.equal(optimizer.state[a]["exp_avg"].cpu(), other_optimizer.state[b]["exp_avg"].cpu())


def test_untyped_storage() -> None:
    storage = torch.UntypedStorage(16, device="tpu")
    assert storage.device == torch.device("tpu", 0) and storage.nbytes() == 16 and storage.data_ptr() != 0
    x = torch.empty(0, device="tpu").set_(storage)
    x.copy_(torch.arange(4.0))
    assert torch.equal(torch.empty(0).set_(storage.cpu()), torch.arange(4.0))
    y = torch.empty(0, device="tpu").set_(torch.arange(4.0).untyped_storage().tpu())
    assert torch.equal(y.cpu(), torch.arange(4.0))
    storage.resize_(32)
    assert storage.nbytes() == 32 and torch.equal(x.cpu(), torch.arange(4.0))
    assert torch.equal(torch.empty(0).set_(storage.clone().cpu(), 0, (4,)), torch.arange(4.0))


def test_deepcopy_keeps_sharing_and_gradients() -> None:
    x = torch.arange(4.0, device="tpu")
    a, b = copy.deepcopy([x, x[2:]])
    a.zero_()
    assert b.sum().item() == 0 and x.sum().item() == 6
    leaf = x.detach().clone().requires_grad_()
    leaf.grad = torch.ones_like(x)
    copied = copy.deepcopy(leaf)
    assert copied.grad is not None and copied.grad.is_tpu and copied.grad.sum().item() == 4
    assert copied.untyped_storage().data_ptr() != leaf.untyped_storage().data_ptr()


def test_pickle() -> None:
    x = torch.randn(3, device="tpu", requires_grad=True)
    y = pickle.loads(pickle.dumps(x))
    assert y.is_tpu and y.requires_grad and torch.equal(x.detach().cpu(), y.detach().cpu())
    host = torch.randn(3)
    assert torch.equal(pickle.loads(pickle.dumps(host)), host)


def test_older_file_format() -> None:
    x = torch.arange(6, device="tpu").view(2, 3)
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=False)
    for where in ("tpu", "cpu"):
        file.seek(0)
        y = torch.load(file, map_location=where)
        assert y.device.type == where and torch.equal(y.cpu(), x.cpu())


def test_generator_state_is_saved() -> None:
    state = torch.load(saved(torch.tpu.get_rng_state()))
    torch.tpu.set_rng_state(state)
