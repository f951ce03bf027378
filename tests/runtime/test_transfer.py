"""Bytes arrive unchanged, in memory of their own."""

from __future__ import annotations

import ctypes

import jax
import numpy as np
import pytest
import torch

from tests.device.subprocesses import run
from torch_tpu import dtypes
from torch_tpu.runtime import compiler, transfer

RAW = [torch.complex32, torch.float4_e2m1fn_x2]
#: Elements of a tensor that is copied by the client, and of one whose memory is lent to it.
SIZES = [6, 60_000]


def read(array: jax.Array) -> bytes:
    address, keepalive = transfer.host_view(array)
    data = ctypes.string_at(address, array.nbytes) if array.nbytes else b""
    del keepalive
    return data


def random_tensor(dtype: torch.dtype, elements: int) -> torch.Tensor:
    top = 2 if dtype is torch.bool else 256
    return torch.randint(0, top, (elements * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("dtype", [*dtypes.JAX_DTYPE, *RAW], ids=str)
def test_every_dtype_arrives_bit_for_bit(dtype: torch.dtype, elements: int) -> None:
    tensor = random_tensor(dtype, elements).view(2, -1)
    array = transfer.to_device(tensor)
    assert array.shape == tuple(tensor.shape)
    assert array.dtype == dtypes.storage_dtype(dtype)
    assert read(array) == bits(tensor)


@pytest.mark.parametrize("elements", SIZES)
def test_the_tensor_may_change_afterwards(elements: int) -> None:
    tensor = torch.ones(elements)
    array = transfer.to_device(tensor)
    tensor.zero_()
    assert np.asarray(array).sum() == elements


@pytest.mark.parametrize("elements", SIZES)
def test_views_arrive_dense(elements: int) -> None:
    base = torch.randn(elements, dtype=torch.complex64)
    half = elements // 2
    views = [base.view(2, half).T, base[1:], base[::2], base[:1].expand(elements, 2), base[:0].view(0, 3)]
    views += [base[3], base.imag, base.view(2, half)[1].conj(), -base.conj().imag]
    for view in views:
        array = transfer.to_device(view)
        assert array.shape == tuple(view.shape)
        np.testing.assert_array_equal(np.asarray(array), view.resolve_conj().resolve_neg().numpy())


def test_only_cpu_tensors_are_taken() -> None:
    with pytest.raises(ValueError, match="expected a CPU tensor, got one on meta"):
        transfer.to_device(torch.ones(2, device="meta"))


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (500, 500)])
@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32, dtypes.JAX_DTYPE[torch.bfloat16]])
def test_zeros(shape: tuple[int, ...], dtype: type) -> None:
    array = transfer.zeros(shape, dtype)
    assert array.shape == shape and array.dtype == dtype
    assert not np.asarray(array).any()


def test_large_zeros_come_from_a_program_where_the_host_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.client, "platform", lambda: "tpu")
    array = transfer.zeros((300_000,), np.int64)
    assert array.dtype == np.int64 and not np.asarray(array).any()


def test_copy_survives_the_donation_of_the_original() -> None:
    spec = ((5,), np.int64)
    add = compiler.compile_program(lambda x: [x + 1], [spec], donate=(0,))
    original = transfer.to_device(torch.arange(5) + 2**40)
    copy = transfer.copy_on_device(original)
    assert copy.dtype == np.int64
    result = add(original)
    assert original.is_deleted()
    np.testing.assert_array_equal(np.asarray(copy), np.arange(5) + 2**40)
    np.testing.assert_array_equal(np.asarray(result), np.arange(5) + 2**40 + 1)


def test_ready_scalars_are_the_bytes() -> None:
    data = bytes(range(24))
    array = transfer.ready_scalars(data)
    assert array.dtype == np.uint32 and array.shape == (6,)
    assert read(array) == data


def test_host_view_reports_the_error_of_the_program() -> None:
    array = transfer.to_device(torch.ones(3))
    array.delete()
    with pytest.raises(RuntimeError):
        transfer.host_view(array)


def test_across_devices() -> None:
    out = run(
        """
        import numpy as np, torch
        from torch_tpu.runtime import client, transfer
        one = transfer.to_device(torch.arange(4) + 2**40, 1)
        two = transfer.copy_to(one, 2)
        print([a.devices() == {client.devices()[i]} for a, i in ((one, 1), (two, 2))])
        print(two.dtype, (np.asarray(two) - 2**40).tolist(), transfer.copy_to(two, 2) is two)
        print(transfer.copy_on_device(two).devices(), transfer.zeros((2,), np.int8, 1).devices())
        """,
        TORCH_TPU_PLATFORM="cpu",
        TORCH_TPU_CPU_DEVICES="3",
    )
    moved, values, made = out.splitlines()
    assert moved == "[True, True]"
    assert values == "int64 [0, 1, 2, 3] True"
    assert made == "{CpuDevice(id=2)} {CpuDevice(id=1)}"
