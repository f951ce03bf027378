"""Which implementation scaled_dot_product_attention takes, and that each gives PyTorch's results."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def inputs(heads: int = 4, kv_heads: int = 4, dim: int = 8) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, heads, 5, dim), torch.randn(2, kv_heads, 6, dim), torch.randn(2, kv_heads, 6, dim)


def choice(*tensors: torch.Tensor, **kwargs: bool) -> int:
    return torch._fused_sdp_choice(*(t.tpu() for t in tensors), **kwargs)


def test_fused_is_the_default() -> None:
    assert choice(*inputs()) == SDPBackend.OVERRIDEABLE.value
    assert choice(*inputs(kv_heads=2), enable_gqa=True) == SDPBackend.OVERRIDEABLE.value


def test_math_where_asked_or_needed() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert choice(*inputs()) == SDPBackend.MATH.value
    assert choice(*inputs(dim=0)) == SDPBackend.MATH.value
    assert choice(*(t[0] for t in inputs())) == SDPBackend.MATH.value


def test_nothing_allowed_raises() -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        choice(*inputs())


@pytest.mark.parametrize("backend", [SDPBackend.OVERRIDEABLE, SDPBackend.MATH])
@pytest.mark.parametrize("kwargs", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}])
def test_results_and_gradients(backend: SDPBackend, kwargs: dict[str, object]) -> None:
    host = [t.requires_grad_() for t in inputs(kv_heads=2 if "enable_gqa" in kwargs else 4)]
    device = [t.detach().tpu().requires_grad_() for t in host]
    expected = F.scaled_dot_product_attention(*host, **kwargs)  # type: ignore[arg-type]
    expected.pow(2).sum().backward()
    with sdpa_kernel(backend):
        got = F.scaled_dot_product_attention(*device, **kwargs)  # type: ignore[arg-type]
    got.pow(2).sum().backward()
    torch.testing.assert_close(got.detach().cpu(), expected.detach())
    for a, b in zip(device, host, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad)
