"""One case at a time, in a process of its own that may crash or hang without harm to the others."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import resource
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db, python_ref_db
from torch.utils._python_dispatch import TorchDispatchMode

from tests.opinfo import judge
from tests.opinfo.place import Call, place, widened
from tests.opinfo.served import Served, kind
from tests.opinfo.variants import VARIANTS, Inapplicable, Observed, Variant

OPS: dict[str, Any] = {op.full_name: op for op in (*op_db, *python_ref_db)}
#: Ops whose results hold whatever was in memory: compared by kind and strides only.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
#: Ops that return indices; which index among equal elements is not said.
ANY_OF_EQUALS = frozenset({"argsort", "kthvalue", "mode", "msort", "sort", "topk"})
#: Ops that make tensors where `device=` says, though their samples do not say it.
FACTORIES = frozenset(
    {"arange", "linspace", "linspace.tensor_overload", "logspace", "logspace.tensor_overload"}
)
#: Ops whose other arguments PyTorch wants on the CPU, whatever the device of the input.
HOST_ARGUMENTS = frozenset({"tensor_split", "_refs.tensor_split"})
#: (op, variant) in which PyTorch's CPU kernel itself may crash the process.
CPU_CRASHES = frozenset({("native_batch_norm", "out")})
#: A worker larger than this (bytes) is replaced: compiled programs stay in memory.
RESIDENT_LIMIT = 5 << 30

Result = dict[str, Any]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def seed_everything(text: str) -> None:
    seed = zlib.crc32(text.encode())
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def samples(op: Any, dtype: torch.dtype, variant: Variant, limit: int) -> list[Call]:
    """At most `limit` of the op's samples, spread evenly from the first to the last."""
    seed_everything(f"{op.full_name}|{dtype}")
    if variant.samples == "error_inputs":
        calls = [Call.of(x) for x in op.error_inputs("cpu")]
    else:
        found = getattr(op, variant.samples)("cpu", dtype, requires_grad=variant.grad)
        calls = [Call.of(x) for x in found]
    if len(calls) <= limit:
        return calls
    return [calls[i * (len(calls) - 1) // max(limit - 1, 1)] for i in range(limit)]


def run_case(name: str, dtype_text: str, variant_name: str, device: str, limit: int) -> Result:
    """Run one case. The result's `status` is "pass", "fail" or "skip" (with a `reason`)."""
    op, dtype, variant = OPS[name], getattr(torch, dtype_text), VARIANTS[variant_name]
    started, before = time.perf_counter(), torch.tpu.metrics.snapshot()
    result: Result = {"status": "skip", "samples": 0, "failed": 0}
    if (name, variant_name) in CPU_CRASHES:
        return {**result, "reason": "PyTorch's CPU kernel writes beyond its outputs, and may crash"}
    try:
        calls = samples(op, dtype, variant, limit)
    except Exception as error:  # the sample generator itself has no CPU kernel for this dtype
        return {**result, "reason": f"no samples: {_text(error)}"}
    trial = Trial(op, variant, device, judge.tolerances(op, dtype))
    for index, call in enumerate(calls):
        seed_everything(f"{name}|{dtype}|{variant_name}|{index}")
        trial.run(call, result)
    if result["samples"]:
        result["status"] = "fail" if result["failed"] else "pass"
        result.pop("reason", None)
    elif not calls:
        result["reason"] = "no samples"
    after = torch.tpu.metrics.snapshot()
    fallbacks = after["fallbacks"].items()
    result["fallbacks"] = sorted(k for k, n in fallbacks if n > before["fallbacks"].get(k, 0))
    result["compiled"] = after["programs_compiled"] - before["programs_compiled"]
    result["compile_seconds"] = round(after["compile_seconds"] - before["compile_seconds"], 3)
    if variant_name == "forward" and result["status"] == "pass":
        result["served"] = trial.served(calls[0], set(result["fallbacks"]))
    result["seconds"] = round(time.perf_counter() - started, 3)
    return result


@dataclasses.dataclass
class Trial:
    """One op in one variant, compared between the CPU and a device at tolerances `tol`."""

    op: Any
    variant: Variant
    device: str
    tol: dict[str, float]

    def run(self, call: Call, result: Result) -> None:
        """Add one sample's outcome to `result`; what the CPU itself refuses is no sample."""
        warned: dict[str, set[str]] = {"cpu": set(), self.device: set()}
        try:
            with _warnings(warned["cpu"]):
                expected = self._on(call, "cpu")
        except Exception as error:
            kind = "" if isinstance(error, Inapplicable) else "PyTorch's CPU raises "
            result.setdefault("reason", kind + _text(error))
            return
        result["samples"] += 1
        try:
            with _warnings(warned[self.device]):
                actual = self._on(call, self.device)
            difference = self._compare(call, actual, expected)
            if difference:
                result.setdefault("strides", difference)
            for text in warned["cpu"] ^ warned[self.device]:
                result.setdefault("warning", ("only CPU: " if text in warned["cpu"] else "not CPU: ") + text)
        except Exception as error:
            result["failed"] += 1
            result.setdefault("error", _text(error) + _where(error))
            result.setdefault("sample", _describe(call))

    def served(self, call: Call, fallbacks: set[str]) -> list[str]:
        """What serves the ATen ops of a call: see `served.kind`; "CPU" for a fallback."""
        with Served() as served, contextlib.suppress(Exception):
            self._on(call, self.device)
        kinds = {"CPU" if name in fallbacks else kind(name) for name in served.names}
        return sorted(kinds - {"PyTorch"} or {"PyTorch"})

    def _on(self, call: Call, device: str) -> Observed:
        placed = place(call, device)
        if self.op.full_name in FACTORIES:
            placed.kwargs.setdefault("device", device)
        if self.op.full_name in HOST_ARGUMENTS:
            placed = dataclasses.replace(placed, args=call.args)
        return self.variant.compute(self.op, placed)

    def _compare(self, call: Call, actual: Observed, expected: Observed) -> str | None:
        """Raise Mismatch where results differ; return the first difference in strides."""
        if len(actual.values) != len(expected.values):
            raise judge.Mismatch(f"{len(actual.values)} results, expected {len(expected.values)}")
        pairs = list(zip(actual.values, expected.values, strict=True))
        for ours, theirs in pairs:
            judge.check_kind(ours, theirs, self.device)
        for index, (ours, theirs) in enumerate(pairs):
            try:
                judge.check_values(ours, theirs, self.tol)
            except judge.Mismatch:
                if self._is_any_of_equals(call, ours, theirs):
                    continue
                if self._undetermined(call):
                    break
                judge.check_values(ours, theirs, self.tol, self._reference(call, index, len(pairs)))
        layouts = zip(actual.layouts, expected.layouts, strict=True)
        return next(filter(None, (judge.stride_difference(a, e) for a, e in layouts)), None)

    def _undetermined(self, call: Call) -> bool:
        """Whether only kind and strides count: random or uninitialised numbers, or a CPU kernel whose
        variant does not agree with the CPU's own forward."""
        if self.op.full_name.removeprefix("_refs.") in UNINITIALISED:
            return True
        with Draws() as draws:
            self._on(call, "cpu")
        if draws.seen or self.variant not in (VARIANTS["out"], VARIANTS["conj"], VARIANTS["neg"]):
            return draws.seen
        results = VARIANTS["forward"].compute(self.op, place(call, "cpu")).values
        written = [x for x in self._on(call, "cpu").values if isinstance(x, torch.Tensor)]
        try:
            for theirs, result in zip(written, results * (len(written) // len(results)), strict=True):
                judge.check_values(theirs, result, self.tol)
        except judge.Mismatch:
            return True
        return False

    def _is_any_of_equals(self, call: Call, ours: Any, theirs: Any) -> bool:
        """Whether an index, or a gradient with the CPU's numbers in other places, is as right as theirs."""
        if self.op.full_name not in ANY_OF_EQUALS:
            return False
        if torch.unique(call.input.detach()).numel() == call.input.numel():
            return False
        if not self.variant.grad:
            return bool(theirs.dtype == torch.int64)
        if theirs.requires_grad:  # the values, which no tie changes
            return False
        judge.check_values(ours.cpu().flatten().sort()[0], theirs.flatten().sort()[0], self.tol)
        return True

    def _reference(self, call: Call, index: int, count: int) -> Any:
        """Result `index` of `count` in double precision, or None where the op has no such form."""
        try:
            values = self._on(widened(call), "cpu").values
        except Exception:
            return None
        return values[index] if len(values) == count else None


class Draws(TorchDispatchMode):
    """Notices ops that draw random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _warnings(texts: set[str]) -> Iterator[None]:
    """Adds the texts of PyTorch's warnings; torch_tpu's own, of fallbacks, are counted elsewhere."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = {" ".join(str(x.message).split())[:300] for x in caught}
    texts |= {
        x.split(" (Triggered")[0] for x in found if not re.search("torch_?tpu|torch.tpu", x, re.IGNORECASE)
    }


def _text(error: Exception) -> str:
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, judge.Mismatch | Inapplicable) else f"{type(error).__name__}: "
    return (kind + text)[:400]


def _where(error: Exception) -> str:
    """The line of torch_tpu that raised, for errors that are not PyTorch's own."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/torch_tpu/" in f.filename]
    return f" ({ours[-1].filename.rpartition('/torch_tpu/')[2]}:{ours[-1].lineno})" if ours else ""


def _describe(call: Call) -> str:
    def show(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{dtype_name(x.dtype)}{list(x.shape) if not x.is_nested else '[nested]'}"
        if isinstance(x, list | tuple):
            return f"({', '.join(map(show, x))})"
        return repr(x)[:60]

    named = [f"{k}={show(v)}" for k, v in call.kwargs.items()]
    return ", ".join([show(call.input), *map(show, call.args), *named])[:300]


def serve(connection: Connection, device: str, limit: int) -> None:
    """The process's main loop: a list of cases in; "start" and "done" messages out."""
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    warnings.simplefilter("ignore")
    for name, dtype, variants in iter(connection.recv, None):
        for variant in variants:
            connection.send(("start", variant))
            connection.send(("done", variant, run_case(name, dtype, variant, device, limit)))
        connection.send(("idle", _resident() > RESIDENT_LIMIT))


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cases(ops: list[str], dtypes: list[str], variants: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(op, dtype, variants) to run, float32 of every op first; empty lists mean all."""
    unknown = [x for x in ops if x not in OPS] + [x for x in variants if x not in VARIANTS]
    if unknown:
        raise ValueError(f"no such op or variant: {', '.join(unknown)}")
    names = sorted({dtype_name(d) for op in OPS.values() for d in op.supported_dtypes("cpu")})
    names.sort(key=lambda x: x != "float32")
    for dtype_text in [x for x in names if not dtypes or x in dtypes]:
        dtype = getattr(torch, dtype_text)
        for name in ops or sorted(OPS):
            if dtype not in OPS[name].supported_dtypes("cpu"):
                continue
            wanted = [v for v in VARIANTS if not variants or v in variants]
            wanted = [v for v in wanted if VARIANTS[v].applies(OPS[name], dtype)]
            if wanted:
                yield name, dtype_text, wanted
