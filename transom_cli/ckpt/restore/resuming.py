"""From which step a training goes on: the newest that restores, from memory, from disk, or from a copy."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt import recorded
from transom_cli.ckpt.convert.imported import Origin
from transom_cli.ckpt.failures import BadManifest, BadSetbacks, NoCheckpointRestores, WorldSizeChanged
from transom_cli.ckpt.inventory import Candidate, candidates, read_manifest
from transom_cli.ckpt.manifest import encode
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.recorded import Recorded
from transom_cli.ckpt.restore import setback
from transom_cli.ckpt.restore.progress import Progress
from transom_cli.ckpt.restore.reading import OnDisk, Source
from transom_cli.ckpt.restore.recall import InMemory, Remembered, remembered, told
from transom_cli.ckpt.restore.restore import kept_per_rank, load, verify_together
from transom_cli.ckpt.restore.setback import Batches, Setback
from transom_cli.ckpt.retention import Keep
from transom_cli.ckpt.save.engine import describe
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.state import State
from transom_cli.errors import UsageError
from transom_cli.plural import several

NAMED = 10  # values in an error

LOOKS = 3  # at the directory, while what is there changes


@dataclass(frozen=True)
class Restored:
    step: int
    durable: bool  # not in memory alone


@dataclass(frozen=True)
class _Chosen:
    """What a restore has to choose from, newest first, and what it knows beside that. `unknown`: what could not be
    looked at, and why."""

    found: list[Remembered | Candidate]
    setbacks: tuple[Setback, ...]
    recorded: Recorded | None
    unknown: list[str]


class Resuming:
    """For all ranks together. `places`: the directory of the training, and those of its copies."""

    def __init__(
        self, places: tuple[Path, ...], state: State, ranks: Ranks, snapshots: Snapshots, keep: Keep, reshard: bool,
        say: Callable[[str], None], *, allow_code: bool = False,
    ) -> None:  # fmt: skip
        self._places, self._state, self._ranks, self._snapshots = places, state, ranks, snapshots
        self._keep, self._reshard, self._say = keep, reshard, say
        self._allow_code = allow_code
        self._progress = Progress(snapshots.questions.restoring)
        self.batches = Batches()  # as of the last restore()

    def restore(self, allow_lost: bool = False) -> Restored | None:
        """None when nothing was ever saved; with `allow_lost`, also when nothing of it is left. Raises
        NoCheckpointRestores and WorldSizeChanged.

        What is in memory alone and does not restore is no reason to stop while the disk has an older checkpoint.
        """
        chosen = self._chosen_from()
        for _ in range(LOOKS):
            restored, lost, passed_over = self._newest_that_loads(chosen)
            if restored is not None:
                return restored
            again = self._chosen_from() if passed_over else chosen
            if [self._name(one) for one in again.found] == [self._name(one) for one in chosen.found]:
                break
            chosen = again  # the snapshot daemon of the last launch published or removed checkpoints meanwhile
        setbacks = chosen.setbacks
        if not passed_over and any(one.to > 0 for one in setbacks):
            passed_over = [f"the training was set back to step {setbacks[-1].to}, and nothing of it is left"]
        if passed_over:
            raise self._nothing_restores(passed_over)
        if lost or (chosen.recorded is not None and not allow_lost):
            raise self._all_lost(chosen, lost)  # also of what was loaded in part: no state to start from
        if chosen.recorded is not None:
            self._begin_again()
        self._snapshots.rewind(None)
        return None

    def _newest_that_loads(self, chosen: _Chosen) -> tuple[Restored | None, list[str], list[str]]:
        """Load the newest candidate that is good. Also return those that failed, with reasons: in memory, on disk."""
        self.batches = Batches(chosen.setbacks)
        passed_over: list[str] = []
        lost: list[str] = []
        for candidate in chosen.found:
            remembered = isinstance(candidate, Remembered)
            reason = self._recall(candidate) if isinstance(candidate, Remembered) else self._load(candidate)
            if not reason:
                if chosen.recorded is not None and chosen.recorded.step > candidate.step:
                    self._say(f"{_saved(chosen.recorded)}, and is lost: training continues from step {candidate.step}")
                return Restored(candidate.step, durable=not remembered), lost, passed_over
            self._say(f"passed over {self._name(candidate)}: {reason}")
            (lost if remembered else passed_over).append(f"{self._name(candidate)}: {reason}")
        return None, lost, passed_over

    def _begin_again(self) -> None:
        """Though what was saved is lost: the next restore must not find its record. Raises UsageError on all ranks."""
        trouble = ""
        if self._ranks.first:
            try:
                recorded.forget(self._places[0])
            except OSError as error:
                trouble = describe(error)
        trouble = self._ranks.from_first(trouble)
        if trouble:
            raise UsageError("The record of the lost snapshot cannot be removed", trouble, "remove it yourself")
        self._say("what was saved is lost, and the training starts from the beginning, as allowed")

    def _chosen_from(self) -> _Chosen:
        """The same on all ranks. Raises BadSetbacks on all of them."""
        trouble: tuple[str, str, str] | None = None
        told = _Chosen([], (), None, [])
        try:
            told = self._to_choose_from() if self._ranks.first else told
        except BadSetbacks as error:
            trouble = error.what, error.why, error.hint
        trouble, told = self._ranks.from_first((trouble, told))
        if trouble is not None:
            raise BadSetbacks(*trouble)
        return told

    def _to_choose_from(self) -> _Chosen:
        """By the first rank. What a setback has undone is none to go on from. Raises BadSetbacks: without the
        record it would be gone on from a bad state in memory, or with other batches, and nobody would know."""
        setbacks = setback.read(self._places[0])
        for copy in self._places[1:]:
            with contextlib.suppress(OSError):  # told by who looks for candidates there
                setback.set_aside(copy, setbacks)
        unknown: list[str] = []
        found = self._candidates(unknown.append)
        known = recorded.read(self._places[0])
        if known is not None and setback.undone(setbacks, known.step, known.attempt):
            known = None
        return _Chosen([one for one in found if not _is_undone(one, setbacks)], setbacks, known, unknown)

    def _candidates(self, unknown: Callable[[str], None]) -> list[Remembered | Candidate]:
        """Newest first; of one step what is in memory comes before what is on disk, and that before its copies."""
        directory, *copies = self._places

        def say(line: str) -> None:
            unknown(line)
            self._say(line)

        found: list[Remembered | Candidate] = [*remembered(self._snapshots, say), *candidates(directory)]
        for copy in copies:
            try:
                found += candidates(copy)
            except OSError as error:
                say(f"the copies in {copy} are not known: {describe(error)}")
        return sorted(found, key=lambda candidate: candidate.step, reverse=True)

    def _recall(self, found: Remembered) -> str:
        """Restore it from memory. Returns "" or why that failed."""
        source = InMemory(self._snapshots, found, self._places[0])
        per_rank = self._per_rank_fits(found.step, found.manifest.world_size, None, source)
        self._progress.of(found.step, "")
        code = self._allow_code
        reason = load(source, self._state, self._ranks, self._progress, per_rank=per_rank, allow_code=code)
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
        source = OnDisk(candidate.path)
        per_rank = self._per_rank_fits(candidate.step, verdict.manifest.world_size, origin, source)
        how, code = (source, self._state, self._ranks, self._progress), self._allow_code
        reason = load(*how, per_rank=per_rank, origin=origin, allow_code=code)
        if not reason:
            self._snapshots.rewind(candidate.step)
            if self._ranks.first:
                self._snapshots.trust(candidate.path.parent, encode(verdict.manifest), self._keep)
            by = origin.told() if origin is not None else f"written by attempt {verdict.manifest.attempt}"
            self._say(f"restored {self._name(candidate)} ({by})")
        return reason

    def _per_rank_fits(self, step: int, world_size: int, origin: Origin | None, source: Source) -> bool:
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
        if own := self._ranks.from_first(self._kept_per_rank(source) if self._ranks.first else None):
            raise WorldSizeChanged(
                f"{step_name(step)} was written by {ranks}, and this training has {self._ranks.size}",
                f"each rank has its own of {several(len(own), 'value')}: {', '.join(own[:NAMED])}"
                + (f" and {len(own) - NAMED} more" if len(own) > NAMED else ""),
                f"start with {ranks}: values that are kept per rank cannot be carried over to another number of ranks",
            )
        self._say(f"{ranks} became {self._ranks.size}: random numbers and per-rank objects start afresh")
        return False

    def _kept_per_rank(self, source: Source) -> list[str]:
        try:
            return kept_per_rank(source.metadata(), self._state)
        except Exception:  # the load fails of it, and says so
            return []

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
        self._tell(error)
        return error

    def _all_lost(self, chosen: _Chosen, lost: list[str]) -> NoCheckpointRestores:
        known, here = chosen.recorded, self._snapshots.nodes
        directories = " and ".join(map(str, self._places))
        why = [*lost, *chosen.unknown]
        if known is not None:
            why += [f"{node} takes no part in this launch" for node in known.nodes if node not in here]
            if not lost:
                why.append(f"nothing of it is in the memory of {', '.join(here)}")
        why.append(f"no checkpoint is in {directories}")
        what = _saved(known) if known is not None else "there are snapshots in memory"
        records = " ".join(shlex.quote(str(path)) for path in recorded.paths(self._places[0]))
        how = f"end this job, whose memory has parts of it, and remove {records}"
        if not lost:
            how = f"remove {records}, or call restore(allow_lost=True)"
        error = NoCheckpointRestores(
            f"Nothing that was saved can be restored: {what}",
            "\n".join(why),
            f"to start from an older checkpoint, move it into {self._places[0]}\nto start from the beginning, {how}",
        )
        self._tell(error)
        return error

    def _tell(self, error: NoCheckpointRestores) -> None:
        if self._ranks.first:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()


def _saved(known: Recorded) -> str:
    where = f" in the memory of {', '.join(known.nodes)}" if known.nodes else ""
    return f"step {known.step} or a later one was saved{where} by attempt {known.attempt}"


def _is_undone(found: Remembered | Candidate, setbacks: tuple[Setback, ...]) -> bool:
    if all(found.step <= one.to for one in setbacks):
        return False  # the manifest need not be read
    try:
        manifest = found.manifest if isinstance(found, Remembered) else read_manifest(found)
    except BadManifest:
        return False  # it does not restore, and that is told
    return setback.undone(setbacks, found.step, manifest.attempt)
