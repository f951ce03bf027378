"""Lowerings of attention: blocks of the score matrix with a running softmax, forward and backward.

Scores are made block by block in float32 (float64 for float64), so a long sequence never has its whole
score matrix in memory; a short one is a single block. Rows whose keys are all masked give zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu import dtypes
from torch_tpu.lowering import registry
from torch_tpu.lowering.registry import lower

_WHOLE_SCORES = 1 << 20  # score matrices of up to so many elements are made at once
_BLOCK = 256  # rows and columns of a block of a larger one

Bias = jax.Array | None


@dataclass(frozen=True)
class _Scores:
    """The score matrix of queries [B, H, G, T, E] and keys [B, H, S, E], by blocks.

    H is the number of key heads, G the number of query heads for each. T and S are padded to multiples of
    the block; keys from `keys` on are padding. bias: additive, [B or 1, H or 1, G or 1, T or 1, S or 1].
    seed: int64, the number that dropout's random numbers come from; drop: its probability, or None.
    """

    q: jax.Array
    k: jax.Array
    bias: Bias
    rows: int
    columns: int
    keys: int
    scale: Any
    causal: bool
    drop: Any
    seed: Any

    @property
    def dtype(self) -> np.dtype:
        return dtypes.compute_dtype(self.q.dtype)

    @property
    def row_blocks(self) -> int:
        return self.q.shape[3] // self.rows

    @property
    def column_blocks(self) -> int:
        return self.k.shape[2] // self.columns

    def block(self, i: Any, j: Any) -> jax.Array:
        """The scores of block (i, j), [B, H, G, rows, columns]; -inf where masked."""
        q, k = _part(self.q, 3, i, self.rows), _part(self.k, 2, j, self.columns)
        s = _dot("bhgte,bhse->bhgts", q, k, self.dtype) * self.scale
        if self.bias is not None:
            bias = _part(_part(self.bias, 3, i, self.rows), 4, j, self.columns)
            s = s + bias.astype(self.dtype)
        column = j * self.columns + jnp.arange(self.columns, dtype=np.int32)
        if self.causal:
            row = i * self.rows + jnp.arange(self.rows, dtype=np.int32)
            s = jnp.where(row[:, None] >= column, s, -jnp.inf)
        if self.keys < self.k.shape[2]:
            s = jnp.where(column < self.keys, s, -jnp.inf)
        return s

    def keep(self, i: Any, j: Any) -> jax.Array:
        """What dropout multiplies block (i, j) with: 0, or 1 / (1 - p)."""
        words = jnp.stack([self.seed, self.seed >> 32]).astype(np.uint32)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        key = jax.random.fold_in(key, i * self.column_blocks + j)
        shape = (*self.q.shape[:3], self.rows, self.columns)
        kept = jax.random.uniform(key, shape, np.float32) >= self.drop
        return jnp.where(kept, registry.constant(1 / (1 - self.drop), self.dtype), 0)

    def column_end(self, i: Any) -> Any:
        """The number of column blocks that rows of block i see."""
        if not self.causal:
            return self.column_blocks
        return jnp.minimum(((i + 1) * self.rows - 1) // self.columns + 1, self.column_blocks)

    def row_start(self, j: Any) -> Any:
        """The first row block that sees columns of block j."""
        return jnp.minimum(j * self.columns // self.rows, self.row_blocks) if self.causal else 0


def _dot(equation: str, a: jax.Array, b: jax.Array, dtype: np.dtype) -> jax.Array:
    return jnp.einsum(equation, a, b.astype(a.dtype), preferred_element_type=dtype)


def _part(x: jax.Array, dim: int, block: Any, size: int) -> jax.Array:
    """Block number `block` of x along dim; all of x where it has one block, or broadcasts."""
    if x.shape[dim] in (1, size):
        return x
    return lax.dynamic_slice_in_dim(x, block * size, size, dim)


def _add_part(x: jax.Array, dims: dict[int, tuple[Any, int]], part: jax.Array) -> jax.Array:
    """x with `part` added at the block `dims`: {dimension: (block, size)}."""
    starts: list[Any] = [np.int32(0)] * x.ndim
    for dim, (block, size) in dims.items():
        if x.shape[dim] not in (1, size):
            starts[dim] = jnp.int32(block * size)
    old = lax.dynamic_slice(x, starts, part.shape)
    return lax.dynamic_update_slice(x, old + part, starts)


def _for(start: Any, end: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    if isinstance(start, int) and isinstance(end, int) and end - start == 1:
        return body(start, carry)
    return lax.fori_loop(jnp.int32(start), jnp.int32(end), body, carry)


def _each(count: int, fn: Callable[[Any], Any]) -> Any:
    """fn of 0 to count - 1, results stacked."""
    if count == 1:
        return jax.tree.map(lambda x: x[None], fn(0))
    return lax.map(fn, jnp.arange(count, dtype=np.int32))


def _pad(x: jax.Array, dim: int, multiple: int) -> jax.Array:
    extra = -x.shape[dim] % multiple
    if extra == 0:
        return x
    return jnp.pad(x, [(0, extra if d == dim else 0) for d in range(x.ndim)])


def _joined(blocks: jax.Array, dim: int, size: int) -> jax.Array:
    """Stacked blocks [n, ...] as one array with them side by side along dim, cut to `size`."""
    moved = jnp.moveaxis(blocks, 0, dim)
    shape = (*moved.shape[:dim], moved.shape[dim] * moved.shape[dim + 1], *moved.shape[dim + 2 :])
    return lax.slice_in_dim(moved.reshape(shape), 0, size, axis=dim)


def _grouped(x: jax.Array, groups: int) -> jax.Array:
    """[B, H, ...] as [B, H / groups, groups, ...]."""
    return x.reshape(x.shape[0], x.shape[1] // groups, groups, *x.shape[2:])


def _grouped_bias(bias: jax.Array, groups: int, rows: int, columns: int) -> jax.Array:
    bias = bias.reshape(*(1,) * (4 - bias.ndim), *bias.shape)
    bias = bias[:, :, None] if bias.shape[1] == 1 else _grouped(bias, groups)
    bias = bias if bias.shape[3] == 1 else _pad(bias, 3, rows)
    return bias if bias.shape[4] == 1 else _pad(bias, 4, columns)


def _scores(
    q: jax.Array, k: jax.Array, bias: Bias, causal: bool, scale: Any, drop: Any, seed: Any
) -> _Scores:
    """The scores of q [B, Hq, T, E] and k [B, H, S, E] with blocks chosen by size."""
    (batch, heads, t, width), s = q.shape, k.shape[2]
    whole = batch * heads * t * s <= _WHOLE_SCORES
    rows, columns = (t, s) if whole else (min(t, _BLOCK), min(s, _BLOCK))
    groups = heads // k.shape[1]
    if bias is not None:
        bias = _grouped_bias(bias, groups, rows, columns)
    return _Scores(
        q=_pad(_grouped(q, groups), 3, rows),
        k=_pad(k, 2, columns),
        bias=bias,
        rows=rows,
        columns=columns,
        keys=s,
        scale=1 / math.sqrt(width) if scale is None else scale,
        causal=causal,
        drop=drop,
        seed=seed,
    )


def _forward(scores: _Scores, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Attention's output [B, H, G, T, E] and the log of each row's sum, [B, H, G, T], both padded."""
    v = _pad(v, 2, scores.columns)
    dtype, shape = scores.dtype, (*scores.q.shape[:3], scores.rows)

    def row_block(i: Any) -> tuple[jax.Array, jax.Array]:
        def step(j: Any, carry: Any) -> Any:
            top, total, out = carry
            s = scores.block(i, j)
            new_top = jnp.maximum(top, s.max(axis=-1))
            base = jnp.where(jnp.isneginf(new_top), 0, new_top)
            p = jnp.exp(s - base[..., None])
            shrink = jnp.exp(top - base)
            total = total * shrink + p.sum(axis=-1)
            if scores.drop is not None:
                p = p * scores.keep(i, j)
            part = _part(v, 2, j, scores.columns)
            out = out * shrink[..., None] + _dot("bhgts,bhse->bhgte", p.astype(v.dtype), part, dtype)
            return new_top, total, out

        start = (
            jnp.full(shape, -jnp.inf, dtype),
            jnp.zeros(shape, dtype),
            jnp.zeros((*shape, v.shape[-1]), dtype),
        )
        top, total, out = _for(0, scores.column_end(i), step, start)
        # A row without keys: zeros, and a sum whose exp(score - sum) is zero in the backward too.
        log_sum = jnp.where(total == 0, jnp.inf, top + jnp.log(total))
        return (out / jnp.where(total == 0, 1, total)[..., None]).astype(v.dtype), log_sum

    out, log_sum = _each(scores.row_blocks, row_block)
    padded = scores.q.shape[3]
    return _joined(out, 3, padded), _joined(log_sum, 3, padded)


def _same_heads(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """k and v with equal head counts."""
    if k.shape[1] == v.shape[1]:
        return k, v
    return tuple(jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))  # type: ignore[return-value]


def _ungrouped(x: jax.Array, length: int) -> jax.Array:
    """[B, H, G, T, ...], T padded, as [B, H * G, length, ...]."""
    x = lax.slice_in_dim(x, 0, length, axis=3)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


@lower("aten::_scaled_dot_product_fused_attention_overrideable", random=True)
def attention(
    key: jax.Array | None,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    attn_bias: Bias = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    """q [B, Hq, T, E], k [B, Hk, S, E], v [B, Hk, S, Ev]: the output [B, Hq, T, Ev] and what backward needs.

    The seed of dropout goes out as `philox_seed`; the backward makes the same masks from it.
    """
    bits = jnp.zeros((), np.uint64) if key is None else jax.random.bits(key, (), np.uint64)
    seed = lax.bitcast_convert_type(bits, np.int64)
    drop = None if isinstance(dropout_p, float) and dropout_p == 0 else dropout_p
    keys, values = _same_heads(q, k, v)
    scores = _scores(q, keys, attn_bias, is_causal, scale, drop, seed)
    out, log_sum = _forward(scores, values)
    length = q.shape[2]
    results = _ungrouped(out, length), _ungrouped(log_sum, length)
    return (*results, None, None, length, k.shape[2], seed, jnp.zeros((), np.int64), None)


@lower("aten::_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def attention_backward(
    grad: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    attn_bias: Bias,
    grad_input_mask: list[bool],
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: jax.Array,
    philox_offset: jax.Array,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    drop = dropout_p if dropout_p > 0 else None
    keys, values = _same_heads(q, k, v)
    scores = _scores(q, keys, attn_bias, is_causal, scale, drop, philox_seed)
    groups = scores.q.shape[2]
    delta = jnp.sum(grad.astype(scores.dtype) * out.astype(scores.dtype), axis=-1)
    of_rows = tuple(_pad(_grouped(x, groups), 3, scores.rows) for x in (grad, logsumexp, delta))
    wants_bias = attn_bias is not None and grad_input_mask[3]
    dq, dk, dv, dbias = _backward(scores, _pad(values, 2, scores.columns), of_rows, wants_bias)
    dk, dv = (_summed_heads(d, x) for d, x in ((dk, k), (dv, v)))
    if wants_bias:
        assert attn_bias is not None
        shape = (*(1,) * (4 - attn_bias.ndim), *attn_bias.shape)
        dbias = dbias.reshape(dbias.shape[0], -1, *dbias.shape[3:])[:, :, : shape[2], : shape[3]]
        dbias = dbias.reshape(attn_bias.shape)
    elif attn_bias is not None:
        dbias = jnp.zeros_like(attn_bias)  # PyTorch's meta kernel promises a gradient of any bias
    return _ungrouped(dq, q.shape[2]), dk, dv, dbias


def _summed_heads(grad: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of x [B, H, S, E] from that of its repeated heads, without padding."""
    grad = lax.slice_in_dim(grad, 0, x.shape[2], axis=2)
    return grad.reshape(*x.shape[:2], -1, *grad.shape[2:]).sum(axis=2)


def _backward(
    scores: _Scores, v: jax.Array, of_rows: tuple[jax.Array, ...], wants_bias: bool
) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
    """Gradients of q, k, v and bias, padded and grouped; of_rows: output gradient, log-sums, and
    sum(output * its gradient), of each row."""
    dtype, size = scores.dtype, scores.columns
    q, kind = scores.q, scores.q.dtype
    dbias = jnp.zeros(scores.bias.shape, dtype) if wants_bias and scores.bias is not None else None

    def column_block(carry: Any, j: Any) -> Any:
        k_part, v_part = _part(scores.k, 2, j, size), _part(v, 2, j, size)

        def step(i: Any, carry: Any) -> Any:
            dq, dbias, dk, dv = carry
            dout, log_sum, delta = (_part(x, 3, i, scores.rows) for x in of_rows)
            p = jnp.exp(scores.block(i, j) - log_sum[..., None])
            dp = _dot("bhgte,bhse->bhgts", dout, v_part, dtype)
            dropped = p
            if scores.drop is not None:
                keep = scores.keep(i, j)
                dropped, dp = p * keep, dp * keep
            dv = dv + _dot("bhgts,bhgte->bhse", dropped.astype(kind), dout, dtype)
            ds = p * (dp - delta[..., None])
            if dbias is not None:
                places = {3: (i, scores.rows), 4: (j, size)}
                dbias = _add_part(dbias, places, _unbroadcast(ds, dbias.shape))
            ds = (ds * scores.scale).astype(kind)
            dk = dk + _dot("bhgts,bhgte->bhse", ds, _part(q, 3, i, scores.rows), dtype)
            part = _dot("bhgts,bhse->bhgte", ds, k_part, dtype)
            return _add_part(dq, {3: (i, scores.rows)}, part), dbias, dk, dv

        zeros = jnp.zeros(k_part.shape, dtype), jnp.zeros(v_part.shape, dtype)
        *carry, dk, dv = _for(scores.row_start(j), scores.row_blocks, step, (*carry, *zeros))
        return tuple(carry), (dk, dv)

    carry = jnp.zeros(q.shape, dtype), dbias
    if scores.column_blocks == 1:
        carry, (dk, dv) = column_block(carry, 0)
    else:
        carry, stacked = lax.scan(column_block, carry, jnp.arange(scores.column_blocks, dtype=np.int32))
        dk, dv = (_joined(x, 2, scores.k.shape[2]) for x in stacked)
    return carry[0], dk, dv, carry[1]


def _unbroadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    dims = tuple(d for d, s in enumerate(shape) if s == 1 and x.shape[d] != 1)
    return x.sum(axis=dims, keepdims=True) if dims else x


# ---- the fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer

_OF_QUERIES, _OF_KEYS = 0, 1  # mask types: [T, S], [B, S], and else [B, H, T, S]


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    dtype = dtypes.compute_dtype(x.dtype)
    return (_dot("btd,ed->bte", x, weight, dtype) + bias.astype(dtype)).astype(x.dtype)


def _heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, T, D] as [B, heads, T, D / heads]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


@lower("aten::_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    qkv: jax.Array, bias: jax.Array, num_heads: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """qkv [B, T, 3 * D]: queries (scaled for attention), keys and values, each [B, H, T, D / H]."""
    q, k, v = (_heads(x, num_heads) for x in jnp.split(qkv + bias, 3, axis=-1))
    return q / math.sqrt(q.shape[-1]), k, v


def _masked_out(mask: jax.Array, kind: int | None) -> jax.Array:
    mask = dtypes.cast(mask, np.bool_)
    if kind == _OF_KEYS:
        return mask[:, None, None, :]
    return mask[None, None] if kind == _OF_QUERIES else mask


@lower("aten::_native_multi_head_attention")
def multi_head_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    mask: jax.Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The output [B, T, D], and the weights [B, T, S] (per head if not averaged; [0] if not needed).

    A row whose keys are all masked gives NaN, as on the CPU.
    """
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    inputs = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (_heads(_linear(x, w, b), num_head) for x, w, b in inputs)
    dtype = dtypes.compute_dtype(q.dtype)
    scores = _dot("bhte,bhse->bhts", q, k, dtype) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(_masked_out(mask, mask_type), -jnp.inf, scores)
    shares = jax.nn.softmax(scores, axis=-1)
    heads = _dot("bhts,bhse->bhte", shares.astype(v.dtype), v, dtype).astype(v.dtype)
    out = _linear(heads.swapaxes(1, 2).reshape(*query.shape[:2], -1), proj_weight, proj_bias)
    if not need_weights:
        return out, jnp.zeros(0, out.dtype)
    return out, shares.mean(axis=1) if average_attn_weights else shares


def _layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: Any) -> jax.Array:
    dtype = dtypes.compute_dtype(x.dtype)
    wide = x.astype(dtype)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    normal = centred * lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + eps)
    return (normal * weight.astype(dtype) + bias.astype(dtype)).astype(x.dtype)


@lower("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    src: jax.Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    use_gelu: bool,
    norm_first: bool,
    eps: Any,
    norm_weight_1: jax.Array,
    norm_bias_1: jax.Array,
    norm_weight_2: jax.Array,
    norm_bias_2: jax.Array,
    ffn_weight_1: jax.Array,
    ffn_bias_1: jax.Array,
    ffn_weight_2: jax.Array,
    ffn_bias_2: jax.Array,
    mask: jax.Array | None = None,
    mask_type: int | None = None,
) -> jax.Array:
    """src [B, T, D] through one layer of nn.TransformerEncoder in evaluation."""
    of_attention = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True)

    def attend(x: jax.Array) -> jax.Array:
        return multi_head_attention(x, x, x, *of_attention, mask_type)[0]

    def feed_forward(x: jax.Array) -> jax.Array:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jax.nn.relu(hidden)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    x = src
    norms = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    for part, norm in zip((attend, feed_forward), norms, strict=True):
        x = x + part(_layer_norm(x, *norm, eps)) if norm_first else _layer_norm(x + part(x), *norm, eps)
    return x
