"""What the launcher finds odd, and where the steps go, on the status screen and in its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from cli_support import transom

from transom_cli.core import events as ev
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.journal import Journal

SAID: Mapping[str, object] = {
    "schema": 1,
    "standing": [{"what": "nan_loss", "words": "the loss is not a number since step 20\x1b[2J"}],
    "phases": {"ranks": 2},
    "lines": ["steps 1 to 20, in ms per step", "rank  data\x1b]0;x"],
}


def training(run: RunDir) -> AttemptDir:
    journal = Journal(run.journal, 1)
    for event in (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",))):
        journal.append(event)
    journal.close()
    attempt = run.attempt(7, 0)
    attempt.nodes.mkdir(parents=True)
    rank = RankBeat(0, 0, 22, 22, 0.1, math.nan, "step", 1, "R")
    (attempt.nodes / "n1.beats").write_bytes(encode(NodeTable("n1", "7.0", 1, (rank,))))
    return attempt


def test_reports_and_phases_are_shown_and_safe(run: RunDir) -> None:
    training(run).reports.write_text(json.dumps(SAID))
    requested = transom("status", run.path, "--phases")
    lines = requested.stdout.splitlines()
    assert r"noticed     the loss is not a number since step 20\x1b[2J" in lines, requested.stderr
    assert "step        22  loss nan" in lines
    assert lines[-2:] == ["steps 1 to 20, in ms per step", r"rank  data\x1b]0;x"]
    assert "steps 1 to 20" not in transom("status", run.path).stdout


def test_json_has_them_and_stays_json(run: RunDir) -> None:
    training(run).reports.write_text(json.dumps(SAID))
    found = json.loads(transom("status", run.path, "--json").stdout, parse_constant=lambda word: 1 / 0)
    assert found["loss"] is None and found["step_breakdown"] == {"ranks": 2}
    assert found["reports"] == ["the loss is not a number since step 20\x1b[2J"]


def test_where_nothing_is_reported_it_is_said(run: RunDir) -> None:
    attempt = training(run)
    requested = transom("status", run.path, "--phases")
    assert "noticed" not in requested.stdout and "docs/slowness.md" in requested.stdout.splitlines()[-1]
    attempt.reports.write_text('{"schema": 1, "standing": 3, "lines": [1, null], "phases": []}')
    assert transom("status", run.path, "--phases").returncode == 0
