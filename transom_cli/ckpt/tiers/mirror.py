"""Copies of durable checkpoints in object storage: when each is made, by which process, and what became of it.

The snapshot daemon that publishes checkpoints owns a `Mirror`. It has one upload at a time running, by a process of its
own (`tiers.upload`), from the published checkpoint on disk: no snapshot's memory is held for it. If checkpoints become
due faster than they are uploaded, the newest one waits and older ones are left out.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule import CopyTurns
from transom_cli.ckpt.tiers.record import MirrorState, write
from transom_cli.ckpt.tiers.upload import Job
from transom_cli.rpc.local import readable
from transom_cli.start import own

SILENCE = 900.0  # seconds in which an upload that moves no byte is given up
_LONGEST = 500  # characters of an error


@dataclass(frozen=True)
class Uploads:
    """failed: uploads that failed in a row. step, why: of the last that failed. good: step of the newest that is
    complete; -1: none."""

    failed: int = 0
    step: int = -1
    why: str = ""
    good: int = -1


@dataclass
class _Place:
    waiting: Job | None = None
    running: int | None = None  # the step
    state: MirrorState = field(default_factory=MirrorState)
    outcome: Uploads = field(default_factory=Uploads)


class Mirror:
    """Thread-safe. say: prints a line for the trainer."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory, self._say = directory, say
        self._turns: CopyTurns[str] = CopyTurns({})
        self._rate: float | None = None
        self._places: dict[str, _Place] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def copy_to(self, urls: Mapping[str, int], rate: float | None) -> None:
        """Upload every n-th durable checkpoint, by URL, with at most `rate` bytes per second."""
        with self._lock:
            self._rate = rate
            if dict(urls) != self._turns.also:
                self._turns = CopyTurns(urls)
                self._places = {url: self._places.get(url, _Place()) for url in urls}

    def again(self) -> None:
        """Another launch is here: its first durable checkpoint is due everywhere."""
        with self._lock:
            self._turns = CopyTurns(self._turns.also)

    def published(self, step: int, attempt: str, keep: Keep) -> None:
        """A checkpoint is durable: upload it where it is due, in the background."""
        with self._lock:
            for url in self._turns.due():
                self._places[url].waiting = Job(str(self._directory), url, step, attempt, self._rate, keep)
            self._work()

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(place.waiting or place.running is not None for place in self._places.values())

    @property
    def used(self) -> frozenset[int]:
        """Steps whose files are being uploaded, or will be."""
        with self._lock:
            steps = [place.running for place in self._places.values()]
            steps += [place.waiting.step for place in self._places.values() if place.waiting]
            return frozenset(step for step in steps if step is not None)

    @property
    def outcome(self) -> Uploads:
        """The place with the most failures in a row."""
        with self._lock:
            return max((place.outcome for place in self._places.values()), key=lambda o: o.failed, default=Uploads())

    def _work(self) -> None:
        if self._thread is None and any(place.waiting for place in self._places.values()):
            self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                url = next((url for url, place in self._places.items() if place.waiting), None)
                if url is None:
                    self._thread = None
                    return
                place = self._places[url]
                asked, place.waiting = place.waiting, None
                assert asked is not None
                place.running = asked.step
            try:
                there, trouble = upload(asked)
            except Exception as error:
                there, trouble = None, f"{type(error).__name__}: {error}"
            self._ended(asked, place, there, trouble)

    def _ended(self, asked: Job, place: _Place, there: list[dict[str, Any]] | None, trouble: str) -> None:
        with self._lock:
            before = place.outcome
            if trouble:
                self._turns.failed(asked.url)
                place.outcome = replace(before, failed=before.failed + 1, step=asked.step, why=trouble)
                place.state = replace(place.state, trouble=trouble)
            else:
                place.outcome = Uploads(good=max(asked.step, before.good))
                place.state = MirrorState(tuple(there or ()), time.time(), "")
            states = {url: one.state for url, one in self._places.items()}
        if trouble:
            self._say(f"{step_name(asked.step)} was not copied to {asked.url}: {trouble}")
        with contextlib.suppress(OSError):
            write(self._directory, states)
        with self._lock:
            place.running = None  # last: who waits for the upload finds the record written


def upload(asked: Job, silence: float = SILENCE) -> tuple[list[dict[str, Any]] | None, str]:
    """Run the process that uploads. Returns what is in the storage then, or why the upload failed."""
    last: dict[str, Any] = {}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            own("transom_cli.ckpt.tiers.upload"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(asked.encode().encode("ascii") + b"\n")
            process.stdin.flush()
            rest = b""
            while True:
                if not readable(process.stdout, silence):
                    return None, f"no byte was sent for {silence:g} s"
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    last = json.loads(line)
            process.wait(30.0)
        except BrokenPipeError:
            pass
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        if "there" in last:
            return last["there"], ""
        errors.seek(max(0, errors.seek(0, 2) - _LONGEST))
        words = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
    return None, str(last.get("trouble") or words or f"its process ended with {process.returncode}")[:_LONGEST]
