"""Products of low-precision matrices with their scales, and of groups of matrices."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering.matmul import product
from torch_tpu.lowering.registry import lower
from torch_tpu.runtime import client

Array = jax.Array


class Scaling(enum.IntEnum):
    """How a scale lies over a matrix [rows, K]; the numbers of PyTorch's ScalingType."""

    TENSORWISE = 0
    ROWWISE = 1
    BLOCKWISE_1X16 = 2
    BLOCKWISE_1X32 = 3
    BLOCKWISE_1X128 = 4
    BLOCKWISE_128X128 = 5


_BLOCK = {
    Scaling.BLOCKWISE_1X16: 16,
    Scaling.BLOCKWISE_1X32: 32,
    Scaling.BLOCKWISE_1X128: 128,
    Scaling.BLOCKWISE_128X128: 128,
}
_SWIZZLE_32_4_4 = 1


@lower("aten::_int_mm")
def int_mm(self: Array, mat2: Array) -> Array:
    return jnp.einsum("ij,jk->ik", self, mat2, preferred_element_type=jnp.int32)


@lower("aten::_weight_int8pack_mm")
def weight_int8pack_mm(self: Array, mat2: Array, scales: Array) -> Array:
    return product("ik,jk->ij", self, mat2.astype(self.dtype)) * scales.astype(jnp.float32)


# ---- scaled products


@lower("aten::_scaled_mm")
def scaled_mm(
    self: Array,
    mat2: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Array:
    """What the scales are follows from their shapes: of all, of rows and columns, of blocks of 128."""
    _check_factors("_scaled_mm", self, mat2, bias, out_dtype)
    rows, columns = (self.shape[0], 1), (1, mat2.shape[1])
    if scale_a.size == scale_b.size == 1:
        a, b = scale_a.reshape(1, 1), scale_b.reshape(1, 1)
    elif (scale_a.shape, scale_b.shape) == (rows, columns):
        a, b = scale_a, scale_b
    else:
        a, b = _spread("scale_a", scale_a, self.shape), _spread("scale_b", scale_b, mat2.shape)
    value = _scaled(self, mat2, a, b, bias)
    result = self.dtype if out_dtype is None else dtypes.JAX_DTYPE[out_dtype]
    if scale_result is not None and result.itemsize == 1:  # as CUDA does, for float8 only
        value = value * scale_result
    return _cast(value, self, out_dtype)


@lower("aten::_scaled_mm_v2")
def scaled_mm_v2(
    self: Array,
    mat2: Array,
    scale_a: Sequence[Array],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Array],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Array | None,
    out_dtype: Any,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Array:
    _check_factors("_scaled_mm_v2", self, mat2, bias, out_dtype)
    _check_recipes([Scaling(r) for r in recipe_a], [Scaling(r) for r in recipe_b])
    a = _levels("scale_a", scale_a, recipe_a, swizzle_a, self.shape)
    b = _levels("scale_b", scale_b, recipe_b, swizzle_b, mat2.shape[::-1]).T
    return _cast(_scaled(self, mat2, a, b, bias), self, out_dtype)


def _is_float8(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1


def _check_factors(op: str, x: Array, y: Array, bias: Array | None, out_dtype: Any) -> None:
    sizes = f"self {list(x.shape)} and mat2 {list(y.shape)}"
    if x.ndim != 2 or y.ndim != 2:
        raise ValueError(f"{op}(): self and mat2 must be 2-d, got {sizes}")
    if x.shape[1] != y.shape[0]:
        raise ValueError(f"{op}(): the contraction dimension of self and mat2 must match, got {sizes}")
    if not (_is_float8(x) and _is_float8(y)):
        raise ValueError(f"{op}(): expected self and mat2 of float8 dtypes, got {x.dtype} and {y.dtype}")
    if bias is not None and bias.shape != (y.shape[1],):
        raise ValueError(f"{op}(): expected a bias of {y.shape[1]} elements, got {list(bias.shape)}")
    if out_dtype is not None and (not out_dtype.is_floating_point or out_dtype.itemsize > 4):
        raise ValueError(f"{op}(): expected out_dtype to be float32 or less, got {out_dtype}")


def _check_recipes(a: list[Scaling], b: list[Scaling]) -> None:
    large = {Scaling.BLOCKWISE_1X128, Scaling.BLOCKWISE_128X128}
    both = {*a[:1], *b[:1]}
    alike = a == b and both and both != {Scaling.BLOCKWISE_128X128}
    if not alike and not (len(a) == len(b) == 1 and both == large):
        names = [[r.name for r in recipes] for recipes in (a, b)]
        raise ValueError(f"_scaled_mm_v2(): Invalid scaling configuration: recipes {names[0]} and {names[1]}")


def _cast(value: Array, x: Array, dtype: Any) -> Array:
    """The result in `dtype`, by default that of the first matrix."""
    return dtypes.cast(value, x.dtype if dtype is None else dtypes.JAX_DTYPE[dtype])


def _scaled(x: Array, y: Array, a: Array, b: Array, bias: Array | None) -> Array:
    """(x * a) @ (y * b) + bias in float32; scales that do not vary along K are applied to the product."""
    if a.shape[1] == b.shape[0] == 1:
        value = product("ij,jk->ik", x, y) * (a * b).astype(jnp.float32)
    else:
        wide = [m.astype(jnp.float32) * s.astype(jnp.float32) for m, s in ((x, a), (y, b))]
        value = product("ij,jk->ik", *wide)
    return value if bias is None else value + bias


def _spread(name: str, scale: Array, sizes: Sequence[int]) -> Array:
    """A scale of blocks of 128, or of single places, along each dimension."""
    if scale.ndim != 2:
        raise ValueError(f"_scaled_mm(): {name} must have 2 dimensions or 1 element, got {scale.shape}")
    for dim, (have, size) in enumerate(zip(scale.shape, sizes, strict=True)):
        if have == -(-size // 128):
            scale = jnp.repeat(scale, 128, axis=dim)[(slice(None),) * dim + (slice(size),)]
        elif have != size:
            raise ValueError(
                f"_scaled_mm(): dimension {dim} of {name} must be {size} or {-(-size // 128)} (blocks of "
                f"128), got {have}"
            )
    return scale


def _levels(
    name: str, scales: Sequence[Array], recipes: Sequence[int], swizzles: Sequence[int], sizes: Sequence[int]
) -> Array:
    """The product of scales by their recipes, [rows or 1, K or 1]."""
    if len(scales) != len(recipes):
        raise ValueError(f"_scaled_mm_v2(): {name}: {len(scales)} scales, but {len(recipes)} recipes")
    result = jnp.ones((1, 1), jnp.float32)
    for n, (scale, recipe) in enumerate(zip(scales, recipes, strict=True)):
        swizzle = swizzles[n] if n < len(swizzles) else 0
        result = result * _by_recipe(name, scale.astype(jnp.float32), Scaling(recipe), swizzle, sizes)
    return result


def _by_recipe(name: str, scale: Array, recipe: Scaling, swizzle: int, sizes: Sequence[int]) -> Array:
    rows, inner = sizes
    if recipe <= Scaling.ROWWISE:
        return _sized(name, scale, recipe, (1 if recipe == Scaling.TENSORWISE else rows, 1))
    block = _BLOCK[recipe]
    count = -(-inner // block)
    if recipe == Scaling.BLOCKWISE_128X128:  # lies as [K / 128 rounded up to 4, rows / 128]
        scale = _sized(name, scale, recipe, (-(-count // 4) * 4, -(-rows // block)))
        scale = jnp.repeat(scale.T, block, axis=0)[:rows]
    elif swizzle == _SWIZZLE_32_4_4:
        tall, wide = -(-rows // 128), -(-count // 4)
        scale = _sized(name, scale, recipe, (tall * 128, wide * 4)).reshape(tall, wide, 32, 4, 4)
        scale = scale.transpose(0, 3, 2, 1, 4).reshape(tall * 128, wide * 4)[:rows]
    elif swizzle == 0:
        scale = _sized(name, scale, recipe, (rows, count))
    else:
        raise ValueError(f"_scaled_mm_v2(): {name}: there is no swizzle {swizzle}")
    return jnp.repeat(scale, block, axis=1)[:, :inner]


def _sized(name: str, scale: Array, recipe: Scaling, sizes: tuple[int, int]) -> Array:
    if scale.size != sizes[0] * sizes[1]:
        raise ValueError(
            f"_scaled_mm_v2(): {name} must have {sizes[0] * sizes[1]} elements, {list(sizes)}, for recipe "
            f"{recipe.name}, got {list(scale.shape)}"
        )
    return scale.reshape(sizes)


# ---- groups


@lower("aten::_grouped_mm")
def grouped_mm(
    self: Array, mat2: Array, offs: Array | None = None, bias: Array | None = None, out_dtype: Any = None
) -> Array:
    """One product per group; `offs` [groups] says where each ends along the dimension that is divided.

    [T, K] x [G, K, N] -> [T, N]; [G, M, K] x [K, T] -> [M, T]; [M, T] x [T, N] -> [G, M, N]; both 3-d: bmm.
    """
    _check_groups(self, mat2, offs, bias)
    if out_dtype is not None and dtypes.JAX_DTYPE[out_dtype] != self.dtype:
        raise RuntimeError(f"_grouped_mm(): expected out_dtype to be that of self, got {out_dtype}")
    if 0 in (*self.shape, *mat2.shape) or (offs is not None and offs.size == 0):
        value = jnp.zeros(_grouped_sizes(self, mat2, offs), self.dtype)  # no groups, or nothing in them
    elif offs is None:
        value = product("gij,gjk->gik", self, mat2)
    elif mat2.ndim == 3:
        value = _divided_rows(self, mat2, offs)
    elif self.ndim == 3:
        value = _divided_rows(mat2.T, jnp.swapaxes(self, 1, 2), offs).T
    else:
        value = _divided_inner(self, mat2, offs)
    return _cast(value, self, out_dtype)


def _grouped_sizes(a: Array, b: Array, offs: Array | None) -> tuple[int, ...]:
    groups = [] if a.ndim != b.ndim else [a.shape[0] if offs is None else offs.shape[0]]
    return (*groups, a.shape[-2], b.shape[-1])


def _check_groups(a: Array, b: Array, offs: Array | None, bias: Array | None) -> None:
    sizes = f"self {list(a.shape)} and mat2 {list(b.shape)}"
    if a.ndim not in (2, 3) or b.ndim not in (2, 3):
        raise RuntimeError(f"_grouped_mm(): expected 2-d or 3-d matrices, got {sizes}")
    if a.dtype != b.dtype or not jnp.issubdtype(a.dtype, jnp.floating):
        raise RuntimeError(f"_grouped_mm(): expected one floating dtype, got {a.dtype} and {b.dtype}")
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"_grouped_mm(): contraction dimension of self and mat2 must match, got {sizes}")
    if bias is not None:
        raise RuntimeError("_grouped_mm(): bias is not supported by PyTorch yet: add it to the result")
    batches = [x.shape[0] for x in (a, b) if x.ndim == 3]
    if len(batches) == 2:
        if offs is not None:
            raise RuntimeError("_grouped_mm(): offs is not needed where both matrices are 3-d")
        if batches[0] != batches[1]:
            raise RuntimeError(f"_grouped_mm(): matrix batch sizes have to match, got {sizes}")
        return
    if offs is None or offs.ndim != 1 or offs.dtype != jnp.int32:
        raise RuntimeError(f"_grouped_mm(): expected offs, 1-d and int32, for {sizes}")
    if batches and offs.shape[0] != batches[0]:
        raise RuntimeError(
            f"_grouped_mm(): offs has {offs.shape[0]} elements, but there are {batches[0]} matrices"
        )


def _divided_rows(rows: Array, matrices: Array, ends: Array) -> Array:
    """[T, K] x [G, K, N] -> [T, N]; rows after the last group are zero."""
    if client.platform() == "tpu":
        sizes = jnp.diff(ends, prepend=0)
        wide = jnp.promote_types(rows.dtype, jnp.float32)  # 16-bit floats accumulate in float32
        return lax.ragged_dot(rows, matrices, sizes, preferred_element_type=wide)
    tiles = _Tiles(rows.shape[0], ends)
    rows = tiles.pad(rows)

    def add(tile: Array, result: Array) -> Array:
        group, row, inside = tiles.find(tile)
        value = product("ik,kj->ij", lax.dynamic_slice_in_dim(rows, row, tiles.size), matrices[group])
        before = lax.dynamic_slice_in_dim(result, row, tiles.size)
        return lax.dynamic_update_slice_in_dim(result, jnp.where(inside, value, before), row, 0)

    empty = jnp.zeros((rows.shape[0], matrices.shape[2]), dtypes.compute_dtype(rows.dtype))
    return lax.fori_loop(0, tiles.count, add, empty)[: -tiles.size]


def _divided_inner(a: Array, b: Array, ends: Array) -> Array:
    """[M, T] x [T, N] -> [G, M, N]."""
    tiles = _Tiles(b.shape[0], ends)
    a, b = tiles.pad(a.T), tiles.pad(b)

    def add(tile: Array, result: Array) -> Array:
        group, row, inside = tiles.find(tile)
        left = jnp.where(inside, lax.dynamic_slice_in_dim(a, row, tiles.size), 0)
        right = jnp.where(inside, lax.dynamic_slice_in_dim(b, row, tiles.size), 0)
        return result.at[group].add(product("ti,tj->ij", left, right))

    shape = (ends.shape[0], a.shape[1], b.shape[1])
    return lax.fori_loop(0, tiles.count, add, jnp.zeros(shape, dtypes.compute_dtype(a.dtype)))


class _Tiles:
    """Rows divided into groups that end at `ends`, and each group into tiles of `size` rows."""

    def __init__(self, rows: int, ends: Array) -> None:
        average = rows // ends.shape[0]
        self.size = min(max(8, 1 << average.bit_length()), 128)
        self.starts, self.ends = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]]), ends
        self.last = jnp.cumsum(-(-jnp.maximum(ends - self.starts, 0) // self.size))
        self.count = self.last[-1]

    def pad(self, x: Array) -> Array:
        """With rows enough for a tile that begins at the last one."""
        return jnp.pad(x, ((0, self.size), (0, 0)))

    def find(self, tile: Array) -> tuple[Array, Array, Array]:
        """The tile's group, its first row, and which of its rows [size, 1] are in the group."""
        group = jnp.searchsorted(self.last, tile, side="right")
        before = jnp.where(group > 0, self.last[group - 1], 0)
        row = self.starts[group] + (tile - before) * self.size
        return group, row, (row + jnp.arange(self.size) < self.ends[group])[:, None]
