"""Comparing what a device computed with what the CPU did, at PyTorch's own tolerances."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo


class Mismatch(AssertionError):
    """The device's result differs from the CPU's."""


def tolerances(op: Any, dtype: torch.dtype) -> dict[str, float]:
    """rtol and atol for results of `op`: PyTorch's defaults, or the op's own override where larger."""
    rtol, atol = default_tolerances(dtype)
    for info in op.decorators:
        if not isinstance(info, DecorateInfo) or info.device_type not in (None, "cpu", "cuda"):
            continue
        for decorator in info.decorators:
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype].atol)
                rtol = max(rtol, decorator.d[dtype].rtol)
            elif isinstance(decorator, precisionOverride) and dtype in decorator.d:
                atol = max(atol, decorator.d[dtype])
    return {"rtol": rtol, "atol": atol}


def check_kind(actual: Any, expected: Any, device: str) -> None:
    """Raise Mismatch unless the two have the same type, shape, dtype and layout, each on its device."""
    if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
        raise Mismatch(f"a {type(actual).__name__} instead of a {type(expected).__name__}")
    if not isinstance(expected, torch.Tensor):
        return
    if actual.device.type != torch.device(device).type and expected.device.type == "cpu":
        raise Mismatch(f"result on {actual.device}")
    for name in ("dtype", "layout", "is_nested"):
        if getattr(actual, name) != getattr(expected, name):
            raise Mismatch(f"{name} {getattr(actual, name)}, expected {getattr(expected, name)}")
    if not expected.is_nested and actual.shape != expected.shape:
        raise Mismatch(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")


def check_values(actual: Any, expected: Any, tol: dict[str, float], reference: Any = None) -> None:
    """Raise Mismatch unless the numbers are close.

    Given `reference`, the same result in double precision, an answer at least as near to it as
    twice the CPU's own distance is right too: the CPU's rounding is not the measure.
    """
    try:
        _assert_close(actual, expected, tol)
    except AssertionError as error:
        if reference is None or not _as_near(actual, expected, reference, tol):
            raise Mismatch(str(error)) from None


def _assert_close(actual: Any, expected: Any, tol: dict[str, float]) -> None:
    if not isinstance(expected, torch.Tensor | int | float | complex) or isinstance(actual, str):
        if actual != expected:
            raise AssertionError(f"{actual!r}, expected {expected!r}")
        return
    rtol, atol = tol["rtol"], tol["atol"]
    if isinstance(expected, torch.Tensor):
        actual, expected = _plain(actual), _plain(expected)
        own_rtol, own_atol = default_tolerances(expected.dtype)
        inexact = expected.is_floating_point() or expected.is_complex()
        rtol, atol = (max(rtol, own_rtol), max(atol, own_atol)) if inexact else (0.0, 0.0)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)


def _plain(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    if x.is_nested:
        return torch.cat([y.reshape(-1) for y in x.unbind()])
    if x.is_quantized:
        return x.dequantize()
    if x.is_neg():  # the CPU has no kernel for both bits of complex32
        return -torch._neg_view(x).resolve_conj()
    return x.resolve_conj()


def _as_near(actual: Any, expected: Any, reference: Any, tol: dict[str, float]) -> bool:
    tensors = all(isinstance(x, torch.Tensor) for x in (actual, expected, reference))
    if not tensors or not reference.numel() or not (reference.is_floating_point() or reference.is_complex()):
        return False
    ours, cpu, best = (_plain(x).to(_plain(reference).dtype) for x in (actual, expected, reference))
    if ours.layout != torch.strided or ours.shape != best.shape or cpu.shape != best.shape:
        return False
    same = (ours == cpu) | (ours.isnan() & cpu.isnan())
    error, allowed = (ours - best).abs(), 2 * (cpu - best).abs().nan_to_num(0.0)
    bound = torch.maximum(tol["atol"] + tol["rtol"] * best.abs(), allowed.max())
    return bool((same | (error <= bound)).all())


def stride_difference(actual: Any, expected: Any) -> str | None:
    """How the strides differ in dimensions that have more than one element, or None."""
    plain = isinstance(expected, torch.Tensor) and expected.layout == torch.strided and not expected.is_nested
    if not plain or not expected.numel() or actual.shape != expected.shape:
        return None
    pairs = zip(expected.shape, actual.stride(), expected.stride(), strict=True)
    if any(size > 1 and ours != theirs for size, ours, theirs in pairs):
        return f"strides {actual.stride()}, expected {expected.stride()} of shape {tuple(expected.shape)}"
    return None
