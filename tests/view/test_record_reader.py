"""Accounts of runs that a real Slurm has run, as their journals lie in `recorded/`; and how they are shown."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core.goodput import NS, Account, Category, Cause, Kind, Span, Sums
from transom_cli.core.goodput.model import How
from transom_cli.layout import RunDir
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.view.goodput import goodput_document, goodput_lines, percent, summary

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.name for path in RECORDED.iterdir())


def read(name: str) -> Account:
    return read_run_record(RunDir(RECORDED / name), now=2e9).account


def kinds(account: Account) -> list[tuple[str, str]]:
    return [(span.kind.value, span.cause) for span in account.spans]


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_the_wall_time(name: str) -> None:
    found = read(name)
    assert found.over and found.whole.wall == found.until - found.begin
    told = goodput_document(name, found)
    assert sum(s["end_ns"] - s["begin_ns"] for s in told["spans"]) == found.whole.wall
    assert json.loads(json.dumps(told)) == told


def test_a_node_that_died() -> None:
    found = read("node_killed")
    assert kinds(found)[4:11] == [
        ("restart", "start"),
        ("productive", ""),
        ("detection", "i1"),
        ("restart", "i1"),
        ("queue", "i1"),
        ("restart", "i1"),
        ("preflight", "i1"),
    ]
    detection = next(span for span in found.spans if span.kind is Kind.DETECTION)
    assert detection.length / NS == pytest.approx(5.6, abs=0.1)  # its journal says: no step for 5.6 s
    assert found.by_cause[0][0] == Cause(
        "i1", "slurm_node_fail", found.by_cause[0][0].at, step=20, lost=0, how=How.RESTART
    )


def test_a_rank_that_was_relaunched_costs_less_than_a_second() -> None:
    cause, sums = read("rank_killed").by_cause[-1]
    assert cause.key == "i1" and 0 < sums.wall < NS


def test_what_ends_for_good_is_no_productive_time() -> None:
    whole = read("user_error").whole
    assert whole.goodput == 0.0 and whole.ns[Kind.UNSEEN] < NS


def test_without_any_launcher_file_the_operator_alone_tells(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "node_killed", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "attempts")
    found, whole = read_run_record(RunDir(tmp_path / "run"), now=2e9).account, read("node_killed")
    assert [kind for kind, _ in kinds(found) if kind == "detection"] == ["detection"]
    assert found.whole.ns[Kind.PREFLIGHT] == 0  # nobody else tells of it
    assert found.whole.ns[Kind.PRODUCTIVE] == pytest.approx(whole.whole.ns[Kind.PRODUCTIVE], abs=NS // 2)


def test_a_run_that_nobody_operates_goes_on_being_accounted(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "rank_killed", tmp_path / "run")
    journal = tmp_path / "run" / "operator.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:4]) + '{"torn')
    (tmp_path / "run" / "attempts" / "12.0" / "outcome.json").write_text("[]")
    book = read_run_record(RunDir(tmp_path / "run"), now=1795340635.0)
    assert not book.account.over and book.account.until == 1795340635 * NS
    assert [one.attempt for one in book.launchers] == ["12.0"]


@pytest.mark.parametrize("saved", [False, True])
def test_repeated_steps_count_once_unless_the_trainer_saves_by_itself(tmp_path: Path, saved: bool) -> None:
    shutil.copytree(RECORDED / "rank_killed", tmp_path / "run")
    run, work = RunDir(tmp_path / "run"), tmp_path / "work"
    journal = [line for line in run.journal.read_text().splitlines() if '"CheckpointSeen"' not in line]
    run.journal.write_text("\n".join(journal) + "\n")
    told = [(0, 28.3, 2), (0, 29.9, 16), (1, 30.8, 2), (1, 34.4, 44)]
    lines = [{"wall": 1795340600 + at, "launch": n, "step": step, "since_start": True} for n, at, step in told]
    (run.attempts / "12.0" / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    work.mkdir()
    run.submission.write_text(json.dumps({"chdir": str(work)}))
    run.script.write_text("srun python train.py\n")
    run.settings.touch()
    if saved:
        (work / "ckpt_10.pt").touch()
    book = read_run_record(run, now=2e9)
    shown = " ".join(goodput_lines("demo", book.account))
    assert book.history.from_zero is not saved and (book.account.whole.ns[Kind.REDONE] > 0) is not saved
    assert ("no checkpoint is known" in shown) is not saved


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_slurm_source(name: str, width: int) -> None:
    told = goodput_lines("run-20261122-094316-f2de", read(name), width)
    assert max(map(len, told)) <= width
    assert not any(line != line.rstrip() for line in told)


def test_where_it_is_narrow_the_id_does_not_cost_the_figure() -> None:
    first, second, *_ = goodput_lines("run-20261122-094316-f2de", read("time_limit"), 40)
    assert first == "run-20261122-094316-f2de" and second.split()[0] == "goodput" and "%" in second


def test_the_screen() -> None:
    told = goodput_lines("demo", read("time_limit"), 80)
    assert told[0] == "demo  goodput 51.0%  of 35 s from submission to end"
    assert "restart          12 s    34.0%  first sign to next step; start of the run" in told
    assert not any(line.endswith("...") for line in told)
    assert (
        told[-3].split()[:3] == ["i1", "11", "s"]
        and told[-2].strip() == "slurm_time_limit, new attempt, 1 step repeated"
    )
    assert summary(read("time_limit")) == "51.0% of 35 s; lost: restart 8.3 s, start 3.5 s"
    assert summary(read("user_error")) == ""


def test_many_incidents_are_put_together_by_category() -> None:
    sums = Sums({**dict.fromkeys(Kind, 0), Kind.RESTART: 60 * NS})
    causes = tuple((Cause(f"i{n}", "nccl_hang"), sums) for n in range(1, 21))
    attempts = tuple((f"7.{n}", sums) for n in range(20))
    together = Sums({**dict.fromkeys(Kind, 0), Kind.RESTART: 1200 * NS})
    account = Account(
        0, 1200 * NS, True, True, (), (), together, attempts, causes, (Category("nccl_hang", 20, together),)
    )
    told = goodput_lines("r", account)
    assert "   20         20m 00s   100.0%  hang: restart 20m 00s" in told
    assert "15 earlier, not shown (--json has them)" in told and "15 cheaper, not shown (--json has them)" in told
    assert [line.split()[0] for line in told if line.startswith("7.")] == ["7.15", "7.16", "7.17", "7.18", "7.19"]
    assert len(told) < 40


def test_what_comes_from_outside_is_cleaned() -> None:
    sums = Sums({**dict.fromkeys(Kind, 0), Kind.RESTART: NS})
    cause = Cause("i1", "bad\x1b[2J\nname", 0)
    account = Account(0, NS, False, True, (Span(0, NS, Kind.RESTART),), (cause,), sums, (), ((cause, sums),), ())
    assert all(line.isprintable() for line in goodput_lines("r", account, 200))


@settings(max_examples=300)
@given(st.integers(0, 10**15), st.integers(1, 10**15))
def test_a_share_that_is_not_whole_never_reads_so(part: int, rest: int) -> None:
    share = part / (part + rest)
    assert re.fullmatch(r"\d{1,2}\.\d%|< 0.1%", percent(share)) and (percent(share) == "0.0%") == (share == 0)
    assert percent(1.0) == "100.0%" and percent(None) == "-"
