"""Memory accounting, and pinned host memory."""

import gc

import pytest
import torch


@pytest.fixture(autouse=True)
def settled() -> None:
    gc.collect()
    torch.tpu.empty_cache()


def test_allocated_and_peak() -> None:
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    x = torch.zeros(1000, device="tpu")
    assert torch.tpu.memory_allocated() - before == 4000 == torch.tpu.memory_reserved() - before
    view = x[10:].view(99, 10)
    assert torch.tpu.memory_allocated() - before == 4000
    del x
    assert torch.tpu.memory_allocated() - before == 4000
    del view
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() - before == 4000 == torch.tpu.max_memory_reserved() - before
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == before


def test_statistics() -> None:
    torch.tpu.reset_accumulated_memory_stats()
    x = torch.zeros(256, device="tpu")
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == 1024 and stats["allocation.all.allocated"] == 1
    del x
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.freed"] == 1024 and stats["allocation.all.freed"] == 1
    assert stats == torch.accelerator.memory_stats(0)


def test_free_and_total() -> None:
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total == torch.tpu.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info(0)[1] == total


def test_out_of_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="TPU out of memory"):
        torch.empty(2**50, dtype=torch.uint8, device="tpu")
    assert torch.ones(1, device="tpu").item() == 1


def test_memory_fraction() -> None:
    total = torch.tpu.get_device_properties().total_memory
    with pytest.raises(ValueError, match="Allowed range: 0~1"):
        torch.tpu.set_per_process_memory_fraction(1.5)
    try:
        torch.tpu.set_per_process_memory_fraction((torch.tpu.memory_allocated() + 2**20) / total)
        torch.empty(2**19, dtype=torch.uint8, device="tpu")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**22, dtype=torch.uint8, device="tpu")
    finally:
        torch.tpu.set_per_process_memory_fraction(1.0)


def test_addresses_are_unique_and_views_are_inside() -> None:
    a, b = torch.zeros(10, device="tpu"), torch.zeros(10, device="tpu")
    assert a.data_ptr() != b.data_ptr() and a.data_ptr() != 0
    assert a[3:].data_ptr() == a.data_ptr() + 12
    assert a.view(5, 2).untyped_storage().data_ptr() == a.untyped_storage().data_ptr()


def test_pinned_memory() -> None:
    x = torch.arange(1000.0)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[7:].is_pinned() and torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    assert torch.empty(5, pin_memory=True).is_pinned()
    assert torch.equal(pinned.to("tpu", non_blocking=True).cpu(), x)
    target = torch.empty(1000, pin_memory=True)
    target.copy_(pinned.tpu() + 1, non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(target, x + 1)
    torch.accelerator.empty_host_cache()


def test_pinned_source_may_die_or_change_after_a_copy() -> None:
    source = torch.ones(2**16, pin_memory=True)
    copied = source.to("tpu", non_blocking=True)
    torch.tpu.synchronize()
    source.fill_(5)
    del source
    assert copied.sum().item() == 2**16


def test_data_loader_pins() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    moved = torch.cat([batch.to("tpu", non_blocking=True) for batch in batches])
    assert torch.equal(moved.cpu(), data.tensors[0])


@pytest.mark.filterwarnings("ignore:os.fork")
def test_data_loader_workers() -> None:
    torch.ones(1, device="tpu").item()
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True, num_workers=1)
    assert torch.equal(torch.cat([batch for (batch,) in loader]), data.tensors[0])
