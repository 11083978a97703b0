"""A file system or a snapshot daemon that does not respond costs training seconds, and never a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ckpt_memory_holders import abandon, end_holder, holder_pid
from processes import wait_for

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.directory import prepare_directory  # noqa: F401 - imported before anything is stopped
from transom_cli.ckpt.save import daemon, saver
from transom_cli.ckpt.save.status import SaveStatus, worst

WIDTH = 1 << 20
LIMIT = 3.0  # seconds that one save may take here, on a busy machine


def run(command: str, *, check: bool = True) -> int:
    return subprocess.run(["sh", "-c", command], check=check, capture_output=True, text=True).returncode


class Disk:
    """A file system of its own, which can be frozen. A frozen one thaws by itself after a minute."""

    def __init__(self, folder: Path) -> None:
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(200 << 20)
        run(f"mkfs.ext4 -q {self.image} && mount -o loop {self.image} {self.path}")
        self._watchdog: subprocess.Popen[bytes] | None = None

    def freeze(self) -> None:
        self._watchdog = subprocess.Popen(["sh", "-c", f"sleep 60; fsfreeze -u {self.path}"], start_new_session=True)
        run(f"fsfreeze -f {self.path}")

    def thaw(self) -> None:
        if self._watchdog is not None:
            os.killpg(self._watchdog.pid, signal.SIGKILL)
            self._watchdog.wait()
            self._watchdog = None
            run(f"fsfreeze -u {self.path}")

    def close(self) -> None:
        self.thaw()
        run(f"umount -l {self.path}", check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    try:
        found = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr}")
    yield found
    found.thaw()
    end_holder(found.path / "c")
    found.close()


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run is told about its saves."""
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    monkeypatch.setenv("TRANSOM_ATTEMPT_DIR", str(attempt))
    return attempt / "saves.json"


def reported(status: Path) -> SaveStatus:
    return (worst(status.read_text()) if status.exists() else None) or SaveStatus()


def train(trainer: Checkpointer, held: dict[str, torch.Tensor], steps: range, pause: float = 0.0) -> list[float]:
    """Save after each step. Returns the seconds of each save."""
    took = []
    for step in steps:
        held["weights"].fill_(step)
        began = time.monotonic()
        trainer.save(step)
        took.append(time.monotonic() - began)
        time.sleep(pause)
    return took


def state() -> dict[str, torch.Tensor]:
    return {"weights": torch.zeros(WIDTH, dtype=torch.int64)}


def restored(directory: Path) -> int | None:
    """What another launch restores. Every value is checked."""
    held = state()
    trainer = Checkpointer(held, directory, every=1)
    step = trainer.restore()
    abandon(trainer)
    assert step is None or bool((held["weights"] == step).all())
    return step


def test_frozen_file_system_delays_no_save(disk: Disk, status: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "STILL", 1.0, raising=False)
    directory, held = disk.path / "c", state()
    trainer = Checkpointer(held, directory, every=1, keep=20)
    assert trainer.restore() is None
    train(trainer, held, range(1, 3))
    trainer.wait(strict=True)
    disk.freeze()
    took = train(trainer, held, range(3, 11), pause=0.3)
    assert max(took) < LIMIT, took
    wait_for(lambda: reported(status).failed > 0, 20)
    assert "nothing was written" in reported(status).why
    wait_for(lambda: trainer._saver.saved == 10, 20)  # snapshots continue in memory
    disk.thaw()
    trainer.wait()
    assert trainer.durable == 10
    wait_for(lambda: reported(status).failed == 0, 20)
    on_disk = sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))
    assert on_disk[0] == 1 and on_disk[-1] == 10 and len(on_disk) < 10, "writes that a newer one replaces are dropped"
    abandon(trainer)
    assert restored(directory) == 10


@pytest.mark.long
def test_closing_on_a_frozen_file_system_gives_up(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "GIVE_UP", 2.0, raising=False)
    monkeypatch.setattr(saver, "GIVE_UP", 2.0, raising=False)
    directory, held = disk.path / "c", state()
    trainer = Checkpointer(held, directory, every=1)
    trainer.restore()
    train(trainer, held, range(1, 2))
    trainer.wait(strict=True)
    disk.freeze()
    train(trainer, held, range(2, 3))
    began = time.monotonic()
    trainer.close()
    assert time.monotonic() - began < 30
    assert trainer.last_error is not None and "nothing was written" in str(trainer.last_error)
    disk.thaw()
    assert restored(directory) == 2, "the daemon still holds it"


@pytest.mark.long
def test_stopped_daemon_delays_one_save(
    directory: Path, status: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "CALL", 1.0, raising=False)
    held = state()
    trainer = Checkpointer(held, directory, every=1, persist=4)
    assert trainer.restore() is None
    train(trainer, held, range(1, 4))
    trainer.wait(strict=True)
    pid = holder_pid(directory)
    os.kill(pid, signal.SIGSTOP)
    try:
        took = train(trainer, held, range(4, 24))
        assert max(took) < LIMIT and sum(took) < 2 * LIMIT, took
        wait_for(lambda: reported(status).failed > 0, 20)
        assert "does not answer" in reported(status).why
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: _saved(trainer, held), 20)
    last = trainer._saver.saved
    trainer.wait()
    assert holder_pid(directory) == pid, "the same daemon, with all that it held"
    assert last is not None
    abandon(trainer)
    assert restored(directory) == last


def _saved(trainer: Checkpointer, held: dict[str, torch.Tensor], step: list[int] = [100]) -> bool:  # noqa: B006
    step[0] += 1
    train(trainer, held, range(step[0], step[0] + 1), pause=0.1)
    trainer._saver.settle()
    return trainer._saver.saved == step[0]


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("take", marks=pytest.mark.long), "hold", "commit"])
def test_request_of_a_stopped_daemon_is_answered_late(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The daemon is stopped before one request of a save, and executes it after the rank has given it up."""
    from transom_cli.rpc.local import Client

    monkeypatch.setattr(daemon, "CALL", 0.5, raising=False)
    held = state()
    trainer = Checkpointer(held, directory, every=1, persist=100)
    trainer.restore()
    train(trainer, held, range(1, 5))
    trainer.wait(strict=True)
    pid, real, stopped = holder_pid(directory), Client.call, []

    def call(client: Client, verb: str, *more: object, **about: object) -> object:
        if verb == name and not stopped:
            stopped.append(verb)
            os.kill(pid, signal.SIGSTOP)
        return real(client, verb, *more, **about)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Client, "call", call)
        train(trainer, held, range(5, 8), pause=0.6)
    assert stopped
    os.kill(pid, signal.SIGCONT)
    for step in range(8, 30):
        train(trainer, held, range(step, step + 1), pause=0.05)
    trainer._saver.settle()
    assert trainer._saver.saved == 29
    abandon(trainer)
    assert restored(directory) == 29


def test_status_text_is_json(status: Path) -> None:
    """The helper above reads what the operator reads."""
    status.write_text(json.dumps({"schema": 1, "trainings": {"/c": {"failed": 2, "why": "w"}}}))
    assert reported(status).failed == 2
