"""Turn the ranks' snapshots of one step into a checkpoint: every share is held by a daemon, and a record lists them.

All ranks call the methods of `Committer` for the same step and get the same answers. The record is the checkpoint's
manifest, with the checksum of every share. Rank 0 makes it once all shares are in the memory of their nodes, and every
node's snapshot daemon keeps it. The daemons also make checkpoints durable, from that memory (`ckpt.snapshot`).
"""

import contextlib
import datetime
import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import RanksMissing, describe
from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA, data_name, step_name
from transom_cli.ckpt.options import Options
from transom_cli.ckpt.proof import TensorProof
from transom_cli.ckpt.proof_save import Ledger, Totals
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.save.incremental import Incremental
from transom_cli.ckpt.save.layout import Layout, Place, global_plan
from transom_cli.ckpt.save.replicas import Proof, Short
from transom_cli.ckpt.save.shares import Shares, written
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.save.staging import Snapshot, Stager, pack, size_for
from transom_cli.ckpt.snapshot.persist import RESERVED as DURABLE
from transom_cli.ckpt.snapshot.protect import RESERVED as PROTECTED
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.rpc.errors import RpcError

_PRESENT = struct.Struct("<q??Q")  # step, whether the shares are agreed, whether there is more to say, checksum
_LATER = (MemoryError, OSError, RpcError)  # failures of preparation; the next save reports them
Offer = tuple[SavePlan, frozenset[MetadataIndex]]  # everything a rank holds, and the part in its snapshot


@dataclass(frozen=True)
class Share:
    """What a rank writes of this snapshot (`now`) and of the next ones (`later`). trouble: why the plan failed."""

    now: frozenset[MetadataIndex] = frozenset()
    later: frozenset[MetadataIndex] = frozenset()
    trouble: str = ""


@dataclass(frozen=True)
class Roll:
    """All ranks' answers for one step: whether their shares are agreed, the first trouble, the short checksums if a
    rank has one, and whether all ranks are at this step."""

    agreed: bool
    trouble: str
    checksums: list[Short | None]
    together: bool = True


@dataclass(frozen=True)
class Committed:
    """Result of a save.

    trouble: why it is no checkpoint, or "". uses: why its memory stays reserved. prepare: whether to prepare the next
    save, with `share` if this save was planned again.
    """

    trouble: str
    uses: frozenset[str] = frozenset()
    prepare: bool = False
    share: Share | None = None


class Committer:
    """Commits snapshots, in the background thread of a save."""

    def __init__(self, options: Options, ranks: Ranks, stager: Stager, snapshots: Snapshots) -> None:
        self._options, self._ranks = options, ranks
        self._stager, self._snapshots = stager, snapshots
        self._prepared = 0
        self._metadata: Metadata | None = None  # DCP's metadata of all shares, on rank 0
        self._shares = Shares(ranks)
        self._packed: tuple[Any, ...] = ()  # what was packed last, and its segments and places
        self.ledger = Ledger(ranks)
        self._incremental = Incremental(options.full_every, ranks, snapshots) if options.full_every else None

    def prepare(self, layout: Layout | None, growth: float, patience: float) -> None:
        """Before the first save: plan who writes what, and allocate memory for a state `growth` times as large.

        A failure here is reported by the save.

        patience: seconds to wait for the other ranks. Raises RanksMissing: not all ranks have come.
        """
        self._prepared += 1
        try:
            mine = (layout is not None, layout is not None and self._stager.agreed_on(layout))
            answers = self._ranks.gather(mine, what=f"preparation {self._prepared}", patience=patience)
            if layout is not None and all(there for there, _ in answers) and not all(agreed for _, agreed in answers):
                self._settle(layout, self.plan(layout), growth)
                if self._snapshots.awaited:
                    self._snapshots.complete()
        except RanksMissing:
            raise
        except FAILURES:
            pass

    def call_roll(
        self, step: int, snapshot: Snapshot | None, trouble: str, proof: Proof | None, patience: float | None = None
    ) -> Roll:
        """Wait until all ranks commit `step`, and exchange their troubles and checksums. A collective.

        `snapshot` is None, with the `trouble`, where a rank could not copy its state: the others must learn of it.

        Ranks may come with different steps, if a request for a final checkpoint did not reach all of them in time.
        Ranks that are behind give their step up, and ranks that are ahead ask again. So no checkpoint mixes two steps,
        and the next step that all ranks save is saved. Until then this thread waits on the ranks that are ahead.
        """
        agreed = snapshot is not None and snapshot.agreed
        short = proof.short if proof is not None else None
        awaited = short is not None and not short[3]
        while True:
            mine = _PRESENT.pack(step, agreed, bool(trouble) or awaited, short[0] if short is not None else 0)
            present = list(_PRESENT.iter_unpack(b"".join(self._ranks.gather_bytes(mine, f"save {step}", patience))))
            ahead = max(one[0] for one in present)
            if step < ahead:
                return Roll(
                    agreed, f"not all ranks save this step: others are at {step_name(ahead)}", [], together=False
                )
            if all(one[0] == step for one in present):
                everyone = all(one[1] for one in present)
                if not any(one[2] for one in present) and len({one[3] for one in present} - {0}) <= 1:
                    return Roll(everyone, "", [])
                answers = self._ranks.gather((trouble, short))
                return Roll(everyone, _first([answer[0] for answer in answers]), [answer[1] for answer in answers])

    def commit(self, step: int, snapshot: Snapshot, *, agreed: bool, requested: bool) -> Committed:
        """Hand this rank's share to the daemon, make the record, and distribute it. A collective.

        Args:
            agreed: the snapshot holds just what this rank is to write; otherwise the shares are planned here.
            requested: make the checkpoint durable in any case.
        """
        share = None if agreed else self.plan(snapshot.layout)
        if share is not None and share.trouble:
            return Committed(share.trouble, prepare=True, share=share)
        trouble, entry, places = self._hold(step, snapshot, share)
        doubt, sums = self.sums()
        trouble, entries = self._shares.exchange(trouble or doubt, entry, places)
        uses: frozenset[str] = frozenset()
        manifest: bytes | None = None
        if self._ranks.first and not trouble:
            try:
                proof, trouble = self._proof(sums)
                if not trouble:
                    uses = self._uses(requested)
                    manifest = self._manifest(step, entries, proof)
            except FAILURES as error:
                trouble, uses = describe(error), frozenset()
        trouble, uses, manifest = self._ranks.from_first((trouble, uses, manifest))
        metadata = self._shares.spread(manifest)
        if manifest is not None and metadata is not None:
            self._distribute(step, Record(manifest, metadata), uses)
            if self._incremental is not None and DURABLE in uses:
                self._incremental.plan(step, snapshot, places, self._metadata, manifest)
        return Committed(trouble, uses, prepare=True, share=share)

    def prepare_next(self, snapshot: Snapshot, share: Share | None) -> None:
        """Allocate memory for the next save. This may wait for memory, and failures are reported by that save."""
        if share is not None:
            self._settle(snapshot.layout, share)
        else:
            with contextlib.suppress(*_LATER):
                self._snapshots.ready(size_for(snapshot.layout, snapshot.size - snapshot.layout.size))

    def _settle(self, layout: Layout, share: Share, growth: float = 1.0) -> None:
        if share.trouble:
            self._stager.forget()
            return
        with contextlib.suppress(*_LATER):
            self._stager.settle(layout, share.later, growth)

    def plan(self, layout: Layout) -> Share:
        """Decide which rank writes what, so that replicas are stored once. A collective.

        The plan is DCP's own. It is kept until a rank's state changes shape: an optimizer's state appears with its
        first step.
        """
        shares: list[Share] | None = None
        try:
            offers: list[Offer] | None = self._ranks.to_first((layout.plan, layout.indices))
            if offers is not None:
                self._metadata, shares = _deduplicated(offers)
        except Exception as error:
            if not self._ranks.first:
                raise
            shares = [Share(trouble=describe(error))] * self._ranks.size  # the others wait for it
        mine: Share = self._ranks.each_from_first(shares)
        self._shares.forget()
        self.ledger.agree(self._metadata)
        return mine

    def _hold(self, step: int, snapshot: Snapshot, share: Share | None) -> tuple[str, FileEntry | None, list[Place]]:
        """Checksum this rank's share, and hand it to the daemon. Return the trouble or the share."""
        try:
            segments, places = self._pack(snapshot, share)
            self.ledger.begin(snapshot, places)  # while the checksum is computed
            size = sum(length for _, length in segments)
            checksum = files.digest_segments(snapshot.buffer.view(0, snapshot.buffer.size), segments)
            entry = FileEntry(data_name(self._ranks.rank), size, checksum)
            self._snapshots.hold(step, entry, segments)
        except FAILURES as error:
            return describe(error), None, []
        return "", entry, places

    def _pack(self, snapshot: Snapshot, share: Share | None) -> tuple[list[tuple[int, int]], list[Place]]:
        """Pack like `pack`. As long as nothing has moved, the result is the same object."""
        about = (snapshot.layout, snapshot.objects, share)
        same = self._packed and self._packed[0][0] is about[0] and self._packed[0][1:] == about[1:]
        if not same:
            self._packed = (about, pack(snapshot, share.now if share else None))
        packed: tuple[list[tuple[int, int]], list[Place]] = self._packed[1]
        return packed

    def _uses(self, requested: bool) -> frozenset[str]:
        """What the checkpoint's memory stays reserved for. Rank 0 decides."""
        uses = [PROTECTED] if self._options.protection != NONE else []
        if self._options.rule.due(requested):
            uses.append(DURABLE)
        return frozenset(uses)

    def _unstored(self) -> dict[str, TensorProof]:
        """The parameters of all ranks that the checkpoint does not have, on rank 0. A collective."""
        mine = self.ledger.unstored
        if b"\1" not in self._ranks.gather_bytes(b"\1" if mine else b"\0"):
            return {}
        answers: list[dict[str, TensorProof]] = self._ranks.to_first(mine) or []
        return {name: one for of_rank in answers for name, one in of_rank.items()}

    def sums(self) -> tuple[str, tuple[Totals, dict[str, TensorProof]]]:
        """This rank's trouble or "", and what rank 0 makes the proof of. A collective, also after a trouble."""
        doubt, totals = self.ledger.total()
        return doubt, (totals, self._unstored())

    def _proof(self, sums: tuple[Totals, dict[str, TensorProof]]) -> tuple[str, str]:
        """The proof for the manifest, and why the snapshot is not the live state or ""."""
        proof, trouble = self.ledger.proof(*sums)
        return proof.encode(), trouble

    def _manifest(self, step: int, entries: list[FileEntry], proof: str) -> bytes:
        assert self._metadata is not None
        return self._encoded(step, [self._shares.metadata_entry(self._metadata), *entries], proof)

    def record(
        self, step: int, entries: list[FileEntry], places: list[list[Place]],
        sums: tuple[Totals, dict[str, TensorProof]],
    ) -> tuple[Record, str]:  # fmt: skip
        """The record of a checkpoint without snapshots, and why it is none or "". Called by rank 0 after `sums`."""
        assert self._metadata is not None
        metadata = written(self._metadata, places)
        own = FileEntry.of(DCP_METADATA, metadata)
        proof, trouble = self._proof(sums)
        return Record(self._encoded(step, [own, *entries], proof), metadata), trouble

    def _encoded(self, step: int, entries: list[FileEntry], proof: str) -> bytes:
        return encode(Manifest(
            step=step,
            world_size=self._ranks.size,
            attempt=self._options.attempt,
            torch=str(torch.__version__),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            files=tuple(sorted(entries, key=lambda entry: entry.name)),
            proof=proof,
        ))  # fmt: skip

    def _distribute(self, step: int, record: Record, uses: frozenset[str]) -> None:
        """Give the record to this node's daemon. After a restore from memory, release the restored step once every
        rank has committed a newer one."""
        failed: Exception | None = None
        try:
            self._snapshots.commit(step, record, uses)
        except Exception as error:  # the other ranks wait in the collective below
            failed = error
        if self._snapshots.superseding and all(self._ranks.gather(failed is None)):
            self._snapshots.supersede(step)
        if failed is not None:
            raise failed


def _deduplicated(offers: list[Offer]) -> tuple[Metadata, list[Share]]:
    plans, metadata = global_plan([plan for plan, _ in offers])
    held = [SavePlan([i for i in p.items if i.index in have], p.storage_data, p.planner_data) for p, have in offers]
    whole = all(len(part.items) == len(plan.items) for part, (plan, _) in zip(held, offers, strict=True))
    now = plans if whole else global_plan(held)[0]
    missing = _indices(plans) - _indices(now)
    if missing:
        some = min(missing, key=lambda index: index.fqn)
        raise ValueError(f"{some.fqn} is in no rank's snapshot: the ranks' states differ in shape")
    return metadata, [Share(_indices([n]), _indices([p])) for n, p in zip(now, plans, strict=True)]


def _indices(plans: list[SavePlan]) -> frozenset[MetadataIndex]:
    return frozenset(item.index for plan in plans for item in plan.items)


def _first(troubles: list[str]) -> str:
    return next((trouble for trouble in troubles if trouble), "")
