"""The on-disk compilation cache: bytes under keys, shared by all processes of one user.

    key = cache.key(text)          # text: everything that determines the program, given this process
    cache.store(key, payload)      # payload: bytes
    cache.load(key)                # the payload, or None

- Where: `TORCH_TPU_CACHE_DIR`, else `$XDG_CACHE_HOME/torch_tpu`, else `~/.cache/torch_tpu`;
  made with mode 0700.
- `TORCH_TPU_CACHE=0` turns it off; `TORCH_TPU_CACHE_SIZE` is its limit in bytes (default 4 GiB), kept by
  dropping the entries that were used least recently.
- One file per entry, written under another name and renamed, so that a reader sees all of it or nothing;
  a checksum is verified at every load, and an entry that fails it is deleted.
- Entries hold machine code: a directory or an entry that another user owns is never read.
- A cache that cannot be written (read-only, disk full) is only read; the log says so once, at debug level.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import platform as host
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_tpu.runtime import client

log = logging.getLogger("torch_tpu")

_MAGIC = b"torch_tpu program 1\n"
_DIGEST = hashlib.sha256().digest_size
_SUFFIX = ".program"
_LIMIT = 4 << 30
#: On average one write in this many also looks at the cache's size.
_WRITES_PER_CHECK = 256
#: Seconds after which a temporary file was surely left behind by a process that died.
_STALE = 3600

#: The package's parts whose source decides what program an op becomes.
_SOURCES = ("dtypes.py", "lowering", "eager", "compile", "runtime")


def enabled() -> bool:
    """False when TORCH_TPU_CACHE=0, or when the directory cannot be used at all."""
    return os.environ.get("TORCH_TPU_CACHE", "1") != "0" and directory() is not None


@functools.cache
def directory() -> Path | None:
    """The cache's directory, made if need be; None (and one warning) when another user owns it."""
    chosen = os.environ.get("TORCH_TPU_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(chosen) if chosen else Path(base) / "torch_tpu"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = path.stat().st_uid
    except OSError as error:
        log.debug("torch_tpu: no compilation cache: %s", error)
        return None
    if owner != os.geteuid():
        log.warning("torch_tpu: compilation cache not used: %s belongs to another user (%d)", path, owner)
        return None
    return path


def key(text: str) -> str:
    """The entry's name for a program that `text` describes on this machine, with these versions."""
    return hashlib.sha256(f"{fingerprint()}\n{text}".encode()).hexdigest()


@functools.cache
def fingerprint() -> str:
    """What all programs of this process depend on besides their own text. Starts the client."""
    import jax
    import jaxlib
    import ml_dtypes
    import numpy
    import torch

    device = client.devices()[0]
    parts: list[Any] = [
        *(f"{m.__name__} {m.__version__}" for m in (torch, jax, jaxlib, numpy, ml_dtypes)),
        _sources(),
        *(f"{name}={os.environ.get(name, '')}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
        client.platform(),
        device.device_kind,
        device.client.platform_version,
    ]
    if client.platform() == "tpu":
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append("libtpu " + importlib.metadata.version("libtpu"))
    if client.platform() == "cpu":
        parts += [host.machine(), _cpu_features(), len(os.sched_getaffinity(0))]
    return "\n".join(map(str, parts))


def _sources() -> str:
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    patterns = [part if part.endswith(".py") else f"{part}/**/*.py" for part in _SOURCES]
    for path in sorted(path for pattern in [*patterns, "*.so"] for path in root.glob(pattern)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _cpu_features() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = {line.split(":")[0].strip(): line.strip() for line in _first_cpu(file)}
        return " ".join(lines.get(name, "") for name in ("model name", "flags", "Features"))
    return host.processor()


def _first_cpu(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def load(name: str) -> bytes | None:
    """The payload stored under key `name`; None when there is none, or none that can be trusted."""
    if not enabled():
        return None
    path = _path(name)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            data = file.read()
    except OSError:
        return None
    head, payload = data[: len(_MAGIC) + _DIGEST], data[len(_MAGIC) + _DIGEST :]
    if head != _MAGIC + hashlib.sha256(payload).digest():
        log.debug("torch_tpu: damaged entry removed from the compilation cache: %s", path)
        discard(name)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return payload


def store(name: str, payload: bytes) -> None:
    """Keep `payload` under key `name`; does nothing when the cache is off or cannot be written."""
    if not enabled():
        return
    path = _path(name)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with open(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _report_unwritable(str(error))
        return
    if os.urandom(1)[0] % _WRITES_PER_CHECK == 0:
        trim()


@functools.cache
def _report_unwritable(reason: str) -> None:
    log.debug("torch_tpu: the compilation cache cannot be written: %s", reason)


def discard(name: str) -> None:
    """Remove the entry, if it is there and may be removed."""
    with contextlib.suppress(OSError):
        os.unlink(_path(name))


def _path(name: str) -> Path:
    root = directory()
    assert root is not None
    return root / (name + _SUFFIX)


def limit() -> int:
    """The cache's size limit in bytes. Raises ValueError for a TORCH_TPU_CACHE_SIZE that is no number."""
    text = os.environ.get("TORCH_TPU_CACHE_SIZE", str(_LIMIT))
    if not text.isdigit():
        raise ValueError(f"TORCH_TPU_CACHE_SIZE: expected a number of bytes, got {text!r}")
    return int(text)


def trim() -> None:
    """Drop the least recently used entries until the cache is within nine tenths of its limit."""
    root = directory()
    if root is None:
        return
    entries, now = [], time.time()
    with contextlib.suppress(OSError), os.scandir(root) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".tmp") and now - info.st_mtime > _STALE:
                    os.unlink(entry.path)
                elif entry.name.endswith(_SUFFIX) and stat.S_ISREG(info.st_mode):
                    entries.append((info.st_mtime, info.st_size, entry.path))
    total = sum(size for _, size, _ in entries)
    if total <= limit():
        return
    for _, size, path in sorted(entries):
        if total <= limit() * 9 // 10:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
