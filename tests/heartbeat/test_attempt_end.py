"""An attempt ends with its outcome, or when its directory is gone for good; it is not checked all the time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from transom_cli.heartbeat.attempt_end import EVERY, VANISHED, AttemptEnd, End
from transom_cli.layout import AttemptDir


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path / "7.0")
    made.path.mkdir()
    return made


def test_attempt_ends_with_its_outcome_checked_once_per_second(attempt: AttemptDir) -> None:
    end = AttemptEnd(attempt, 100.0)
    assert end.look(100.0) is End.NOT_YET
    attempt.outcome.write_text("{}")
    assert end.look(100.0 + EVERY / 2) is End.NOT_YET
    assert end.look(100.0 + EVERY) is End.OUTCOME
    attempt.outcome.unlink()
    assert end.look(200.0) is End.OUTCOME


def test_directory_missing_for_a_moment_is_not_gone(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    end = AttemptEnd(attempt, 0.0)
    attempt.path.rmdir()
    assert end.look(2.0) is End.NOT_YET
    attempt.path.mkdir()
    assert end.look(3.5) is End.NOT_YET
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda *_, **__: (_ for _ in ()).throw(stale))
        patch.setattr(Path, "exists", lambda *_, **__: False)
        assert end.look(50.0) is End.NOT_YET, "that says nothing"
    attempt.path.rmdir()
    assert end.look(70.0, every=15.0) is End.NOT_YET
    assert end.look(70.0 + VANISHED, every=15.0) is End.NOT_YET, "looked at more often since"
    assert end.look(70.0 + VANISHED + EVERY, every=15.0) is End.VANISHED


def test_outcome_is_seen_at_once_when_the_launcher_announces_it(attempt: AttemptDir) -> None:
    end = AttemptEnd(attempt, 0.0)
    assert end.look(0.0, every=15.0) is End.NOT_YET
    attempt.outcome.write_text("{}")
    assert end.look(14.0, every=15.0) is End.NOT_YET
    assert end.look(14.0, every=15.0, at_once=True) is End.OUTCOME
