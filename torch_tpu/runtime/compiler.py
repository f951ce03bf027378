"""From a Python function over JAX arrays to a callable program on one device.

    spec = ((4,), np.float32)
    program = compile_program(lambda x, y: [x + y], [spec, spec], cache_key="add float32[4] float32[4]")
    out = program(x, y)            # a jax.Array; several results come as a tuple

Everything is traced with 64-bit types on, exact float32 matrix products (unless
`torch.set_float32_matmul_precision` says otherwise) and JAX's default promotion rules, whatever the
user's own JAX code has set; outside of tracing, no JAX setting is touched.

Rules for callers:
- All arguments and results are committed to the program's device. An array of another device is an error.
- A donated argument may not be passed twice in one call, nor be held by anyone else (ValueError).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu import _C
from torch_tpu.runtime import cache, client, executable
from torch_tpu.runtime.executable import Program

log = logging.getLogger("torch_tpu")

Spec = tuple[tuple[int, ...], Any]

#: torch.get_float32_matmul_precision() -> jax_default_matmul_precision.
_PRECISION = ("default", "high", "highest")  # by torch.tpu.Precision
# How much work the CPU client's compiler does is chosen by the program (CPU seconds measured over 60 ops;
# results are the same bits). One op through XLA's older emitters compiles in half the time and runs as
# fast, large transposes excepted (four times slower); large programs gain nothing.
#: StableHLO text up to this many characters is one op or a few.
_FEW_OPS = 16 << 10
_LARGE_TRANSPOSE = 16 << 10
_QUICK: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
#: With at most this many elements, arguments and results together, LLVM's optimisations do not pay:
#: without them a program compiles in a third of the time (30 ms less). At 768 elements they save
#: 0.6 us (add) to 4 us (tanh) a call.
_TINY = 128
#: Their work is more than their elements.
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.convolution", "stablehlo.while", "stablehlo.sort")
_QUICKEST = _QUICK | {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}


@dataclass(frozen=True)
class ProgramRecord:
    """One program that was made ready: seconds of tracing (and lowering), of XLA or of loading.

    source: "compiled", or "disk" when it came from the on-disk cache.
    """

    name: str
    trace_s: float
    xla_s: float
    source: str


@dataclass
class CompileStats:
    """All programs this process has made ready, in order."""

    records: list[ProgramRecord] = field(default_factory=list)

    def count(self, source: str) -> int:
        """How many programs are from `source` ("compiled" or "disk")."""
        return sum(r.source == source for r in self.records)

    def seconds(self) -> float:
        """Seconds of tracing, compiling and loading together."""
        return sum(r.trace_s + r.xla_s for r in self.records)


stats = CompileStats()
_lock = threading.Lock()
_flying: dict[tuple[str, int], Future[Program]] = {}
_programs: weakref.WeakValueDictionary[tuple[str, int], Program] = weakref.WeakValueDictionary()


def matmul_precision() -> str:
    """The precision of float32 matrix products in programs made now ("highest", "high", "default")."""
    return _PRECISION[_C.matmul_precision()]


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """The JAX settings under which every program is traced; restores the caller's own."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.numpy_dtype_promotion("standard"))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(jax.threefry_partitionable(True))
        if client.platform() != "cpu":  # the CPU client's products are exact anyway
            stack.enter_context(jax.default_matmul_precision(matmul_precision()))
        yield


def compile_program(
    fn: Callable[..., Sequence[Any]],
    in_specs: Sequence[Spec],
    *,
    donate: Sequence[int] = (),
    device: int = 0,
    name: str = "",
    cache_key: str | None = None,
    extra: Any = None,
) -> Program:
    """Compile `fn` for arguments of `in_specs` ((shape, numpy dtype) each), or fetch it from the cache.

    fn: takes arrays positionally, returns a list or tuple of arrays.
    donate: arguments whose memory the results may take; those that no result fits are left alone.
    cache_key: text that determines the program on any machine with these versions (donation included);
        a hit needs no tracing. None: the StableHLO text is the key.
    extra: anything that pickles, stored along and given back by `load_program`.

    The callable takes the arrays positionally and returns one array, or a tuple of them where fn returns
    another number than one. Threads that ask for one cache_key at the same time compile it once.
    Raises what fn raises while tracing, and `jax.errors.JaxRuntimeError` from the compiler.
    """
    build = _Build(fn, in_specs, tuple(donate), device, name or "program", extra)
    if cache_key is None:
        return build.by_stablehlo()
    return build.by_key(_entry(cache_key))


def load_program(cache_key: str, *, device: int = 0, name: str = "") -> tuple[Program, Any] | None:
    """The program (and its `extra`) that an earlier `compile_program` stored under `cache_key`, or None."""
    return _load(_entry(cache_key), device, name or "program")


def _entry(text: str) -> str:
    return cache.key(f"{matmul_precision()} {torch.get_default_dtype()}\n{text}")


def _load(entry: str, device: int, name: str) -> tuple[Program, Any] | None:
    payload = cache.load(entry)
    if payload is None:
        return None
    start = time.perf_counter()
    try:
        program, extra = executable.load(payload, client.devices()[device])
    except executable.WrongDevice as error:
        log.debug("torch_tpu: %s", error)
        return None
    except Exception as error:  # written by another version, or refused by the client: make it anew
        log.debug("torch_tpu: entry of the compilation cache not usable: %s", error)
        cache.discard(entry)
        return None
    stats.records.append(ProgramRecord(name, 0.0, time.perf_counter() - start, "disk"))
    return program, extra


@dataclass
class _Build:
    fn: Callable[..., Sequence[Any]]
    in_specs: Sequence[Spec]
    donate: tuple[int, ...]
    device: int
    name: str
    extra: Any

    def by_key(self, entry: str) -> Program:
        key = (entry, self.device)
        with _lock:
            program = _programs.get(key)
            if program is not None:
                return program
            waiting = _flying.get(key)
            if waiting is None:
                mine = _flying[key] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            found = _load(entry, self.device, self.name)
            program = found[0] if found else self.lowered().compiled(entry)
            mine.set_result(program)
            _programs[key] = program
            return program
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with _lock:
                del _flying[key]

    def by_stablehlo(self) -> Program:
        lowered = self.lowered()
        digest = hashlib.sha256(lowered.text.encode()).hexdigest()
        entry = _entry(f"stablehlo {digest} {self.donate}")
        found = _load(entry, self.device, self.name)
        return found[0] if found else lowered.compiled(entry)

    def lowered(self) -> _Lowered:
        start = time.perf_counter()
        function = _normalized(self.fn, self.name)
        specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.in_specs]
        where = client.placement(self.device)
        options = {"in_shardings": where, "out_shardings": where}
        with tracing():
            results = jax.tree.leaves(jax.jit(function, **options).trace(*specs).out_info)
            usable = _usable(self.donate, self.in_specs, results)
            traced = jax.jit(function, donate_argnums=usable, **options).trace(*specs)
            # In 64-bit mode a TPU's compiler aborts the process at an SVD.
            narrow = client.platform() == "tpu" and " svd[" in str(traced.jaxpr)
            with jax.enable_x64(not narrow):
                lowered = traced.lower()
            text = lowered.as_text()
        elements = sum(math.prod(s.shape) for s in (*specs, *results))
        return _Lowered(self.name, lowered, text, elements, time.perf_counter() - start, self.extra)


@dataclass
class _Lowered:
    """A traced program: its StableHLO, and the elements of its arguments and results together."""

    name: str
    lowered: jax.stages.Lowered
    text: str
    elements: int
    trace_s: float
    extra: Any

    def compiled(self, entry: str) -> Program:
        start = time.perf_counter()
        with tracing():
            compiled = self.lowered.compile(compiler_options=self.options())
        xla_s = time.perf_counter() - start
        stats.records.append(ProgramRecord(self.name, self.trace_s, xla_s, "compiled"))
        if cache.enabled():
            try:
                cache.store(entry, executable.dump(compiled, self.extra))
            except Exception as error:  # of many types: what calls back into this process cannot be pickled
                log.debug("torch_tpu: %s is not kept on disk: %s", self.name, error)
        return Program(compiled)

    def options(self) -> dict[str, Any]:
        if client.platform() != "cpu" or len(self.text) > _FEW_OPS:
            return {}
        if self.elements <= _TINY and not any(op in self.text for op in _PRODUCTS):
            return _QUICKEST
        transposes = self.elements > _LARGE_TRANSPOSE and "stablehlo.transpose" in self.text
        return {} if transposes else _QUICK


def _normalized(fn: Callable[..., Sequence[Any]], name: str) -> Callable[..., Any]:
    """fn with strongly typed results, one bare: a weak type would make a new signature at every use."""

    def program(*args: Any) -> Any:
        results = [jnp.asarray(r) for r in fn(*args)]
        strong = [jax.lax.convert_element_type(r, r.dtype) if r.weak_type else r for r in results]
        return strong[0] if len(strong) == 1 else tuple(strong)

    program.__name__ = program.__qualname__ = re.sub(r"\W+", "_", name)
    return program


def _usable(donate: Sequence[int], in_specs: Sequence[Spec], results: Sequence[Any]) -> tuple[int, ...]:
    """The donated arguments that some result fits: JAX warns about the others."""
    free = [(tuple(r.shape), np.dtype(r.dtype)) for r in results]
    usable = []
    for index in donate:
        shape, dtype = in_specs[index]
        spec = (tuple(shape), np.dtype(dtype))
        if spec in free:
            free.remove(spec)
            usable.append(index)
    return tuple(usable)
