"""Turning a snapshot into a checkpoint, in the background: write, make durable, publish, retire old ones.

All ranks call `Writer.write` for the same step, and all get the same answer. Order on disk: data files, fsync,
manifest, fsync, rename, fsync of the parent. A crash at any point leaves the checkpoints before it untouched, and a
working directory that no reader looks at. A writer whose attempt was replaced cannot harm its successor: it
writes under its own name, a step that is there and good is never replaced, and once a newer launch has started it
publishes nothing more (ckpt.fence).
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.inventory import Candidate, verify
from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST, step_name, tmp_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.retention import Retention
from transom_cli.ckpt.staging import Snapshot, SnapshotPlanner

FAILURES = (Exception, CheckpointException)  # DCP's own is a bare BaseException


class _Files(FileSystemWriter):
    """DCP's writer, which also remembers its trouble: DCP and torch.save bury the system's own words."""

    trouble = ""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            self.trouble = describe(error)
            raise


class Writer:
    def __init__(
        self, directory: Path, ranks: Ranks, attempt: str, retention: Retention, say: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._say = say
        self._ranks = ranks
        self._attempt = attempt
        self._retention = retention

    def write(self, step: int, snapshot: Snapshot | None, trouble: str = "") -> str:
        """Publish `snapshot` as `step`. Returns "" or, on all ranks alike, why there is no such checkpoint.

        `snapshot` is None, with the `trouble`, where a rank could not take its copy: the others must learn of it here,
        or they would wait for it.
        """
        work = self._directory / tmp_name(step, self._attempt, secrets.token_hex(4))
        try:
            if self._ranks.first and not trouble:
                trouble = _attempted(lambda: work.mkdir(parents=True, mode=0o700))
            name, trouble = self._meet(step, trouble, work.name)
            work = self._directory / name
            if not trouble and snapshot is not None:
                trouble = self._write_all(step, snapshot, work)
        except FAILURES as error:  # a collective failed: a peer is gone. Training will notice by itself
            trouble = describe(error)
        if trouble and self._ranks.first:
            files.delete_tree(work)
        return trouble

    def _meet(self, step: int, trouble: str, name: str) -> tuple[str, str]:
        """Name of the working directory and first trouble, on all ranks alike, once all of them come with `step`.

        They may come with different ones: a flush that not all ranks were told of in time. Those that are behind give
        theirs up and those ahead ask again, so that no checkpoint is made of two steps, and the next one that all
        ranks save is saved. Until then the background thread of a rank that is ahead waits here.
        """
        while True:
            answers = self._ranks.gather((step, trouble, name))
            ahead = max(answer[0] for answer in answers)
            if step < ahead:
                return name, f"not all ranks save this step: others are at {step_name(ahead)}"
            if all(answer[0] == step for answer in answers):
                return answers[0][2], _first_trouble([answer[1] for answer in answers])

    def _write_all(self, step: int, snapshot: Snapshot, work: Path) -> str:
        mine: list[FileEntry] = []
        # per_thread_copy_ahead=0: otherwise DCP opens a CUDA context on device 0 in this thread, from every rank
        writer = _Files(work, sync_files=False, per_thread_copy_ahead=0)

        def write_mine() -> None:
            dcp_save(
                {},  # our planner has the state
                storage_writer=writer,
                planner=SnapshotPlanner(snapshot),
                process_group=self._ranks.group,
                no_dist=self._ranks.group is None,
            )
            names = sorted(work.glob(f"__{self._ranks.rank}_*"))
            mine.extend(files.seal(path) for path in [*names, *([work / DCP_METADATA] if self._ranks.first else [])])

        trouble = _attempted(write_mine)
        answers = self._ranks.gather((writer.trouble, trouble, mine))
        trouble = _first_trouble([answer[0] for answer in answers]) or _first_trouble([a[1] for a in answers])
        if not trouble and self._ranks.first:
            entries = sorted((entry for answer in answers for entry in answer[2]), key=lambda entry: entry.name)
            trouble = _attempted(lambda: self._publish(step, work, entries))
        return str(self._ranks.from_first(trouble))

    def _publish(self, step: int, work: Path, entries: list[FileEntry]) -> None:
        manifest = Manifest(
            step=step,
            world_size=self._ranks.size,
            attempt=self._attempt,
            torch=str(torch.__version__),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            files=tuple(entries),
        )
        files.write_new(work / MANIFEST, encode(manifest))
        final = self._directory / step_name(step)
        taken = final.exists()
        if taken and verify(Candidate(step, final)).good:
            files.delete_tree(work)  # an earlier attempt published this very step
            return
        fence.check(self._directory, self._attempt)
        if taken:
            files.set_aside(final)
        files.publish(work, final)
        self._retention.trust(manifest)
        trouble = _attempted(lambda: self._retire(step))
        if trouble:  # the new checkpoint is there all the same
            self._say(f"old checkpoints could not be removed: {trouble}")

    def _retire(self, step: int) -> None:
        fence.check(self._directory, self._attempt)
        self._retention.apply(step, secrets.token_hex(4))


def describe(error: BaseException) -> str:
    """One line for an exception; DCP's collective ones name the rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = min(error.failures.items())
        return f"rank {rank}: {describe(failure[0])}"
    if isinstance(error, TakenOver):
        return error.what
    if isinstance(error.__context__, OSError) and not isinstance(error, OSError):
        return describe(error.__context__)  # the system's own words, which torch's serializer covers with its own
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _attempted(act: Any) -> str:
    try:
        act()
    except FAILURES as error:
        return describe(error)
    return ""


def _first_trouble(troubles: list[str]) -> str:
    return next((trouble for trouble in troubles if trouble), "")
