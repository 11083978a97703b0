"""The agent's findings file: bounded, whatever ranks print, and gone on with by the next agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from transom_cli.health.finding import Reported, Verdict
from transom_cli.supervise.agent import findings as module
from transom_cli.supervise.agent.findings import A_MINUTE, AGAIN, Findings

M = Verdict.MONITOR


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n1.jsonl"


def test_a_record_and_who_may_read_it(path: Path) -> None:
    Findings(path).report("log:user", M, 'ValueError: "mine"', 3, 1)
    (record,) = read(path)
    assert record.pop("wall") > 1.7e9
    assert record == {
        "schema": 1, "kind": "log:user", "verdict": "monitor", "words": 'ValueError: "mine"', "rank": 3, "launch": 1,
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_differs_in_numbers_alone_is_not_told_again_for_a_while(path: Path) -> None:
    clock = Clock()
    findings = Findings(path, clock)
    for step in range(50):
        findings.report("log:storage", M, f"write of part {step} failed at 0x{step:x}", 0, 0)
    findings.report("log:storage", M, "write of part 7 failed at 0x7", 1, 0)  # another rank
    findings.report("log:storage", M, "write of part 7 failed at 0x7", 0, 1)  # another launch
    assert len(read(path)) == 3
    clock.now += AGAIN
    findings.report("log:storage", M, "write of part 99 failed at 0x0", 0, 0)
    assert len(read(path)) == 4


def test_a_states_edges_are_all_told(path: Path) -> None:
    findings = Findings(path)
    for verdict in (M, Verdict.PASS, M, Verdict.PASS):
        findings.report("host:memory", verdict, "3 % left", None, 0, always=True)
    assert [r["verdict"] for r in read(path)] == ["monitor", "pass", "monitor", "pass"]


def test_a_flood_is_told_of_in_a_number(path: Path) -> None:
    clock = Clock()
    findings = Findings(path, clock)
    for n in range(A_MINUTE + 40):
        findings.report("log:user", M, "ValueError: " + "x" * n, 0, 0)
    assert len(read(path)) == A_MINUTE
    clock.now += 61
    findings.report("log:user", M, "KeyError: 'later'", 0, 0)
    assert read(path)[-1]["skipped"] == 40
    assert "skipped" not in read(path)[0]


def test_the_file_does_not_grow_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 2000)
    monkeypatch.setattr(module, "A_MINUTE", 1000)
    findings = Findings(path)
    for n in range(100):
        findings.report("log:user", M, "ValueError: " + "x" * n, 0, 0)
    size = path.stat().st_size
    assert size < 2600
    assert [r["kind"] for r in read(path)].count("full") == 1 and read(path)[-1]["kind"] == "full"
    Findings(path).report("log:user", M, "of the next agent", 0, 0)
    assert path.stat().st_size == size


def test_the_next_agent_goes_on_where_the_last_one_ended(path: Path) -> None:
    first = Findings(path)
    first.report("host:memory", M, "3 % left", None, 0, always=True)
    first.report("log:user", M, "ValueError: mine", 2, 0)
    with path.open("a") as f:
        f.write('{"schema": 1, "wall": 17')  # killed in the middle of a line
    again = Findings(path)
    assert again.reported == {"memory": Reported(M)}
    again.report("log:user", M, "ValueError: mine", 2, 0)
    assert path.read_text().count("ValueError") == 1
    again.report("log:user", M, "KeyError: 'x'", 2, 0)
    assert json.loads(path.read_text().splitlines()[-1])["words"] == "KeyError: 'x'", "on a line of its own"


def test_what_could_not_be_written_is_still_news(path: Path) -> None:
    path.mkdir()
    findings = Findings(path)
    with pytest.raises(OSError):
        findings.report("log:user", M, "ValueError: mine", 2, 0)
    path.rmdir()
    findings.report("log:user", M, "ValueError: mine", 2, 0)
    assert len(read(path)) == 1
