"""How a rank's step time splits into phases: the sums, their bytes, and the calls that make them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.heartbeat import STEP_PHASES
from transom_cli.heartbeat import account as ac
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.step_breakdown import BadStepBreakdown, NodeSteps, RankSteps, decode, encode

ROOT = Path(__file__).parents[2]
MS = 1_000_000


class Clock:
    """Stands still but for `pass_`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000 * MS
        monkeypatch.setattr(ac, "monotonic_ns", lambda: self.now)

    def pass_(self, ms: float) -> None:
        self.now += int(ms * MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def read(buffer: bytearray) -> ac.Reading:
    found = ac.newest(bytes(buffer))
    assert found is not None
    return found


def spent(buffer: bytearray) -> dict[str, float]:
    return {name: ns / MS for name, ns in read(buffer).ns.items() if ns}


def test_every_moment_belongs_to_one_phase(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    clock.pass_(1)
    account.enter("data")
    clock.pass_(10)
    account.enter("wait")
    clock.pass_(100)
    account.leave()
    clock.pass_(20)
    account.leave()
    account.enter("my own")
    clock.pass_(5)
    account.leave()
    clock.pass_(2)
    account.beat(7, clock.now)
    assert spent(buffer) == {"other": 3, "data": 30, "wait": 100, "my own": 5}
    found = read(buffer)
    assert (found.step, found.at - found.began) == (7, 138 * MS)


def test_it_is_written_four_times_a_second_at_most_and_within_a_phase_too(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    account.beat(1, clock.now)
    clock.pass_(249)
    account.beat(2, clock.now)
    assert read(buffer).step == 1
    clock.pass_(1)
    account.enter("forward")
    clock.pass_(3)
    account.beat(3, clock.now)
    assert (read(buffer).step, spent(buffer)) == (3, {"other": 250, "forward": 3})


def test_what_is_told_of_the_loss(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    account.beat(1, clock.now)
    assert (read(buffer).loss, read(buffer).loss_step) == (None, -1)
    account.lost(2, rec.NAN_LOSS, 1.5, None)
    clock.pass_(300)
    account.beat(2, clock.now)
    found = read(buffer)
    assert found.loss is not None and math.isnan(found.loss)
    assert (found.loss_step, found.grad_norm, found.scale) == (2, 1.5, None)
    account.lost(3, 0.5, None, 8.0)
    clock.pass_(300)
    account.beat(3, clock.now)
    found = read(buffer)
    assert (found.loss, found.loss_step, found.grad_norm, found.scale) == (0.5, 3, 1.5, 8.0), "the norm still stands"


def test_a_limit_of_names(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    for i in range(50):
        account.enter(f"p{i}")
        clock.pass_(1)
        account.leave()
    account.enter("ä" * 40)
    account.leave()
    clock.pass_(300)
    account.beat(1, clock.now)
    told = spent(buffer)
    named = ac.MOST - len(STEP_PHASES)
    assert told == {"other": 50 - named + 300, **{f"p{i}": 1 for i in range(named)}}


def test_another_thread_costs_the_step_nothing(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)

    def work() -> None:
        account.enter("checkpoint")
        clock.pass_(40)
        account.leave()
        account.beat(9, clock.now)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    account.beat(1, clock.now)
    assert (read(buffer).step, spent(buffer)) == (1, {"other": 40})


def test_a_spoilt_slot_leaves_the_one_before(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    for step in (1, 2):
        clock.pass_(300)
        account.beat(step, clock.now)
    whole = bytes(buffer)
    for at in range(ac.AT, ac.AT + 300, 7):
        bad = bytearray(whole)
        bad[at] ^= 0xFF
        assert read(bad).step in (1, 2)
    newer = ac.AT  # of step 2: seq 2 is even
    bad = bytearray(whole)
    bad[newer + 50] ^= 1
    assert read(bad).step == 1


@given(st.binary(max_size=ac.SIZE + 10))
def test_foreign_bytes_are_no_account(data: bytes) -> None:
    assert ac.newest(data) is None
    assert ac.newest(bytes(ac.AT) + data) is None


class Device:
    """A clock that is three answers behind."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def change(self, phase: int) -> None:
        self.told.append((phase, 10 * MS))

    def done(self) -> list[tuple[int, int]]:
        known, self.told = self.told[:-3], self.told[-3:]
        return known


def test_a_devices_time_counts_once_it_is_known(clock: Clock) -> None:
    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    clock.pass_(500)
    account.use(Device())
    for step in range(4):
        account.enter("forward")
        account.leave()
        clock.pass_(300)
        account.beat(step, clock.now)
    assert read(buffer).device
    assert spent(buffer) == {"other": 60, "forward": 30}


def test_lost_device_does_not_end_training(clock: Clock) -> None:
    class Lost(Device):
        def done(self) -> list[tuple[int, int]]:
            raise RuntimeError("CUDA error: unspecified launch failure")

    buffer = bytearray(ac.SIZE)
    account = ac.Account(buffer, clock.now)
    account.use(Lost())
    for step in range(3):
        clock.pass_(300)
        account.enter("data")
        account.leave()
        account.beat(step, clock.now)
    assert (read(buffer).step, spent(buffer)) == (2, {})


def trainer(code: str, folder: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_")) and k != "RANK"}
    env = {**clean, "PYTHONPATH": str(ROOT), "TRANSOM_BEAT_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_trainers_calls(tmp_path: Path) -> None:
    trainer(
        "import os, time\n"
        "from transom_cli import beat\n"
        "for i in range(3):\n"
        "    with beat.phase('data'): time.sleep(0.1)\n"
        "    with beat.phase('forward'):\n"
        "        with beat.phase('checkpoint'): time.sleep(0.2)\n"
        "    beat(i, loss=2.0 - i, grad_norm=i, loss_scale=8)\n"
        "if not os.fork():\n"
        "    with beat.phase('data'): time.sleep(0.3)\n"
        "    beat(99)\n"
        "    os._exit(0)\n"
        "os.wait()\n",
        tmp_path,
    )
    data = (tmp_path / "rank-0").read_bytes()
    found, record = ac.newest(data), rec.newest(data[: rec.SIZE])
    assert found is not None and record is not None
    assert (found.step, found.loss_step, found.loss, found.grad_norm, found.scale) == (2, 2, 0.0, 2.0, 8.0)
    assert (record.step, record.loss) == (2, 0.0), "a reader of before there were accounts reads as ever"
    assert found.ns["data"] >= 300 * MS and found.ns["checkpoint"] >= 600 * MS
    assert sum(found.ns.values()) == pytest.approx(found.at - found.began, rel=0.01)
    assert found.at <= time.monotonic_ns()


@pytest.mark.parametrize("loss", ["float('nan')", "-float('nan')", "Tensor(float('nan'))"])
def test_nan_loss_is_reported(tmp_path: Path, loss: str) -> None:
    tensor = "class Tensor:\n  def __init__(self, x): self.x = x\n  def item(self): return self.x\n"
    trainer(f"{tensor}from transom_cli import beat; beat(1, loss={loss})", tmp_path)
    data = (tmp_path / "rank-0").read_bytes()
    found, record = ac.newest(data), rec.newest(data)
    assert found is not None and record is not None
    assert found.loss is not None and math.isnan(found.loss)
    told = rec.decode_loss(record.loss)
    assert told is not None and math.isnan(told)


def test_what_is_no_loss_is_none(tmp_path: Path) -> None:
    trainer("from transom_cli import beat; beat(1, loss='high', grad_norm=[])", tmp_path)
    found = ac.newest((tmp_path / "rank-0").read_bytes())
    assert found is not None and (found.loss, found.grad_norm, found.loss_step) == (None, None, 1)


numbers = st.floats() | st.none()
seconds = st.dictionaries(st.text(max_size=16), st.integers(0, 10**9).map(float), max_size=16)
spents = st.builds(
    RankSteps,
    rank=st.integers(0, 2**20), launch=st.integers(0, 99), step=st.integers(-1, 2**40), at=st.floats(0, 1e9),
    began=st.floats(0, 1e9), seconds=seconds,
    loss_step=st.integers(-1, 2**40), loss=numbers, grad_norm=numbers, loss_scale=numbers, device=st.booleans(),
)  # fmt: skip


@given(st.builds(NodeSteps, node=st.text(max_size=20), attempt=st.text(max_size=20), ranks=st.lists(spents).map(tuple)))
def test_step_breakdown_round_trip(told: NodeSteps) -> None:
    assert repr(decode(encode(told))) == repr(told)  # repr, since NaN is no equal of itself


@given(st.text(max_size=80) | st.sampled_from(["[]", "1", "null", '{"schema": 1}', '{"schema": 2, "ranks": []}']))
def test_foreign_text_is_a_bad_account_and_nothing_else(text: str) -> None:
    with pytest.raises(BadStepBreakdown):
        decode(text)


def test_nonsense_within_an_account_is_refused() -> None:
    good = encode(NodeSteps("n", "1.0", (RankSteps(0, 0, 1, 2.0, seconds={"data": 1.0}, loss=0.5),)))
    assert decode(good).ranks[0].loss == 0.5
    assert decode(good.replace('"logged": {}', '"logged": {"lr": 0.5, "odd": [1]}')).ranks[0].logged == {"lr": 0.5}
    for old, new in (
        ('"step": 1', '"step": "x"'),
        ('"step": 1', '"step": true'),
        ('{"data": 1.0}', '{"data": NaN}'),
        ('{"data": 1.0}', "[]"),
        ('"at": 2.0', '"at": Infinity'),
        ('"loss": 0.5', '"loss": "low"'),
    ):
        assert old in good
        with pytest.raises(BadStepBreakdown):
            decode(good.replace(old, new))
