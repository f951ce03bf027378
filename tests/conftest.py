"""Every test starts from the same random numbers; PyTorch's own test classes know the device."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
