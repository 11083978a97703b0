"""Many runs in a folder: `transom list` reads little of ended ones, and `transom prune` removes only what it may."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from slurm_support import OrdinaryUser

from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.cli.prune import prune
from transom_cli.cli.show import show_list
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Phase, Policy, State
from transom_cli.errors import UsageError
from transom_cli.heartbeat.table import NodeTable, RankBeat
from transom_cli.heartbeat.table import encode as encode_table
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Journal, fold, step_and_remember, write_header
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.run_summary import SummaryWriter, read_summary
from transom_cli.view import list_reader
from transom_cli.view.list_reader import ENDED, Wanted, read_list
from transom_cli.view.read import read_view
from transom_cli.view.runs import list_row

NOW = 1_795_331_400.0
DAY = 86400.0


def make(
    root: Path, number: int, *, over: bool = True, days: float = 0.0, settings: str = "", write: bool = True
) -> RunDir:
    """Make a run that ended `days` before NOW, as its operator leaves it; write: with a summary."""
    run = RunDir(root / f"r{number}-20261122-{number:06d}-c382")
    run.attempts.mkdir(parents=True)
    run.settings.write_text(settings)
    write_header(run.journal, Policy(), 1)
    journal, state, writer = Journal(run.journal, 1), State(), SummaryWriter(run)
    at = NOW - days * DAY
    for event in (
        ev.Started(at - 60, 1),
        ev.Submitted(at - 50, "submit", 7),
        ev.JobSeen(at - 40, 7, 0, "RUNNING", nodes=("n1",)),
        ev.LaunchSeen(at - 30, "7.0", 0, ("n1",), 1),
        ev.StepSeen(at - 20, "7.0", 12),
        *([ev.OutcomeSeen(at - 1, "7.0", "done", ""), ev.JobSeen(at, 7, 0, "COMPLETED", exit_code=0)] if over else []),
    ):
        before = state if state.phase.over else fold(run.journal).state
        state, _ = step_and_remember(before, event, journal)
        if write:
            writer.seen(before, event, state)
    journal.close()
    return run


def save(run: RunDir, *steps: int) -> None:
    for step in steps:
        folder = run.checkpoints / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / ".metadata").write_bytes(b"x" * 20_000)
        entry = FileEntry(".metadata", 20_000, "0" * 32)
        (folder / "manifest.json").write_bytes(encode(manifest(step, entry)))


def manifest(step: int, entry: FileEntry) -> Manifest:
    return Manifest(
        step=step, world_size=1, created="2026-11-22T00:00:00+00:00", attempt="7.0", torch="2", files=(entry,)
    )


def rows(root: Path, **wanted: Any) -> list[str]:
    return [view.run_id for view in read_list(root, Wanted(**wanted), pytest.fail).views]


# --- list ---


def test_run_that_is_over_is_listed_from_its_summary_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, 1)
    whole = list_row(read_view(run))
    monkeypatch.setattr(list_reader, "fold", lambda _path: pytest.fail("the journal was read"))
    found = read_list(tmp_path, Wanted(), pytest.fail)
    assert [list_row(view) for view in found.views] == [whole] and whole["phase"] == "done" and whole["step"] == 12


def test_last_step_of_the_heartbeat_tables_is_listed(tmp_path: Path) -> None:
    """The journal's step is up to a minute old when the run ends."""
    run = make(tmp_path, 1, write=False)
    nodes = run.attempt(7, 0).nodes
    nodes.mkdir(parents=True)
    beats = tuple(RankBeat(rank, 0, step, step, 0.1, None, "done", 9, "X") for rank, step in ((0, 20), (1, 19)))
    (nodes / "n1.beats").write_bytes(encode_table(NodeTable("n1", "7.0", 5, beats, closed=True)))
    (nodes / "n2.beats").write_bytes(b"damaged")
    listed = read_list(tmp_path, Wanted(), pytest.fail).views
    assert [view.step for view in listed] == [read_view(run).step] == [19]


def test_list_shows_the_preflight(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1-20261122-000001-c382")
    attempt = run.attempt(7, 0)
    attempt.health.mkdir(parents=True)
    attempt.preflight.write_text('{"checked": 3, "of": 8}')
    run.settings.write_text("")
    write_header(run.journal, Policy(), 1)
    journal, state, now = Journal(run.journal, 1), State(), time.time()
    for event in (
        ev.Started(now - 9, 1),
        ev.Submitted(now - 8, "submit", 7),
        ev.JobSeen(now, 7, 0, "RUNNING", nodes=("n1",)),
    ):
        state, _ = step_and_remember(state, event, journal)
    journal.close()
    (view,) = read_list(tmp_path, Wanted(), pytest.fail).views
    view = replace(view, operator=True)
    assert (view.status, view.condition) == ("preflight", "3 of 8 nodes checked")


def test_first_listing_writes_a_missing_summary_of_our_own_runs(tmp_path: Path, other_user: OrdinaryUser) -> None:
    own, foreign = make(tmp_path, 1, write=False), make(tmp_path, 2, write=False)
    for path in (foreign.path, foreign.settings, foreign.journal):
        os.chown(path, other_user.uid, other_user.gid)
    listed = [list_row(view) for view in read_list(tmp_path, Wanted(), pytest.fail).views]
    assert (own.summary.exists(), foreign.summary.exists()) == (True, False)
    assert [list_row(view) for view in read_list(tmp_path, Wanted(), pytest.fail).views] == listed
    assert [row["owner"] for row in listed] == [other_user.name, ""]


def test_live_runs_and_the_newest_ended_ones_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = make(tmp_path, 1, over=False)
    ended = [make(tmp_path, 10 + n, days=30 - n) for n in range(ENDED + 5)]
    read: list[Path] = []
    monkeypatch.setattr(list_reader, "read_summary", lambda path: read.append(path) or read_summary(path))
    found = read_list(tmp_path, Wanted(), pytest.fail)
    assert [view.run_id for view in found.views] == [run.run_id for run in reversed(ended[5:])] + [live.run_id]
    assert (found.earlier, len(read)) == (5, ENDED), "of the others, no file is read"
    assert len(rows(tmp_path, everything=True)) == ENDED + 6
    assert rows(tmp_path, states=("unknown",)) == [live.run_id]
    assert len(rows(tmp_path, states=("done",))) == ENDED + 5
    assert rows(tmp_path, since=NOW - 7.5 * DAY) == [ended[-1].run_id, ended[-2].run_id, live.run_id]


def test_run_of_another_user_is_listed_without_its_summary(other_user: OrdinaryUser) -> None:
    root = other_user.home / "shared"
    shared, closed = make(root, 1), make(root, 2)
    closed.path.chmod(0o700)
    for path in (root, shared.path, shared.attempts):
        path.chmod(0o755)
    for path in (shared.settings, shared.journal):
        path.chmod(0o644)
    assert shared.summary.stat().st_mode & 0o077 == 0

    def look() -> None:
        found = read_list(root, Wanted(), pytest.fail)
        assert ([(view.phase, view.owner) for view in found.views], found.unreadable) == ([("done", "root")], 1)

    other_user.call(look)


@pytest.mark.parametrize("planted", ["pipe", "link", "folder", "text", "live"])
def test_planted_summary_does_no_harm(tmp_path: Path, planted: str) -> None:
    run = make(tmp_path / "runs", 1, over=False)
    if planted == "pipe":
        os.mkfifo(run.summary)
    elif planted == "link":
        (tmp_path / "secret").write_text(make(tmp_path / "x", 2).summary.read_text())
        run.summary.symlink_to(tmp_path / "secret")
    elif planted == "folder":
        run.summary.mkdir()
    else:
        run.summary.write_text("{" if planted == "text" else '{"phase": "training", "since": 0}')
    assert [view.phase for view in read_list(tmp_path / "runs", Wanted(), pytest.fail).views] == ["training"]


def test_list_says_how_many_runs_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(ENDED + 2):
        make(tmp_path, n)
    show_list(tmp_path)
    assert capsys.readouterr().err == "2 earlier runs not shown; `transom list --all` shows all\n"
    show_list(tmp_path, json_=True)
    assert json.loads(capsys.readouterr().out)["earlier"] == 2
    with pytest.raises(UsageError, match="There is no state `trainign`"):
        show_list(tmp_path, state="trainign")


# --- prune ---


def pruned(capsys: pytest.CaptureFixture[str], root: Path, **options: Any) -> dict[str, Any]:
    given = {"older_than": None, "keep": None, "max_size": None, "last_checkpoints": False, "yes": False, **options}
    prune(**given, root=root, json_=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_nothing_is_removed_without_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, 1, days=400)
    save(run, 5, 10)
    before = tree(tmp_path)
    found = pruned(capsys, tmp_path, keep=0, last_checkpoints=True)
    assert [one["run_id"] for one in found["runs"]] == [run.run_id] and found["runs"][0]["bytes"] > 40_000
    prune(None, 0, None, False, False, tmp_path, False)
    shown = capsys.readouterr()
    assert "1 checkpoint; stays: 10" in shown.out and "nothing was removed, --yes removes it" in shown.err
    assert tree(tmp_path) == before


def test_run_keeps_its_last_checkpoint_unless_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, bare = make(tmp_path, 1), make(tmp_path, 2)
    save(run, 5, 10)
    pruned(capsys, tmp_path, keep=0, yes=True)
    assert not bare.path.exists() and run.journal.exists()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-10"]
    assert pruned(capsys, tmp_path, keep=0, yes=True)["runs"] == []
    pruned(capsys, tmp_path, keep=0, yes=True, last_checkpoints=True)
    assert tree(tmp_path) == set()


def test_damaged_last_checkpoint_protects_the_one_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, none_good = make(tmp_path, 1), make(tmp_path, 2)
    save(run, 5, 10, 15)
    (run.checkpoints / "step-15" / ".metadata").write_bytes(b"short")
    save(none_good, 5)
    (none_good.checkpoints / "step-5" / "manifest.json").unlink()
    pruned(capsys, tmp_path, keep=0, yes=True)
    assert {path.name for path in run.checkpoints.iterdir()} == {"step-10", "step-15"}
    assert (none_good.checkpoints / "step-5").exists()


def test_live_foreign_and_used_runs_are_never_removed(
    tmp_path: Path, other_user: OrdinaryUser, capsys: pytest.CaptureFixture[str]
) -> None:
    live, foreign, used, operated = (
        make(tmp_path, 1, over=False),
        make(tmp_path, 2),
        make(tmp_path, 3),
        make(tmp_path, 4),
    )
    save(live, 1, 2)
    os.chown(foreign.path, other_user.uid, other_user.gid)
    save(used, 5, 10)
    heir = make(tmp_path, 5, over=False, settings=f'[checkpoint]\ndirectory = "{used.checkpoints}"\n')
    operated.epochs.mkdir()
    lease = Lease.take(operated)
    elsewhere = make(tmp_path / "elsewhere", 6)
    (tmp_path / "l-20261122-000009-c382").symlink_to(elsewhere.path)
    before = tree(tmp_path)
    found = pruned(capsys, tmp_path, keep=0, last_checkpoints=True, yes=True)
    assert found["runs"] == [] and tree(tmp_path) == before
    assert sorted(found["kept"].values()) == [1, 1, 2, 2], found["kept"]
    lease.give_up()
    assert [one["run_id"] for one in pruned(capsys, tmp_path, keep=0)["runs"]] == [operated.run_id]
    assert heir.path.exists()


def test_run_that_starts_again_while_it_is_shown_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, 1)
    run.epochs.mkdir()
    monkeypatch.setattr("transom_cli.core.prune.choose", _then(lambda: Lease.take(run)))
    pruned(capsys, tmp_path, keep=0, yes=True)
    assert run.journal.exists()


def _then(act: Any) -> Any:
    from transom_cli.core.prune import choose

    def chosen(*given: Any) -> Any:
        act()
        return choose(*given)

    return chosen


def test_link_in_a_run_directory_is_removed_and_not_what_it_leads_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    run = make(tmp_path / "runs", 1)
    run.checkpoints.symlink_to(tmp_path / "precious")
    (run.attempts / "link").symlink_to(tmp_path / "precious")
    pruned(capsys, tmp_path / "runs", keep=0, yes=True)
    assert not run.path.exists() and (tmp_path / "precious" / "file").exists()


def test_age_number_and_size_choose_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import time

    passed = (time.time() - NOW) / DAY
    runs = [make(tmp_path, n, days=10.0 * n) for n in range(1, 5)]
    age = f"{passed + 15:.3f}d"
    assert names(pruned(capsys, tmp_path, older_than=age)) == [runs[3].run_id, runs[2].run_id, runs[1].run_id]
    assert names(pruned(capsys, tmp_path, older_than=age, keep=3)) == [runs[3].run_id]
    assert names(pruned(capsys, tmp_path, max_size="1T")) == []
    assert names(pruned(capsys, tmp_path, max_size="0")) == [run.run_id for run in reversed(runs)]
    with pytest.raises(UsageError, match="no limit was given"):
        pruned(capsys, tmp_path)


def names(found: dict[str, Any]) -> list[str]:
    return [one["run_id"] for one in found["runs"]]


def test_what_cannot_be_removed_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, 1)
    monkeypatch.setattr("shutil.rmtree", _refused)
    with pytest.raises(typer.Exit):
        prune(None, 0, None, False, True, tmp_path, False)
    assert f"error: cannot remove all of {run.run_id}" in capsys.readouterr().err


def _refused(path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_resumed_run_has_no_summary_of_its_first_end(tmp_path: Path) -> None:
    run = make(tmp_path, 1)
    ended = fold(run.journal).state
    assert ended.phase.over and run.summary.exists()
    SummaryWriter(run).seen(ended, ev.Resumed(NOW, "ann"), replace(ended, phase=Phase.SUBMITTING))
    assert not run.summary.exists(), "`transom list` would show a run that is over"
