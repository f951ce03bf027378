"""torch.profiler over the device."""

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def run() -> None:
    x = torch.randn(200, 200, device="tpu")
    for _ in range(3):
        x = torch.tanh(x @ x)
    torch.tpu.synchronize()


def test_device_time() -> None:
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        run()
    averages = {event.key: event for event in profiler.key_averages()}
    assert averages["aten::mm"].count == 3
    assert averages["aten::mm"].device_time_total > 0
    assert "TPU" in profiler.key_averages().table()


def test_trace_has_device_programs(tmp_path: Path) -> None:
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        run()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    kernels = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "kernel"]
    names = [e["name"] for e in kernels]
    assert names.count("aten::mm") == 3 and names.count("aten::tanh") == 3
    assert all(e["dur"] > 0 for e in kernels)


def test_cpu_only_profile_still_works() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    assert any(event.key == "aten::mm" for event in profiler.key_averages())
