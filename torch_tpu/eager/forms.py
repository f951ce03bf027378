"""The functional form of an op: which op computes it, and where the results go.

In-place, `out=`, foreach and fused forms have no lowerings of their own. `Form` says which functional
overload computes the same, which arguments that one takes, and which arguments its results replace.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

#: Functional forms whose name does not follow from the op's.
_RENAMED = {
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
    "aten::_batch_norm_with_update": "aten::_batch_norm_with_update_functional",
    "aten::normal_": "aten::normal_functional",
    "aten::rrelu_with_noise": "aten::rrelu_with_noise_functional",
    "aten::rrelu_with_noise_": "aten::rrelu_with_noise_functional",
}
_PLACEMENT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})


@dataclass(frozen=True)
class Form:
    """name: of the functional overload ("aten::add.Tensor"), or None when there is none.

    outs: indices of `out=` arguments, which the functional form does not take.
    written: indices of all arguments that the op writes, `outs` included, in schema order.
    """

    op: torch._ops.OpOverload
    name: str | None
    outs: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def in_place(self) -> bool:
        """True when results replace arguments that are also read."""
        return bool(self.written) and not self.outs


def overload(name: str) -> torch._ops.OpOverload:
    """The op "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")


def full_name(op: torch._ops.OpOverload) -> str:
    """ "aten::add.Tensor" of an op."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def form(name: str) -> Form:
    """The form of the op `name`."""
    # A library of custom ops may define one anew.
    return _form(name) if name.startswith("aten::") else _form.__wrapped__(name)


@functools.cache
def _form(name: str) -> Form:
    op = overload(name)
    arguments = op._schema.arguments
    written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    outs = tuple(i for i in written if arguments[i].is_out)
    if not written:
        return Form(op, name, (), ())
    if name in _RENAMED:
        return Form(op, _RENAMED[name], outs, written)
    wanted = [(a.name, str(a.type)) for i, a in enumerate(arguments) if i not in outs]
    names = {name for name, _ in wanted}
    for candidate in _candidates(op):
        # A factory's functional form also says where the result lies; its `out=` form does not.
        given = [a for a in candidate._schema.arguments if a.name in names or a.name not in _PLACEMENT]
        if [(a.name, str(a.type)) for a in given] == wanted:
            return Form(op, full_name(candidate), outs, written)
    return Form(op, None, outs, written)


def _candidates(op: torch._ops.OpOverload) -> Iterator[torch._ops.OpOverload]:
    namespace, _, base = op._schema.name.partition("::")
    names = [base]
    if base.startswith("__i") and base.endswith("__"):
        names = ["__" + base[3:]]
    elif base.endswith("_") and not base.endswith("__"):
        names = [base[:-1], base[:-1] + "_functional"]
    for packet_name in names:
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        for which in packet.overloads() if packet is not None else ():
            candidate = getattr(packet, which)
            if not any(a.alias_info and a.alias_info.is_write for a in candidate._schema.arguments):
                yield candidate
