"""Products of low-precision matrices with their scales, and of groups: like the CPU, else like plain ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

from tests.support import DEVICE, assert_same, counting, to

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
GROUPS, M, K, N = 4, 8, 16, 24
ENDS = torch.tensor([3, 3, 40, 56], dtype=torch.int32)
SHAPES = {
    "rows": ((56, K), (GROUPS, K, N)),
    "columns": ((GROUPS, M, K), (K, 56)),
    "inner": ((M, 56), (56, N)),
    "all": ((GROUPS, M, K), (GROUPS, K, N)),
}
SCALED = torch.randn(32, 256, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn)
BY = torch.randn(256, 48, generator=torch.Generator().manual_seed(2)).to(torch.float8_e4m3fn)
S = ScalingType
BLOCK = {S.BlockWise1x32: 32, S.BlockWise1x128: 128, S.BlockWise1x16: 16}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", SHAPES)
def test_grouped_mm(form: str, dtype: torch.dtype) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None) -> list[Any]:
        y = torch._grouped_mm(a, b, offs=ends)
        (y.float() ** 2).sum().backward()
        return [y.detach(), a.grad, b.grad]

    torch.manual_seed(0)
    a, b = (torch.randn(*sizes).to(dtype).requires_grad_() for sizes in SHAPES[form])
    args = (a, b, None if form == "all" else ENDS)
    moved = to(args)
    expected = run(*args)
    with counting() as counted:
        actual = run(*moved)
    assert_same(actual, expected)
    assert not counted.fallbacks


def test_rows_after_the_last_group_are_zero() -> None:
    a, b = torch.randn(56, K, device=DEVICE), torch.randn(2, K, N, device=DEVICE)
    y = torch._grouped_mm(a, b, offs=torch.tensor([5, 9], dtype=torch.int32, device=DEVICE)).cpu()
    assert_same(y[:5], (a[:5] @ b[0]).cpu())
    assert_same(y[5:9], (a[5:9] @ b[1]).cpu())
    assert not y[9:].any()


def test_grouped_mm_of_other_groups_is_not_compiled_again() -> None:
    a, b = torch.randn(56, K, device=DEVICE), torch.randn(GROUPS, K, N, device=DEVICE)
    torch._grouped_mm(a, b, offs=ENDS.to(DEVICE))
    ends = torch.tensor([0, 56, 56, 56], dtype=torch.int32, device=DEVICE)
    with counting() as counted:
        y = torch._grouped_mm(a, b, offs=ends)
    assert counted.plans == 0
    assert_same(y.cpu(), (a @ b[1]).cpu())


def test_groups_that_end_outside() -> None:
    a, b = torch.randn(8, K, device=DEVICE), torch.randn(2, K, N, device=DEVICE)
    torch._grouped_mm(a, b, offs=torch.tensor([4, 9], dtype=torch.int32, device=DEVICE))
    with pytest.raises(RuntimeError, match=r"offs\[1\] is 9, not in \[0, 8\]"):
        torch.tpu.synchronize()


@pytest.mark.parametrize(
    "sizes, ends, text",
    [
        ([(8, K), (2, K, N)], None, "offs"),
        ([(8, K), (2, K, N)], [4, 6, 8], "offs|batch"),
        ([(8, K), (2, K + 8, N)], [4, 8], "contraction"),
        ([(2, 8, K), (3, K, N)], None, "batch"),
        ([(2, 8, K), (2, K, N)], [4, 8], "offs"),
        ([(K,), (2, K, N)], [4, 8], "2|3"),
    ],
)
def test_grouped_mm_refuses(sizes: list[Any], ends: list[int] | None, text: str) -> None:
    a, b = (torch.ones(*n, device=DEVICE) for n in sizes)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    with pytest.raises(RuntimeError, match=text):
        torch._grouped_mm(a, b, offs=offs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_weight_int8pack_mm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randint(-128, 128, (7, 32), dtype=torch.int8)
    args = (torch.randn(5, 32).to(dtype), weight, torch.rand(7).to(dtype))
    with counting() as counted:
        actual = torch._weight_int8pack_mm(*to(args))
    assert_same(actual, torch._weight_int8pack_mm(*args))
    assert not counted.fallbacks


def _scale(recipe: ScalingType, rows: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale as `scaled_mm` wants it, and as a matrix that broadcasts to [rows, inner]."""
    if recipe == S.TensorWise:
        scale = torch.rand(1)
        return scale, scale.reshape(1, 1)
    if recipe == S.RowWise:
        scale = torch.rand(rows, 1)
        return scale, scale
    if recipe == S.BlockWise128x128:
        scale = torch.rand(-(-inner // 512) * 4, -(-rows // 128))
        full = scale.T.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :inner]
        return scale, full
    small = {S.BlockWise1x32: torch.float8_e8m0fnu, S.BlockWise1x16: torch.float8_e4m3fn}
    scale = torch.rand(rows, inner // BLOCK[recipe]).to(small.get(recipe, torch.float32))
    return scale, scale.float().repeat_interleave(BLOCK[recipe], 1)


PAIRS = [
    (S.TensorWise, S.TensorWise),
    (S.RowWise, S.RowWise),
    (S.BlockWise1x16, S.BlockWise1x16),
    (S.BlockWise1x32, S.BlockWise1x32),
    (S.BlockWise1x128, S.BlockWise1x128),
    (S.BlockWise1x128, S.BlockWise128x128),
    (S.BlockWise128x128, S.BlockWise1x128),
]


@pytest.mark.parametrize("recipes", PAIRS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_scaled_mm_by_recipe(recipes: tuple[ScalingType, ScalingType], bias: bool) -> None:
    torch.manual_seed(0)
    (a, full_a), (b, full_b) = _scale(recipes[0], 32, 256), _scale(recipes[1], 48, 256)
    if recipes[1] == S.RowWise:
        b = b.T
    added = torch.randn(48) if bias else None
    expected = (SCALED.float() * full_a) @ (BY.float() * full_b.T) + (0 if added is None else added)
    with counting() as counted:
        x, y, a, b, added = to((SCALED, BY, a, b, added))
        actual = scaled_mm(x, y, a, recipes[0], b, recipes[1], bias=added, output_dtype=torch.float32)
    assert_same(actual, expected, rtol=1e-5, atol=1e-4)
    assert not counted.fallbacks


def test_swizzled_scales() -> None:
    def swizzled(scale: torch.Tensor) -> torch.Tensor:
        tall = torch.zeros(128, scale.shape[1])
        tall[: scale.shape[0]] = scale.float()
        tiles = tall.view(4, 32, -1, 4).permute(2, 1, 0, 3)  # 32 x 4 rows, four columns at a time
        return tiles.reshape(-1).to(scale.dtype)

    torch.manual_seed(0)
    (a, full_a), (b, full_b) = _scale(S.BlockWise1x32, 32, 256), _scale(S.BlockWise1x32, 48, 256)
    x, y, a, b = to((SCALED, BY, swizzled(a), swizzled(b)))
    recipe, swizzle = S.BlockWise1x32, SwizzleType.SWIZZLE_32_4_4
    actual = scaled_mm(x, y, a, recipe, b, recipe, swizzle, swizzle, output_dtype=torch.float32)
    assert_same(actual, (SCALED.float() * full_a) @ (BY.float() * full_b.T), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "rows, columns", [((32, 1), (1, 48)), ((32, 2), (2, 48)), ((32, 2), (2, 1)), ((1, 2), (2, 48))]
)
def test_scaled_mm_by_shape(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(rows), torch.rand(columns)
    full_a, full_b = a.repeat_interleave(256 // rows[1], 1), b.repeat_interleave(256 // columns[0], 0)
    actual = torch._scaled_mm(*to((SCALED, BY, a, b)), out_dtype=torch.float32)
    assert_same(actual, (SCALED.float() * full_a) @ (BY.float() * full_b), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"scale_a": torch.rand(3)}, "scale_a"),
        ({"scale_a": torch.rand(32, 5), "scale_recipe_a": S.BlockWise1x128}, "scale"),
        ({"mat_a": torch.randn(32, 256)}, "float8|Float8"),
        ({"mat_a": SCALED[:, :128]}, "dimension|sizes|shape|size"),
    ],
)
def test_scaled_mm_refuses(change: dict[str, Any], text: str) -> None:
    good = {
        **{"mat_a": SCALED, "mat_b": BY, "scale_a": torch.rand(1), "scale_b": torch.rand(1)},
        **{"scale_recipe_a": S.TensorWise, "scale_recipe_b": S.TensorWise},
    }
    with pytest.raises((RuntimeError, ValueError), match=text):
        scaled_mm(**to({**good, **change}))
