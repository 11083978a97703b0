"""Ranks that would each train alone are refused: they would overwrite each other's checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.errors import UsageError
from transom_cli.heartbeat import paths
from transom_cli.integrations.base import Rank


@pytest.mark.parametrize(("ranks", "under_transom"), [("2", True), ("1", True), ("2", False)])
def test_ranks_that_do_not_know_each_other_are_refused(
    ranks: str, under_transom: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    monkeypatch.delenv(paths.RUN_DIR, raising=False)
    rank = Rank()
    if under_transom:
        monkeypatch.setenv(paths.RUN_DIR, str(tmp_path))
    if ranks == "2" and under_transom:
        with pytest.raises(UsageError, match="Each of 2 ranks would train alone"):
            rank.begin(0)
    else:
        rank.begin(0)
    rank.close()
