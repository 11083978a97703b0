"""`every="auto"` in one process: what is measured and when it counts, and what a trainer sees."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from ckpt_made import names_in

from transom_cli.ckpt import checkpointer
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.options import PersistRule
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.schedule.cadence import START, Cadence, Measured, StepTimer
from transom_cli.ckpt.schedule.failure_rate import Failures
from transom_cli.ckpt.schedule.schedule import LOOK, Agreement, Auto, Every, RankReport, _packed
from transom_cli.errors import UsageError


class Hourly(Failures):
    def mean(self, since: float) -> float:
        return 3600.0


class Trainer:
    """One rank on a clock of its own, with a save that is written at once and a failure every hour."""

    def __init__(self) -> None:
        self.now, self.step, self.saves, self.said = 0.0, 0, [], []
        self.auto = Auto(0.01, Hourly(1), Ranks(), self.said.append, lambda: self.now)

    def train(self, steps: int, *, seconds: float = 1.0, stall: float | None = 0.1, force: int = -1) -> list[int]:
        """Train so many steps; returns those that were scheduled and saved."""
        before = len(self.saves)
        for _ in range(steps):
            self.now += seconds
            self.step += 1
            due = self.auto.due(self.step)
            if due:
                self.saves.append(self.step)
            if due or self.step == force:
                self.now += stall or 0.0
                meeting = self.auto.copied(self.step, stall, False)
                self.auto.agree(meeting, Ranks())
                meeting.end()
            self.auto.resume(False)
        return self.saves[before:]


def test_it_saves_early_measures_and_then_keeps_its_distance():
    trainer = Trainer()
    assert trainer.train(200) == [START, START + LOOK, 47, 74, 101, 128, 155, 182], "27: sqrt(2 x 0.1 x 3600)"
    assert trainer.said == [
        "saves every 27 steps: a save costs 0.1 s (stalls 0.1 s, slows steps by 0 s in all), and a failure comes every "
        "60 min: least time lost to both"
    ]


def test_slow_first_save_delays_only_the_second():
    trainer = Trainer()
    trainer.train(START, stall=2.0)
    assert trainer.train(400) == [210, 237, 264, 291, 318, 345, 372, 399], "2 s / 1 %, then Young's 27"


def test_forced_and_failed_saves_do_not_change_the_interval():
    trainer = Trainer()
    trainer.train(60)
    assert trainer.train(40, force=70) == [74]
    assert trainer.train(60, stall=None) == [101, 128, 155]
    assert trainer.auto.every == 27


def test_interval_restarts_after_a_restore_or_a_step_back():
    trainer = Trainer()
    trainer.auto.at(1000)
    trainer.step = 1000
    assert trainer.train(21) == [1010, 1020]
    trainer.step = 500
    assert trainer.train(60)[:2] == [527, 554]


def test_it_counts_calls_that_come_every_fifth_step_only():
    trainer = Trainer()
    saved = []
    for step in range(5, 200, 5):
        trainer.now, trainer.step = trainer.now + 4.0, step - 1
        saved += trainer.train(1)
    assert saved[:5] == [15, 25, 55, 85, 115], "each the first call beyond"


class Others(Ranks):
    """Two ranks, whose reports are given; rank 0 has the cadence."""

    def __init__(self, *reports: RankReport | None) -> None:
        self._reports = reports

    def gather_bytes(self, data: bytes, what: str = "", patience: float | None = None) -> list[bytes]:
        return [_packed(one) for one in self._reports]

    def from_first(self, value: object) -> object:
        return Cadence(0.01, 3600.0)


def test_agreement_needs_all_ranks_at_one_step():
    def report(step: int, stall: float) -> RankReport:
        return RankReport(step, Measured(stall, 1.0), None)

    auto = Auto(0.01, Hourly(1), Ranks(), print)
    for others in (
        Others(report(8, 0.1), report(9, 0.1)),
        Others(report(9, 0.1), None),
        Others(None, report(9, 0.1)),
    ):
        meeting = Agreement(report(9, 0.1))
        auto.agree(meeting, others)
        assert not meeting.settled.done()
        meeting.end()
        assert meeting.settled.result() is None
    meeting = Agreement(report(9, 0.1))
    auto.agree(meeting, Others(report(9, 0.1), report(9, 0.7)))
    meeting.end()
    settled = meeting.settled.result()
    assert settled is not None and settled.steps == 70, "the slowest rank's"
    assert Agreement(None).settled.result() is None, "nothing to wait for"


def test_rank_waits_for_the_agreement_after_ten_steps():
    trainer, due = Trainer(), []
    for step in range(1, START + 1):
        trainer.now += 1.0
        trainer.auto.due(step)
        trainer.auto.resume(False)
    meeting = trainer.auto.copied(START, 0.3, False)
    assert not trainer.auto.due(START + LOOK - 1), "no need to wait yet"
    assert trainer.auto.copied(START + LOOK - 1, 0.3, False).report is None, "out of turn: others may not make that one"
    waiting = threading.Thread(target=lambda: due.append(trainer.auto.due(START + LOOK)), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    trainer.auto.agree(meeting, Ranks())
    waiting.join(30.0)
    assert due == [False] and trainer.auto.every == 30, "0.3 s / 1 %: the save that was due is put off"


def test_failed_save_settles_nothing_and_blocks_no_rank():
    trainer = Trainer()
    trainer.train(START - 1)
    trainer.step += 1
    assert trainer.auto.due(START)
    trainer.auto.copied(START, 0.1, False).end()  # a peer is gone
    assert trainer.train(30)[0] == 2 * START


def test_steps_during_a_write_are_measured_separately():
    watch, now = StepTimer(), 0.0
    assert watch.step is None and watch.slowed is None

    def step(number: int, seconds: float, beside: bool) -> None:
        nonlocal now
        watch.go(now, beside)
        now += seconds
        watch.stop(number, now)

    watch.stop(0, now)
    for number in range(1, 6):
        step(number, 1.0, False)
    watch.saved()
    for number, seconds in ((6, 1.5), (7, 1.5), (8, 90.0)):
        step(number, seconds, True)
    step(10, 3.0, True)  # two steps in one call
    assert watch.slowed == pytest.approx(0.5 + 0.5 + 3.0 + 1.0), "an evaluation counts for four steps at most"
    step(10, 5.0, False)
    step(3, 5.0, False)
    assert watch.step == pytest.approx(1.0)


def test_trainer_with_automatic_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    beats = []
    monkeypatch.setattr(checkpointer, "beat", lambda step, loss=None: beats.append((step, loss)))
    state = {"w": torch.zeros(3)}
    ck = Checkpointer(state, tmp_path, every="auto", keep=99)
    assert ck.restore() is None and ck.every == START
    assert [step for step in range(1, 11) if ck.step(step, step / 2)] == [10]
    assert beats == [(step, step / 2) for step in range(1, 11)]
    assert ck.save(11, force=True)
    ck.close(strict=True)
    again = Checkpointer(state, tmp_path, every="auto", overhead=0.5, keep=99)
    assert again.restore() == 11
    assert [step for step in range(12, 22) if again.step(step)] == [21], "ten after the restored one"
    again.close(strict=True)
    assert names_in(tmp_path) == ["step-10", "step-11", "step-21"]
    assert "saves every" not in capsys.readouterr().err, "settled at the second look, which did not come"


def test_it_measures_the_copy_and_the_write_of_real_saves(tmp_path: Path, capsys):
    class Slow:
        def state_dict(self) -> dict[str, int]:
            time.sleep(0.05)
            return {"n": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    ck = Checkpointer({"slow": Slow()}, tmp_path, every="auto", overhead=0.5)
    step, saved = 0, []
    while not saved[1:] or step < saved[1] + LOOK:
        step += 1
        time.sleep(0.001)
        if saved and step == saved[-1] + LOOK - 2:  # a busy machine may take long, and what was measured is read soon
            while f"step-{saved[-1]}" not in names_in(tmp_path):
                time.sleep(0.01)
        if ck.step(step):
            saved.append(step)
    ck.close(strict=True)
    cadence = ck._schedule._cadence  # type: ignore[attr-defined]
    assert saved[0] == START and cadence.saves == 2
    assert cadence.stalls[0] >= 0.05 and cadence.step >= 0.001
    assert len(cadence.writes) == len(cadence.slowed) == 1 and cadence.writes[0] > 0
    assert f"transom: saves every {ck.every} steps: a save " in capsys.readouterr().err


def test_multiples_stay_multiples(tmp_path: Path):
    ck = Checkpointer({"n": 1}, tmp_path, every=3, keep=9)
    assert ck.every == 3
    assert [step for step in range(2, 11) if ck.step(step)] == [3, 6, 9]
    ck.close(strict=True)


@pytest.mark.parametrize(
    ("every", "overhead"), [("often", 0.01), (1.5, 0.01), ("auto", 0.0), ("auto", float("nan")), (3, 1)]
)
def test_invalid_arguments_are_refused(every, overhead, tmp_path: Path):
    with pytest.raises(UsageError, match="must be"):
        Checkpointer({"n": 1}, tmp_path, every=every, overhead=overhead)


def test_announced_next_save_is_the_one_that_is_made():
    trainer = Trainer()
    changes: list[tuple[int, int]] = []
    assert trainer.auto.next(0) == START
    told = []
    for _ in range(200):
        ahead = trainer.auto.next(trainer.step)
        if trainer.train(1):
            told.append((trainer.step, ahead))
        if trainer.auto.take_change():
            changes.append((trainer.step, trainer.auto.next(trainer.step)))
    assert [made for made, _ in told] == [START, START + LOOK, 47, 74, 101, 128, 155, 182]
    assert all(made == ahead for made, ahead in told)
    assert changes == [(START + 2 * LOOK, 47)], "told anew when it is found"


def test_fixed_interval_saves_at_multiples():
    every = Every(40)
    assert [every.next(done) for done in (-1, 0, 39, 40, 41)] == [0, 40, 40, 80, 80]


def test_number_of_saves_until_one_is_durable():
    now = [0.0]
    tenth, minutes, best = PersistRule(10), PersistRule("10m", lambda: now[0]), PersistRule("auto")
    assert (tenth.left(1), minutes.left(1), best.left(4)) == ((10, 0.0), (None, 600.0), (4, 0.0))
    for rule in (tenth, minutes, best):
        assert rule.due(False, 4) is False
    now[0] = 200.0
    assert (tenth.left(1), minutes.left(1), best.left(4)) == ((9, 0.0), (None, 400.0), (3, 0.0))
    for rule in (tenth, minutes, best):
        rule.hurry()
    assert (tenth.left(1), minutes.left(1), best.left(4)) == ((1, 0.0), (None, 0.0), (1, 0.0))
    assert tenth.due(False, 4) and tenth.left(1) == (10, 0.0)
