"""Streams and events, through torch.tpu, torch.Stream and torch.accelerator."""

import threading
import time

import pytest
import torch


def work(n: int = 300) -> torch.Tensor:
    x = torch.ones(n, n, device="tpu")
    for _ in range(5):
        x = (x @ x) / n
    return x


def test_stream_identity() -> None:
    default = torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default and default.stream_id == 0
    first, second = torch.tpu.Stream(), torch.tpu.Stream("tpu:0", priority=-1)
    assert first != second and first != default and isinstance(first, torch.Stream)
    assert first.device == torch.device("tpu", 0)


def test_stream_contexts() -> None:
    stream = torch.tpu.Stream()
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream() == stream
        x = work()
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with stream, torch.tpu.stream(None):
        assert torch.accelerator.current_stream() == stream
    torch.tpu.current_stream().wait_stream(stream)
    stream.synchronize()
    assert stream.query()
    torch.testing.assert_close(x.cpu(), torch.ones(300, 300))
    x.record_stream(stream)


def test_streams_are_per_thread() -> None:
    stream = torch.tpu.Stream()
    torch.tpu.set_stream(stream)
    try:
        seen: list[torch.Stream] = []
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
        assert seen[0] == torch.tpu.default_stream()
        assert torch.tpu.current_stream() == stream
    finally:
        torch.tpu.set_stream(torch.tpu.default_stream())


def test_event_order() -> None:
    event = torch.tpu.Event()
    assert isinstance(event, torch.tpu.Event) and not isinstance(torch.Event("cpu"), torch.tpu.Event)
    assert event.query()
    x = work()
    event.record()
    event.wait(torch.tpu.Stream())
    torch.tpu.current_stream().wait_event(event)
    event.synchronize()
    assert event.query()
    assert x.sum().item() == 300 * 300
    assert torch.tpu.current_stream().record_event(event) == event


@pytest.mark.parametrize("make", [torch.tpu.Event, torch.Event])
def test_event_timing(make) -> None:  # type: ignore[no-untyped-def]
    start, end = make(enable_timing=True), make(enable_timing=True)
    work()
    torch.tpu.synchronize()
    begin = time.perf_counter()
    start.record()
    x = work(500)
    end.record()
    end.synchronize()
    passed = (time.perf_counter() - begin) * 1e3
    assert 0 < start.elapsed_time(end) <= passed
    assert x.is_tpu


def test_timing_covers_the_work_only() -> None:
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    torch.tpu.synchronize()
    start.record()
    end.record()
    end.synchronize()
    time.sleep(0.2)
    assert start.elapsed_time(end) < 100


def test_event_misuse_raises() -> None:
    a, b = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        a.elapsed_time(b)
    c = torch.tpu.Event()
    c.record()
    a.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        a.elapsed_time(c)


def test_synchronize_everything() -> None:
    x = work()
    torch.accelerator.synchronize()
    torch.tpu.synchronize(0)
    assert torch.tpu.current_stream().query()
    assert x.sum().item() == 300 * 300


def test_results_that_nobody_holds_are_waited_for() -> None:
    x = torch.ones(1500, 1500, device="tpu")
    torch.mm(x, x)  # compiled now
    torch.tpu.synchronize()
    stream, event = torch.tpu.current_stream(), torch.tpu.Event()
    torch.mm(x, x)
    event.record()
    assert not stream.query() and not event.query()
    torch.tpu.synchronize()
    assert stream.query() and event.query()
