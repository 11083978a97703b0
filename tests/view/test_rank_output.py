"""`transom logs`: merged by time, of the newest launch, the root line marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from view_made import JOB, Made
from view_scenes import CRASH_LOOP, KEY_ERROR, SCENES, _key_error

from transom_cli.cli.app import app
from transom_cli.core import events as ev
from transom_cli.errors import TransomError, UsageError
from transom_cli.layout import RunDir
from transom_cli.view.logs import Follower, drawn, find_root, log_files, root_of
from transom_cli.view.outlook import next_commands
from transom_cli.view.read import read_view
from transom_cli.view.status import screen
from transom_cli.view.text import plain


def write(run: RunDir, launch: int, rank: int, text: str, attempt: str = f"{JOB}.0") -> Path:
    path = run.attempts / attempt / "logs" / str(launch) / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


def test_ranks_are_merged_by_time_and_lines_without_one_follow_theirs(tmp_path: Path) -> None:
    made = Made(tmp_path).began()
    write(made.run, 0, 0, "2026-11-22 07:00:01 step 1\n2026-11-22 07:00:03 step 2\n")
    write(made.run, 0, 1, "2026-11-22 07:00:02 Traceback:\n  File x\n2026-11-22 07:00:04.5 done\n")
    lines = Follower(made.run, made.view()).more()
    found = [(one.rank, one.text.split(" ")[-1]) for one in lines]
    assert found == [(0, "1"), (1, "Traceback:"), (1, "x"), (0, "2"), (1, "done")]
    since = lines[3].at
    assert [one.text for one in Follower(made.run, made.view()).more(since)] == [lines[3].text, lines[4].text]


def test_newest_launch_of_the_newest_attempt_counts_and_its_successor_is_followed(tmp_path: Path) -> None:
    made = Made(tmp_path).began()
    for launch, attempt in ((9, f"{JOB}.0"), (10, f"{JOB}.0"), (0, f"{JOB}.10"), (0, f"{JOB}.9")):
        write(made.run, launch, 0, f"{attempt}/{launch}\n", attempt)
    follower = Follower(made.run, made.view())
    assert [one.text for one in follower.more()] == [f"{JOB}.10/0"]
    write(made.run, 0, 0, "more\nhalf a li", f"{JOB}.10")
    assert [one.text for one in follower.more()] == ["more"]
    write(made.run, 1, 0, "next launch\n", f"{JOB}.10")
    follower.look_again(made.view())
    assert [one.text for one in follower.more()] == ["next launch"]


def test_launch_that_has_printed_nothing_yet_hides_none_that_has(tmp_path: Path) -> None:
    made = Made(tmp_path).began()
    for launch, text in ((0, "KeyError: 'lr'\n"), (1, "second\n"), (2, "")):
        write(made.run, launch, 0, text)
    follower = Follower(made.run, made.view())
    assert [one.text for one in follower.more()] == ["second"]
    write(made.run, 2, 0, "third\n")
    follower.look_again(made.view())
    assert [one.text for one in follower.more()] == ["third"]
    first = Follower(made.run, made.view(), launch=f"{JOB}.0.0")
    assert [one.text for one in first.more()] == ["KeyError: 'lr'"]
    error = CliRunner().invoke(app, ["logs", str(made.run.path), "--launch", "1.0.0"]).exception
    assert isinstance(error, UsageError) and error.why == f"it has {JOB}.0.2, {JOB}.0.1, {JOB}.0.0"


def test_cancel_line_of_slurm_is_no_output_of_the_newest_launch(tmp_path: Path) -> None:
    made = Made(tmp_path).began()
    write(made.run, 0, 0, "KeyError: 'lr'\n")
    write(made.run, 1, 0, "slurmstepd-node1: error: *** STEP 3.2 ON node1 CANCELLED AT 2026-11-28T21:37:16 ***\n")
    write(made.run, 1, 1, "srun: Job step aborted: Waiting up to 3 seconds for job step to finish.\n")
    assert [one.text for one in Follower(made.run, made.view()).more()] == ["KeyError: 'lr'"]
    done = CliRunner().invoke(app, ["logs", str(made.run.path)])
    assert done.stderr == f"this is launch {JOB}.0.0; `--launch` shows another: {JOB}.0.1\n"
    write(made.run, 1, 1, "step 1\n")
    assert len(Follower(made.run, made.view()).more()) == 3


def test_node_and_rank_choose_files(tmp_path: Path) -> None:
    made = Made(tmp_path, nodes=2).began().beats(ranks=2)
    for rank in range(4):
        write(made.run, 0, rank, "x\n")
    view = made.view()
    assert [one.rank for one in log_files(made.run, view)] == [0, 1, 2, 3]
    assert [one.rank for one in log_files(made.run, view, nodes=["gpu001"])] == [2, 3]
    assert [one.rank for one in log_files(made.run, view, ranks=[3])] == [3]
    assert log_files(made.run, view, nodes=["gpu009"]) == []


def test_without_rank_logs_the_jobs_output_is_shown(tmp_path: Path) -> None:
    made = Made(tmp_path).began()
    made.run.job_log(JOB).write_text("from the script\n")
    assert [(one.rank, one.text) for one in Follower(made.run, made.view()).more()] == [(None, "from the script")]


def test_failed_run_names_file_line_and_command(tmp_path: Path) -> None:
    run = RunDir(tmp_path / SCENES["failed"](tmp_path).run_id)
    line = "ModuleNotFoundError: No module named 'tokeniser'"
    path = write(run, 0, 3, f"Traceback (most recent call last):\n  import tokeniser\n{line}\n")
    write(run, 0, 2, f"{line}\n")
    view = read_view(run)
    root = find_root(run, view)
    assert root is not None and (root.place, root.rank) == (f"{path}:3", 3)
    text = "\n".join(plain(one) for one in screen(view, None))
    assert f"{path}:3" in text and f"transom logs {run.run_id}" in text and f"transom resume {run.run_id}" in text
    run.script.unlink()
    text = "\n".join(plain(one) for one in screen(read_view(run), None))
    assert "transom resume" not in text and "without job.sbatch, this one cannot be resumed" in text
    assert root_of(run, [("examined", f"rank-3.log (rank 2 reports the same) (1 log not read): {line}")]) == root
    assert root_of(run, [("examined", f"rank-3.log: {line}")], "slurm_node_fail") is None
    assert root_of(run, [("examined", f"rank-3.log (its last line): {line}")]) is None
    marked = [one for one in Follower(run, view).more() if plain(drawn(one, root, 1)).startswith(">>")]
    assert [(one.rank, one.text) for one in marked] == [(3, line)]


def test_root_line_names_the_trainers_own_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path / SCENES["failed"](tmp_path).run_id)
    frames = '  File "train.py", line 5, in <module>\n    import data\n'
    frames += '  File "/v/lib/python3.12/json.py", line 9, in f\n    x\n'
    end = "ModuleNotFoundError: No module named 'tokeniser'\n"
    write(run, 0, 3, f"step 1\nTraceback (most recent call last):\n{frames}{end}")
    root = find_root(run, read_view(run))
    assert root is not None and (root.place, root.number) == ("train.py:5", 7)
    assert "  root line train.py:5\n" in CliRunner().invoke(app, ["explain", str(run.path)]).stdout
    assert CliRunner().invoke(app, ["logs", str(run.path), "--tail", "1"]).stdout.count("\n") == 1
    write(run, 0, 3, f"later\n{end}")
    root = find_root(run, read_view(run))
    assert root is not None and root.place.endswith("rank-3.log:9"), "no traceback ends there"


def test_root_line_of_a_hang_is_where_the_rank_hung_and_not_what_its_victims_print(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped().saved()
    peer = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:22431"
    verdict = "non-communication hang: rank 3 is in a sleep, the others wait; its line is <module> (train.py:25)"
    decided = ev.Decided("anything-else", "relaunch", "nccl_hang")
    name = f"{JOB}.0"
    made.seen(
        (20.0, ev.RecoverySeen(0, name, "l1", "seen", "no step for 36.7 s after step 19", "hang")),
        (18.0, ev.RecoverySeen(0, name, "l1", "evidence", f"{verdict} (on gpu000) (confidence 0.75)")),
        (18.0, ev.RecoverySeen(0, name, "l1", "evidence", "rank 0 is in a collective: backward (graph.py:979)")),
        (17.0, ev.RecoverySeen(0, name, "l1", "examined", f"rank-0.log: {peer}")),
        (17.0, ev.RecoverySeen(0, name, "l1", "diagnosed", "no rank has stepped", "hang", decided=decided)),
    )
    run = made.run
    write(run, 0, 0, f"step 19\n{peer}\n")
    write(run, 0, 3, "step 19\n")
    view = made.view()
    root = find_root(run, view)
    assert root is not None and (root.place, root.rank) == ("train.py:25", 3), "the file is not found"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "train.py").write_text("")
    stack = run.attempts / name / "evidence" / "l1" / "rank-3.stack.txt"
    stack.parent.mkdir(parents=True)
    stack.write_text(f"Process 7: python {tmp_path}/w/train.py\n")
    root = find_root(run, view)
    assert root is not None and root.place == f"{tmp_path}/w/train.py:25"
    assert not any(plain(drawn(one, root, 1)).startswith(">>") for one in Follower(run, view).more())
    assert f"  root line {tmp_path}/w/train.py:25\n" in CliRunner().invoke(app, ["explain", str(run.path)]).stdout
    said = CliRunner().invoke(app, ["logs", str(run.path)])
    assert f"root cause: {tmp_path}/w/train.py:25 (rank 3 hung there: `transom explain {run.run_id}`)\n" in said.stderr
    assert ">>" not in said.stdout


def test_without_output_the_state_of_the_run_says_why(tmp_path: Path) -> None:
    run = RunDir(tmp_path / SCENES["preflight"](tmp_path).run_id)

    def logs(*words: str) -> Result:
        return CliRunner().invoke(app, ["logs", str(run.path), *words])

    for words in ((), ("--rank", "3")):
        error = logs(*words).exception
        assert isinstance(error, TransomError) and error.why.startswith("its state is preflight: 12 of 64 nodes")
    write(run, 0, 0, "hello\n")
    assert "hello" in logs().stdout
    error = logs("--rank", "3", "--follow").exception
    assert isinstance(error, UsageError) and error.what.endswith("has no output of rank 3")


def test_run_that_ended_without_output_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path / SCENES["done"](tmp_path).run_id)
    done = CliRunner().invoke(app, ["logs", str(run.path), "--follow"])
    assert done.exit_code == 0 and done.stderr == f"the ranks of run {run.run_id} printed nothing\n"


@pytest.mark.parametrize("text", ["\x1b[2Jx\n", "\xff\x00bad\n", "99:99:99 no time\n"])
def test_hostile_output_is_printed_safely(tmp_path: Path, text: str) -> None:
    made = Made(tmp_path).began()
    write(made.run, 0, 0, text)
    (one,) = Follower(made.run, made.view()).more()
    assert plain(drawn(one, None, 1)).isprintable()


def test_root_line_shows_as_soon_as_the_programs_own_error_is_known(tmp_path: Path) -> None:
    made = Made(tmp_path, settings="steps = 100\n", rules=(CRASH_LOOP,)).began(0.05)
    _key_error(made, 1, 60.0)
    made.seen((57.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "examined", f"rank-3.log: {KEY_ERROR}")))
    path = write(made.run, 0, 3, f"step 7\n{KEY_ERROR}\n")
    view = made.beats(6).operator().view()
    assert (view.status, view.root_line) == ("recovering", f"{path}:2")
    assert ("root cause", view.root_line) in next_commands(view)
