"""Step and loss from the event files that a rank has open. `SAMPLE` was written by tensorboard 2.21."""

from __future__ import annotations

import base64
import os
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervise.agent.test_trainer_progress import counted, logged, row

from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent import event_files
from transom_cli.supervise.agent.event_files import BadEvents, EventFiles, masked_crc, read_records
from transom_cli.supervise.agent.logs import NodeLogs
from transom_cli.supervise.agent.trainer_progress import TrainerProgress

SAMPLE = zlib.decompress(
    base64.b85decode(
        b"c-rmUze@sP9LI5Q2=a;G(p+p2p&^SC92%tIf(nOzh)d&f){|W6T|Hh_lR|4CG#dm#(AZE-25l|PLD1e3(GYEtdN%bBG`wH%z{7_R"
        b"pFiQ73k5o-xwG)s-si^d!^?bpw5V*yH5O~q^|P6RA!dB(Ry|epY_(}r_bU}!9T^A8@uf0kuVrmHWoZS;_IKNw8|*&bT@=FopV>5Z"
        b"kxGj(A^hHYy6jb}u}~;sinxdlB55nvaZ8r6eHrs2$62K>-6jTGQ}0*#U@O<%8c#+4Z0Tm?ZRLJpHR$g=cV2`3a=(Am(!_Q54LKFN"
        b"B$JmdZCFd5x3oh50000000000000000000000000000000002Mzc4aUs?QE?(5<bXd;~Y;@=a53bR|-gf9}vV>OvP`S+mQ(iD^zh"
        b"W!gW-?*KC"
    )
)


def scalar(at: float, step: int, tag: str, value: float) -> bytes:
    """A record of one event with one value."""

    def text(key: int, data: bytes) -> bytes:
        return bytes([key, len(data)]) + data

    number, rest = b"", step
    while rest > 0x7F:
        number, rest = number + bytes([rest & 0x7F | 0x80]), rest >> 7
    one = text(0x0A, tag.encode()) + b"\x15" + struct.pack("<f", value)
    event = b"\x09" + struct.pack("<d", at) + b"\x10" + number + bytes([rest]) + text(0x2A, text(0x0A, one))
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


def read_all(data: bytes) -> list[tuple[float, int, str, float]]:
    found, at = [], 0
    while at < len(data):
        some, moved = read_records(data[at:])
        if not moved:
            break
        found += some
        at += moved
    return [(one.at, one.step, one.tag, one.value) for one in found]


def test_real_file_is_read_past_its_image() -> None:
    assert read_all(SAMPLE) == [
        (1000.0, 10, "train/loss", 2.5),
        (1000.0, 10, "train/learning_rate", pytest.approx(0.001)),
        (1001.0, 20, "train/loss", 2.25),
        (1002.0, 1 << 33, "train/loss", float("inf")),
        (1002.0, 1 << 33, "eval/loss", 3.0),
    ]


@given(st.integers(0, len(SAMPLE)))
def test_incomplete_record_waits_for_the_rest(length: int) -> None:
    found = read_all(SAMPLE[:length])
    assert found == read_all(SAMPLE)[: len(found)]


@given(st.integers(0, 400), st.integers(0, 7), st.binary(max_size=30))
def test_damage_is_refused_and_nothing_false_is_read(at: int, bit: int, more: bytes) -> None:
    damaged = bytearray(SAMPLE[:400])
    damaged[at % len(damaged)] ^= 1 << bit
    try:
        found = read_all(bytes(damaged) + more)
    except BadEvents:
        return
    assert found == read_all(SAMPLE)[: len(found)]


class Trainer:
    """A rank with an event file, at a made-up time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 1000.0
        monkeypatch.setattr(event_files.time, "time", lambda: self.now)
        monkeypatch.setattr(event_files, "SEARCH", 0.0)
        self.file = (folder / "events.out.tfevents.1.host.1.0").open("ab", buffering=0)
        self.progress = TrainerProgress()
        self.logs = NodeLogs(AttemptDir(folder), str(folder), self.progress)

    def log(self, step: int, tag: str = "train/loss", value: float = 2.0) -> None:
        self.file.write(scalar(self.now + 0.5, step, tag, value))

    def steps(self, number: int) -> tuple[int, bool, float | None]:
        """A second passes: the optimizer has made `number` steps. Return step and loss as they are shown."""
        self.now += 1.0
        found = counted(self.folder, 0, number)._replace(pid=os.getpid())
        self.logs.events.look((found,))
        self.logs.look((found,))
        (shown,) = self.progress.apply((row(0, number),))
        return shown.step, shown.since_start, shown.loss


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    made = Trainer(tmp_path, monkeypatch)
    yield made
    made.logs.close()
    made.logs.events.close()
    made.file.close()


def train(trainer: Trainer, of: Callable[[int], int], tag: str = "train/loss") -> tuple[int, bool, float | None]:
    """Make 30 optimizer steps after step 200; every fifth is logged. Return what is shown."""
    shown = trainer.steps(0)
    for made in range(1, 31):
        if made % 5 == 0:
            trainer.log(of(made), tag, 3.0 - made / 100)
        shown = trainer.steps(made)
    return shown


def test_own_step_and_loss_are_shown(trainer: Trainer) -> None:
    assert train(trainer, lambda made: 200 + made) == (230, False, pytest.approx(2.7))


def test_step_of_late_values_is_that_of_their_own_time(trainer: Trainer) -> None:
    """A writer flushes after two minutes."""
    trainer.steps(0)
    waiting = []
    for made in range(1, 31):
        trainer.steps(made)
        waiting.append(scalar(trainer.now, 200 + made, "loss", 2.0))
    trainer.file.write(b"".join(waiting))
    for made in range(31, 61):
        shown = trainer.steps(made)
    assert shown == (260, False, 2.0)


def test_steps_that_are_faster_than_the_looks_are_shown_exactly(trainer: Trainer) -> None:
    trainer.steps(0)
    for second in range(10):
        for tenth in range(10):
            trainer.file.write(scalar(trainer.now + 0.09 * tenth, 200 + 10 * second + tenth + 1, "loss", 2.0))
        shown = trainer.steps(10 * second + 10)
    assert shown == (300, False, 2.0)


@pytest.mark.parametrize("of", [lambda made: 4 * made, lambda made: made // 10, lambda made: 64 * (200 + made)])
def test_micro_batches_epochs_and_samples_are_not_taken_for_steps(trainer: Trainer, of: Callable[[int], int]) -> None:
    assert train(trainer, of) == (30, True, pytest.approx(2.7))


def test_loss_of_an_evaluation_is_not_the_trainings(trainer: Trainer) -> None:
    assert train(trainer, lambda made: 200 + made, "eval/loss") == (230, False, None)


def test_log_that_shows_the_loss_is_the_better_source(trainer: Trainer) -> None:
    logged(trainer.folder, 0, "iter 500: loss 1.5, time 1ms\n")
    assert train(trainer, lambda made: 200 + made) == (530, False, 1.5)


def test_each_look_reads_a_bounded_part(trainer: Trainer) -> None:
    size = len(scalar(1.0, 1, "loss", 1.0))
    each = event_files.LOOK // size
    trainer.file.write(b"".join(scalar(1.0, 1, "loss", float(number)) for number in range(3 * each)))
    events = EventFiles()
    newest = []
    for _ in range(3):
        events.look((row(0, 5)._replace(pid=os.getpid()),))
        newest += [report.loss for _, report, _ in events.take(lambda: 5)]
    assert newest == [float(look * each - 1) for look in (1, 2, 3)]
    events.close()


def test_file_that_is_not_kept_open_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "SEARCH", 0.0)
    folder = tmp_path / "out" / "runs" / "today"
    folder.mkdir(parents=True)
    code = "import sys, time; print(flush=True); time.sleep(600)"
    start = (sys.executable, "-c", code, "--dir=out")
    with subprocess.Popen(start, cwd=tmp_path, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None and trainer.stdout.readline()
        name = f"events.out.tfevents.1.{socket.gethostname()}"
        (folder / f"{name}.{trainer.pid}.0").write_bytes(scalar(1.0, 7, "loss", 1.5))
        (folder / f"{name}.{trainer.pid + 1}.0").write_bytes(scalar(1.0, 7, "loss", 2.5))
        events = EventFiles()
        events.look((row(1, 5)._replace(pid=trainer.pid),))
        assert list(events.take(lambda: 5)) == [], "a search for each rank would be too much"
        events.look((row(0, 5)._replace(pid=trainer.pid),))
        assert [report.loss for _, report, _ in events.take(lambda: 5)] == [1.5]
        events.close()
        trainer.kill()


def test_pipe_of_that_name_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "events.out.tfevents.2")
    descriptor = os.open(pipe, os.O_RDWR)
    events = EventFiles()
    events.look((row(0, 5)._replace(pid=os.getpid()),))
    assert list(events.take(lambda: 5)) == []
    os.close(descriptor)
    events.close()
