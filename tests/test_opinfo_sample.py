"""A fixed part of the OpInfo samples: `python -m tests.opinfo` runs them all.

The ops that programs use most, forward and backward; one case (op, dtype, variant) in ten of all, on its
first sample; and every case that ever failed and passes now.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.opinfo.worker import OPS, cases, run_case
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
#: Of each op one part in ten of its cases, by a hash that never changes.
TENTH = [
    (name, dtype, variant)
    for name, dtype, variants in cases([], [], [])
    for variant in variants
    if zlib.crc32(f"{name}|{dtype}|{variant}".encode()) % 10 == 0
]
HALF = ("bfloat16", "float16")
#: What docs/differences.md says is not the CPU's: dtypes by op.
NOT_THE_CPU_S = {
    **dict.fromkeys(("native_layer_norm", "native_batch_norm"), HALF),  # statistics in float32, as on CUDA
    **dict.fromkeys(("_native_batch_norm_legit", "_batch_norm_with_update"), HALF),
    "matrix_exp": HALF,  # the CPU overflows
    **dict.fromkeys(("special.bessel_j0", "special.bessel_y1"), ("float64",)),  # the CPU is imprecise
}
ONCE_FAILED = [
    tuple(line.split("|")) for line in (Path(__file__).parent / "opinfo/once_failed.txt").read_text().split()
]


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


@pytest.mark.parametrize("name", sorted({name for name, _, _ in TENTH}))
def test_one_case_in_ten(name: str) -> None:
    for op, dtype, variant in TENTH:
        if op == name and dtype not in NOT_THE_CPU_S.get(op, ()):
            result = run_case(op, dtype, variant, DEVICE, 1)
            assert result["status"] != "fail", f"{dtype} {variant}: {result['error']}"


@pytest.mark.parametrize("case", ONCE_FAILED, ids="|".join)
def test_what_failed_once(case: tuple[str, str, str]) -> None:
    result = run_case(*case, DEVICE, 4)
    assert result["status"] != "fail", result["error"]


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: an op that is wrong on the device alone, by little, is caught."""
    real = OPS["sin"].op
    calls = iter(range(100))  # the first is the CPU's
    monkeypatch.setattr(OPS["sin"], "op", lambda x: real(x) + (1e-3 if next(calls) == 1 else 0))
    assert run_case("sin", "float32", "forward", DEVICE, 4)["status"] == "fail"
