"""What is read of a run's files: findings, examinations, losses; what is torn or of another version is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report_parsed import Page
from view_made import JOB, NOW, Made

from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps, encode
from transom_cli.layout import RunDir
from transom_cli.view import read_history as gathering
from transom_cli.view.read_history import read_report


def made(folder: Path) -> Made:
    return Made(folder, nodes=3).began(1.0).stepped().operator()


def test_the_newest_loss_of_the_lowest_rank_of_the_newest_launch(tmp_path: Path) -> None:
    one = made(tmp_path).found("gpu000", "k", "pass", "well")
    attempt = one.run.attempt(JOB, 0)
    for node, ranks in (("gpu000", [(0, 0, 9.0), (1, 1, 2.0)]), ("gpu001", [(2, 1, 3.0)])):
        told = tuple(RankSteps(rank, launch, 7, 0.0, loss_step=7, loss=loss) for rank, launch, loss in ranks)
        attempt.spent(node).write_text(encode(NodeSteps(node, attempt.name, told)))
    attempt.spent("gpu002").write_text("{")
    last = read_report(one.run).last
    assert [(loss.launch, loss.step, loss.loss) for loss in last] == [(1, 7, 2.0)]


def test_losses_over_time_are_drawn_where_progress_has_them(tmp_path: Path, reported: Callable[[RunDir], str]) -> None:
    one = made(tmp_path)
    attempt = one.run.attempt(JOB, 0)
    attempt.path.mkdir(parents=True)
    lines = [{"wall": NOW - 900 + 60 * n, "launch": 0, "step": 100 * n, "loss": 3.0 - n / 10} for n in range(10)]
    odd = [{"wall": NOW, "launch": 0, "step": 1, "loss": "nan"}, {"wall": "x", "launch": 0, "step": 1, "loss": 1.0}]
    attempt.progress.write_text("".join(json.dumps(line) + "\n" for line in (*lines, *odd)) + '{"wall": 1, "lo')
    assert len(read_report(one.run).losses) == 10
    assert "As reported by the trainer." in Page(reported(one.run)).texts


def test_what_was_found_more_than_once_is_counted(tmp_path: Path, reported: Callable[[RunDir], str]) -> None:
    one = made(tmp_path)
    for _ in range(3):
        one.found("gpu001", "host:ecc", "fail", "GPU 3 has 14 uncorrected ECC errors")
    one.found("gpu002", "host:ecc", "fail", "GPU 3 has 14 uncorrected ECC errors").found(
        "gpu000", "host:x", "pass", "w"
    )
    assert [(f.node, f.times) for f in read_report(one.run).found] == [("gpu001", 3), ("gpu002", 1)]
    texts = Page(reported(one.run)).texts
    at = texts.index("gpu001, gpu002")
    assert texts[at - 2 : at] == ["fail", "host:ecc"] and texts[at + 2] == "4"


def test_examinations_are_told_once_for_nodes_and_checks_that_say_the_same(
    tmp_path: Path, reported: Callable[[RunDir], str]
) -> None:
    one = made(tmp_path)
    attempt = one.run.attempt(JOB, 0)
    attempt.health.mkdir(parents=True)
    told = [
        {"node": node, "check": check, "verdict": "unknown", "evidence": "not tried"}
        for node in ("gpu001", "gpu000")
        for check in ("link", "link_all")
    ]
    told += [{"node": "gpu000", "check": "facts", "verdict": "pass", "evidence": "python 3.11.7"}, "odd"]
    told += [{"node": "gpu000", "check": "load", "verdict": "pass", "evidence": "fine"}]
    (attempt.health / "preflight.json").write_text(json.dumps({"findings": told}))
    (attempt.health / "i1.json").write_text("[1]")
    texts = Page(reported(one.run)).texts
    at = texts.index("link, link_all")
    assert texts[at - 1 : at + 3] == ["unknown", "link, link_all", "gpu000, gpu001", "not tried"]
    assert "python 3.11.7" in texts and "fine" not in texts


def test_files_that_are_not_read_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Callable[[RunDir], str]
) -> None:
    one = made(tmp_path)
    for node in one.nodes:
        one.found(node, "host:x", "fail", f"{node} is bad")
    monkeypatch.setattr(gathering, "FILES", 2)
    found = read_report(one.run)
    assert [f.node for f in found.found] == ["gpu000", "gpu001"]
    assert "Findings come from the newest 2 files" in Page(reported(one.run)).text


def test_settings_that_cannot_be_understood(tmp_path: Path, reported: Callable[[RunDir], str]) -> None:
    one = made(tmp_path)
    one.run.settings.write_text("steps = [")
    assert "Settings: not recorded. Cannot parse run.toml: " in Page(reported(one.run)).text


def test_a_run_of_which_nothing_was_written_yet(tmp_path: Path, reported: Callable[[RunDir], str]) -> None:
    assert "No incident so far." in Page(reported(Made(tmp_path).run)).texts


def test_gpus_of_a_run_that_lives_stand_beside_its_nodes(tmp_path: Path, reported: Callable[[RunDir], str]) -> None:
    one = made(tmp_path).beats()
    assert "worst GPU" not in Page(reported(one.run)).texts
    texts = Page(reported(one.gpus({"gpu001": {3: {"reasons": 0x40}}}).run)).texts
    assert "worst GPU" in texts
    assert texts[texts.index("gpu3 throttled") - 1] == "8/8"
