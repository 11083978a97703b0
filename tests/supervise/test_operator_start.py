"""Starting the operator process of a user."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.supervise.operator import background
from transom_cli.supervise.operator.registry import Registry


@pytest.mark.parametrize(("command", "comes"), [(["sleep", "30"], True), (["true"], False)])
def test_operator_that_lives_is_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], comes: bool
) -> None:
    """On a busy host its imports alone may take longer than the ordinary patience."""
    run, begun = RunDir(tmp_path / "run"), []
    at = time.monotonic() + 0.25 if comes else float("inf")
    run.path.mkdir()

    def start(*_: object) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(command))
        time.sleep(0.02)
        return begun[-1]

    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(background, "_start", start)
    monkeypatch.setattr(background, "_over", lambda _: False)
    monkeypatch.setattr(Registry, "answered", lambda *_: time.monotonic() > at)
    monkeypatch.setattr(background, "operator_alive", lambda *_, **__: True if time.monotonic() > at else None)
    try:
        if comes:
            background.start_operator(run, patience=0.1)
            assert len(begun) == 1
        else:
            with pytest.raises(TransomError, match="did not start"):
                background.start_operator(run, patience=0.1)
    finally:
        for process in begun:
            process.kill()
            process.wait()
