"""What a snapshot daemon does for one process of its own node: a rank, the node's agent, or a command.

There is one session per connection, in one thread. `VERBS` lists what it answers.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli.ckpt.manifest import FileEntry, decode
from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.increments import BLOB, BUFFER, Changes, Increment
from transom_cli.ckpt.snapshot.persist import RESERVED
from transom_cli.ckpt.snapshot.protection import NONE, parse
from transom_cli.ckpt.snapshot.rebuild import Found, ShareNotFound
from transom_cli.ckpt.snapshot.record import Buffer, Launch, Record, Share
from transom_cli.ckpt.snapshot.training import Training
from transom_cli.ckpt.snapshot.writer import Order
from transom_cli.ckpt.tiers.objects import is_url
from transom_cli.core.codec import build, plain
from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed
from transom_cli.rpc.verbs import Call, Reply, dispatch, verb, verbs_of

if TYPE_CHECKING:
    from transom_cli.ckpt.snapshot.daemon import Daemon

SURVEY = 5.0  # seconds for a peer to list what it has
PATIENCE = 30.0  # seconds at most that one call may wait here
_RHYTHM = 500  # characters
_FDS_PER_REPLY = 8


class Session:
    def __init__(self, host: Daemon) -> None:
        self._host = host
        self._training: Training | None = None
        self._launch: Launch | None = None
        self._rank = -1
        self._found: list[Found] = []
        self._parcels: list[int] = []  # passed with the last reply

    def answer(self, call: Call) -> Reply:
        self._close_parcels()
        return dispatch(VERBS, self, call)

    def close(self) -> None:
        """The process has gone: its unfinished copy is no snapshot, and what it read may be overwritten."""
        self._close_parcels()
        self._end_reading()
        if self._training is not None:
            self._training.restoring.pop(self._rank, None)

    @property
    def training(self) -> Training:
        if self._training is None:
            raise ValueError("join first")
        return self._training

    @property
    def launch(self) -> Launch:
        if self._launch is None:
            raise ValueError("join first")
        return self._launch

    # The daemon, for the node's agent

    @verb()
    def hello(self) -> Reply:
        return Reply({"id": self._host.id})

    @verb()
    def end(self) -> Reply:
        self._host.end()
        return Reply({"id": self._host.id})

    @verb()
    def newest(self) -> Reply:
        """Return each training's newest committed step."""
        return Reply({"newest": [training.newest() for training in self._host.trainings()]})

    @verb()
    def rescue(self, directory: str, step: int, attempt: str, seconds: float) -> Reply:
        training = next((t for t in self._host.trainings() if t.store.directory == directory), None)
        if training is None:
            raise ValueError("no snapshots of that training are held here")
        return Reply(training.rescue(step, attempt, seconds))

    # A rank joins

    @verb()
    def listen(
        self, launch: Launch, directory: str, token: str, node: str, key: str, port: int = 0, address: str = ""
    ) -> Reply:
        """key: hex, the secret of the launch's daemons. port: 0 for any. address: "" for all of this host."""
        training = self._host.training(directory, token, node)
        training.store.admit(launch)
        return Reply({"port": self._host.listen(directory, bytes.fromhex(key), node, address, port)})

    @verb()
    def join(
        self, launch: Launch, directory: str, token: str, node: str, key: str, rank: int,
        places: dict[str, tuple[str, int]], protect: str = "none", rate: float | None = None,
        domains: dict[str, str] | None = None, also: tuple[tuple[str, int], ...] = (), upload_rate: float | None = None,
    ) -> Reply:  # fmt: skip
        """Return the rank's buffers from an earlier launch, as [index, bytes] and a descriptor each.

        Args:
            places: address and port of each node's daemon.
            rate: bytes per second for parity.
            domains: failure domain by node.
            also: further directories and URLs, and every how many checkpoints one is copied there.
            upload_rate: bytes per second to URLs.
        """
        training = self._host.training(directory, token, node)
        if training.store.launch != launch:
            training.begin()
        training.protect = protection = parse(protect)
        buffers = training.store.join(launch, rank, protection != NONE, self)
        training.protector.choose(protection, domains or {}, rate)
        training.meet(node, places, bytes.fromhex(key))
        training.persister.copy_to({Path(place): every for place, every in also if not is_url(place)})
        urls = {place: every for place, every in also if is_url(place)}
        training.persister.mirror.copy_to(urls, upload_rate)
        self._training, self._launch, self._rank = training, launch, rank
        rows = sorted(buffers.items())[:_FDS_PER_REPLY]
        return Reply({"buffers": [[n, buffer.size] for n, buffer in rows]}, fds=[buffer.fd for _, buffer in rows])

    @verb(fds=1)
    def lend(self, fds: list[int], index: int, size: int, write: bool) -> Reply:
        """One descriptor: a memfd of `size` bytes. write: the rank writes into it now."""
        buffer = Buffer(fds[0], size)
        del fds[0]  # it is the buffer's now
        try:
            self.training.store.lend(self.launch, self._rank, index, buffer, write=write, caller=self)
        except BaseException:
            buffer.close()
            raise
        return Reply()

    @verb()
    def look(self, directory: str, token: str) -> Reply:
        """For a process that is no rank."""
        self._training = self._host.training(directory, token, "")
        return Reply()

    @verb()
    def bye(self) -> Reply:
        training, self._training = self.training, None
        if training.store.leave(self.launch, self._rank):
            self._host.forget(training)
        return Reply()

    # A save

    @verb()
    def take(self, patience: float, index: int | None = None, words: bool = False) -> Reply:
        """index: the buffer that a former daemon had given out. words: also return new lines for the trainer."""
        store = self.training.store
        index, why = store.take(self.launch, self._rank, min(PATIENCE, patience), index, self)
        pinned = store.pinned if index is None else None
        lines = self._new_lines() if words else []
        return Reply({"index": index, "busy": why, "pinned": pinned, "words": lines})

    @verb()
    def drop(self, index: int) -> Reply:
        self.training.store.drop(self.launch, self._rank, index, self)
        return Reply()

    @verb(fds=1)
    def hold(self, fds: list[int], step: int, file: str, size: int, sum: str, index: int | None = None) -> Reply:
        """One parcel: the segments as JSON. index: set to repeat what a former daemon knew."""
        segments = tuple((int(start), int(length)) for start, length in json.loads(local.unpack(fds[0])))
        share = Share(step, file, size, sum, segments)
        if index is None:
            self.training.store.hold(self.launch, self._rank, share, self)
        else:
            self.training.store.again(self.launch, self._rank, index, share, self)
        return Reply()

    @verb(fds=1)
    def commit(
        self, fds: list[int], step: int, manifest: int, reserve: tuple[str, ...], restored: bool = False,
        same: int | None = None,
    ) -> Reply:  # fmt: skip
        """One parcel: the manifest, of `manifest` bytes, and torch's metadata. same: a committed step with the same
        metadata; then the parcel has the manifest alone."""
        data = local.unpack(fds[0])
        metadata = data[manifest:]
        if same is not None:
            like = self.training.store.records.get(same)
            if like is None:
                raise ValueError(f"no record of step {same}")
            metadata = like.metadata
        record = Record(data[:manifest], metadata)
        self.training.store.commit(self.launch, step, record, reserve, restored=restored)
        if RESERVED in reserve:
            self.training.persister.tried_again(step)
        return Reply()

    @verb(fds=1)
    def changes(self, fds: list[int], step: int, file: str, size: int, sum: str, blob: int) -> Reply:
        """Note what to write of this rank's share in an incremental checkpoint. One parcel: `blob` bytes, and the
        segments as JSON."""
        data = local.unpack(fds[0])
        segments = tuple((int(where), int(at), int(n)) for where, at, n in json.loads(data[blob:]))
        if blob < 0 or any(where not in (BUFFER, BLOB) or min(at, n) < 0 for where, at, n in segments):
            raise ValueError(f"{file}: a segment is not in its memory")
        entry = FileEntry(file, size, sum)
        self.training.persister.increments.changes(step, Changes(entry, segments, data[:blob]))
        return Reply()

    @verb(fds=1)
    def increment(self, fds: list[int], step: int, base: int | None, manifest: int, metadata: int) -> Reply:
        """Note an incremental checkpoint, for when the step is persisted. One parcel: `manifest` bytes, `metadata`
        bytes of torch's own, and the links as JSON."""
        data = local.unpack(fds[0])
        end = manifest + metadata
        links = tuple((str(name), str(source)) for name, source in json.loads(data[end:]))
        record = Record(data[:manifest], data[manifest:end])
        if record.read.step != step or any("/" in name for pair in links for name in pair):
            raise ValueError(f"not an increment of step {step}")
        self.training.persister.increments.plan(step, Increment(record, base, links))
        return Reply()

    @verb()
    def base(self) -> Reply:
        """Return the step that an incremental checkpoint may refer to, and the checksum of its manifest; or None."""
        return Reply({"base": self.training.persister.increments.base})

    @verb()
    def superseded(self, step: int) -> Reply:
        """All ranks of all nodes have committed a step that is newer than the restored one."""
        self.training.store.superseded(self.launch, step)
        return Reply()

    @verb()
    def secure(self, step: int, by: str, attempt: str) -> Reply:
        """Have the restored step written to disk, because its memory is needed. Return whether it is kept at all."""
        kept = self.training.store.pinned == step
        if kept:
            self.training.persister.tried_again(step)
            self.training.peers.call(by, "persist", SURVEY, step=step, attempt=attempt)
        return Reply({"kept": kept})

    @verb()
    def durable(self, step: int) -> Reply:
        """The restored step is on disk."""
        self.training.store.durable(self.launch, step)
        return Reply()

    @verb()
    def plan(self, rhythm: str, coming: dict[str, Any]) -> Reply:
        self.training.rhythm, self.training.coming = rhythm[:_RHYTHM], build(NextSaves, coming)
        return Reply()

    @verb()
    def persist(
        self, step: int, attempt: str, keep: Keep, requested: bool = False, metrics: dict[str, float] | None = None
    ) -> Reply:
        """metrics: of the step, by name. requested: write it though a newer step may come."""
        self.training.persister.begin(Order(step, attempt, keep, metrics or {}, requested))
        return Reply()

    @verb()
    def protect(self, step: int) -> Reply:
        self.training.protector.begin(step)
        return Reply()

    @verb()
    def outcome(self, by: str, step: int, patience: float) -> Reply:
        """by: the node whose daemon writes the checkpoint."""
        state, trouble = self.training.persister.outcome_by(by, step, min(PATIENCE, patience))
        return Reply({"state": state, "trouble": trouble, "still": self.training.persister.still()})

    @verb()
    def unheard(self, step: int) -> Reply:
        """The rank stops waiting for the outcome of that step."""
        self.training.store.release(step, RESERVED)
        return Reply()

    @verb()
    def copying(self, by: str) -> Reply:
        """Return whether the daemon of that node has copies written."""
        return Reply({"busy": self.training.persister.copying_by(by)})

    @verb()
    def mirrored(self) -> Reply:
        """Return what became of the uploads to object storage that this daemon has made."""
        return Reply(plain(self.training.persister.mirror.outcome))

    @verb()
    def tidying(self) -> Reply:
        return Reply({"busy": self.training.persister.tidying})

    @verb()
    def words(self) -> Reply:
        return Reply({"words": self._new_lines()})

    # For commands

    @verb()
    def state(self) -> Reply:
        """Return this node's account of the training."""
        return Reply(self.training.state())

    @verb()
    def states(self) -> Reply:
        """Return all nodes' accounts as a parcel: {node: account or {"error": ..}}."""
        return self._parcel(self.training.peers.call_all("state", SURVEY))

    @verb()
    def check(self, step: int) -> Reply:
        """Verify everything that all nodes hold of a step. Return the result as a parcel."""
        return self._parcel(plain(self.training.verifier.everywhere(step)))

    # A restore

    @verb()
    def survey(self) -> Reply:
        """Return what all daemons have, as a parcel: {node: {"held": .., "records": ..} or {"error": ..}}."""
        return self._parcel(self.training.peers.call_all("all", SURVEY))

    @verb()
    def record(self, node: str, step: int, manifest: int, metadata: int) -> Reply:
        data = bytearray(manifest + metadata)
        self.training.peers.call(node, "record", SURVEY, memoryview(data), step=step)
        return self._parcel(bytes(data))

    @verb()
    def fetch(self, step: int, file: str, size: int, sum: str, check: bool = True) -> Reply:
        """Return a share in memory, valid until `rewind` or until the rank goes.

        Without ``check`` the caller verifies what is held here; if that is damaged, it calls again with ``check``.
        """
        entry = FileEntry(file, size, sum)
        try:
            found = self.training.finder.find(step, entry, check=check)
        except ShareNotFound as error:
            raise Failed(str(error)) from None
        self._found.append(found)
        segments = [list(segment) for segment in found.segments]
        answer = {"size": found.size, "where": found.where, "segments": segments, "checked": found.checked}
        return Reply(answer, fds=[found.fd])

    @verb()
    def restoring(self, part: Part) -> Reply:
        """Note the rank's progress until `rewind`."""
        self.training.restoring[self._rank] = part
        return Reply()

    @verb()
    def rewind(self, step: int | None) -> Reply:
        self._end_reading()
        self.training.restoring.pop(self._rank, None)
        self.training.store.rewind(self.launch, step)
        self.training.rewind(step)
        return Reply()

    @verb(fds=1)
    def trust(self, fds: list[int], directory: str, attempt: str, keep: Keep) -> Reply:
        """One parcel: the manifest of a checkpoint in `directory` that the rank has read in full."""
        if self.training.persister.writes_to(Path(directory)):
            self.training.persister.trust(Path(directory), attempt, keep, decode(local.unpack(fds[0])))
        return Reply()

    def _end_reading(self) -> None:
        found, self._found = self._found, []
        for one in found:
            with contextlib.suppress(OSError):
                one.end()

    def _new_lines(self) -> list[str]:
        """Return the lines for the trainer since the last call."""
        lines = self.training.words
        return [lines.popleft() for _ in range(len(lines))]

    def _parcel(self, content: object) -> Reply:
        data = content if isinstance(content, bytes) else json.dumps(content).encode("ascii")
        self._parcels.append(local.parcel(data))
        return Reply(fds=self._parcels[-1:])

    def _close_parcels(self) -> None:
        while self._parcels:
            os.close(self._parcels.pop())


VERBS = verbs_of(Session)
