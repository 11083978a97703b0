"""This rank's session with the snapshot daemon of its node.

All ranks of a launch find their daemons when the Checkpointer is made: each connects to its node's (the agent's, or
one that it starts) and tells it where the others are. After that a rank talks to its own node's daemon only. A daemon
that is gone is replaced, and the session is replayed to the new one: such a fault costs no snapshot and no step.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import FileEntry, of_one_save
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.breaker import Bounded, Breaker, timed_out
from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.snapshot.persist import ENDED, FAILED, RUNNING, SUPERSEDED
from transom_cli.ckpt.snapshot.protect import domain
from transom_cli.ckpt.snapshot.protection import NONE, Protection
from transom_cli.ckpt.snapshot.record import Launch, Record, Share
from transom_cli.ckpt.snapshot.rendezvous import find_daemon, launch_key, names, own_address, token
from transom_cli.core.codec import plain
from transom_cli.errors import TransomError
from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed, RpcError, Unreachable
from transom_cli.rpc.local import TIMEOUT, Client
from transom_cli.rpc.verbs import Fields

_REPLACED = 20.0  # seconds within which a new daemon must have taken over the session
_SLOW = frozenset(("listen", "join"))  # requests of the start, which may wait for calls that are being answered
_FETCH = 3600.0  # seconds for a share to arrive; a transfer that does not move is given up far sooner
_UNHEARD = 10.0  # seconds without news of a write, after which it is looked for on disk
CALL = 10.0  # seconds for the daemon to answer a request of a save; none of them waits for a disk or for another node
STILL = 30.0  # seconds without a byte written, after which the run is told
GIVE_UP = 600.0  # the same, after which nobody waits for that write any more
_LOOK = 5.0  # seconds to look for a checkpoint on disk


@dataclass(frozen=True)
class Outcome:
    """How a write ended. trouble: why it is not durable, or "". superseded: it was dropped for a newer one."""

    trouble: str = ""
    superseded: bool = False


class DaemonSession:
    """What this rank has reported to its daemon, and the connection to it. For one thread at a time, except `outcome`.

    buffers: this rank's memory, by slot. shares: what was last held in each. records: of committed steps. taken: the
    slot of the snapshot that is being made. restored: the step that this launch resumed from, while its memory must be
    kept. by: the node whose daemon makes checkpoints durable. Making a session is a collective.
    """

    def __init__(
        self, directory: Path, ranks: Ranks, attempt: str, say: Callable[[str], None],
        protection: Protection, rate: float | None, also: Mapping[str, int],
        upload_rate: float | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._ranks = directory, ranks
        self._protection, self._rate, self._also = protection, rate, also
        self._upload_rate = upload_rate
        self.buffers: dict[int, Buffer] = {}
        self.shares: dict[int, Share] = {}
        self.records: dict[int, Record] = {}
        self.taken: int | None = None
        self.restored: int | None = None
        self._plan: dict[str, Any] | None = None  # when the next saves come; rank 0's plan holds for all
        made = None
        if ranks.first:
            made = (Launch(attempt, secrets.token_hex(8)), secrets.token_hex(32), token(directory))
        self._launch, name, self._token = ranks.from_first(made)
        try:
            self._key = launch_key(name)
        except TransomError as error:
            self._key = secrets.token_hex(32)  # which no other node has
            say(f"this node's snapshots are not shared with other nodes: {error.what} ({error.why})")
        self._at = find_daemon(directory, self._token)
        self._breaker = Breaker(self._at.connect)
        self._look = Bounded[bool]("transom-look")
        self._address, self._port = "", 0  # where the other nodes reach the daemon
        self._client = self._at.connect()
        self._lost = False  # whether the connection broke, and the session was not replayed yet
        answers = ranks.gather((self._at.node, self._at.daemon, self._at.trouble))
        by_rank = names([(node, daemon) for node, daemon, _ in answers])
        for node, (_, _, trouble) in dict(zip(by_rank, answers, strict=True)).items():
            if trouble:
                say(f"the snapshots of {node} live only as long as its ranks: {trouble}")
        self.node, self.by = by_rank[ranks.rank], by_rank[0]
        self.nodes = tuple(sorted(set(by_rank)))
        self._places: dict[str, tuple[str, int]] = {}
        self._domains: dict[str, str | None] = {}
        if len(self.nodes) > 1:
            self._address = own_address()
            self._listening(self.send("listen", again=True, **self._listen()))
            self._places = dict(ranks.gather((self.node, (self._address, self._port))))
        elif protection != NONE:
            say("snapshots are not protected by other nodes: there is one node")
        self._domains = dict(ranks.gather((self.node, domain(os.environ))))
        answer = self.send("join", again=True, **self._joining())
        if answer is not None:  # memory that an earlier rank of this number has lent
            for (n, size), fd in zip(answer[0]["buffers"], answer[1], strict=True):
                self.buffers[int(n)] = Buffer.lent(fd, int(size))

    def ask(self, name: str, fds: Sequence[int] = (), **fields: Any) -> Fields:
        """Send one request. Raises Unreachable and Failed."""
        return self._call(name, fds, **fields)[0]

    def send(
        self, name: str, *, again: bool = False, fds: Sequence[int] = (), payload: bytes | None = None,
        **fields: Any,
    ) -> tuple[Fields, list[int]] | None:  # fmt: skip
        """Send one request. If the daemon is gone, replay the session to a new one.

        A daemon that does not answer within CALL is not asked again until it does (`Breaker`). Then the session is
        replayed to it, because it may or may not have executed the request.

        Args:
            again: repeat the request to the new daemon. Without it the replay has reported it already, and the
                answer is None.
            payload: bytes that are passed as a descriptor.

        Raises:
            Unreachable: no daemon took over.
            Failed: the daemon refuses the request.
        """
        self._breaker.check()
        if not self._lost:
            try:
                return self._send(name, fds, payload, **fields)
            except Unreachable as error:
                self._lose()
                if timed_out(error):
                    raise
        deadline = time.monotonic() + _REPLACED
        while True:
            self._client = self._at.connect(afresh=True)
            try:
                self._replay()
                self._lost = False
                return self._send(name, fds, payload, **fields) if again else None
            except Unreachable as error:  # a daemon that is being killed still accepts connections for a moment
                self._lose()
                if timed_out(error) or time.monotonic() >= deadline:
                    raise

    def lend(self, index: int, buffer: Buffer, *, write: bool) -> None:
        self.send("lend", again=True, fds=[buffer.fd], index=index, size=buffer.size, write=write)

    def hold(self, index: int, share: Share) -> None:
        """The copy in slot `index` is complete."""
        self.shares[index] = share
        self.taken = None
        self.send("hold", **_hold_fields(share, None))

    def commit(self, step: int, record: Record, uses: list[str], *, restored: bool = False) -> None:
        same = next((n for n, one in self.records.items() if n != step and one.metadata is record.metadata), None)
        self.records[step] = record
        if same is not None:
            with suppress(Failed):  # the daemon has forgotten that step, or is of an older version
                self.send("commit", **_commit_fields(step, record, uses, restored=restored, same=same))
                return
        self.send("commit", **_commit_fields(step, record, uses, restored=restored))

    def plan(self, rhythm: str, saves: object) -> None:
        """Tell when the next saves come, and why, unless the daemon knows."""
        fields = {"rhythm": rhythm, "coming": plain(saves)}
        if fields != self._plan:
            self._plan = fields
            with suppress(Failed):  # a daemon of an older version
                self.send("plan", **fields)

    def close(self) -> None:
        self._client.close()

    # Requests of a restore. All raise Unreachable

    def survey(self) -> dict[str, dict[str, object]]:
        """What every node's daemon holds, or the error by which that is unknown."""
        _, fds = self._client.call("survey")
        found: dict[str, dict[str, object]] = json.loads(_unpacked(fds))
        return found

    def record(self, node: str, step: int, manifest: int, metadata: int) -> Record:
        """The record of a step that `survey` named, with these sizes in bytes. Raises Failed."""
        _, fds = self._client.call("record", node=node, step=step, manifest=manifest, metadata=metadata)
        data = _unpacked(fds)
        return Record(data[:manifest], data[manifest:])

    def fetch(self, step: int, entry: FileEntry, *, check: bool) -> tuple[int, int, list[tuple[int, int]], str, bool]:
        """Bring a share to this node. It stays valid until `rewind`. Raises Failed.

        Returns:
            A descriptor that the caller closes, the bytes of the memory, the share's segments in it, where it was, and
            whether its checksum was verified, which `check` demands.
        """
        fields: dict[str, Any] = {"file": entry.name, "size": entry.size, "sum": entry.xxh3_128, "check": check}
        answer, fds = self._client.call("fetch", timeout=_FETCH, step=step, **fields)
        segments = [(int(a), int(b)) for a, b in answer["segments"]]
        return fds[0], int(answer["size"]), segments, str(answer["where"]), answer["checked"] is True

    def report_restore(self, part: Part) -> None:
        """Report how far this rank's restore is. Failures are ignored."""
        with suppress(RpcError):  # also of a daemon of an older version
            self._client.call("restoring", part=plain(part))

    # Durability, on a connection of its own: for any thread

    def outcome(
        self, step: int, on_still: Callable[[str], None] = lambda why: None, patience: float | None = None
    ) -> Outcome:
        """Wait until `step` is durable, or until nothing was written for GIVE_UP seconds.

        Args:
            on_still: called, once, if nothing was written for STILL seconds, with the reason for the run.
            patience: seconds to wait at most.
        """
        silent: float | None = None
        line: Client | None = None
        began, reported = time.monotonic(), False
        try:
            while True:
                try:
                    if line is None:
                        line = self._at.connect()
                        line.call("look", timeout=CALL, directory=str(self._directory), token=self._token)
                    answer = line.call("outcome", timeout=CALL, step=step, by=self.by, patience=1.0)[0]
                except RpcError as error:
                    if line is not None:
                        line.close()
                    line, answer = None, {"trouble": error.what}
                state, trouble = answer.get("state"), str(answer.get("trouble", ""))
                if state in ENDED:
                    return Outcome(trouble if state == FAILED else "", state == SUPERSEDED)
                now = time.monotonic()
                silent = None if state == RUNNING else silent or now
                if silent is not None and now - silent >= _UNHEARD:
                    with suppress(RpcError):
                        if line is not None:
                            line.call("unheard", timeout=CALL, step=step)
                    unknown = trouble or f"the snapshot daemon of {self.by} knows nothing of it any more"
                    return Outcome("" if self.on_disk(step) else unknown)
                still = float(answer.get("still", 0.0))
                why = f"nothing was written to {self._directory} for {still:.0f} s: the file system does not respond"
                if still >= GIVE_UP:
                    return Outcome(why)
                if patience is not None and now - began >= patience:
                    return Outcome(f"it is still being written to {self._directory}")
                if still >= STILL and not reported:
                    reported = True
                    on_still(why)
                if line is None:
                    time.sleep(0.5)
        finally:
            if line is not None:
                line.close()

    def on_disk(self, step: int) -> bool:
        """Whether the checkpoint that was committed as `step` is published. A file system may not tell in time."""
        record = self.records.get(step)

        def look() -> bool:
            with suppress(OSError, BadManifest):
                path = self._directory / step_name(step) / MANIFEST
                return record is not None and of_one_save(path.read_bytes(), record.manifest)
            return False

        return self._look.call(look, _LOOK, False)

    def _send(
        self, name: str, fds: Sequence[int] = (), payload: bytes | None = None, **fields: Any
    ) -> tuple[Fields, list[int]]:
        if payload is None:
            return self._call(name, fds, **fields)
        fd = local.parcel(payload)
        try:
            return self._call(name, [fd], **fields)
        finally:
            os.close(fd)

    def _call(self, name: str, fds: Sequence[int], **fields: Any) -> tuple[Fields, list[int]]:
        """Raises Unreachable: after a timeout, and then at once until the daemon answers again."""
        self._breaker.check()
        limit = TIMEOUT if name in _SLOW else CALL
        try:
            return self._client.call(name, fds, timeout=limit + fields.get("patience", 0.0), **fields)
        except Unreachable as error:
            if timed_out(error):
                self._breaker.trip()
                raise Unreachable("The node's snapshot daemon does not answer", f"for {limit:g} s") from error.__cause__
            raise

    def _lose(self) -> None:
        self._client.close()
        self._lost = True

    def _replay(self) -> None:
        """Tell a new daemon, or one that has not answered for some time, all that this rank has."""
        if self._places:
            self._listening(self._send("listen", **self._listen()))
        answer, fds = self._send("join", **self._joining())
        known = set()  # what the daemon still has; the rest is of another rank's session, which is none of ours
        for (index, _), fd in zip(answer["buffers"], fds, strict=True):
            if index in self.buffers and self.buffers[index].holds(fd):
                known.add(index)
            os.close(fd)
        for index, buffer in self.buffers.items():
            if index not in known:
                self._send("lend", [buffer.fd], index=index, size=buffer.size, write=False)
            if index in self.shares:
                self._send("hold", **_hold_fields(self.shares[index], index))
        for step, record in self.records.items():
            self._send("commit", **_commit_fields(step, record, [], restored=step == self.restored))
        if self._plan is not None:
            with suppress(Failed):
                self._send("plan", **self._plan)
        if self.taken is not None:
            self._send("take", patience=0.0, index=self.taken, words=False)

    def _listening(self, answer: tuple[Fields, list[int]] | None) -> None:
        if answer is not None:
            self._port = int(answer[0]["port"])

    def _listen(self) -> dict[str, Any]:
        return {**self._training(), "address": self._address, "port": self._port}

    def _training(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"directory": str(self._directory), "token": self._token, "node": self.node}
        return {**fields, "launch": plain(self._launch), "key": self._key}

    def _joining(self) -> dict[str, Any]:
        return {
            **self._training(),
            "rank": self._ranks.rank,
            "places": self._places,
            "protect": str(self._protection),
            "rate": self._rate,
            "domains": {node: one for node, one in self._domains.items() if one},
            "also": [[place, every] for place, every in self._also.items()],
            "upload_rate": self._upload_rate,
        }


def _hold_fields(share: Share, index: int | None) -> dict[str, Any]:
    return {
        "payload": json.dumps(share.segments).encode("ascii"),
        "index": index,
        "step": share.step,
        "file": share.file,
        "size": share.size,
        "sum": share.sum,
    }


def _commit_fields(
    step: int, record: Record, uses: list[str], *, restored: bool, same: int | None = None
) -> dict[str, Any]:
    """same: a step whose record has the same metadata, and which the daemon has."""
    fields: dict[str, Any] = {"step": step, "manifest": len(record.manifest), "reserve": uses}
    fields |= {"restored": True} if restored else {}
    if same is not None:
        return {"payload": record.manifest, "same": same, **fields}
    return {"payload": record.manifest + record.metadata, **fields}


def _unpacked(fds: list[int]) -> bytes:
    try:
        return local.unpack(fds[0])
    finally:
        os.close(fds[0])
