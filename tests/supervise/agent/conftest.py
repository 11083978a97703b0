from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_ranks import Ranks


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.clean()
