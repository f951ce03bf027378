"""Storages in PyTorch's older file format, which pickle still uses: their bytes pass through the host.

PyTorch reads and writes that format through the storage's address, which is no memory that it could use.
"""

from __future__ import annotations

from typing import Any

import torch


def _write_file(self: torch.UntypedStorage, *args: Any) -> Any:
    host = self.cpu() if self.device.type == "tpu" else self
    return torch._C.StorageBase._write_file(host, *args)  # type: ignore[attr-defined]


def _set_from_file(self: torch.UntypedStorage, *args: Any) -> torch.UntypedStorage:
    if self.device.type != "tpu":
        return torch._C.StorageBase._set_from_file(self, *args)  # type: ignore[attr-defined]
    host = torch.UntypedStorage(self.nbytes())
    torch._C.StorageBase._set_from_file(host, *args)  # type: ignore[attr-defined]
    return self.copy_(host)


def register() -> None:
    """Gives `torch.UntypedStorage` the methods above."""
    for method in (_write_file, _set_from_file):
        setattr(torch.UntypedStorage, method.__name__, method)
