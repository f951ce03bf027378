"""The PJRT client: which one this process uses, its devices, and what they say about themselves.

The choice, made once and without starting anything:

- `TORCH_TPU_PLATFORM=tpu|cpu|cuda` decides, where it is set;
- else JAX's own choice (`JAX_PLATFORMS`, `jax.config.jax_platforms`) is followed: its first known name;
- else `tpu` when both libtpu and a TPU are there, and `cpu` when not.

`TORCH_TPU_CPU_DEVICES=N` gives the CPU client N devices (default 1).

A user's own JAX code shares the process and the client. So nothing here changes a JAX setting once JAX
has started; before that, `jax_num_cpu_devices` is raised to N, and `jax_platforms` becomes "cpu" when the
user has set nothing and either asked for `TORCH_TPU_PLATFORM=cpu` or has no other plugin than a libtpu
without a TPU (which can take minutes to give up). JAX code that wants another platform beside an explicit
`TORCH_TPU_PLATFORM=cpu` says so in `JAX_PLATFORMS`.

Private JAX used here, as no public function tells whether JAX has started:
`jax._src.xla_bridge.backends_are_initialized`, and `_backends` in a forked child.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import sys
import threading
import warnings
from typing import Any

PLATFORMS = ("tpu", "cpu", "cuda")

_lock = threading.Lock()
_devices: list[Any] | None = None
_bad_fork = False


def _after_fork_in_child() -> None:
    global _bad_fork
    # Read without JAX's lock, which another thread of the parent may have held for ever.
    jax_bridge = sys.modules.get("jax._src.xla_bridge")
    _bad_fork = _bad_fork or _devices is not None or bool(getattr(jax_bridge, "_backends", None))


os.register_at_fork(after_in_child=_after_fork_in_child)


def started() -> bool:
    """True once this process (or the one it was forked from) has started the client."""
    return _devices is not None


def in_bad_fork() -> bool:
    """True in a forked child of a process in which JAX had started: the device cannot be used."""
    return _bad_fork


def _jax_platforms() -> str:
    if "jax" in sys.modules:
        return sys.modules["jax"].config.jax_platforms or ""
    return os.environ.get("JAX_PLATFORMS", "")


def _has_libtpu() -> bool:
    return "TPU_LIBRARY_PATH" in os.environ or importlib.util.find_spec("libtpu") is not None


def _has_tpu() -> bool:
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def _has_other_plugins() -> bool:
    from importlib.metadata import entry_points  # 6 ms, for machines with a libtpu only

    return bool(entry_points(group="jax_plugins")) or importlib.util.find_spec("jax_plugins") is not None


@functools.cache
def platform() -> str:
    """The platform of every `tpu` tensor of this process: "tpu", "cpu" or "cuda". Starts nothing.

    Raises ValueError for a TORCH_TPU_PLATFORM that is none of them.
    """
    chosen = os.environ.get("TORCH_TPU_PLATFORM", "").lower()
    if chosen:
        if chosen not in PLATFORMS:
            raise ValueError(f"TORCH_TPU_PLATFORM: expected one of {', '.join(PLATFORMS)}, got {chosen!r}")
        return chosen
    for name in _jax_platforms().split(","):
        if name in PLATFORMS or name == "gpu":
            return "cuda" if name == "gpu" else name
    return "tpu" if _has_libtpu() and _has_tpu() else "cpu"


def _cpu_devices_wanted() -> int:
    text = os.environ.get("TORCH_TPU_CPU_DEVICES", "1")
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"TORCH_TPU_CPU_DEVICES: expected a whole number of at least 1, got {text!r}")
    return int(text)


def devices() -> list[Any]:
    """This process's devices (`jax.Device`), in the order of their torch index. Starts the client once.

    Raises RuntimeError in a forked child of a process in which JAX had started, when the platform is not
    there, and when JAX had started with fewer CPU devices than TORCH_TPU_CPU_DEVICES.
    """
    global _devices
    if _bad_fork:
        raise RuntimeError(
            "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must "
            "use the 'spawn' start method"
        )
    if _devices is None:
        with _lock:
            if _devices is None:
                _devices = _start()
    return _devices


def _start() -> list[Any]:
    # A forked child that does not use the device, such as a DataLoader's worker, comes to no harm; one that
    # does is told so (`in_bad_fork`).
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    name = platform()
    if name == "cpu":
        return _start_cpu()
    import jax

    try:
        return jax.local_devices(backend=name)
    except RuntimeError as error:
        raise RuntimeError(
            f"torch_tpu: the {name} platform did not start: {error}. Set TORCH_TPU_PLATFORM=cpu to run on "
            "the CPU client instead."
        ) from error


def _start_cpu() -> list[Any]:
    wanted = _cpu_devices_wanted()
    import jax
    from jax._src import xla_bridge

    config: Any = jax.config
    if not xla_bridge.backends_are_initialized():
        chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
        if wanted > 1 and config.jax_num_cpu_devices < wanted and not chosen:
            config.update("jax_num_cpu_devices", wanted)
        explicit = os.environ.get("TORCH_TPU_PLATFORM", "").lower() == "cpu"
        idle_libtpu = _has_libtpu() and not _has_other_plugins()
        if not config.jax_platforms and (explicit or idle_libtpu):
            config.update("jax_platforms", "cpu")
    found = jax.local_devices(backend="cpu")
    if len(found) < wanted:
        raise RuntimeError(
            f"TORCH_TPU_CPU_DEVICES={wanted}, but JAX has already started with {len(found)} CPU device(s). "
            "Use the tpu device (or call torch.tpu.init()) before any JAX computation, or call "
            f'jax.config.update("jax_num_cpu_devices", {wanted}) right after `import jax`.'
        )
    return found[:wanted]


@functools.cache
def placement(index: int) -> Any:
    """The `jax.sharding.Sharding` that puts an array on device `index`."""
    import jax

    return jax.sharding.SingleDeviceSharding(devices()[index])


def device_count() -> int:
    """The number of devices. On the CPU client it is known without starting the client."""
    if _devices is not None:
        return len(_devices)
    return _cpu_devices_wanted() if platform() == "cpu" else len(devices())


def device_kind(index: int) -> str:
    """The device's model, e.g. "TPU v5 lite" or "cpu"."""
    return devices()[index].device_kind


def memory_stats(index: int) -> dict[str, int]:
    """What the PJRT client says about the device's memory ("bytes_in_use", ...); empty on the CPU client."""
    return dict(devices()[index].memory_stats() or {})


def memory_limit(index: int) -> int:
    """Bytes that tensors may take on the device: on the CPU client the machine's or the cgroup's memory.

    Raises RuntimeError when the device does not tell.
    """
    if platform() == "cpu":
        return _host_memory()
    stats = memory_stats(index)
    if "bytes_limit" not in stats:
        raise RuntimeError(f"the device {devices()[index]} does not report its memory limit")
    return stats["bytes_limit"]


def _host_memory() -> int:
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit
