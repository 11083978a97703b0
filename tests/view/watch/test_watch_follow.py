"""Looking again and again: the same as looking afresh, and no more than is asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import view_scenes as scenes
from view_made import JOB, NOW, Made

from transom_cli.core import events as ev
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Folding, fold
from transom_cli.view.document import Changes
from transom_cli.view.model import RunView
from transom_cli.view.read_history import TimeSeries, read_time_series
from transom_cli.view.read_nodes import NodeReader
from transom_cli.view.text import plain
from transom_cli.view.watch import follow as following
from transom_cli.view.watch.follow import Follow
from transom_cli.view.watch.panels import Filter, tabs
from transom_cli.view.watch.plots import LivePlots, plot_lines


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=12), st.booleans())
def test_a_journal_that_grows_folds_as_if_read_afresh(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], torn: bool
) -> None:
    made = Made(tmp_path_factory.mktemp("run")).began().stepped(60)
    text = made.run.journal.read_bytes() + (b'{"epoch": 1, "type": "Ste' if torn else b"")
    growing = made.run.path / "growing.jsonl"
    header = text.index(b"\n") + 1
    growing.write_bytes(text[:header])
    folding, at = Folding(growing), header
    folding.more()
    for cut in cuts:
        growing.write_bytes(text[: at + cut])
        at = min(len(text), at + cut)
        assert folding.more() == fold(growing)
    growing.write_bytes(text)
    assert folding.more() == fold(growing)
    growing.write_bytes(text[: header + 200])
    assert folding.more() == fold(growing), "another file in its place"


def test_with_a_budget_each_node_is_read_in_its_turn(tmp_path: Path) -> None:
    made = Made(tmp_path, nodes=12).began().stepped(10).beats()
    attempt = made.run.attempt(JOB, 0)
    whole, newest = NodeReader().read(attempt)
    reader = NodeReader(budget=0.0)
    assert reader.read(attempt)[0].keys() == whole.keys(), "all of them at the first look"
    changed = made.beats(late={"gpu007": 48.0}).run.attempt(JOB, 0)
    for _ in range(12):
        seen, _ = reader.read(changed)
    assert seen["gpu007"].behind == pytest.approx(NodeReader().read(changed)[0]["gpu007"].behind, abs=1.0)
    assert newest is not None


def test_slurm_is_asked_now_and_then_and_its_answer_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path).seen((5.0, ev.Started(0, 1)), (4.0, ev.Submitted(0, "submit", JOB, True))).operator()
    clock = [1000.0]
    monkeypatch.setattr(following.time, "monotonic", lambda: clock[0])
    asked: list[float] = []

    def ask(view: RunView) -> RunView:
        asked.append(clock[0])
        return replace(view, slurm_queried_at=view.now, slurm_state="PENDING", starved="too few nodes", jobs_ahead=3)

    follow = Follow(made.run, ask)
    for _ in range(300):
        view = follow.look()
        assert (view.slurm_state, view.jobs_ahead, view.status) == ("PENDING", 3, "starved")
        clock[0] += 1.0
    assert len([at for at in asked if at < 1060.0]) == 6 and 9 <= len(asked) <= 11
    made.seen((1.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)))
    view = follow.look()
    assert (view.slurm_state, view.starved) == ("RUNNING", ""), "what the operator has seen since is newer"
    clock[0] -= 300.0  # so that Slurm is not asked again
    made.seen((0.5, ev.JobSeen(0, JOB, 1, "PENDING", reason="Resources")))
    assert (follow.look().slurm_reason, follow.look().starved) == ("Resources", ""), "an answer about an earlier start"


def test_each_change_is_told_once(tmp_path: Path) -> None:
    view = scenes.one_node_of_many(tmp_path)
    changes = Changes()
    first = changes.of(view)
    assert "training" in [c.what for c in first] and [c.incident for c in first if c.what == "seen"] == ["i1"]
    assert first == sorted(first, key=lambda change: change.at)
    assert changes.of(view) == []
    quiet = changes.of(replace(view, reports=view.reports[:1], phase="recovering"))
    assert [c.what for c in quiet] == ["recovering", "over"]
    told = json.loads(quiet[0].to_json(view.run_id))
    assert (told["schema"], told["run"], told["what"], told["incident"]) == (2, view.run_id, "recovering", None)
    assert "\x1b" not in replace(quiet[0], message="\x1b[2J").line


def test_what_a_pending_job_waits_for_is_told_once(tmp_path: Path) -> None:
    view = replace(scenes.one_node_of_many(tmp_path), incidents=(), phase="pending", slurm_state="PENDING")
    view, changes = replace(view, slurm_reason="Priority", jobs_ahead=3), Changes()
    told = changes.of(view)[-1]
    assert (told.what, told.message) == ("waiting", "3 pending jobs of its partition have a higher priority (Priority)")
    assert changes.of(replace(view, jobs_ahead=2)) == []
    never = changes.of(replace(view, slurm_reason="PartitionTimeLimit"))
    assert never[0].line.endswith(
        "waiting: it requests more time than its partition allows: it will not start (PartitionTimeLimit)"
    )


def test_lines_without_earlier_incidents_count_them_and_show_open_ones(tmp_path: Path) -> None:
    view = scenes.one_node_of_many(tmp_path)
    now = replace(view.incidents[0], duration=None)
    past = replace(now, id="i0", began=view.now - 900, duration=5.0, result="recovered")
    changes = Changes(earlier=False)
    first = changes.of(replace(view, incidents=(now, past)))
    assert {c.incident for c in first if c.incident} == {"i1"}
    assert [c.message for c in first if c.what == "incidents"] == [f"1 earlier; see `transom explain {view.run_id}`"]
    ended = replace(now, duration=9.0, marks=((view.now, "recovered", "step 12 done"),))
    assert [c.message for c in changes.of(replace(view, incidents=(ended, past)))] == ["step 12 done"]


def test_screen_without_steps_says_once_that_nothing_can_be_plotted() -> None:
    assert [plain(one) for one in plot_lines(LivePlots(), 80, 30, most=2)] == ["no steps to plot yet"]


def test_training_without_a_loss_is_told_how_to_report_one() -> None:
    drawn = plot_lines(LivePlots(TimeSeries(step_time=((1.0, 0.5), (2.0, 0.5)))), 80, 30)
    assert plain(drawn[0]) == "loss: the training reports none; `beat(step, loss=loss)` does"


def test_tab_of_nodes_counts_those_that_are_listed_and_all_if_none_is(tmp_path: Path) -> None:
    view = scenes.one_node_of_many(tmp_path)
    names = [plain(tabs(view, "nodes", Filter(text=text), shown, 0)) for text, shown in (("", 4), ("", 0), ("x", 0))]
    assert [name.split("  ")[0] for name in names] == ["[1] nodes (4 of 64)", "[1] nodes (64)", "[1] nodes (0 of 64)"]


def test_words_that_an_incident_has_told_are_marked(tmp_path: Path) -> None:
    view = scenes.one_node_of_many(tmp_path)
    mark = (view.now, "diagnosed", "the same words")
    later = [(view.now + 1, what, "the same words") for what in ("seen", "diagnosed", "probed", "stopped")]
    incident = replace(view.incidents[0], marks=(mark, *later))
    told = [c for c in Changes().of(replace(view, incidents=(incident,))) if c.incident]
    assert told[-1].line.endswith(" i1 stopped") and told[0].line.endswith(": the same words")
    assert [(c.what, c.repeated) for c in told] == [
        ("diagnosed", False), ("seen", True), ("diagnosed", True), ("probed", False), ("stopped", False)
    ]  # fmt: skip


def command(made: Made, *words: str) -> list[str]:
    return [sys.executable, "-m", "transom_cli", "status", "--root", str(made.run.path.parent), "--watch", *words]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_piped_it_ends_with_the_run_and_a_reader_may_leave(tmp_path: Path, words: tuple[str, ...]) -> None:
    made = Made(tmp_path).began().stepped(10)
    made.seen((5.0, ev.OutcomeSeen(0, f"{JOB}.0", "done", "every rank ended")), (4.0, ev.JobGone(0, JOB)))
    done = subprocess.run(command(made, *words), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines and all(json.loads(line)["schema"] == 2 for line in lines if words)
    shell = " ".join([*command(made, *words), "| head -1"])
    left = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert left.stderr == "" and left.stdout.splitlines() == lines[:1]


def test_an_incidents_story_is_what_explain_prints(tmp_path: Path) -> None:
    scenes.one_node_of_many(tmp_path)
    (run,) = (RunDir(path) for path in tmp_path.iterdir())
    argv = [sys.executable, "-m", "transom_cli", "explain", "--root", str(tmp_path), run.run_id, "i1"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    told = Follow(run, lambda view: view).timeline("i1", 10_000)
    assert told and [one for one in told if "so far" not in one] == [one for one in printed if "so far" not in one]
    assert (
        Follow(run, lambda view: view).timeline("i9", 80)
        == ()
        == Follow(RunDir(tmp_path / "x"), lambda view: view).timeline("i1", 80)
    )


def test_on_a_narrow_screen_a_story_is_wrapped_and_not_cut(tmp_path: Path) -> None:
    scenes.one_node_of_many(tmp_path)
    (run,) = (RunDir(path) for path in tmp_path.iterdir())
    follow = Follow(run, lambda view: view)
    wide, narrow = follow.timeline("i1", 10_000), follow.timeline("i1", 50)
    assert max(map(len, narrow)) <= 50 < max(map(len, wide))
    assert "".join("".join(narrow).split()) == "".join("".join(wide).split())


def test_the_curves_begin_with_the_run_and_not_with_the_screen(tmp_path: Path) -> None:
    made = Made(tmp_path).began(hours=0.5)
    attempt = made.run.attempt(JOB, 0)
    attempt.path.mkdir(parents=True, exist_ok=True)
    told = [(n, NOW - 1800 + 60 * n, 3.0 - n / 10) for n in range(20)]
    lines = [{"wall": at, "launch": 0, "step": 1 + 10 * n, "loss": loss} for n, at, loss in told]
    del lines[7]["loss"]  # it was no number
    attempt.progress.write_text("".join(json.dumps(one) + "\n" for one in lines))
    launcher = [{"type": "attempt", "wall": NOW - 1815}, {"type": "launch", "launch": 0, "wall": NOW - 1810}]
    attempt.launcher_journal.write_text("".join(json.dumps(one) + "\n" for one in launcher))
    past = read_time_series(made.run, NOW)
    assert past.loss == tuple((at, loss) for n, at, loss in told if n != 7)
    assert [pace for _, pace in past.step_time] == [6.0] * 19
    assert past.goodput[-1][0] == NOW and 0 < past.goodput[-1][1] < 100
    follow = Follow(made.run, lambda view: view)
    assert follow.time_series() is not None and follow.time_series() is None, "they are read now and then"
    shutil.rmtree(made.run.path)
    assert Follow(made.run, lambda view: view).time_series() is None


def test_what_the_screen_saw_itself_takes_the_place_of_what_was_kept() -> None:
    curves = LivePlots(TimeSeries(loss=((NOW - 60.0, 3.0), (NOW, 2.0), (NOW + 60.0, 1.0))))
    curves.add(NOW - 1.0, 7, 2.5, 0.5, 0.9)
    curves.add(NOW, 7, 2.5, 0.5, 0.9)
    curves.add(NOW + 1.0, 8, float("nan"), 0.5, None)
    named = dict(curves.named())
    assert named["loss"] == [(NOW - 60.0, 3.0), (NOW - 1.0, 2.5), (NOW, 2.0), (NOW + 60.0, 1.0)]
    assert named["seconds per step"] == [(NOW - 1.0, 0.5), (NOW + 1.0, 0.5)]
    drawn = "\n".join(map(plain, plot_lines(curves, 80, 30)))
    assert (
        drawn.startswith("loss  1\n")
        and "-2m 00s" in drawn
        and "now" in drawn
        and "goodput, % of the time so far" in drawn
    )
    assert max(len(text) for text in drawn.splitlines()) <= 80 and "\x1b" not in drawn
