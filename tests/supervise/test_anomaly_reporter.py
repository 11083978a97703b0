"""What the launcher tells of a slow training and of a loss that goes wrong, from real files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from slow_training import Fault, Training

from transom_cli.ckpt.tiers.marks import is_automatic, is_kept, keep
from transom_cli.core.bad_loss import BadLoss
from transom_cli.core.launcher import AnomalyReported
from transom_cli.diagnose.clue import Slow
from transom_cli.heartbeat import account
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps, decode
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.agent.step_breakdown import StepBreakdown
from transom_cli.supervise.attempt_files import read_bad_loss, read_reports
from transom_cli.supervise.launcher.anomalies import AnomalyReporter, hottest


class Told:
    """A reporter, and what it put into the journal."""

    def __init__(self, tmp_path: Path, restart: int = 0, before: Sequence[AttemptDir] = ()) -> None:
        self.attempt: AttemptDir = RunDir(tmp_path).attempt(1, restart)
        self.attempt.nodes.mkdir(parents=True)
        self.lines: list[dict[str, Any]] = []
        self.heard: list[AnomalyReported] = []
        self.checkpoints = tmp_path / "checkpoints"
        self.reporter = AnomalyReporter(self.attempt, self.checkpoints, self.journal, self.heard.append, before=before)

    def journal(self, kind: str, **fields: Any) -> None:
        self.lines.append({"type": kind, **fields})

    def losses(self, losses: list[float], launch: int = 0, first: int = 0) -> None:
        for step, loss in enumerate(losses, first):
            rank = RankSteps(3, launch, step, float(step), loss_step=step, loss=loss)
            self.reporter.look({"n1": NodeSteps("n1", self.attempt.name, (rank,))})

    @property
    def edges(self) -> list[tuple[str, bool]]:
        return [(line["what"], line["over"]) for line in self.lines]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_a_loss_that_is_not_a_number_is_told_once_with_a_clue(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    told.losses([2.0] * 20 + [math.nan] * 10)
    assert told.edges == [("nan_loss", False)]
    assert told.lines[0]["clue"]["source"] == "loss"
    said = read_reports(told.attempt)
    (one,) = said["standing"]
    assert one["words"] == "the loss is NaN since step 20; last good at step 19"
    assert one["clue"]["category"] == "numeric_divergence"
    assert f"transom: step 22: {one['words']}" in capsys.readouterr().out
    told.losses([2.0] * 5, launch=1)
    assert told.edges[1:] == [("nan_loss", True)]
    assert read_reports(told.attempt)["standing"] == []


def test_the_core_hears_of_a_loss_with_the_checkpoint_to_go_back_to(told: Told) -> None:
    for step in (5, 15, 18, 19, 25):
        (told.checkpoints / f"step-{step}").mkdir(parents=True)
        (told.checkpoints / f"step-{step}/manifest.json").touch()
    (told.checkpoints / "step-18/manifest.json").unlink()
    told.losses([2.0] * 20 + [math.nan] * 10)
    (one,) = told.heard
    assert (one.launch, one.what, one.step, one.before, one.back_to) == (0, "nan_loss", 22, 18, 15)
    assert told.lines[0]["good"] == 15
    told.losses([math.nan] * 3, launch=1)  # not one good sample between: it is told anew all the same
    over, again = told.heard[1:]
    assert (over.over, over.key, again.over, again.launch) == (True, one.key, False, 1)
    assert (again.before, again.back_to) == (-1, -1)


def test_last_checkpoint_before_a_loss_that_is_no_number_is_not_deleted(told: Told) -> None:
    for step in (5, 15, 25):
        (told.checkpoints / f"step-{step}").mkdir(parents=True)
        (told.checkpoints / f"step-{step}/manifest.json").touch()

    def kept() -> list[int]:
        return [step for step in (5, 15, 25) if is_kept(told.checkpoints / f"step-{step}")]

    told.losses([2.0] * 20 + [math.nan] * 10)
    assert kept() == [15]
    (one,) = read_reports(told.attempt)["standing"]
    assert one["words"].endswith("last good at step 19; step-15 is kept")
    told.losses([2.0] * 60)
    assert told.edges[-1] == ("nan_loss", True) and kept() == [], "the loss is good again"
    told.losses([2.0] * 20 + [math.nan])
    assert kept() == [15], "before the third one: with fast saves it would be gone by then"


def test_checkpoint_that_a_person_keeps_stays_so(told: Told) -> None:
    there = told.checkpoints / "step-15"
    there.mkdir(parents=True)
    (there / "manifest.json").touch()
    keep(there)
    told.losses([2.0] * 20 + [math.nan] * 10)
    told.losses([2.0] * 60)
    assert is_kept(there)


def published(checkpoints: Path, *steps: int) -> None:
    for step in steps:
        (checkpoints / f"step-{step}").mkdir(parents=True)
        (checkpoints / f"step-{step}/manifest.json").touch()


def test_next_launcher_removes_the_mark_of_the_one_before_once_the_loss_is_good_beyond_it(
    told: Told, tmp_path: Path
) -> None:
    published(told.checkpoints, 5, 15, 25)
    told.losses([2.0] * 20 + [math.nan] * 10)
    keep(told.checkpoints / "step-5")
    later = Told(tmp_path, restart=1, before=[told.attempt])
    later.losses([math.nan] * 3, first=26)
    assert is_automatic(told.checkpoints / "step-15"), "the loss is still bad"
    later.losses([2.0] * 3, launch=1, first=13)
    assert is_kept(told.checkpoints / "step-15"), "step 15 is not beyond it"
    later.losses([2.0], launch=1, first=16)
    assert [is_kept(told.checkpoints / f"step-{step}") for step in (5, 15, 25)] == [True, False, False]


def test_mark_that_a_person_set_in_place_of_transoms_own_stays(told: Told, tmp_path: Path) -> None:
    published(told.checkpoints, 15)
    told.losses([2.0] * 20 + [math.nan] * 10)
    keep(told.checkpoints / "step-15")
    assert not is_automatic(told.checkpoints / "step-15")
    Told(tmp_path, restart=1, before=[told.attempt]).losses([2.0] * 60)
    assert is_kept(told.checkpoints / "step-15")


def test_checkpoint_that_is_kept_has_a_good_loss_after_it(told: Told) -> None:
    """The update of step 19 may have made the weights NaN, which the loss of step 20 shows first."""
    published(told.checkpoints, 10, 19)
    told.losses([2.0] * 20 + [math.nan])
    assert [is_kept(told.checkpoints / f"step-{step}") for step in (10, 19)] == [True, False]


def test_bad_loss_is_written_down_at_its_first_sample_until_a_loss_is_good(told: Told, tmp_path: Path) -> None:
    told.losses([2.0] * 20 + [math.nan])
    assert read_bad_loss(told.attempt) == BadLoss(20, 19)
    told.losses([math.nan] * 9, launch=1, first=25)
    assert read_bad_loss(told.attempt) == BadLoss(20, 19)
    later = Told(tmp_path, restart=1, before=[told.attempt])
    later.losses([math.inf], first=31)
    assert read_bad_loss(later.attempt) == BadLoss(20, 19), "the next attempt continued from it"
    later.losses([2.0] * 2, launch=1, first=15)
    assert read_bad_loss(later.attempt) is None
    line = {"wall": 1.0, "launch": 1, "step": 16, "loss": 2.0}
    later.attempt.progress.write_text(json.dumps(line) + "\n")
    last = Told(tmp_path, restart=2, before=[told.attempt, later.attempt])
    last.losses([math.nan], first=21)
    assert read_bad_loss(last.attempt) == BadLoss(21, 16)


def test_good_loss_of_the_attempt_before_proves_the_checkpoint_that_the_next_one_resumed_from(
    told: Told, tmp_path: Path
) -> None:
    line = {"wall": 1.0, "launch": 0, "step": 18, "loss": 2.0}
    told.attempt.progress.write_text(json.dumps(line) + "\n")
    later = Told(tmp_path, restart=1, before=[told.attempt])
    later.losses([math.nan] * 2, first=20)
    assert read_bad_loss(later.attempt) == BadLoss(20, 18)


def test_a_loss_that_was_not_fetched_anew_is_one_sample(told: Told) -> None:
    told.losses([2.0] * 20)
    bad = RankSteps(3, 0, 20, 20.0, loss_step=20, loss=math.nan)
    for _ in range(10):
        told.reporter.look({"n1": NodeSteps("n1", "1.0", (bad,))})
    assert told.edges == []


def test_a_slow_node_with_its_map_and_its_heat(told: Told) -> None:
    hot = {"kind": "host:gpu_heat GPU-1", "words": "software thermal slowdown", "verdict": "monitor"}
    told.attempt.findings("n1").write_text(json.dumps(hot) + "\n{torn")
    training = Training(nodes=2, per_node=2, fault=Fault(Slow.NODE, 700, (2, 3)))
    for _, readings in training.readings(1000):
        told.reporter.look(readings)
    assert told.edges == [("slow_device", False)], "with a word about heat it is the device that is slow"
    (clue,) = (line["clue"] for line in told.lines)
    assert [(r.what, r.nodes) for r in told.heard] == [("slow_device", ("n1",))]
    assert {c["node"] for c in clue["culprits"]} == {"n1"} and clue["evidence"][-1] == "n1: software thermal slowdown"
    said = read_reports(told.attempt)
    assert said["phases"]["ranks"] == 4 and said["lines"][0].startswith("steps ")
    json.dumps(said, allow_nan=False)


def test_words_about_heat() -> None:
    def line(kind: str, words: str, verdict: str) -> str:
        return json.dumps({"kind": kind, "words": words, "verdict": verdict})

    slow, well = line("host:gpu_clocks G", "slow", "suspect"), line("host:gpu_clocks G", "not any more: slow", "pass")
    other = line("host:gpu_ecc G", "errors", "fail")
    assert hottest(f"{slow}\n{other}\n".encode()) == "slow"
    assert hottest(f"{slow}\n{well}\n".encode()) == ""
    assert hottest(f"{other}\n[]\nnull\n\xff".encode("latin-1")) == ""


def test_a_full_disk_is_survived_and_told_later(told: Told) -> None:
    told.attempt.path.chmod(0o500)
    blocked = told.attempt.path / ".reports.json.tmp"
    told.attempt.path.chmod(0o700)
    blocked.mkdir()  # root writes wherever it wants: a folder in the way it cannot
    told.losses([2.0] * 20 + [math.nan] * 5)
    assert told.edges == [("nan_loss", False)] and read_reports(told.attempt) == {}
    blocked.rmdir()
    told.reporter.look({})
    assert len(read_reports(told.attempt)["standing"]) == 1


def test_the_thread_reads_what_agents_write(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a rank's account in its beat file, through the agent's document, to the launcher."""
    monkeypatch.setattr("transom_cli.supervise.agent.step_breakdown.EVERY", 0.0)
    beats = told.attempt.path / "beats"
    beats.mkdir()
    buffer = bytearray(account.SIZE)
    rank = account.Account(buffer, 0)
    rank.enter("data")
    rank.lost(4, 2.5, 0.5, None)
    rank.beat(4, 1_000_000_000)
    (beats / "rank-3").write_bytes(buffer)
    (beats / "rank-4").write_bytes(bytes(rec.SIZE))  # a trainer of before there were accounts
    rows = [RankBeat(r, 0, 4, 5, 0.0, None, "step", 1, "R") for r in (3, 4, 5)]
    StepBreakdown(told.attempt, "n1", str(beats)).look(1.0, rows)
    (told.attempt.nodes / "n2.spent").write_text("{torn")
    (told.attempt.nodes / "n3.spent").write_text(told.attempt.spent("n1").read_text().replace("1.0", "0.0", 1))
    read = told.reporter._read()
    assert list(read) == ["n1"]
    (spent,) = read["n1"].ranks
    assert (spent.rank, spent.step, spent.loss, spent.grad_norm, spent.at) == (3, 4, 2.5, 0.5, 1.0)
    assert spent == decode(told.attempt.spent("n1").read_text()).ranks[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', "\x00"])
def test_reports_that_cannot_be_read_are_none(told: Told, text: str) -> None:
    assert read_reports(told.attempt) == {}
    told.attempt.reports.write_text(text)
    assert read_reports(told.attempt) == {}


def test_a_doubt_of_guards_outlives_the_launcher(told: Told, tmp_path: Path) -> None:
    event = {"kind": "replica", "item": "w", "words": "w differs", "step": 50, "ranks": [1], "clean": 40}
    event |= {"majority": True, "digests": ["a", "b", "a"], "repeat": 0, "equal": []}
    nodes = ("n0", "n1", "n2")

    def ranks(launch: int, placed: tuple[str, ...], **guard: Any) -> dict[str, NodeSteps]:
        return {n: NodeSteps(n, "1.0", (RankSteps(r, launch, 60, 1.0, guard=guard),)) for r, n in enumerate(placed)}

    told.reporter.look(ranks(0, nodes, events=[event]))
    successor = AnomalyReporter(
        RunDir(tmp_path).attempt(1, 1), told.checkpoints, told.journal, told.heard.append, before=[told.attempt]
    )
    successor.look(ranks(0, (*nodes[1:], nodes[0]), repeated={"step": 50, "digest": "a"}))
    assert [(one.what, one.nodes) for one in told.heard] == [
        ("silent_corruption", ("n1",)),
        ("corrupting_node", ("n1",)),
    ]
