"""What a snapshot daemon does for one process of its own node: a rank, the node's agent, or a command.

There is one session per connection, in one thread. `VERBS` lists what it answers.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Protocol

from transom_cli.ckpt.manifest import FileEntry, decode
from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.schedule.plan import NextSaves
from transom_cli.ckpt.snapshot import requests
from transom_cli.ckpt.snapshot.buffer import Buffer, Share
from transom_cli.ckpt.snapshot.finder import Found, ShareNotFound
from transom_cli.ckpt.snapshot.increments import BLOB, BUFFER, Changes, Increment
from transom_cli.ckpt.snapshot.persist import RESERVED
from transom_cli.ckpt.snapshot.protection import NONE, parse
from transom_cli.ckpt.snapshot.record import Launch, Record
from transom_cli.ckpt.snapshot.training import Training
from transom_cli.ckpt.snapshot.writer import Order
from transom_cli.ckpt.tiers.objects import is_url
from transom_cli.core.codec import build, plain
from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed
from transom_cli.rpc.verbs import Call, Empty, Reply, Verb, dispatch

SURVEY = 5.0  # seconds for a peer to list what it has
PATIENCE = 30.0  # seconds at most that one call may wait here
_RHYTHM = 500  # characters
_FDS_PER_REPLY = 8


class Host(Protocol):
    """The daemon, as a session needs it."""

    id: str

    def training(self, directory: str, token: str, node: str) -> Training:
        """Return the training of a directory whose folder has that token. Creates it if a node is named."""

    def trainings(self) -> list[Training]: ...

    def listen(self, directory: str, key: bytes, node: str, address: str, port: int) -> int:
        """Listen for a directory's peers at the address, on that port if it is free. Return the port."""

    def forget(self, training: Training) -> None:
        """No rank needs it any more."""

    def end(self) -> None: ...


class Session:
    def __init__(self, host: Host) -> None:
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

    def hello(self, _: Empty) -> Reply:
        return Reply({"id": self._host.id})

    def end(self, _: Empty) -> Reply:
        self._host.end()
        return Reply({"id": self._host.id})

    def newest(self, _: Empty) -> Reply:
        """Return each training's newest committed step."""
        return Reply({"newest": [training.newest() for training in self._host.trainings()]})

    def rescue(self, request: requests.Rescue) -> Reply:
        training = next((t for t in self._host.trainings() if t.store.directory == request.directory), None)
        if training is None:
            raise ValueError("no snapshots of that training are held here")
        return Reply(training.rescue(request.step, request.attempt, request.seconds))

    # A rank joins

    def listen(self, request: requests.Listen) -> Reply:
        training = self._host.training(request.directory, request.token, request.node)
        training.store.admit(Launch(request.launch.attempt, request.launch.token))
        key = bytes.fromhex(request.key)
        port = self._host.listen(request.directory, key, request.node, request.address, request.port)
        return Reply({"port": port})

    def join(self, request: requests.Join) -> Reply:
        """Return the rank's buffers from an earlier launch, as [index, bytes] and a descriptor each."""
        launch = Launch(request.launch.attempt, request.launch.token)
        training = self._host.training(request.directory, request.token, request.node)
        if training.store.launch != launch:
            training.begin()
        training.protect = protection = parse(request.protect)
        buffers = training.store.join(launch, request.rank, protection != NONE, self)
        training.protector.choose(protection, request.domains, request.rate)
        training.meet(request.node, request.places, bytes.fromhex(request.key))
        training.persister.copy_to({Path(place): every for place, every in request.also if not is_url(place)})
        urls = {place: every for place, every in request.also if is_url(place)}
        training.persister.mirror.copy_to(urls, request.upload_rate)
        self._training, self._launch, self._rank = training, launch, request.rank
        rows = sorted(buffers.items())[:_FDS_PER_REPLY]
        return Reply({"buffers": [[n, buffer.size] for n, buffer in rows]}, fds=[buffer.fd for _, buffer in rows])

    def lend(self, request: requests.Lend, fds: list[int]) -> Reply:
        buffer = Buffer(fds[0], request.size)
        del fds[0]  # it is the buffer's now
        try:
            self.training.store.lend(self.launch, self._rank, request.index, buffer, write=request.write, caller=self)
        except BaseException:
            buffer.close()
            raise
        return Reply()

    def look(self, request: requests.Look) -> Reply:
        self._training = self._host.training(request.directory, request.token, "")
        return Reply()

    def bye(self, _: Empty) -> Reply:
        training, self._training = self.training, None
        if training.store.leave(self.launch, self._rank):
            self._host.forget(training)
        return Reply()

    # A save

    def take(self, request: requests.Take) -> Reply:
        store, patience = self.training.store, min(PATIENCE, request.patience)
        index, why = store.take(self.launch, self._rank, patience, request.index, self)
        pinned = store.pinned if index is None else None
        lines = self._new_lines() if request.words else []
        return Reply({"index": index, "busy": why, "pinned": pinned, "words": lines})

    def drop(self, request: requests.Drop) -> Reply:
        self.training.store.drop(self.launch, self._rank, request.index, self)
        return Reply()

    def hold(self, request: requests.Hold, fds: list[int]) -> Reply:
        segments = tuple((int(start), int(length)) for start, length in json.loads(local.unpack(fds[0])))
        share = Share(request.step, request.file, request.size, request.sum, segments)
        if request.index is None:
            self.training.store.hold(self.launch, self._rank, share, self)
        else:
            self.training.store.again(self.launch, self._rank, request.index, share, self)
        return Reply()

    def commit(self, request: requests.Commit, fds: list[int]) -> Reply:
        data = local.unpack(fds[0])
        metadata = data[request.manifest :]
        if request.same is not None:
            like = self.training.store.records.get(request.same)
            if like is None:
                raise ValueError(f"no record of step {request.same}")
            metadata = like.metadata
        record = Record(data[: request.manifest], metadata)
        self.training.store.commit(self.launch, request.step, record, request.reserve, restored=request.restored)
        if RESERVED in request.reserve:
            self.training.persister.tried_again(request.step)
        return Reply()

    def changes(self, request: requests.PlanChanges, fds: list[int]) -> Reply:
        """Note what to write of this rank's share in an incremental checkpoint."""
        data = local.unpack(fds[0])
        segments = tuple((int(where), int(at), int(size)) for where, at, size in json.loads(data[request.blob :]))
        if any(where not in (BUFFER, BLOB) or at < 0 or size < 0 for where, at, size in segments):
            raise ValueError(f"{request.file}: a segment is not in its memory")
        entry = FileEntry(request.file, request.size, request.sum)
        self.training.persister.increments.changes(request.step, Changes(entry, segments, data[: request.blob]))
        return Reply()

    def increment(self, request: requests.PlanIncrement, fds: list[int]) -> Reply:
        """Note an incremental checkpoint, for when the step is persisted."""
        data = local.unpack(fds[0])
        end = request.manifest + request.metadata
        links = tuple((str(name), str(source)) for name, source in json.loads(data[end:]))
        record = Record(data[: request.manifest], data[request.manifest : end])
        if record.read.step != request.step or any("/" in name for pair in links for name in pair):
            raise ValueError(f"not an increment of step {request.step}")
        self.training.persister.increments.plan(request.step, Increment(record, request.base, links))
        return Reply()

    def base(self, _: Empty) -> Reply:
        """Return the step that an incremental checkpoint may refer to, and the checksum of its manifest; or None."""
        return Reply({"base": self.training.persister.increments.base})

    def superseded(self, request: requests.Step) -> Reply:
        """All ranks of all nodes have committed a step that is newer than the restored one."""
        self.training.store.superseded(self.launch, request.step)
        return Reply()

    def secure(self, request: requests.Secure) -> Reply:
        """Have the restored step written to disk, because its memory is needed. Return whether it is kept at all."""
        kept = self.training.store.pinned == request.step
        if kept:
            self.training.persister.tried_again(request.step)
            attempt = request.attempt
            self.training.peers.call(request.by, "persist", SURVEY, step=request.step, attempt=attempt)
        return Reply({"kept": kept})

    def durable(self, request: requests.Step) -> Reply:
        """The restored step is on disk."""
        self.training.store.durable(self.launch, request.step)
        return Reply()

    def plan(self, request: requests.Plan) -> Reply:
        self.training.rhythm, self.training.coming = request.rhythm[:_RHYTHM], build(NextSaves, request.coming)
        return Reply()

    def persist(self, request: requests.Persist) -> Reply:
        order = Order(request.step, request.attempt, request.retention, request.metrics, request.requested)
        self.training.persister.begin(order)
        return Reply()

    def protect(self, request: requests.Step) -> Reply:
        self.training.protector.begin(request.step)
        return Reply()

    def outcome(self, request: requests.Outcome) -> Reply:
        patience = min(PATIENCE, request.patience)
        state, trouble = self.training.persister.outcome_by(request.by, request.step, patience)
        return Reply({"state": state, "trouble": trouble, "still": self.training.persister.still()})

    def unheard(self, request: requests.Step) -> Reply:
        """The rank stops waiting for the outcome of that step."""
        self.training.store.release(request.step, RESERVED)
        return Reply()

    def copying(self, request: requests.By) -> Reply:
        """Return whether the daemon of that node has copies written."""
        return Reply({"busy": self.training.persister.copying_by(request.by)})

    def mirrored(self, _: Empty) -> Reply:
        """Return what became of the uploads to object storage that this daemon has made."""
        return Reply(plain(self.training.persister.mirror.outcome))

    def tidying(self, _: Empty) -> Reply:
        return Reply({"busy": self.training.persister.tidying})

    def words(self, _: Empty) -> Reply:
        return Reply({"words": self._new_lines()})

    # For commands

    def state(self, _: Empty) -> Reply:
        """Return this node's account of the training."""
        return Reply(self.training.state())

    def states(self, _: Empty) -> Reply:
        """Return all nodes' accounts as a parcel: {node: account or {"error": ..}}."""
        return self._parcel(self.training.peers.call_all("state", SURVEY))

    def check(self, request: requests.Step) -> Reply:
        """Verify everything that all nodes hold of a step. Return the result as a parcel."""
        return self._parcel(plain(self.training.verifier.everywhere(request.step)))

    # A restore

    def survey(self, _: Empty) -> Reply:
        """Return what all daemons have, as a parcel: {node: {"held": .., "records": ..} or {"error": ..}}."""
        return self._parcel(self.training.peers.call_all("all", SURVEY))

    def record(self, request: requests.GetRecord) -> Reply:
        data = bytearray(request.manifest + request.metadata)
        self.training.peers.call(request.node, "record", SURVEY, memoryview(data), step=request.step)
        return self._parcel(bytes(data))

    def fetch(self, request: requests.Fetch) -> Reply:
        """Return a share in memory, valid until `rewind` or until the rank goes.

        Without ``check`` the caller verifies what is held here; if that is damaged, it calls again with ``check``.
        """
        entry = FileEntry(request.file, request.size, request.sum)
        try:
            found = self.training.finder.find(request.step, entry, check=request.check)
        except ShareNotFound as error:
            raise Failed(str(error)) from None
        self._found.append(found)
        segments = [list(segment) for segment in found.segments]
        answer = {"size": found.size, "where": found.where, "segments": segments, "checked": found.checked}
        return Reply(answer, fds=[found.fd])

    def restoring(self, part: Part) -> Reply:
        """Note the rank's progress until `rewind`."""
        self.training.restoring[self._rank] = part
        return Reply()

    def rewind(self, request: requests.Rewind) -> Reply:
        self._end_reading()
        self.training.restoring.pop(self._rank, None)
        self.training.store.rewind(self.launch, request.step)
        self.training.rewind(request.step)
        return Reply()

    def trust(self, request: requests.Trust, fds: list[int]) -> Reply:
        manifest, directory = decode(local.unpack(fds[0])), Path(request.directory)
        if self.training.persister.writes_to(directory):
            self.training.persister.trust(directory, request.attempt, request.retention, manifest)
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


VERBS: dict[str, Verb] = {
    "hello": Verb(Session.hello, Empty),
    "end": Verb(Session.end, Empty),
    "newest": Verb(Session.newest, Empty),
    "rescue": Verb(Session.rescue, requests.Rescue),
    "listen": Verb(Session.listen, requests.Listen),
    "join": Verb(Session.join, requests.Join),
    "lend": Verb(Session.lend, requests.Lend, fds=1),
    "look": Verb(Session.look, requests.Look),
    "bye": Verb(Session.bye, Empty),
    "take": Verb(Session.take, requests.Take),
    "drop": Verb(Session.drop, requests.Drop),
    "hold": Verb(Session.hold, requests.Hold, fds=1),
    "commit": Verb(Session.commit, requests.Commit, fds=1),
    "changes": Verb(Session.changes, requests.PlanChanges, fds=1),
    "increment": Verb(Session.increment, requests.PlanIncrement, fds=1),
    "base": Verb(Session.base, Empty),
    "superseded": Verb(Session.superseded, requests.Step),
    "secure": Verb(Session.secure, requests.Secure),
    "durable": Verb(Session.durable, requests.Step),
    "plan": Verb(Session.plan, requests.Plan),
    "persist": Verb(Session.persist, requests.Persist),
    "protect": Verb(Session.protect, requests.Step),
    "outcome": Verb(Session.outcome, requests.Outcome),
    "unheard": Verb(Session.unheard, requests.Step),
    "copying": Verb(Session.copying, requests.By),
    "mirrored": Verb(Session.mirrored, Empty),
    "tidying": Verb(Session.tidying, Empty),
    "words": Verb(Session.words, Empty),
    "state": Verb(Session.state, Empty),
    "states": Verb(Session.states, Empty),
    "check": Verb(Session.check, requests.Step),
    "survey": Verb(Session.survey, Empty),
    "record": Verb(Session.record, requests.GetRecord),
    "fetch": Verb(Session.fetch, requests.Fetch),
    "restoring": Verb(Session.restoring, Part),
    "rewind": Verb(Session.rewind, requests.Rewind),
    "trust": Verb(Session.trust, requests.Trust, fds=1),
}
