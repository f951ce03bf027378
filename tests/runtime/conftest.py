"""A compilation cache of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_tpu.runtime import cache


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_TPU_CACHE", raising=False)
    cache.directory.cache_clear()
    yield tmp_path / "cache"
    cache.directory.cache_clear()
