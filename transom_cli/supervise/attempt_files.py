"""Reads the files of a run's attempts. A file that is missing or incomplete counts as absent."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt.names import SEALED
from transom_cli.ckpt.save.status import SaveStatus, worst
from transom_cli.core import events as ev
from transom_cli.core.bad_loss import BadLoss, BadResume, bad_resume
from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import RankExit
from transom_cli.core.goodput.account import Loss
from transom_cli.core.operator.state import SavesFail, State
from transom_cli.core.samples import Mark, Proof, prove
from transom_cli.files import json_lines, listed, read_json, read_lines, tail
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.handoff_record import attempt_numbers

_ANY = float(2**63)  # any step, but not of a sealed checkpoint
_LAST = 4096  # bytes of progress.jsonl that hold its last line
LIST_AGAIN = 1.0  # seconds after which a folder is listed although its modification time is the same


def read_once(path: str, most: int) -> bytes:
    """Read a file without a file object, which would be a third of the time: some are read thousands of times.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


class ExitRecords:
    """The exit records of one launch. Each file is read once, since its wrapper writes it once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, RankExit] = {}
        self._changed, self._listed = -1, float("-inf")

    def read(self) -> dict[int, RankExit]:
        """Return the records by rank (under torchrun: by node). Unreadable records are left out until a later call."""
        for path in self._folder.glob("*.json") if self._has_changed() else ():
            try:
                number = int(path.stem.rpartition("-")[2])
                if number not in self._known:
                    self._known[number] = _record(number, path)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # caught while it was written on a file system without atomic rename
        return dict(self._known)

    def _has_changed(self) -> bool:
        """Return whether to list the folder. Opening it makes a network file system revalidate it."""
        try:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False
        try:
            changed = os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
        now = time.monotonic()
        if changed == self._changed and now - self._listed < LIST_AGAIN:
            return False
        self._changed, self._listed = changed, now
        return True


def _record(number: int, path: Path) -> RankExit:
    data = json.loads(path.read_text())
    return RankExit(
        rank=number,
        node=str(data["node"]),
        code=data["code"],
        signal=data["signal"],
        wall=float(data["wall"]),
        step=int(data.get("steps", -1)),
        since_start=data.get("since_start") is True,
        mono=float(data["mono"]) if "mono" in data else None,
    )


class FileChange:
    """Whether a file may have changed since the last call, by one call to the file system.

    sure: seconds after which it counts as changed in any case, since a network file system revalidates a file only when
    it is opened.
    """

    def __init__(self, path: Path, sure: float) -> None:
        self._path, self._sure = str(path), sure
        self._known: tuple[int, int, int] | None = None
        self._opened = float("-inf")

    def __call__(self, now: float) -> bool:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - some times a second
        except OSError:
            self._known = None
            return False
        known = found.st_ino, found.st_mtime_ns, found.st_size
        if known == self._known and 0.0 <= now - self._opened < self._sure:
            return False
        self._known, self._opened = known, now
        return True


class Tail:
    """Reads new complete lines of a growing JSON-lines file. If it has not grown, that takes three calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def records(self) -> Iterator[dict[str, object]]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            grown = os.fstat(descriptor).st_size - self._offset
            data = os.pread(descriptor, grown, self._offset) if grown > 0 else b""
        except OSError:
            return
        finally:
            os.close(descriptor)
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        yield from json_lines(whole)


def newest_checkpoint(directory: Path, up_to: float = float("inf")) -> int:
    """Return the step of the newest published or sealed checkpoint (its manifest exists), or -1. Its data is not read.

    Args:
        up_to: Ignore later steps, and sealed checkpoints, since only the Checkpointer's are rolled back.
    """
    there = listed(directory)
    named = (p for p in there if p.name.startswith("step-") and p.name[5:].isdecimal())
    steps = sorted(((int(p.name[5:]), p) for p in named), reverse=True)
    # os.path and not pathlib: an EIO or EACCES there is "not seen now", and no exception
    own = next((n for n, p in steps if n <= up_to and os.path.exists(p / "manifest.json")), -1)  # noqa: PTH110
    sealed = directory / SEALED
    return max(own, _sealed_step(read_json(sealed))) if sealed in there and up_to == float("inf") else own


def _sealed_step(told: dict[str, object]) -> int:
    """The step of the newest checkpoint that the trainer's framework made, if its seal exists (ckpt.seal); or -1."""
    step, seal = told.get("step"), told.get("seal")
    exists = isinstance(seal, str) and os.path.exists(seal)  # noqa: PTH110
    return step if isinstance(step, int) and exists else -1


def read_outcome(attempt: AttemptDir, now: float) -> ev.OutcomeSeen | None:
    with contextlib.suppress(BadRecord):
        return replace(build(ev.OutcomeSeen, {**read_json(attempt.outcome), "at": now}), attempt=attempt.name)
    return None


def read_saves(attempt: AttemptDir) -> SaveStatus | None:
    """Return what the training reports about its saves; None if it has reported nothing."""
    try:
        return worst(attempt.saves.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_sign(attempt: AttemptDir) -> bytes:
    """Return the launcher's sign of life; empty if there is none. Takes three file system calls: it is read often."""
    with contextlib.suppress(OSError):
        return read_once(str(attempt.launcher_alive), 64)
    return b""


def read_losses(attempt: AttemptDir) -> Iterator[Loss]:
    """Yield the losses of the lines that have one, since older launchers wrote none. They may not be finite."""
    for record in read_lines(attempt.progress):
        at, launch, step, loss = (record.get(key) for key in ("wall", "launch", "step", "loss"))
        if not isinstance(at, (int, float)) or not isinstance(launch, int) or not isinstance(step, int):
            continue
        if isinstance(loss, (int, float)):
            yield Loss(attempt.name, launch, float(at), step, float(loss))


def read_sample_marks(attempt: AttemptDir) -> Iterator[Mark]:
    """Yield what rank 0 of each launch recorded of its data position (`ckpt.samples`)."""
    files = [path for path in listed(attempt.samples(0).parent) if path.stem.isdecimal()]
    for path in sorted(files, key=lambda path: int(path.stem)):
        with contextlib.suppress(BadRecord):
            for record in read_lines(path):
                yield build(Mark, {**record, "launch": f"{attempt.name}.{path.stem}"})


def prove_samples(run: RunDir) -> Proof:
    """Return which samples the run's steps used. Later steps than the record of the last launch shows do not count."""
    attempts = [run.attempt(*number) for number in sorted(attempt_numbers(run))]
    marks = [mark for attempt in attempts for mark in read_sample_marks(attempt)]
    last = next((a for a in reversed(attempts) if marks and marks[-1].launch.rpartition(".")[0] == a.name), None)
    if last is None:
        return prove(marks, -1)
    logged, outcome = read_logged(last), read_outcome(last, 0.0)
    step = logged.get("step") if f"{last.name}.{logged.get('launch')}" == marks[-1].launch else None
    done = outcome.step if outcome is not None and outcome.status == "done" and not outcome.since_start else -1
    return prove(marks, max(step if isinstance(step, int) else -1, done))


def read_logged(attempt: AttemptDir) -> dict[str, object]:
    """Return the newest line of an attempt's progress; empty if there is none."""
    try:
        lines = tail(attempt.progress, _LAST).splitlines()
    except OSError:
        return {}
    return next((record for line in reversed(lines) for record in json_lines(line)), {})


SCHEMA = 1  # of the file that `supervise.launcher.reporting` writes


def read_reports(attempt: AttemptDir) -> dict[str, Any]:
    """Return the reports; an empty document if there are none, or none that can be read."""
    data = read_json(attempt.reports)
    return data if data.get("schema") == SCHEMA else {}


def read_bad_loss(attempt: AttemptDir) -> BadLoss | None:
    """Return since when the loss is NaN or infinite, if it was so to the end of the attempt, or is so now."""
    found = read_reports(attempt).get("bad_loss")
    with contextlib.suppress(BadRecord):
        return build(BadLoss, found) if isinstance(found, dict) else None
    return None


def last_bad_loss(attempts: Iterable[AttemptDir]) -> BadLoss | None:
    """Return since when the loss is bad, by the newest attempt that has reported a loss. attempts: newest first."""
    for attempt in attempts:
        if (bad := read_bad_loss(attempt)) is not None:
            return bad
        if isinstance(read_logged(attempt).get("loss"), int | float):  # the last one was good
            return None
    return None


def bad_loss_of(run: RunDir) -> BadLoss | None:
    return last_bad_loss(run.attempt(*number) for number in sorted(attempt_numbers(run), reverse=True))


def read_bad_resume(loss: BadLoss | None, checkpoints: Path) -> BadResume | None:
    """Judge whether the newest checkpoint of the Checkpointer is from before the loss became bad.

    None also if the trainer's framework has made the newest one: transom does not choose among those.
    """
    if loss is None:
        return None
    newest = newest_checkpoint(checkpoints, up_to=_ANY)
    if newest_checkpoint(checkpoints) > newest:
        return None
    return bad_resume(loss, newest, newest_checkpoint(checkpoints, up_to=loss.proven))


def saves_fail(run: RunDir, state: State) -> SavesFail | None:
    """Return how saves fail, or None. The file takes precedence: it is written at once, also without an operator."""
    saves = read_saves(run.attempt(state.job.id, state.job.restarts)) if state.job.id else None
    if saves is None:
        return state.saves_fail
    if not saves.failed:
        return None
    report = SavesFail(saves.since, state.attempt, saves.failed, saves.step, saves.why, saves.good)
    before = state.saves_fail
    return report if before is None else replace(report, good=max(report.good, before.good))
