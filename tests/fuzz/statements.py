"""The kinds of statements that programs are made of."""

from __future__ import annotations

import torch

from tests.fuzz.grammar import DTYPES, SHAPES, State, apart, same, storage, writable


def _float(x: torch.Tensor) -> bool:
    return x.is_floating_point()


def _ordered(x: torch.Tensor) -> bool:
    return not x.is_complex()


def _small(x: torch.Tensor) -> bool:
    """Whether sums of products of the elements are exact."""
    if not (x.is_floating_point() or x.is_complex()) or not x.numel():
        return True
    y = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return bool(((y.abs() <= 256) & (y == y.round())).all())


def make(s: State) -> None:
    name, shape, dtype = s.fresh(), s.choose(SHAPES), s.choose(DTYPES)
    count, shift = int(torch.Size(shape).numel()), s.pick(4)
    data = f"(torch.arange({count}) * 5 % 7 - {shift}).to(torch.{dtype}).reshape({shape})"
    s.do(f"{name} = {data}.to(D)", name)


# Views -------------------------------------------------------------------------------------------


def _index(s: State, x: torch.Tensor) -> str:
    """Basic indices for some leading dimensions of `x`."""
    parts = []
    for size in x.shape[: 1 + s.pick(2)]:
        forms = [":", "1:", "::2", ":-1"] if size > 1 else [":"]
        parts.append(s.choose([*forms, "0", "-1"] if size else forms))
    return ", ".join(parts) if parts else "..."


def index_view(s: State) -> None:
    name, x = s.tensor()
    made = s.fresh()
    s.do(f"{made} = {name}[{_index(s, x)}]", made)


def shape_view(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1)
    forms = ["transpose(0, -1)", "unsqueeze(0)", "squeeze()", "view(-1)", "unsqueeze(-1)", "detach()"]
    if x.ndim >= 2:
        forms += ["diagonal()", "movedim(-1, 0)", "flatten(0, 1)", "diagonal(1)"]
    if x.shape[0] > 0:
        forms += ["split(1)[0]", "chunk(2)[-1]"]
    if x.shape[-1] >= 2:
        forms += ["unfold(-1, 2, 1)", "unfold(-1, 2, 2)"]
    made = s.fresh()
    s.do(f"{made} = {name}.{s.choose(forms)}", made)


def expanded(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim <= 2 and (x.ndim == 0 or x.shape[0] == 1 or s.pick(2) == 0))
    made, shape = s.fresh(), [2 + s.pick(2), *x.shape]
    s.do(f"{made} = {name}.expand({shape})", made)


def strided_view(s: State) -> None:
    name, x = s.tensor()
    room = x.untyped_storage().nbytes() // x.element_size()
    size = s.choose([(2,), (2, 2), (3, 2), (2, 1)])
    stride = s.choose([(1,), (2,), (0,)] if len(size) == 1 else [(2, 1), (1, 2), (3, 1), (1, 1), (0, 1)])
    offset = s.pick(3)
    last = offset + sum((n - 1) * k for n, k in zip(size, stride, strict=True))
    if last >= room:
        raise IndexError("the storage is too small")
    made = s.fresh()
    s.do(f"{made} = {name}.as_strided({size}, {stride}, {offset})", made)


def dtype_view(s: State) -> None:
    """Bits of exact floats, bytes of integers, parts of complex numbers, lazy conjugates."""
    views = {
        torch.float32: ["view(torch.int32)"], torch.int64: ["view(torch.int32)", "view(torch.uint8)"],
        torch.int32: ["view(torch.uint8)", "view(torch.int16)"],
        torch.complex64: ["conj()", "real", "imag", "conj().imag", "mT.conj()"],
    }  # fmt: skip
    name, x = s.tensor(lambda x: x.dtype in views and x.ndim > 0 and s.exact(x) and s.number(x))
    if x.dtype == torch.complex64 and not x.is_conj() and s.pick(3) == 0:
        views[x.dtype] = ["view(torch.float32)"]
    made = s.fresh()
    s.do(f"{made} = {name}.{s.choose(views[x.dtype])}", made)


# Writing in place --------------------------------------------------------------------------------


def _target(s: State) -> tuple[str, torch.Tensor]:
    return s.tensor(lambda x: writable(x) and s.number(x))


def _operand(s: State, x: torch.Tensor) -> tuple[str, torch.Tensor]:
    """A tensor to combine with `x` in place: broadcastable to it, castable, apart or the same."""

    def fits(y: torch.Tensor) -> bool:
        shapes = y.ndim <= x.ndim and all(
            n in (1, m) for n, m in zip(reversed(y.shape), reversed(x.shape), strict=False)
        )
        return shapes and torch.can_cast(y.dtype, x.dtype) and s.number(y) and (apart(x, y) or same(x, y))

    return s.tensor(fits)


def write_number(s: State) -> None:
    name, x = _target(s)
    if x.dtype == torch.bool:
        forms = ["logical_not_()", "fill_(True)", "zero_()", "logical_xor_(torch.ones_like({0}))"]
    else:
        forms = ["add_(2)", "mul_(3)", "neg_()", "fill_(3)", "zero_()", "sub_(1, alpha=2)"]
    if _ordered(x) and x.dtype != torch.bool:
        forms += ["clamp_(-2, 3)", "abs_()"]
    s.do(f"{name}.{s.choose(forms).format(name)}", name, x)


def write_tensor(s: State) -> None:
    name, x = _target(s)
    other, y = _operand(s, x)
    forms = ["copy_({0})"] if x.dtype == torch.bool else ["add_({0})", "sub_({0})", "copy_({0})", "mul_({0})"]
    form = s.choose(forms)
    s.do(f"{name}.{form.format(other)}", name, x, y, rounds=form[0] == "m" and x.is_complex())


def write_converted(s: State) -> None:
    name, x = _target(s)
    other, y = s.tensor(lambda y: y.shape == x.shape and apart(x, y) and s.number(y) and s.exact(y))
    if y.is_complex() and not x.is_complex():
        raise IndexError("a complex number has no real value")
    s.do(f"{name}.copy_({other})", name, x)


def write_refused(s: State) -> None:
    """Writing through an expanded tensor: refused on every device."""
    name, _ = s.tensor(lambda x: torch._debug_has_internal_overlap(x) == 1 and x.dtype != torch.bool)
    s.do(f"{name}.{s.choose(['add_(1)', 'mul_(2)', 'neg_()'])}", name)


def set_item(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and x.shape[0] >= 2 and writable(x) and s.number(x))
    value = s.choose(["1", f"{name}[1].clone()"])
    place = s.choose(["0", "-1", "::2", f"torch.tensor([0, 1], device=D)[:{1 + s.pick(2)}]"])
    s.do(f"{name}[{place}] = {value}", name, x)


def write_masked(s: State) -> None:
    name, x = s.tensor(lambda x: writable(x) and s.number(x) and s.exact(x) and x.dtype != torch.bool)
    mask = f"({name} == 1)" if x.is_complex() else f"({name} > 0)"
    forms = [f"masked_fill_({mask}, 2)"]
    if not _float(x):  # XLA makes a positive zero of -1.0 * False
        forms += [f"mul_({mask})"]
    s.do(f"{name}.{s.choose(forms)}", name, x)


def write_along(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and x.shape[0] >= 2 and writable(x) and s.number(x))
    index = "torch.tensor([1, 0], device=D)"
    forms = [f"index_fill_(0, {index}, 1)", f"index_copy_(0, {index}, {name}[:2].clone())"]
    if x.dtype != torch.bool:
        forms += [f"index_add_(0, {index}, {name}[:2].clone())"]
    s.do(f"{name}.{s.choose(forms)}", name, x)


# Results of ops ----------------------------------------------------------------------------------


def unary(s: State) -> None:
    name, x = s.tensor(s.number)
    forms = [
        "clone()",
        "contiguous()",
        "flip(0)" if x.ndim else "clone()",
        "roll(1)",
        "to('cpu', copy=True).to(D)",
    ]
    if x.dtype != torch.bool:
        forms += ["neg()", "add(3)", "mul(2)", "sub(1)"]
        forms += ["abs()", "relu()", "clamp(min=0)", "square()"] if _ordered(x) else []
    if x.ndim == 4:
        forms += ["contiguous(memory_format=torch.channels_last)"]
    made = s.fresh()
    s.do(f"{made} = {name}.{s.choose(forms)}", made, x)


def rounded(s: State) -> None:
    name, x = s.tensor(lambda x: _float(x) and s.number(x))
    made, form = s.fresh(), s.choose(["tanh()", "sigmoid()", "mean()", "softmax(-1)"])
    s.do(f"{made} = {name}.{form}", made, x, rounds=True)


def converted(s: State) -> None:
    name, x = s.tensor(lambda x: s.exact(x) and s.number(x) and not x.is_complex())
    made, dtype = s.fresh(), s.choose(["float32", "int64", "int32", "bool", "uint8", "complex64"])
    if dtype == "uint8" and x.numel() and bool((x < 0).any()):
        raise IndexError("a negative number as uint8 depends on the machine")
    s.do(f"{made} = {name}.to(torch.{dtype})", made, x)


def binary(s: State) -> None:
    name, x = s.tensor(s.number)
    other, y = s.tensor(lambda y: _broadcast(x, y) and s.number(y))
    forms = ["torch.add({0}, {1})", "torch.mul({0}, {1})", "torch.add({0}, {1}, alpha=2)"]
    if x.dtype != torch.bool and y.dtype != torch.bool:
        forms += ["torch.sub({0}, {1})"]
    if _ordered(x) and _ordered(y) and s.exact(x) and s.exact(y):
        forms += ["torch.maximum({0}, {1})", "torch.where({0} > {1}, {0}, {1})", "torch.lt({0}, {1})"]
    made, form = s.fresh(), s.choose(forms)
    s.do(f"{made} = {form.format(name, other)}", made, x, y, rounds=_products_round(form, x, y))


def _products_round(form: str, x: torch.Tensor, y: torch.Tensor) -> bool:
    return ("mul" in form or "alpha" in form) and not (_small(x) and _small(y))


def _broadcast(x: torch.Tensor, y: torch.Tensor) -> bool:
    pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
    return max(x.ndim, y.ndim) <= 4 and all(n == m or 1 in (n, m) for n, m in pairs)


def reduced(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and x.shape[0] > 0 and x.shape[-1] > 0 and s.number(x))
    forms = ["sum()", "sum(0)", "sum(-1, keepdim=True)", "cumsum(-1)"]
    if _ordered(x) and s.exact(x):
        forms += ["amax(-1)", "sort(-1).values", "any(0)"]
    made = s.fresh()
    s.do(f"{made} = {name}.{s.choose(forms)}", made, x, rounds=not _small(x))


def joined(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and s.number(x))
    other, y = s.tensor(lambda y: y.shape == x.shape and s.number(y))
    made = s.fresh()
    s.do(f"{made} = torch.{s.choose(['cat', 'stack'])}([{name}, {other}])", made, x, y)


def product(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim == 2 and x.numel() > 0 and _float(x) and s.number(x))
    made = s.fresh()
    s.do(f"{made} = {name} @ {name}.t()", made, x, rounds=not _small(x))


def gathered(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and x.shape[0] >= 2 and s.number(x))
    index = s.choose(["[1, 0, 1]", "[-1]"])
    made, at = s.fresh(), f"torch.tensor({index}, device=D)"
    form = f"{name}[{at}]" if "-" in index or s.pick(2) else f"{name}.index_select(0, {at})"
    s.do(f"{made} = {form}", made, x)


# `out=`, and changing what a tensor is -----------------------------------------------------------


def into(s: State) -> None:
    name, x = s.tensor(lambda x: x.dtype != torch.bool and s.number(x))
    other, y = s.tensor(lambda y: y.shape == x.shape and y.dtype == x.dtype and s.number(y))

    def fits(z: torch.Tensor) -> bool:
        clear = all(apart(z, u) or same(z, u) for u in (x, y))
        return z.shape == x.shape and z.dtype == x.dtype and writable(z) and clear and s.number(z)

    target, z = s.tensor(fits)
    form = s.choose(["add({0}, {1}, out={2})", "sub({0}, {1}, out={2})", "neg({0}, out={2})"])
    s.do(f"torch.{form}".format(name, other, target), target, x, y, z)


def into_nothing(s: State) -> None:
    """`out=` that is resized."""
    name, x = s.tensor(lambda x: x.dtype != torch.bool and s.number(x))
    made = s.fresh()
    s.do(f"{made} = torch.empty(0, dtype={x.dtype}, device=D)", made)
    s.do(f"torch.add({name}, {name}, out={made})", made, x)


def rebound(s: State) -> None:
    """`set_` and `.data =`: a tensor of another storage."""
    name, x = s.tensor(lambda x: not x.is_conj() and not x.is_neg())
    other, y = s.tensor(
        lambda y: y.dtype == x.dtype and storage(y) != storage(x) and not y.is_conj() and not y.is_neg()
    )
    s.do(s.choose([f"{name}.set_({other})", f"{name}.data = {other}"]), name)


def resized(s: State) -> None:
    name, x = s.tensor(lambda x: x.ndim >= 1 and x.numel() >= 2 and not x.is_conj() and not x.is_neg())
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    s.do(f"{name}.resize_({s.choose([y for y in ((2,), (2, 1), (4,), (2, 3)) if _numel(y) <= room])})", name)


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


VIEWS = (index_view, shape_view, index_view, shape_view, expanded, strided_view, dtype_view)
WRITES = (write_number, write_tensor, write_tensor, write_converted, set_item, write_masked, write_along)
OTHERS = (unary, rounded, converted, binary, reduced, joined, product, gathered, into, into_nothing)
RARE = (make, rebound, resized, write_refused)
KINDS = (*VIEWS, *WRITES, *WRITES, *OTHERS, *RARE)
