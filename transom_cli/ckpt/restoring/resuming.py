"""From which step a training goes on: the newest that restores, from memory, from disk, or from a copy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt.convert.imported import Origin
from transom_cli.ckpt.failures import BadManifest, BadSetbacks, NoCheckpointRestores, WorldSizeChanged
from transom_cli.ckpt.inventory import Candidate, candidates, read_manifest
from transom_cli.ckpt.manifest import encode
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restoring import setback
from transom_cli.ckpt.restoring.progress import Progress
from transom_cli.ckpt.restoring.reading import OnDisk
from transom_cli.ckpt.restoring.recall import InMemory, Remembered, remembered, told
from transom_cli.ckpt.restoring.restore import load, verify_together
from transom_cli.ckpt.restoring.setback import Batches, Setback
from transom_cli.ckpt.retention import Keep
from transom_cli.ckpt.saving.engine import describe
from transom_cli.ckpt.saving.snapshots import Snapshots
from transom_cli.ckpt.state import State
from transom_cli.plural import several


@dataclass(frozen=True)
class Restored:
    step: int
    durable: bool  # not in memory alone


class Resuming:
    """For all ranks together. `places`: the directory of the training, and those of its copies."""

    def __init__(
        self, places: tuple[Path, ...], state: State, ranks: Ranks, snapshots: Snapshots, keep: Keep, reshard: bool,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._places, self._state, self._ranks, self._snapshots = places, state, ranks, snapshots
        self._keep, self._reshard, self._say = keep, reshard, say
        self._progress = Progress(snapshots.questions.restoring)
        self.batches = Batches()  # as of the last restore()

    def restore(self) -> Restored | None:
        """None when there is nothing at all. Raises NoCheckpointRestores and WorldSizeChanged.

        What is in memory alone and does not restore is no reason to stop: there was never more than the disk has.
        """
        found, setbacks = self._chosen_from()
        self.batches = Batches(setbacks)
        passed_over = []
        for candidate in found:
            remembered = isinstance(candidate, Remembered)
            reason = self._recall(candidate) if isinstance(candidate, Remembered) else self._load(candidate)
            if not reason:
                return Restored(candidate.step, durable=not remembered)
            self._say(f"passed over {self._name(candidate)}: {reason}")
            if not remembered:
                passed_over.append(f"{self._name(candidate)}: {reason}")
        if not passed_over and any(one.to > 0 for one in setbacks):
            passed_over = [f"the training was set back to step {setbacks[-1].to}, and nothing of it is left"]
        if passed_over:
            raise self._nothing_restores(passed_over)
        self._snapshots.rewind(None)
        return None

    def _chosen_from(self) -> tuple[list[Remembered | Candidate], tuple[Setback, ...]]:
        """The same on all ranks. Raises BadSetbacks on all of them."""
        trouble: tuple[str, str, str] | None = None
        told: tuple[list[Remembered | Candidate], tuple[Setback, ...]] = ([], ())
        try:
            told = self._to_choose_from() if self._ranks.first else told
        except BadSetbacks as error:
            trouble = error.what, error.why, error.hint
        trouble, told = self._ranks.from_first((trouble, told))
        if trouble is not None:
            raise BadSetbacks(*trouble)
        return told

    def _to_choose_from(self) -> tuple[list[Remembered | Candidate], tuple[Setback, ...]]:
        """By the first rank. What a setback has undone is none to go on from. Raises BadSetbacks: without the
        record it would be gone on from a bad state in memory, or with other batches, and nobody would know."""
        setbacks = setback.read(self._places[0])
        for copy in self._places[1:]:
            with contextlib.suppress(OSError):  # told by who looks for candidates there
                setback.set_aside(copy, setbacks)
        found = self._candidates()
        return [one for one in found if not _is_undone(one, setbacks)], setbacks

    def _candidates(self) -> list[Remembered | Candidate]:
        """Newest first; of one step what is in memory comes before what is on disk, and that before its copies."""
        directory, *copies = self._places
        found: list[Remembered | Candidate] = [*remembered(self._snapshots, self._say), *candidates(directory)]
        for copy in copies:
            try:
                found += candidates(copy)
            except OSError as error:
                self._say(f"the copies in {copy} are not known: {describe(error)}")
        return sorted(found, key=lambda candidate: candidate.step, reverse=True)

    def _recall(self, found: Remembered) -> str:
        """Restore it from memory. Returns "" or why that failed."""
        per_rank = self._per_rank_fits(found.step, found.manifest.world_size, None)
        source = InMemory(self._snapshots, found, self._places[0])
        self._progress.of(found.step, "")
        reason = load(source, self._state, self._ranks, self._progress, per_rank=per_rank)
        if not reason:
            self._snapshots.rewind(found.step, found.record)
            where = told(self._ranks.gather(source.where))
            self._say(f"restored {found.name} ({where}; written by attempt {found.manifest.attempt})")
        return reason

    def _load(self, candidate: Candidate) -> str:
        """Restore it from disk. Returns "" or why that failed."""
        self._progress.of(candidate.step, str(candidate.path.parent))
        verdict = verify_together(candidate, self._ranks, self._progress)
        if verdict.manifest is None or not verdict.good:
            return verdict.reason
        origin = verdict.origin
        per_rank = self._per_rank_fits(candidate.step, verdict.manifest.world_size, origin)
        source = OnDisk(candidate.path)
        reason = load(source, self._state, self._ranks, self._progress, per_rank=per_rank, origin=origin)
        if not reason:
            self._snapshots.rewind(candidate.step)
            if self._ranks.first:
                self._snapshots.trust(candidate.path.parent, encode(verdict.manifest), self._keep)
            by = origin.told() if origin is not None else f"written by attempt {verdict.manifest.attempt}"
            self._say(f"restored {self._name(candidate)} ({by})")
        return reason

    def _per_rank_fits(self, step: int, world_size: int, origin: Origin | None) -> bool:
        if origin is not None and not origin.per_rank:
            return False
        if world_size == self._ranks.size:
            return True
        ranks = several(world_size, "rank")
        if not self._reshard:
            raise WorldSizeChanged(
                f"{step_name(step)} was written by {ranks}, and this training has {self._ranks.size}",
                "random numbers and data positions are kept per rank, and cannot be carried over",
                "start with as many ranks, or pass reshard=True to the Checkpointer to start those afresh",
            )
        self._say(f"{ranks} became {self._ranks.size}: random numbers and per-rank objects start afresh")
        return False

    def _name(self, candidate: Remembered | Candidate) -> str:
        if isinstance(candidate, Remembered) or candidate.path.parent == self._places[0]:
            return candidate.name
        return f"{candidate.name} in {candidate.path.parent}"

    def _nothing_restores(self, passed_over: list[str]) -> NoCheckpointRestores:
        which = "The one checkpoint" if len(passed_over) == 1 else f"None of the {len(passed_over)} checkpoints"
        does = "does not restore" if len(passed_over) == 1 else "restores"
        error = NoCheckpointRestores(
            f"{which} in {' and '.join(map(str, self._places))} {does}",
            "\n".join(passed_over),
            "\n".join(f"transom ckpt verify {place}" for place in self._places)
            + "\nto start from the beginning, give another directory",
        )
        if self._ranks.first:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
        return error


def _is_undone(found: Remembered | Candidate, setbacks: tuple[Setback, ...]) -> bool:
    if all(found.step <= one.to for one in setbacks):
        return False  # the manifest need not be read
    try:
        manifest = found.manifest if isinstance(found, Remembered) else read_manifest(found)
    except BadManifest:
        return False  # it does not restore, and that is told
    return setback.undone(setbacks, found.step, manifest.attempt)
