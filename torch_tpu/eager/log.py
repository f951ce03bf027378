"""`TORCH_TPU_LOG=compiles`: one line per plan miss, with what differs from the nearest known key."""

from __future__ import annotations

import collections
import logging
import os
import sys

from torch_tpu.eager.errors import user_line

_log = logging.getLogger("torch_tpu.compiles")
_known: dict[str, list[dict[str, str]]] = collections.defaultdict(list)


def enabled() -> bool:
    """True when the user asked for a log of compiles."""
    return "compiles" in os.environ.get("TORCH_TPU_LOG", "").split(",")


def _logger() -> logging.Logger:
    if not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[torch_tpu] %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)
        _log.propagate = False
    return _log


def miss(op: str, arguments: dict[str, str]) -> None:
    """Log that `op` needs a plan for `arguments` (name to key text)."""
    known = _known[op]
    if known:
        nearest = min(known, key=lambda other: sum(other[name] != text for name, text in arguments.items()))
        changed = [f"{n}: {nearest[n]} -> {t}" for n, t in arguments.items() if nearest[n] != t]
        why = "differs from the nearest plan in " + ("; ".join(changed) or "the device or precision")
    else:
        why = "the first plan of this op"
    known.append(arguments)
    _logger().info("%s at %s: %s", op, user_line() or "(no Python line)", why)
