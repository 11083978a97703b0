"""Each incident that transom must master, as a transcript that an operator of a cluster can read.

`pytest tests/core --rewrite-transcripts` writes them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_transcript import play

INCIDENTS = sorted((Path(__file__).parent / "incidents").glob("*.txt"))


@pytest.mark.parametrize("path", INCIDENTS, ids=lambda p: p.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    found = path.read_text(encoding="utf-8")
    played = play(found)
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(played, encoding="utf-8")
    else:
        assert played.splitlines() == found.splitlines()


def test_the_transcripts_are_there() -> None:
    assert len(INCIDENTS) >= 19
