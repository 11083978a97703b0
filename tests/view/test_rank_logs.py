"""`transom logs`: the logs of all ranks as one stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from view_made import JOB, Made, names

from transom_cli.cli.logs import logs as command
from transom_cli.core import events as ev
from transom_cli.errors import TransomError, UsageError
from transom_cli.layout import AttemptDir
from transom_cli.view.rank_logs import LogLine, RankLogs, Selection, drawn, follow, newest_with_logs, ranks_of
from transom_cli.view.text import plain

ERROR = "KeyError: 'learning_rate'"


def write(attempt: AttemptDir, launch: int, rank: int, *lines: str, end: str = "\n") -> None:
    attempt.logs(launch).mkdir(parents=True, exist_ok=True)
    with (attempt.logs(launch) / f"rank-{rank}.log").open("a") as file:
        file.write("\n".join(lines) + end)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    made = AttemptDir(tmp_path / "attempts" / f"{JOB}.0")
    write(made, 0, 0, "2026-11-22 07:00:01 step 1", "2026-11-22 07:00:05 step 2", "Traceback", ERROR)
    write(made, 0, 1, "2026-11-22 07:00:02 step 1", "2026-11-22 07:00:04 step 2")
    write(made, 1, 0, "2026-11-22 07:01:00 step 1")
    return made


def texts(lines: list[LogLine]) -> list[str]:
    return [f"{one.launch}/{one.rank} {one.text.removeprefix('2026-11-22 ')}" for one in lines]


def test_lines_of_all_ranks_are_merged_by_their_time_and_a_traceback_stays_together(attempt: AttemptDir) -> None:
    assert texts(RankLogs(attempt, Selection()).read()) == [
        "0/0 07:00:01 step 1",
        "0/1 07:00:02 step 1",
        "0/1 07:00:04 step 2",
        "0/0 07:00:05 step 2",
        "0/0 Traceback",
        f"0/0 {ERROR}",
        "1/0 07:01:00 step 1",
    ]


def test_the_root_line_is_marked_and_launches_are_separated(attempt: AttemptDir) -> None:
    lines = [plain(one) for one in drawn(RankLogs(attempt, Selection()).read(), ERROR)]
    assert [one for one in lines if one.startswith(">")] == [f"> 0 {ERROR}"] and "--- launch 1" in lines


def test_a_selection_is_by_rank_and_by_time(attempt: AttemptDir) -> None:
    assert {one.rank for one in RankLogs(attempt, Selection({1})).read()} == {1}
    every = RankLogs(attempt, Selection()).read()
    newest = RankLogs(attempt, Selection(since=every[-1].at)).read()
    assert texts(newest) == ["1/0 07:01:00 step 1"]


def test_following_shows_what_is_added_and_ends_with_the_run(attempt: AttemptDir) -> None:
    shown: list[str] = []
    looks = iter((False, False, True))

    def over() -> bool:
        ended = next(looks)
        if shown:
            write(attempt, 1, 0, " more" if ended else "half a line", end="" if not ended else "\n")
        return ended

    follow(RankLogs(attempt, Selection({0})), over, lambda lines: shown.extend(one.text for one in lines))
    assert shown[-1] == "half a line more" and shown.count("Traceback") == 1


def test_ranks_of_a_node_are_known_from_heartbeats(tmp_path: Path) -> None:
    made = Made(tmp_path, nodes=2).began().beats(ranks=2)
    assert ranks_of(made.run.attempt(JOB, 0), names(2)[1]) == {2, 3}


def test_the_newest_attempt_counts_by_number(attempt: AttemptDir) -> None:
    write(AttemptDir(attempt.path.with_name(f"{JOB}.10")), 0, 0, "x")
    write(AttemptDir(attempt.path.with_name(f"{JOB}.9")), 0, 0, "x")
    newest = newest_with_logs(attempt.path.parent)
    assert newest is not None and newest.name == f"{JOB}.10"


def test_the_command_prints_the_failed_ranks_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(tmp_path).began()
    with pytest.raises(TransomError, match="has no output of a rank yet"):
        command(str(made.run.path))
    write(made.run.attempt(JOB, 0), 0, 3, "begin", ERROR)
    exits = (ev.RankExit(3, "gpu000", 1, None, step=7),)
    made.seen((9.0, ev.OutcomeSeen(0, f"{JOB}.0", "failed", "rank 3 failed", exits, nodes=made.nodes)))
    made.seen((8.0, ev.Examined(0, "i1/examine", "user", ERROR, "rank-3.log")))
    command(str(made.run.path), rank=[3])
    assert capsys.readouterr().out.splitlines() == ["  3 begin", f"> 3 {ERROR}"]
    with pytest.raises(UsageError, match="no log of rank 5"):
        command(str(made.run.path), rank=[5])
