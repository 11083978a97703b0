"""Fixtures of the health tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import nvml_stub
import pytest
from gpu_stub import StubNode


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler for the stub of NVIDIA's library")
    return nvml_stub.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(nvml_library: Path, tmp_path: Path) -> StubNode:
    """A node without a driver; `set` gives it one, with GPUs."""
    return StubNode(nvml_library, tmp_path / "states")
