"""`torch.tpu.amp`: `torch.amp` with the device filled in."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.amp.autocast):  # noqa: N801  (named as in torch.cuda.amp)
    """`torch.autocast("tpu", ...)`; computes in bfloat16 unless told otherwise."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, **kwargs: Any) -> None:
        super().__init__("tpu", dtype=dtype, **kwargs)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("tpu", ...)`. bfloat16 needs no scaling; float16 does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("tpu", **kwargs)
