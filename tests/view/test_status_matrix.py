"""Every state of a run answers "is it all right?" in its first line: screens, JSON, exit code, list."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner
from view_made import JOB, Made
from view_scenes import SCENES

from transom_cli.cli.app import app
from transom_cli.cli.show import code_of, show_list
from transom_cli.core import events as ev
from transom_cli.core.bad_loss import BadLoss
from transom_cli.core.operator.decide import decide
from transom_cli.errors import NoSuchRun
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import find_run
from transom_cli.supervise.journal import fold
from transom_cli.view import read
from transom_cli.view.document import to_json
from transom_cli.view.model import build_view
from transom_cli.view.runs import list_lines, list_row
from transom_cli.view.status import screen
from transom_cli.view.text import made_at, plain
from transom_cli.view.watch import panels

# scene: (word in the first line, exit code, what an early line says)
STATES = {
    "pending": ("pending", 0, "waiting for free nodes"),
    "held": ("held", 21, "Slurm could not start it"),
    "starved": ("starved", 21, "needs 3 nodes; 2 of the cluster's 4 are usable"),
    "preflight": ("preflight", 0, "12 of 64 nodes checked"),
    "starting": ("starting", 0, "the ranks start Python"),
    "healthy": ("training", 0, "to go"),
    "one_node_of_many": ("training", 20, "gpu017"),
    "examining": ("training", 20, "probing gpu002"),
    "slow": ("training", 20, "0.71 s in forward"),
    "hang": ("training", 20, "no step for 90.0 s"),
    "crash_looping": ("crash loop", 23, "KeyError: 'learning_rate', 2 times, never past step 7; stops after 1 more"),
    "starting_again": ("recovering", 20, "waiting for Slurm to start the job"),
    "leaving": ("leaving", 0, "the time limit is near: all ranks save at step 18430"),
    "launcher_got_sigterm": ("leaving", 0, "the launcher received SIGTERM: all ranks save at step 18430"),
    "continues": ("pending", 0, "waiting for Slurm to start the job"),
    "unknown": ("unknown", 22, "last update"),
    "stopping": ("stopping", 0, "cancelling the job"),
    "failing": ("failing", 1, "KeyError: 'learning_rate'"),
    "without_an_operator": ("training", 22, "nobody restarts the run or isolates bad nodes"),
    "done": ("done", 0, "120,000 of 120,000"),
    "stopped": ("stopped", 130, "stopped by ada"),
    "failed": ("failed", 1, "ModuleNotFoundError"),
    "stopped_crash_loop": ("failed", 1, "3 times in a row, never past the same step"),
    "given_up": ("failed", 21, "without progress"),
}


@pytest.mark.parametrize("name", STATES)
def test_state_answers_in_the_first_line(name: str, tmp_path: Path) -> None:
    word, code, says = STATES[name]
    view = SCENES[name](tmp_path)
    for width, height in ((80, 24), (120, 40)):
        lines = [plain(one) for one in screen(view, width)]
        assert f"{view.run_id}  {word.upper()}" in lines[0]
        together = " ".join(" ".join(lines).split())
        assert says in together, "\n".join(lines)
        head = [plain(one) for one in panels.head(view, width, height)]
        assert word.upper() in head[0] and len(head) <= height // 2
    document = json.loads(to_json(view))
    assert document["status"] == list_row(view)["status"] == word
    assert code_of(view) == code
    row = plain(list_lines([view], 120)[1])
    assert f" {word} " in row


CONCERNS = {"healthy": "", "one_node_of_many": "degraded", "examining": "fault suspected", "slow": "slow"}
CONCERNS |= {"hang": "fault suspected", "starting_again": "", "done": "", "without_an_operator": "no operator"}


@pytest.mark.parametrize("name", CONCERNS)
def test_first_line_of_a_training_run_says_whether_it_is_all_right(name: str, tmp_path: Path) -> None:
    view, concern = SCENES[name](tmp_path), CONCERNS[name]
    assert view.concern == concern
    word = f"{view.status}, {concern}" if concern else f"{view.status} "
    assert f"  {word.upper()}" in plain(screen(view, 80)[0])
    assert concern in plain(list_lines([view], None)[1])


@pytest.mark.parametrize(("name", "code"), [("stopped", 130), ("failed", 1), ("done", 0)])
def test_first_line_of_a_run_that_is_over_says_that_its_loss_was_nan(name: str, code: int, tmp_path: Path) -> None:
    view = replace(SCENES[name](tmp_path), bad_loss=BadLoss(41, 40))
    assert f"{view.run_id}  {name.upper()}, LOSS NaN " in plain(screen(view, 80)[0])
    assert f"{name.upper()}, LOSS NaN" in plain(panels.head(view, 80, 24)[0])
    assert (view.status, code_of(view)) == (name, code)


# scene: what the list says besides the state
NOTES = {
    "pending": "next in the queue, waiting for free nodes (Resources)",
    "held": "Slurm holds the job: launch_failed_requeued_held",
    "starved": "needs 3 nodes; 2 of the cluster's 4 are usable",
    "preflight": "12 of 64 nodes checked",
    "slow": "slow: a node is slow; rank 8 on gpu001",
    "hang": "fault suspected: no step for 90.0 s",
    "crash_looping": "KeyError: 'learning_rate', 2 times",
    "starting_again": "gpu002 lost",
    "leaving": "the time limit is near",
    "continues": "next in the queue, waiting for free nodes",
    "stopped": "stopped by ada",
    "failed": "ModuleNotFoundError",
    "without_an_operator": "no operator: nobody restarts the run",
    "failing": "KeyError: 'learning_rate'",
}


@pytest.mark.parametrize("name", NOTES)
def test_list_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    assert NOTES[name] in plain(list_lines([SCENES[name](tmp_path)], None)[1])


def test_run_without_an_operator_shows_the_command_that_starts_one_below_the_first_line(tmp_path: Path) -> None:
    view = SCENES["without_an_operator"](tmp_path)
    first, why, command = (plain(one) for one in screen(view, None)[:3])
    assert "TRAINING, NO OPERATOR" in first and why.startswith("NO OPERATOR")
    assert command.split() == ["attach", "transom", "attach", view.run_id]


def test_job_that_slurm_will_never_start_is_not_healthy(tmp_path: Path) -> None:

    view = replace(SCENES["pending"](tmp_path), slurm_reason="PartitionTimeLimit")
    assert (view.status, view.health, code_of(view)) == ("pending", "starved", 21)
    assert "PENDING, WILL NOT START" in plain(screen(view, 80)[0])
    assert "it requests more time than its partition allows" in plain(list_lines([view], None)[1])


def test_start_counts_the_nodes_that_have_reported(tmp_path: Path) -> None:
    said = panels.empty(SCENES["starting"](tmp_path), panels.NODES, panels.Filter())
    assert said == "3 of 4 nodes have reported; no step yet"


def test_start_that_the_operator_has_not_seen_names_its_nodes(tmp_path: Path) -> None:
    from transom_cli.slurm.port import Job, JobState
    from transom_cli.view.slurm_reasons import with_answer, with_answer_of

    view = SCENES["pending"](tmp_path)
    started = with_answer(view, Job(JOB, JobState.RUNNING, nodes=("gpu000", "gpu001")))
    assert (started.status, started.nodes) == ("starting", ("gpu000", "gpu001"))
    assert with_answer_of(view, started).nodes == started.nodes


@pytest.mark.parametrize("name", ["healthy", "starting_again", "starting", "pending"])
def test_full_disk_of_the_run_directory_comes_first(name: str, tmp_path: Path) -> None:
    view = replace(SCENES[name](tmp_path), disk_full=True)
    for width, height in ((80, 24), (120, 40)):
        shown = [plain(one) for one in screen(view, width)]
        assert "DISK FULL" in shown[0] and f"free space where {view.path} is" in " ".join(" ".join(shown).split())
        assert "DISK FULL" in plain(panels.head(view, width, height)[0])
    assert json.loads(to_json(view))["disk_full"] is True
    assert any("DISK FULL" in plain(one) for one in list_lines((view,), 200))
    assert code_of(view) != 0


def test_run_that_is_done_with_a_loss_that_is_no_number_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path / SCENES["done"](tmp_path).run_id)
    state = fold(run.journal).state
    attempt = run.attempt(state.job.id, state.job.restarts)
    attempt.path.mkdir(parents=True, exist_ok=True)
    words = "the loss is NaN since step 67; last good at step 33"
    slow = {"what": "slow_node", "words": "node2 is slow"}
    attempt.reports.write_text(json.dumps({"schema": 1, "standing": [{"what": "nan_loss", "words": words}, slow]}))
    shown = " ".join(" ".join(plain(one) for one in screen(read.Reader(run).look(), 80)).split())
    assert "DONE" in shown and words in shown and "node2 is slow" not in shown
    explained = CliRunner().invoke(app, ["explain", str(run.path)]).stdout
    assert f"noticed: {words}" in explained and "node2 is slow" not in explained


def test_a_disk_with_space_or_an_unknown_one_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(blocks: int, inodes: int, of: int) -> bool:
        found = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=of, f_favail=inodes)
        monkeypatch.setattr(read.os, "statvfs", lambda _: found)
        return read._is_full(tmp_path)

    assert [room(10**6, 9, 10), room(10**6, 0, 0), room(0, 9, 10), room(10**6, 0, 10)] == [False, False, True, True]
    monkeypatch.undo()
    assert not read._is_full(tmp_path) and not read._is_full(tmp_path / "gone")


def test_crash_loop_that_no_rule_ends_says_when_the_restart_budget_does(tmp_path: Path) -> None:
    view = SCENES["crash_looping"](tmp_path)
    assert view.crash_loop is not None
    view = replace(view, crash_loop=replace(view.crash_loop, ends_at=0), max_without_progress=3)
    assert replace(view, restarts_without_progress=1).condition.endswith("stops after 2 more requeues without progress")
    assert replace(view, restarts_without_progress=3).condition.endswith("stops in place of the next requeue")


def test_crash_loop_between_two_crashes_is_not_healthy(tmp_path: Path) -> None:
    view = SCENES["crash_looping"](tmp_path)
    assert (view.phase, view.health) == ("training", "crash loop")
    shown = [plain(one) for one in screen(view, 120)]
    (first,) = [one for one in shown if one.startswith("i1")]
    assert "recovered" not in first
    assert [one.result for one in view.incidents] == ["starting", "failed again"]
    assert view.incidents[0].duration is None
    assert "KeyError" in plain(list_lines([view], 160)[1])


def test_identical_incidents_are_one_line(tmp_path: Path) -> None:
    view = SCENES["stopped_crash_loop"](tmp_path)
    rows = [plain(one) for one in screen(view, 160) if plain(one)[:1] == "i" and plain(one)[1:2].isdecimal()]
    assert [one.split("  ")[0] for one in rows] == ["i3", "i1 to i2"]


def test_starved_run_says_what_to_do(tmp_path: Path) -> None:
    text = "\n".join(plain(one) for one in screen(SCENES["starved"](tmp_path), 120))
    assert "transom drained gpu002 (this run), gpu003 (run first-20261121-101112-abcd)" in " ".join(text.split())
    assert "transom nodes --lift gpu002" in text and "transom nodes --lift gpu003" in text


def test_recovering_run_keeps_step_and_bar(tmp_path: Path) -> None:
    view = SCENES["starting_again"](tmp_path)
    assert view.step > 18000 and json.loads(to_json(view))["step"] == view.step
    assert any(plain(one).startswith("step  ") and "#" in plain(one) for one in screen(view, 80))


def test_start_that_an_unlimited_job_delays_is_not_announced(tmp_path: Path) -> None:

    from transom_cli.slurm.port import Job, JobState
    from transom_cli.view.slurm_reasons import with_answer

    view = replace(SCENES["pending"](tmp_path), slurm_start=None)
    far = Job(JOB, JobState.PENDING, reason="Resources", start="2027-11-21T07:00:00", num_nodes=4)
    assert with_answer(view, far).slurm_start is None


def test_leave_that_the_launcher_reports_is_kept_in_the_journal(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped()
    state = fold(made.run.journal).state
    leave = ev.RecoverySeen(state.since + 1.0, f"{JOB}.0", "", "leaving", "all ranks save at step 18430", "time_limit")
    after, _ = decide(state, leave)
    assert after != state, "an event that changes nothing is not kept"
    assert decide(after, ev.LaunchSeen(leave.at + 1.0, f"{JOB}.0", 1, made.nodes, 4))[0].launch.leaving is None


def test_run_without_a_step_whose_launcher_got_sigterm_is_leaving(tmp_path: Path) -> None:
    leave = ev.RecoverySeen(0, f"{JOB}.0", "", "leaving", "the ranks get SIGTERM", "stop_request")
    view = replace(SCENES["starting"](tmp_path), operator=True)
    run = RunDir(tmp_path / view.run_id)
    state, _ = decide(fold(run.journal).state, leave)
    assert state.phase.value == "starting"
    assert build_view("r", state, {}, 0.0, operator=True).status == "leaving"


def test_run_whose_nodes_are_all_silent_is_not_healthy(tmp_path: Path) -> None:
    view = Made(tmp_path).began().stepped().saved().operator().beats(ago=60.0).view()
    assert view.unheard == pytest.approx(59.1, abs=0.5)
    assert (view.health, view.concern) == ("degraded", "no heartbeats")
    assert {one.state for one in view.node_views} == {"silent"}
    assert "TRAINING, NO HEARTBEATS" in plain(screen(view, 80)[0])


@pytest.mark.parametrize(("operated", "then"), [(True, "its operator writes it again"), (False, f"scancel {JOB}")])
def test_live_run_without_its_settings_is_listed_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], operated: bool, then: str
) -> None:
    made = Made(tmp_path).began(1.0).stepped().beats().operator(0.9 if operated else None)
    made.run.settings.unlink()
    assert show_list(tmp_path) == 0 and "run.toml is missing" in capsys.readouterr().out
    assert find_run(tmp_path, "llama-70b") == find_run(tmp_path, str(made.run.path)) == made.run
    shown = " ".join(" ".join(plain(one) for one in screen(read.Reader(made.run).look(), 80)).split())
    assert "run.toml is missing" in shown and then in shown
    made.run.journal.unlink()
    with pytest.raises(NoSuchRun):
        find_run(tmp_path, "llama-70b")


def test_run_that_slurm_refused_has_an_age_in_the_list(tmp_path: Path) -> None:
    refused = replace(SCENES["failed"](tmp_path), submitted=None, job_id=0, verdict="")
    assert plain(list_lines([replace(refused, now=made_at(refused.run_id) + 600.0)], None)[1]).split()[-1] == "10m"


def test_launch_of_a_user_s_own_script_is_not_called_a_step_beside_the_training_s_step(tmp_path: Path) -> None:
    view = replace(SCENES["healthy"](tmp_path), steps=None, step=205, job_step="eval")
    shown = next(one for one in (plain(one) for one in screen(view, 80)) if one.startswith("step"))
    assert shown.startswith("step        205, in `transom launch` eval") and shown.count("step ") == 1


@pytest.mark.parametrize(("ago", "named"), [(120.0, True), (4000.0, False)])
def test_run_in_a_new_job_names_the_job_before_for_an_hour(tmp_path: Path, ago: float, named: bool) -> None:
    made = Made(tmp_path).began(2.0).operator()
    made.seen((ago + 20, ev.JobSeen(0, JOB + 3, 0, "RUNNING", nodes=made.nodes, succeeds=JOB)))
    view = made.seen((ago, ev.StepSeen(0, f"{JOB + 3}.0", 7))).beats(7, attempt=f"{JOB + 3}.0").view()
    assert (f"job {JOB + 3} (was {JOB})" in plain(screen(view, 120)[0])) is named
    assert (f"was job {JOB}" in plain(list_lines([view], None)[1])) is named
    assert f"requeued as job {JOB + 3} (was {JOB})" in " ".join(plain(one) for one in screen(view, 120))
