"""A place for wrapped ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for process_ in made.started:
        process_.kill()
        process_.communicate()
