"""`torch.nn.attention.flex_attention` takes `tpu` tensors: nothing in it is for one device but a check."""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention import flex_attention

_refuses_others = flex_attention._validate_device


def _validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.device.type != "tpu":
        _refuses_others(query, key, value)


def register() -> None:
    """Let `tpu` tensors pass PyTorch's check of devices."""
    flex_attention._validate_device = _validate_device
