"""`flex_attention` takes `tpu` tensors: masks, score functions and gradients, without a fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.support import DEVICE, assert_same, counting

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def _inputs(heads: int = 4) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, 64, 16, generator=random) for n in (4, heads, heads)]


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _closer(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score + (j - i) * 0.1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("score", [None, _closer])
@pytest.mark.parametrize("heads", [4, 2])
def test_forward_agrees_with_the_cpu(masked: bool, score: Any, heads: int) -> None:
    def run(device: str) -> torch.Tensor:
        q, k, v = (x.to(device) for x in _inputs(heads))
        mask = create_block_mask(_causal, None, None, 64, 64, device=device) if masked else None
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=heads != 4)

    with counting() as counted:
        actual = run(DEVICE)
    assert_same(actual, run("cpu"))
    assert not counted.fallbacks


def test_gradients_agree_with_plain_attention() -> None:
    def run(attention: Any, device: str) -> list[Any]:
        inputs = [x.to(device).requires_grad_() for x in _inputs()]
        y = attention(*inputs, device)
        (y * y).sum().backward()
        return [y.detach(), *(x.grad for x in inputs)]

    def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, device: str) -> torch.Tensor:
        mask = create_block_mask(_causal, None, None, 64, 64, device=device)
        return flex_attention(q, k, v, score_mod=_closer, block_mask=mask)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, device: str) -> torch.Tensor:
        place = torch.arange(64, device=device)
        bias = (place - place[:, None]) * 0.1
        return F.scaled_dot_product_attention(q, k, v, bias.masked_fill(bias > 0, -torch.inf))

    with counting() as counted:
        actual = run(flex, DEVICE)
    assert_same(actual, run(plain, "cpu"), rtol=1e-4, atol=1e-5)
    assert not counted.fallbacks


def test_other_devices_are_refused_as_before() -> None:
    q = torch.empty(1, 1, 4, 4, device="meta")
    with pytest.raises(ValueError, match="only supported on"):
        flex_attention(q, q, q)
