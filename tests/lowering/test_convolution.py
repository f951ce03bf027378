"""Convolutions and both gradients, in every formulation, against PyTorch's CPU kernels."""

from typing import Any

import pytest
import torch

from tests.lowering_mode import LoweringMode

#: (image, kernel, arguments): each takes another way through `portioned` on a CPU.
ORDINARY: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 20, 19), (4, 6, 3, 2), {}),
    ((2, 6, 20, 19), (4, 6, 3, 2), {"stride": 2, "padding": (1, 2), "dilation": (2, 1)}),
    ((2, 6, 7, 8), (4, 6, 3, 3), {"padding": 1}),
    ((2, 6, 1, 1), (4, 6, 3, 3), {"padding": 1}),
    ((2, 6, 9, 8), (4, 6, 1, 1), {"stride": 2}),
    ((2, 3, 9, 12), (4, 3, 4, 3), {"stride": (4, 3)}),
    ((2, 3, 20, 18), (4, 3, 1, 1), {}),
    ((2, 6, 20, 8), (4, 3, 3, 2), {"groups": 2, "stride": 2, "padding": 1}),
    ((2, 6, 9, 8), (12, 1, 3, 2), {"groups": 6, "stride": (2, 3), "padding": (2, 1), "dilation": 2}),
    ((2, 6, 30), (4, 6, 5), {"stride": 3, "padding": 2}),
    ((2, 6, 7, 8, 9), (4, 6, 3, 2, 2), {"stride": (2, 1, 2), "padding": (1, 2, 0), "dilation": (1, 2, 1)}),
    ((6, 9, 8), (4, 6, 3, 3), {"padding": "same"}),
    ((0, 6, 9, 8), (4, 6, 3, 3), {}),
]
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 7, 8), (6, 4, 3, 2), {}),
    ((2, 6, 7, 8), (6, 2, 3, 3), {"groups": 2, "stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 6, 7, 8), (6, 1, 3, 3), {"groups": 6, "stride": 2, "padding": 1, "output_padding": 1}),
    # An output padding of a stride or more: only a dilation allows it.
    ((2, 6, 7), (6, 2, 3), {"groups": 2, "stride": 2, "padding": 1, "output_padding": 3, "dilation": 4}),
    ((2, 6, 4, 4, 4), (6, 4, 3, 2, 2), {"stride": 2, "padding": 1, "output_padding": 1}),
]


def _same(
    name: str, image: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, Any], **tolerances: Any
) -> None:
    dtype = tolerances.pop("dtype", torch.float32)
    x = torch.randn(image, dtype=dtype, requires_grad=True)
    w = torch.randn(kernel, dtype=dtype, requires_grad=True)
    outputs = kernel[1] * how.get("groups", 1) if "transpose" in name else kernel[0]
    bias = torch.randn(outputs, dtype=dtype, requires_grad=True)
    fn = getattr(torch.nn.functional, f"{name}{len(kernel) - 2}d")

    def program(grad: torch.Tensor | None) -> list[torch.Tensor]:
        y = fn(x, w, bias, **how)
        return [y, *torch.autograd.grad(y, (x, w, bias), torch.ones_like(y) if grad is None else grad)]

    grad = torch.randn_like(program(None)[0])
    expected = program(grad)
    with LoweringMode() as mode:
        got = program(grad)
    assert {"aten::convolution", "aten::convolution_backward"} <= set(mode.lowered)
    torch.testing.assert_close(got, expected, **(tolerances or {"rtol": 1e-4, "atol": 1e-4}))


@pytest.mark.parametrize(("image", "kernel", "how"), ORDINARY)
def test_convolution(image: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, Any]) -> None:
    _same("conv", image, kernel, how)


@pytest.mark.parametrize(("image", "kernel", "how"), TRANSPOSED)
def test_transposed_convolution(image: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, Any]) -> None:
    _same("conv_transpose", image, kernel, how)


@pytest.mark.parametrize(("image", "kernel", "how"), [*ORDINARY[:2], ORDINARY[7]])
def test_the_form_for_an_accelerator_is_equal(
    image: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TPU_PLATFORM", "tpu")
    _same("conv", image, kernel, how)


@pytest.mark.parametrize("index", [0, 2, 7])
def test_other_dtypes(index: int) -> None:
    _same("conv", *ORDINARY[index], dtype=torch.float64, rtol=1e-7, atol=1e-7)
    _same("conv", *ORDINARY[index], dtype=torch.bfloat16, rtol=3e-2, atol=2e-1)


def test_gradients_that_are_not_wanted_are_none() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3, requires_grad=True)
    with LoweringMode() as mode:
        torch.nn.functional.conv2d(x, w).sum().backward()
    assert mode.lowered["aten::convolution_backward"] == 1 and w.grad is not None
