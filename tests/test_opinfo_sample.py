"""A fixed part of the OpInfo samples: `python -m tests.opinfo` runs them all.

The ops that programs use most, forward and backward; and one op in ten of the others, its first samples.
"""

from __future__ import annotations

import zlib

import pytest

from tests.opinfo.worker import OPS, run_case
from tests.support import DEVICE

MOST_USED = """
    abs add addmm amax arange argmax baddbmm bmm cat chunk clamp clone cos cumsum div.no_rounding_mode
    einsum eq exp expand gather ge index_put index_select log log_softmax masked_fill matmul
    max.reduction_with_dim maximum mean mm mul neg nn.functional.avg_pool2d nn.functional.batch_norm
    nn.functional.conv2d nn.functional.cross_entropy nn.functional.embedding nn.functional.gelu
    nn.functional.layer_norm nn.functional.linear nn.functional.max_pool2d nn.functional.mse_loss
    nn.functional.relu nn.functional.scaled_dot_product_attention nn.functional.silu permute pow repeat
    reshape rsqrt scatter_add sigmoid sin softmax sort split sqrt stack std sub sum t tanh topk
    transpose tril var where
""".split()  # noqa: SIM905 (a list of quoted names is harder to read)
REST = sorted(name for name in OPS if name not in MOST_USED and zlib.crc32(name.encode()) % 10 == 0)


def _check(name: str, variant: str, limit: int) -> None:
    result = run_case(name, "float32", variant, DEVICE, limit)
    assert result["status"] != "fail", result["error"]
    if name in MOST_USED:
        assert "strides" not in result, result["strides"]
        assert not result["fallbacks"]


@pytest.mark.parametrize("variant", ["forward", "backward"])
@pytest.mark.parametrize("name", MOST_USED)
def test_most_used(name: str, variant: str) -> None:
    if variant == "forward" or OPS[name].supports_autograd:
        _check(name, variant, 4)


@pytest.mark.parametrize("name", REST)
def test_one_in_ten(name: str) -> None:
    _check(name, "forward", 2)


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: an op that is wrong on the device alone, by little, is caught."""
    real = OPS["sin"].op
    calls = iter(range(100))  # the first is the CPU's
    monkeypatch.setattr(OPS["sin"], "op", lambda x: real(x) + (1e-3 if next(calls) == 1 else 0))
    assert run_case("sin", "float32", "forward", DEVICE, 4)["status"] == "fail"
