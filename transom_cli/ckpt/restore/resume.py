"""Choose the checkpoint that training resumes from: the newest that restores, from memory, disk or a copy."""

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transom_cli.ckpt import saved_marker
from transom_cli.ckpt.failures import (
    BadManifest,
    NoCheckpointRestores,
    RestoredStateDiffers,
    WorldSizeChanged,
    describe,
)
from transom_cli.ckpt.inventory import Candidate, candidates, read_manifest
from transom_cli.ckpt.manifest import Manifest, Origin, decode, encode
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST, step_name
from transom_cli.ckpt.proof import decode as decode_proof
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore import plain_dcp, rollback
from transom_cli.ckpt.restore.load import examine_together, kept_per_rank, load
from transom_cli.ckpt.restore.memory import InMemory, MemoryCandidate, memory_candidates, sources
from transom_cli.ckpt.restore.prove import Proven, check, memory_of
from transom_cli.ckpt.restore.reader import OnDisk, RestoreProgress, Source
from transom_cli.ckpt.restore.rollback import Batches, Rollback
from transom_cli.ckpt.rng import derived
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.saved_marker import SavedMarker
from transom_cli.ckpt.state import RANKS, RNG, Declared, State
from transom_cli.ckpt.tiers.fetch import MirrorCandidate, fetch_together, mirror_candidates
from transom_cli.errors import UsageError
from transom_cli.plural import several, some

NAMED = 10  # values in an error
_TORCH_RNG = re.compile(rf"{RANKS}\.\d+\.{RNG}\.torch")

E = TypeVar("E", NoCheckpointRestores, RestoredStateDiffers)
LOOKS = 3  # reads of the directory while it changes


@dataclass(frozen=True)
class Restored:
    step: int
    durable: bool  # not in memory alone


@dataclass(frozen=True)
class _Candidates:
    """The candidates of a restore, newest first. unknown: what could not be read, and why. silent: object storage is
    among it."""

    found: list[MemoryCandidate | MirrorCandidate | Candidate]
    rollbacks: tuple[Rollback, ...]
    marker: SavedMarker | None
    unknown: list[str]
    silent: bool = False


class Restorer:
    """Restores the newest candidate, on all ranks together. places: the main directory, then those of copies."""

    def __init__(
        self, places: tuple[Path, ...], state: State, ranks: Ranks, snapshots: Snapshots, keep: Keep, reshard: Declared,
        say: Callable[[str], None], *, allow_code: bool = False, unproven: Sequence[str] = (),
        mirrors: tuple[str, ...] = (), attempt: str = "",
    ) -> None:  # fmt: skip
        self._places, self._state, self._ranks, self._snapshots = places, state, ranks, snapshots
        self._keep, self._reshard, self._say = keep, reshard, say
        self._allow_code, self._unproven = allow_code, unproven
        self._mirrors, self._attempt = mirrors, attempt
        self._differing: list[str] = []  # checkpoints that loaded as another state than was saved
        self._progress = RestoreProgress(snapshots.daemon.report_restore)
        self._touched = False  # a load that failed may have overwritten live state
        self._before: dict[str, Any] = {}  # where the tensors were before anything was loaded
        self.batches = Batches()  # as of the last restore()

    def restore(self, allow_lost: bool = False) -> Restored | None:
        """Restore the newest candidate that is good. None if nothing was ever saved.

        If a snapshot that is only in memory does not restore, an older checkpoint on disk is used.

        Args:
            allow_lost: return None if nothing remains of what was saved.

        Raises:
            NoCheckpointRestores: there are checkpoints and none restores, or all are lost.
            RestoredStateDiffers: what was loaded is not what was saved, and no older checkpoint is.
            WorldSizeChanged: the checkpoint has per-rank state for another number of ranks.
        """
        self._touched, self._differing, self._before = False, [], memory_of(self._state)
        self._state.exchange_groups(self._ranks)
        listed = self._ranks.by_first(self._read_candidates)
        for _ in range(LOOKS):
            restored, lost, passed_over = self._newest_that_loads(listed)
            if restored is not None:
                return restored
            again = self._ranks.by_first(self._read_candidates) if passed_over else listed
            if [self._name(one) for one in again.found] == [self._name(one) for one in listed.found]:
                break
            listed = again  # the snapshot daemon of the last launch published or removed checkpoints meanwhile
        if self._differing:
            raise self._state_differs()
        rollbacks = listed.rollbacks
        if not passed_over and any(one.to > 0 for one in rollbacks):
            passed_over = [f"the training was rolled back to step {rollbacks[-1].to}, and no checkpoint of it remains"]
        if passed_over:
            raise self._nothing_restores(passed_over)
        if lost or (listed.marker is not None and not allow_lost):
            raise self._all_lost(listed, lost)  # also if something was loaded in part: that is no state to start from
        if listed.silent and not allow_lost:
            raise self._not_known(listed)
        if listed.marker is not None:
            self._start_over()
        self._snapshots.rewind(None)
        return None

    def continues(self) -> None:
        """The live state is used instead of a candidate. A collective."""
        self._state.exchange_groups(self._ranks)
        self.batches = Batches(self._ranks.by_first(lambda: rollback.read(self._places[0])))

    def newest(self) -> int:
        """The newest step that there is, whether it restores or not; -1: none. Called by rank 0."""
        return max((one.step for one in self._read_candidates().found), default=-1)

    def start_from(self, path: Path, step: int | None) -> Restored:
        """Load a checkpoint of elsewhere, of a Checkpointer or of DCP itself: nothing was saved here yet.

        Raises UsageError: nothing says which step it is; NoCheckpointRestores: it does not load.
        """
        self._before = memory_of(self._state)

        def about() -> tuple[int, bool]:
            try:
                plain = plain_dcp.is_plain_dcp(path)
                plain_dcp.refuse_megatron(path)
                return (plain_dcp.step_of(path, step) if plain else _step_of_manifest(path)), plain
            except BadManifest as error:
                raise UsageError(error.what, error.why, error.hint) from None

        number, plain = self._ranks.by_first(about)
        found = Candidate(number, path)
        reason = self._load_plain(found) if plain else self._load_from_disk(found, own=False)
        if reason:
            raise NoCheckpointRestores(f"{path} does not restore", reason, f"transom ckpt verify {path.parent}")
        return Restored(number, durable=True)

    def _load_plain(self, found: Candidate) -> str:
        """Load a directory that DCP wrote itself. Returns "", or why that failed."""
        self._progress.of(found.step, str(found.path.parent))
        source, code = OnDisk(found.path), self._allow_code
        checked = plain_dcp.Checked()
        try:
            metadata = source.metadata(allow_code=code)
            plain_dcp.refuse_megatron(found.path, metadata.state_dict_metadata)
            checked = plain_dcp.check(found.path, metadata, self._ranks.rank, self._ranks.size)
        except Exception as error:
            checked = plain_dcp.Checked(reasons=(describe(error),))
        checked = plain_dcp.together(self._ranks.gather(checked))
        if checked.reasons:
            return checked.reasons[0]
        origin = plain_dcp.origin(found.path, checked)
        reason = load(source, self._state, self._ranks, self._progress, per_rank=False, origin=origin, allow_code=code)
        if not reason:
            self._say(f"restored {found.name} ({origin.text})")
        return reason

    def _newest_that_loads(self, listed: _Candidates) -> tuple[Restored | None, list[str], list[str]]:
        """Load the newest good candidate. Also return those that failed, with reasons: in memory, on disk."""
        self.batches = Batches(listed.rollbacks)
        passed_over: list[str] = []
        lost: list[str] = []
        for candidate in listed.found:
            in_memory = isinstance(candidate, MemoryCandidate)
            if isinstance(candidate, MemoryCandidate):
                reason = self._load_from_memory(candidate)
            elif isinstance(candidate, MirrorCandidate):
                reason = self._load_from_mirror(candidate)
            else:
                reason = self._load_from_disk(candidate)
            if not reason:
                if listed.marker is not None and listed.marker.step > candidate.step:
                    self._say(f"{_saved(listed.marker)}, and is lost: training continues from step {candidate.step}")
                return Restored(candidate.step, durable=not in_memory), lost, passed_over
            self._say(f"passed over {self._name(candidate)}: {reason}")
            (lost if in_memory else passed_over).append(f"{self._name(candidate)}: {reason}")
        return None, lost, passed_over

    def _start_over(self) -> None:
        """Start over though what was saved is lost: remove its marker. Raises UsageError on all ranks."""

        def forget() -> None:
            try:
                saved_marker.forget(self._places[0])
            except OSError as error:
                what = "The record of the lost snapshot cannot be removed"
                raise UsageError(what, describe(error), "remove it yourself") from None

        self._ranks.by_first(forget)
        self._say("what was saved is lost, and the training starts from the beginning, as allowed")

    def _read_candidates(self) -> _Candidates:
        """List the candidates, without those that a rollback has undone. Called by rank 0.

        Raises BadRollbacks: without that record, training would resume from a bad state in memory, or with the wrong
        batches, and nobody would notice.
        """
        rollbacks = rollback.read(self._places[0])
        for copy in self._places[1:]:
            with contextlib.suppress(OSError):  # reported when its candidates are listed
                rollback.set_aside(copy, rollbacks)
        directory, *copies = self._places
        in_memory, unknown = memory_candidates(self._snapshots)
        found: list[MemoryCandidate | MirrorCandidate | Candidate] = [*in_memory, *candidates(directory)]
        for copy in copies:
            try:
                found += candidates(copy)
            except OSError as error:
                unknown.append(f"the copies in {copy} are not known: {describe(error)}")
        newest = max((one.step for one in found), default=0)
        of_mirrors, silent = mirror_candidates(
            self._mirrors, directory, lambda step, attempt: rollback.undone(rollbacks, step, attempt), newest
        )
        found += of_mirrors
        unknown += silent
        for line in unknown:
            self._say(line)
        # of one step, memory comes before disk, and disk before its copies: the sort is stable
        found.sort(key=lambda candidate: candidate.step, reverse=True)
        marker = saved_marker.read(directory)
        if marker is not None and rollback.undone(rollbacks, marker.step, marker.attempt):
            marker = None
        return _Candidates(
            [one for one in found if not _is_undone(one, rollbacks)], rollbacks, marker, unknown, bool(silent)
        )

    def _load_from_memory(self, found: MemoryCandidate) -> str:
        """Restore from memory. Returns "", or why that failed."""
        source = InMemory(self._snapshots, found, self._places[0])
        per_rank = self._per_rank_fits(found.step, found.manifest.world_size, None, source)
        self._progress.of(found.step, "")
        code = self._allow_code
        reason = load(source, self._state, self._ranks, self._progress, per_rank=per_rank, allow_code=code)
        self._touched = self._touched or source.touched
        proven = self._prove(found.manifest, reason, per_rank=per_rank)
        reason = proven.reason
        if not reason:
            self._snapshots.rewind(found.step, found.record)
            where = sources(self._ranks.gather(source.where))
            self._say(f"restored {found.name} ({where}; written by attempt {found.manifest.attempt}{proven.note})")
        return reason

    def _load_from_mirror(self, found: MirrorCandidate) -> str:
        """Fetch a checkpoint from object storage, and restore it. Returns "", or why that failed."""
        self._progress.of(found.step, found.url)
        self._progress.checking(found.marker.size // self._ranks.size, found.marker.size)
        directory = self._places[0]
        reason = fetch_together(found, directory, self._attempt, self._ranks, self._progress.add)
        if reason:
            return reason
        self._say(f"fetched {found.name}")
        return self._load_from_disk(Candidate(found.step, directory / step_name(found.step)))

    def _load_from_disk(self, candidate: Candidate, *, own: bool = True) -> str:
        """Restore from disk. Returns "", or why that failed. own: it was saved in one of this training's places."""
        self._progress.of(candidate.step, str(candidate.path.parent))
        verdict = examine_together(candidate, self._ranks)
        if verdict.manifest is None or not verdict.good:
            return verdict.reason
        origin = verdict.origin
        if origin is not None and self._touched and (lost := self._overwritten(origin)):
            return f"{lost} would start afresh, and a damaged checkpoint has overwritten it"
        source = OnDisk(candidate.path, verdict.manifest)
        per_rank = self._per_rank_fits(candidate.step, verdict.manifest.world_size, origin, source)
        how, code = (source, self._state, self._ranks, self._progress), self._allow_code
        reason = load(*how, per_rank=per_rank, origin=origin, allow_code=code)
        self._touched = self._touched or source.touched
        proven = self._prove(verdict.manifest, reason, per_rank=per_rank)
        reason = proven.reason
        if not reason:
            if own:
                self._snapshots.rewind(candidate.step)
            if own and self._ranks.first:
                self._snapshots.trust(candidate.path.parent, encode(verdict.manifest), self._keep)
            by = origin.text if origin is not None else f"written by attempt {verdict.manifest.attempt}"
            self._say(f"restored {self._name(candidate)} ({by}{proven.note})")
        return reason

    def _prove(self, manifest: Manifest, reason: str, *, per_rank: bool) -> Proven:
        """Compare the live state with what was saved, unless it was not loaded: `reason`. A collective."""
        if reason:
            return Proven(reason)
        if not per_rank and manifest.world_size not in (0, self._ranks.size):
            self._derive_random_numbers(manifest)
        proven = check(manifest.proof, self._state, self._ranks, self._unproven, self._before, per_rank=per_rank)
        if proven.differs:
            self._differing.append(f"{step_name(manifest.step)}: {proven.reason}")
        elif self._differing and not proven.proven:
            return Proven("it carries no digests, and a newer one did not restore as it was saved")
        return proven

    def _per_rank_fits(self, step: int, world_size: int, origin: Origin | None, source: Source) -> bool:
        if origin is not None and not origin.per_rank:
            return False
        if world_size == self._ranks.size:
            return True
        ranks = several(world_size, "rank")
        objects = sorted({name for of_rank in self._ranks.gather(self._state.kept_per_rank()) for name in of_rank})
        if unclear := [name for name in objects if not self._reshard.matches(name)]:
            raise WorldSizeChanged(
                f"{step_name(step)} was written by {ranks}, and this training has {self._ranks.size}",
                f"{', '.join(unclear)}: kept per rank, and nothing says what another number of ranks should have",
                f"start with {ranks}, or declare it to the Checkpointer:\n"
                f"  reshard={unclear!r}: it starts afresh\n"
                f"  from_rank_0={unclear!r}: it is the same on all ranks\n"
                "transom_cli.elastic.GlobalBatches keeps a data position for any number of ranks",
            )
        if own := self._ranks.from_first(self._kept_per_rank(source) if self._ranks.first else None):
            raise WorldSizeChanged(
                f"{step_name(step)} was written by {ranks}, and this training has {self._ranks.size}",
                f"each rank has its own of {several(len(own), 'value')}: {some(own, NAMED)}",
                f"start with {ranks}: values that are kept per rank cannot be carried over to another number of ranks",
            )
        afresh = f"; {', '.join(objects)} start afresh" if objects else ""
        self._say(f"{ranks} became {self._ranks.size}: random numbers are derived from the saved ones{afresh}")
        return False

    def _derive_random_numbers(self, manifest: Manifest) -> None:
        """For another number of ranks. They are the same on all ranks if they were so before (tensor parallelism)."""
        proof = decode_proof(manifest.proof)
        tensors = {} if proof is None else proof.tensors
        saved = [one.digest for name, one in tensors.items() if _TORCH_RNG.fullmatch(name)]
        own = "" if len(saved) == manifest.world_size and len(set(saved)) == 1 else f" {self._ranks.rank}"
        self._state.seed(derived(f"{manifest.step} {sorted(saved)}{own}"))

    def _overwritten(self, origin: Origin) -> str:
        """Name the entries that are to keep their initial state, and may have lost it. A collective."""
        names = [one for one in origin.afresh if one in self._state.names() and self._state.loads_in_place((one,))]
        return ", ".join(sorted({one for of_rank in self._ranks.gather(names) for one in of_rank}))

    def _kept_per_rank(self, source: Source) -> list[str]:
        try:
            return kept_per_rank(source.metadata(), self._state)
        except Exception:  # the load will fail for the same reason, and report it
            return []

    def _name(self, candidate: MemoryCandidate | MirrorCandidate | Candidate) -> str:
        if isinstance(candidate, MemoryCandidate | MirrorCandidate) or candidate.path.parent == self._places[0]:
            return candidate.name
        return f"{candidate.name} in {candidate.path.parent}"

    def _nothing_restores(self, passed_over: list[str]) -> NoCheckpointRestores:
        which = "The one checkpoint" if len(passed_over) == 1 else f"None of the {len(passed_over)} checkpoints"
        does = "does not restore" if len(passed_over) == 1 else "restores"
        return self._told(NoCheckpointRestores(
            f"{which} in {' and '.join(map(str, (*self._places, *self._mirrors)))} {does}",
            "\n".join(passed_over),
            "\n".join(f"transom ckpt verify {place}" for place in self._places)
            + "\nto start from the beginning, give another directory",
        ))  # fmt: skip

    def _state_differs(self) -> RestoredStateDiffers:
        return self._told(RestoredStateDiffers(
            "The restored state is not the one that was saved",
            "\n".join(dict.fromkeys(self._differing)),
            f"transom ckpt verify --deep {self._places[0]} tells whether the checkpoint itself is good. If it is, the\n"
            "loading is wrong: look at load_state_dict of what is named, and at code that changed since the save.\n"
            "A value that is meant to differ after a restore: Checkpointer(..., unproven=[NAME])",
        ))  # fmt: skip

    def _not_known(self, listed: _Candidates) -> NoCheckpointRestores:
        return self._told(NoCheckpointRestores(
            "No checkpoint was found, and object storage cannot be read",
            "\n".join(listed.unknown),
            "make it reachable; to start from the beginning, call restore(allow_lost=True)",
        ))  # fmt: skip

    def _all_lost(self, listed: _Candidates, lost: list[str]) -> NoCheckpointRestores:
        known, here = listed.marker, self._snapshots.daemon.nodes
        directories = " and ".join(map(str, (*self._places, *self._mirrors)))
        why = [*lost, *listed.unknown]
        if known is not None:
            why += [f"{node} takes no part in this launch" for node in known.nodes if node not in here]
            if not lost:
                why.append(f"nothing of it is in the memory of {', '.join(here)}")
        why.append(f"no checkpoint is in {directories}")
        what = _saved(known) if known is not None else "there are snapshots in memory"
        records = " ".join(shlex.quote(str(path)) for path in saved_marker.marker_paths(self._places[0]))
        how = f"end this job, whose memory has parts of it, and remove {records}"
        if not lost:
            how = f"remove {records}, or call restore(allow_lost=True)"
        return self._told(NoCheckpointRestores(
            f"Nothing that was saved can be restored: {what}",
            "\n".join(why),
            f"to start from an older checkpoint, move it into {self._places[0]}\nto start from the beginning, {how}",
        ))  # fmt: skip

    def _told(self, error: E) -> E:
        """Python prints nothing for a SystemExit that nobody catches."""
        if self._ranks.first:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()
        return error


def _saved(known: SavedMarker) -> str:
    where = f" in the memory of {', '.join(known.nodes)}" if known.nodes else ""
    return f"step {known.step} or a later one was saved{where} by attempt {known.attempt}"


def _step_of_manifest(path: Path) -> int:
    try:
        return decode((path / MANIFEST).read_bytes()).step
    except OSError as error:
        raise UsageError(
            f"{path} is not a checkpoint", f"it has neither {MANIFEST} nor {DCP_METADATA} ({describe(error)})",
            "give the directory of one checkpoint, such as step-100",
        ) from None  # fmt: skip


def _is_undone(found: MemoryCandidate | MirrorCandidate | Candidate, rollbacks: tuple[Rollback, ...]) -> bool:
    if all(found.step <= one.to for one in rollbacks):
        return False  # the manifest need not be read
    if isinstance(found, MirrorCandidate):
        return rollback.undone(rollbacks, found.step, found.marker.attempt)
    try:
        manifest = found.manifest if isinstance(found, MemoryCandidate) else read_manifest(found)
    except BadManifest:
        return False  # it will not restore, and that is reported
    return rollback.undone(rollbacks, found.step, manifest.attempt)
