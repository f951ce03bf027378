"""Ops whose output size depends on data: Python functions over tensors on the device.

Each calls other ops, waits for the device once to learn a size, and goes on with ops of static size.
Where padding does no harm the static size is rounded up and the result is a slice of the padded one:
a size seen for the first time then rarely means a new program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: The function of each op ("aten::nonzero"); arguments and results as in the op's schema.
HOST: dict[str, Callable[..., Any]] = {}

_MASKS = (torch.bool, torch.uint8)
_INDEXING = frozenset(
    {
        "aten::index.Tensor",
        "aten::_unsafe_index.Tensor",
        "aten::index_put",
        "aten::_unsafe_index_put",
        "aten::_index_put_impl",
    }
)


def host(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as what serves the ops `names`."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in HOST:
                raise ValueError(f"{name} has two host functions: {HOST[name]!r} and {fn!r}")
            HOST[name] = fn
        return fn

    return register


def needs_host(name: str, args: Sequence[Any]) -> bool:
    """True if this call of the op is served by HOST: always, unless the call says the size (no mask)."""
    if name in _INDEXING:
        return any(i is not None and i.dtype in _MASKS for i in args[1])
    if name == "aten::_padded_dense_to_jagged_forward":
        return args[2] is None
    return name in HOST


def _padded(count: int, limit: int) -> int:
    """`count` rounded up to one of four sizes per power of two, but at most `limit`."""
    step = 1 << max(count.bit_length() - 3, 0)
    return min(-(-count // step) * step, limit)


def _places(mask: Tensor, count: int, exact: bool = False) -> Tensor:
    """The flat positions of the `count` non-zero elements, padded with zeros unless `exact`."""
    size = count if exact else _padded(count, mask.numel())
    return torch.nonzero_static(mask.reshape(-1), size=size, fill_value=0).squeeze(1)


@host("aten::nonzero")
def nonzero(x: Tensor) -> Tensor:
    count = int(torch.count_nonzero(x).item())
    return torch.nonzero_static(x, size=_padded(count, x.numel()), fill_value=0).narrow(0, 0, count)


@host("aten::masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, mask = torch.broadcast_tensors(x, mask)
    count = int(torch.count_nonzero(mask).item())
    return torch.take(x, _places(mask, count)).narrow(0, 0, count)


# ---- indexing with masks


def _check_mask(x: Tensor, mask: Tensor, dim: int) -> None:
    if dim + mask.ndim > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    for j in range(mask.ndim):
        if mask.shape[j] != x.shape[dim + j]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {j} does not match the shape of "
                f"the indexed tensor {list(x.shape)} at index {dim + j}"
            )


def _dims(indices: Sequence[Tensor | None]) -> list[int]:
    """The first dimension of the indexed tensor that each index covers."""
    dims, dim = [], 0
    for i in indices:
        dims.append(dim)
        dim += i.ndim if i is not None and i.dtype in _MASKS else 1
    return dims


def _sole_mask(indices: Sequence[Tensor | None]) -> tuple[Tensor, int] | None:
    """The mask and its first dimension, if it is the only index."""
    given = [(i, dim) for i, dim in zip(indices, _dims(indices), strict=True) if i is not None]
    return given[0] if len(given) == 1 and given[0][0].dtype in _MASKS else None


def _coordinates(mask: Tensor, places: Tensor) -> list[Tensor]:
    """Per dimension of the mask the coordinates of flat places."""
    columns: list[Tensor] = []
    for size in reversed(mask.shape):
        columns.insert(0, places % size)
        places = places // size
    return columns


def _integers(x: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices with integers instead of masks."""
    for i, dim in zip(indices, _dims(indices), strict=True):
        if i is not None and i.dtype in _MASKS:
            _check_mask(x, i, dim)
    masks = [i for i in indices if i is not None and i.dtype in _MASKS]
    counts = iter(torch.stack([torch.count_nonzero(m) for m in masks]).tolist())
    result: list[Tensor | None] = []
    for i in indices:
        if i is not None and i.dtype in _MASKS:
            result.extend(_coordinates(i, _places(i, next(counts), exact=True)))
        else:
            result.append(i)
    return result


@host("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    sole = _sole_mask(indices)
    if sole is None:
        return torch.ops.aten.index(x, _integers(x, indices))
    mask, dim = sole
    _check_mask(x, mask, dim)
    count = int(torch.count_nonzero(mask).item())
    rows = x.flatten(dim, dim + mask.ndim - 1) if mask.ndim > 1 else x
    return torch.index_select(rows, dim, _places(mask, count)).narrow(dim, 0, count)


@host("aten::index_put", "aten::_unsafe_index_put", "aten::_index_put_impl")
def index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    if values.dtype != x.dtype:
        return torch.ops.aten.index_put(x, _integers(x, indices), values, accumulate)  # raises CPU's text
    sole = _sole_mask(indices)
    if sole is not None:
        spread = _spread(x, *sole, values)
        if spread is not None:
            mask, dim = sole
            mask = mask.reshape(mask.shape + (1,) * (x.ndim - dim - mask.ndim)).to(torch.bool)
            return torch.where(mask, x + spread if accumulate else spread, x)
    return torch.ops.aten.index_put(x, _integers(x, indices), values, accumulate)


def _spread(x: Tensor, mask: Tensor, dim: int, values: Tensor) -> Tensor | None:
    """`values` as what broadcasts to x, if the same values go to every place of the mask."""
    _check_mask(x, mask, dim)
    rest = x.ndim - dim - mask.ndim
    if values.ndim <= rest:
        return values
    places = values.ndim - rest - 1  # the dimension of `values` that runs over the mask's places
    if values.shape[places] != 1 or places > dim:
        return None
    return values.reshape(*values.shape[:places], *(1,) * mask.ndim, *values.shape[places + 1 :])


# ---- groups of equal elements


def _groups(new: Tensor) -> tuple[Tensor, int, Tensor]:
    """Of flags that begin groups: the group of each element, how many there are, where each begins."""
    group = torch.cumsum(new, 0) - 1
    count = int(torch.count_nonzero(new).item())
    return group, count, _places(new, count)


def _sizes(group: Tensor, count: int) -> Tensor:
    zeros = torch.zeros(_padded(count, group.numel()), dtype=torch.int64, device=group.device)
    return zeros.scatter_add(0, group, torch.ones_like(group)).narrow(0, 0, count)


def _begins(rows: Tensor) -> Tensor:
    """Flags of the rows [n, ...] that differ from the row before."""
    differs = rows[1:] != rows[:-1]
    if differs.ndim > 1:
        differs = differs.flatten(1).any(1)
    return torch.cat([torch.ones(1, dtype=torch.bool, device=rows.device), differs])


def _nothing(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=x.device)


def _unique(rows: Tensor, order: Tensor | None, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unique rows of [n, ...], already in an order that has equal rows together; n > 0.

    order: the place of each row before ordering, None if it is its own.
    """
    group, count, begins = _groups(_begins(rows))
    values = torch.index_select(rows, 0, begins).narrow(0, 0, count)
    place = _nothing(rows)
    if inverse:
        place = group if order is None else torch.zeros_like(group).scatter(0, order, group)
    return values, place, _sizes(group, count) if counts else _nothing(rows)


@host("aten::_unique2")
def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        return x.new_empty(0), _nothing(x).reshape(x.shape if return_inverse else 0), _nothing(x)
    rows, order = torch.sort(x.reshape(-1))
    values, inverse, counts = _unique(rows, order, return_inverse, return_counts)
    return values, inverse.reshape(x.shape) if return_inverse else inverse, counts


@host("aten::_unique")
def unique_pair(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique(x, sorted, return_inverse, False)[:2]


@host("aten::unique_consecutive")
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_dim_consecutive(x, dim, return_inverse, return_counts)
    if x.numel() == 0:
        return x.new_empty(0), _nothing(x).reshape(x.shape if return_inverse else 0), _nothing(x)
    values, inverse, counts = _unique(x.reshape(-1), None, return_inverse, return_counts)
    return values, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _lexicographic(rows: Tensor) -> Tensor:
    """The order of rows [n, m] by their first column, then their second, and so on."""
    order = torch.arange(rows.shape[0], device=rows.device)
    for column in reversed(rows.unbind(1)):
        by_column = torch.sort(torch.index_select(column, 0, order), stable=True)[1]
        order = torch.index_select(order, 0, by_column)
    return order


def _unique_rows(
    x: Tensor, dim: int, ordered: bool, inverse: bool, counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        if x.shape[dim] != 0:
            raise RuntimeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
            )
        return torch.empty_like(x), _nothing(x), _nothing(x)
    rows = x.movedim(dim, 0)
    order = None
    if ordered:
        order = _lexicographic(rows.flatten(1) if rows.ndim > 1 else rows.unsqueeze(1))
        rows = torch.index_select(rows, 0, order)
    values, place, sizes = _unique(rows, order, inverse, counts)
    return values.movedim(0, dim), place, sizes


@host("aten::unique_dim")
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique_rows(x, dim, True, True, True)


@host("aten::unique_dim_consecutive")
def unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique_rows(x, dim, False, True, True)


# ---- counts


def _range(x: Tensor) -> tuple[int, int]:
    low, high = torch.stack(torch.aminmax(x)).tolist()
    return int(low), int(high)


@host("aten::bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise NotImplementedError(f"bincount(): expected self to be of an integral dtype, got {x.dtype}")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.ndim == 1 and x.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)
    if x.ndim != 1 or (span := _range(x))[0] < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    size = max(span[1] + 1, minlength)
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.to(torch.float64)
    zeros = torch.zeros(_padded(size, 2 * size), dtype=weights.dtype, device=x.device)
    return zeros.index_add(0, x.to(torch.int64), weights).narrow(0, 0, size)


@host("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    ends = torch.cumsum(repeats, 0)
    size, padded = output_size, output_size
    if size is None or padded is None:
        size, low = torch.stack([ends[-1], repeats.min()]).tolist()
        if low < 0:
            raise RuntimeError("repeats can not be negative")
        padded = _padded(size, 2 * size)
    places = torch.arange(padded, dtype=ends.dtype, device=repeats.device)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype).narrow(0, 0, size)


@host("aten::_padded_dense_to_jagged_forward")
def padded_to_jagged(dense: Tensor, offsets: Sequence[Tensor], total: int | None = None) -> Tensor:
    if len(offsets) != 1 or offsets[0].ndim != 1 or offsets[0].numel() == 0:
        raise RuntimeError("_padded_dense_to_jagged_forward(): expected one tensor of 1-d offsets")
    total = int(offsets[0][-1].item())
    return torch.ops.aten._padded_dense_to_jagged_forward(dense, offsets, total)


@host("aten::equal")
def equal(x: Tensor, other: Tensor) -> bool:
    if x.shape != other.shape:
        return False
    return not bool((x != other).any().item())
