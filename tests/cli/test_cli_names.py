"""Several runs of one name: what changes one refuses to guess, and what shows one says which."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from transom_cli.cli.app import ClickException, app, usage_error
from transom_cli.cli.common import active_of_name, run_to_read
from transom_cli.cli.explain import _which
from transom_cli.cli.requests import named_run
from transom_cli.config.load import load
from transom_cli.core.operator.state import Policy
from transom_cli.errors import UsageError
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import new_run
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.operator.job import give_up_unsubmitted

AT = datetime(2026, 11, 1, tzinfo=timezone.utc)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDir]:
    """Three runs of one name, newest last, and one of another."""
    settings = load(None, {"root": str(tmp_path)}, {}, site=None, user=None)
    made = [new_run(tmp_path, name, AT + timedelta(hours=n), settings, "#!/bin/sh\n")
            for n, name in enumerate(("gpt", "gpt", "gpt", "gpt-eval"))]  # fmt: skip
    for run in made:
        write_header(run.journal, Policy(), 1)
    return made


def test_change_to_one_of_several_needs_its_id(runs: list[RunDir], tmp_path: Path) -> None:
    ids = [run.run_id for run in runs]
    for verb in ("stop", "requeue", "resume"):
        with pytest.raises(UsageError, match="Several runs are called `gpt`") as refused:
            named_run("gpt", tmp_path, verb)
        assert all(one in refused.value.why for one in ids[:3]) and f"transom {verb} {ids[0]}" in refused.value.hint
        assert named_run(ids[0], tmp_path, verb).run_id == ids[0]
    assert named_run("gpt-eval", tmp_path, "stop").run_id == ids[3]


def test_look_takes_the_newest_and_says_so(
    runs: list[RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_read(tmp_path, "gpt").run_id == runs[2].run_id
    said = capsys.readouterr().err
    assert (
        said.startswith(f"note: this is {runs[2].run_id}, the newest")
        and runs[0].run_id in said
        and runs[1].run_id in said
    )
    for one in ("gpt-eval", runs[0].run_id, None):
        run_to_read(tmp_path, one)
    assert capsys.readouterr().err == ""


def test_run_that_has_ended_is_not_meant(runs: list[RunDir], tmp_path: Path) -> None:
    for run in runs[:2]:
        _end(run)
    assert active_of_name(tmp_path, "gpt") == [runs[2].run_id] and named_run("gpt", tmp_path, "stop") == runs[2]
    _end(runs[2])
    assert active_of_name(tmp_path, "gpt") == [] and named_run("gpt", tmp_path, "stop") == runs[2]


def test_newest_has_ended_and_an_older_one_trains(runs: list[RunDir], tmp_path: Path) -> None:
    _end(runs[2])
    with pytest.raises(UsageError) as refused:
        named_run("gpt", tmp_path, "stop")
    assert refused.value.hint.startswith(f"transom stop {runs[1].run_id}\nor: ")
    assert named_run("gpt", tmp_path, "resume") == runs[2], "only a run that has ended can be meant"


def test_incident_and_run_may_be_given_in_either_order(runs: list[RunDir], tmp_path: Path) -> None:
    found = (runs[3], "i1")
    assert _which("gpt-eval", "i1", tmp_path) == _which("i1", "gpt-eval", tmp_path) == found


def test_node_given_to_check_is_answered_with_the_option() -> None:
    with pytest.raises(ClickException) as refused:
        app(["check", "node1", "node2"], standalone_mode=False)
    assert usage_error(refused.value).why == "nodes are named with `--nodelist node1,node2`"


def _end(run: RunDir) -> None:
    give_up_unsubmitted(run, "refused")
