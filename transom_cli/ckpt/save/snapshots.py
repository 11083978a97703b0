"""A rank's snapshots in its node's memory: the rank makes and touches the memory, the node's holder keeps it.

All ranks of a launch meet the holders when the Checkpointer is made: each finds its node's (that of the agent, or one
that it starts), and tells it where the others are. After that a rank speaks to its own node's holder alone. A holder
that is gone is replaced, and told again what the rank still has: a fault there costs no snapshot and no step.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from transom_cli.ckpt.durability import Durability
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.recorded import Recorder
from transom_cli.ckpt.restore.questions import Questions
from transom_cli.ckpt.retention import Keep
from transom_cli.ckpt.room import room
from transom_cli.ckpt.save.arena import PAGE, SPARE, Arena
from transom_cli.ckpt.schedule.coming import Coming
from transom_cli.ckpt.snapshot.buffer import Share
from transom_cli.ckpt.snapshot.protect import domain
from transom_cli.ckpt.snapshot.protection import NONE, Protection
from transom_cli.ckpt.snapshot.record import Launch, Record
from transom_cli.ckpt.snapshot.rendezvous import find_daemon, names, own_address, token
from transom_cli.core.codec import plain
from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed, RpcError, Unreachable
from transom_cli.rpc.local import TIMEOUT

SLOTS = 3  # snapshots a rank: the newest that counts, one that is being made durable or protected, and the next
PATIENCE = 20.0  # seconds of one wait for a slot, before it is told what it waits for
_RECORDS = 4  # commits that are told again to a new holder
_REPLACED = 20.0  # seconds in which a new holder must have been told all

T = TypeVar("T")


class Snapshots:
    """Collective to make. Then for one thread at a time, but for `outcome`."""

    def __init__(
        self, directory: Path, ranks: Ranks, attempt: str, say: Callable[[str], None],
        protection: Protection = NONE, rate: float | None = None, also: Mapping[Path, int] | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._ranks, self._attempt, self._say = directory, ranks, attempt, say
        self._arenas: dict[int, Arena] = {}
        self._shares: dict[int, Share] = {}  # by slot what was held there last
        self._records: dict[int, Record] = {}
        self._taken: int | None = None
        self._protection, self._rate = protection, rate
        self._also = dict(also or {})
        self._most = self._slots = SLOTS + (protection != NONE) + bool(self._also)  # one being protected, one copied
        self._told_busy = False
        self._restored: int | None = None  # the step that this launch resumed from, while its memory must be kept
        self.superseding = False  # a step was restored from memory, and no newer one is committed everywhere yet
        self.awaited = False  # whether somebody waits for the memory that is made
        self._plan: dict[str, Any] | None = None  # when it saves, for whoever looks: the first rank's goes for all
        made = None
        if ranks.first:
            made = (Launch(attempt, secrets.token_hex(8)), secrets.token_hex(32), token(directory))
        self.launch, self._key, self._token = ranks.from_first(made)
        self._at = find_daemon(directory)
        self._port = 0
        self._client = self._at.connect()
        told = ranks.gather((self._at.node, self._at.daemon, self._at.trouble))
        nodes = names([(node, holder) for node, holder, _ in told])
        for node, (_, _, trouble) in dict(zip(nodes, told, strict=True)).items():
            if trouble:
                say(f"the snapshots of {node} live only as long as its ranks: {trouble}")
        self._node = nodes[ranks.rank]
        self.nodes = tuple(sorted(set(nodes)))
        self._recorder = Recorder(directory, attempt, self.nodes)
        self.by = nodes[0]  # whose holder sees to it that checkpoints become durable
        self._durability = Durability(self._at, directory, self._token, self.by)
        self.questions = Questions(lambda: self._client)
        self._places: dict[str, tuple[str, int]] = {}
        if len(set(nodes)) > 1:
            self._again(self._listen, once_more=True)
            self._places = dict(ranks.gather((self._node, (own_address(), self._port))))
        self._domains = dict(ranks.gather((self._node, domain(os.environ))))
        if protection != NONE and len(set(nodes)) == 1:
            say("snapshots are not protected by other nodes: there is one node")
        self._arenas = self._again(self._join, once_more=True) or {}
        for arena in self._arenas.values():  # while the trainer goes on making itself ready
            threading.Thread(target=arena.enter, name="transom-enter", daemon=True).start()

    @property
    def lent_bytes(self) -> int:
        """Of memory that an earlier rank has left, or that was made since."""
        return sum(arena.size for arena in self._arenas.values())

    # A save

    def arena(self, need: int, size: int) -> Arena:
        """Memory to copy into: of `need` bytes at least, made with `size` where there is none that fits. Raises
        MemoryError, and Unreachable."""
        while True:
            self._make_one_more(size)
            taken = self._taken if self._taken is not None else self._take()
            arena = self._arenas[taken]
            if need <= arena.size <= 2 * size + 2 * PAGE:
                return arena
            self._taken = None
            self._give_back(taken)
            try:
                return self._make(taken, size)
            except MemoryError:  # give back more that does not fit, but never the only copy of what was restored
                if self._restored is None or not (self._arenas or self._secure()):
                    raise

    def ready(self, size: int) -> None:
        """Ahead of the next save, see to it that there is a slot for it: one more, until there are enough; then one
        that is free. A single one holds what counts until that save is made."""
        self._make_one_more(size)
        if self._taken is None and self._most > 1:
            self._take()

    def complete(self) -> None:
        """As many as there are to be, as large as the one that was given out: no save waits for memory then. A training
        that begins has not taken its own memory yet, so as much again is left free, or the rest is made later."""
        while self._taken is not None and len(self._arenas) < self._most:
            size = self._arenas[self._taken].size
            if room() < 2 * size + SPARE:
                return
            self._one_more(size, take=False)

    def hold(self, step: int, entry: FileEntry, segments: list[tuple[int, int]]) -> None:
        """The copy in the arena that was given out last is whole."""
        if self._taken is None:
            raise ValueError("there is no copy")
        share = self._shares[self._taken] = Share(step, entry.name, entry.size, entry.xxh3_128, tuple(segments))
        self._taken = None
        self._again(lambda: self._tell_share(share, None))

    def commit(self, step: int, record: Record, uses: Iterable[str]) -> None:
        """Every rank's copy of `step` is held, as its record says. `uses`: for what it is kept until that is done."""
        self._records[step] = record
        for old in [n for n in sorted(self._records)[:-_RECORDS] if n != self._restored]:
            del self._records[old]
        self._again(lambda: self._tell_record(step, record, list(uses)))
        if self._ranks.first:
            self._recorder.note(step)

    def supersede(self, step: int) -> None:
        """All ranks have committed `step`: what was restored need not be kept for its sake any more."""
        self.superseding = False
        if self._protection == NONE:  # else the holder waits until `step` is protected too
            self._restored = None
        self._most = self._slots  # there may be memory for more now
        self._again(lambda: self._client.call("superseded", step=step))

    def persist(self, step: int, keep: Keep) -> None:
        """Begin to make it durable. By the first rank."""
        about = self._keeping(keep)
        self._again(lambda: self._client.call("persist", step=step, **about), once_more=True)

    def protect(self, step: int) -> None:
        """Begin to protect it on other nodes. By the first rank."""
        self._again(lambda: self._client.call("protect", step=step), once_more=True)

    def plan(self, rhythm: str, coming: Coming) -> None:
        """When it saves, and why, in words; and which saves come next. By the first rank."""
        told = {"rhythm": rhythm, "coming": plain(coming)}
        if told != self._plan:
            self._plan = told
            self._again(self._tell_plan)

    def outcome(self, step: int) -> str:
        """Wait until `step` is durable. Returns "", or why it is not. For a thread of its own."""
        return self._durability.outcome(step, self._records.get(step))

    def copied(self, patience: float) -> bool:
        """Wait until no copy is being written into a further directory. False after so many seconds."""
        deadline = time.monotonic() + patience
        with suppress(RpcError):  # a holder that is gone writes nothing
            while self._also and self._client.call("copying", by=self.by)[0]["busy"]:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.1)
        return True

    def tidied(self) -> None:
        """Wait until no old checkpoint is being removed, where this node's holder does that."""
        with suppress(RpcError):
            while self.by == self._node and self._client.call("tidying")[0]["busy"]:
                time.sleep(0.01)

    # A restore

    def lent(self, fd: int) -> Arena | None:
        """The memory of that descriptor, if it is one of this rank's own."""
        return next((arena for arena in self._arenas.values() if arena.holds(fd)), None)

    def rewind(self, step: int | None, record: Record | None = None) -> None:
        """The training goes on from `step`, which was restored, from memory if there is a record."""
        self._taken = None
        self._restored = None
        if record is not None and step is not None:
            self._records[step], self._restored = record, step
            self._again(lambda: self._tell_record(step, record, [], restored=True))
        self.superseding = self._restored is not None
        self._again(lambda: self._client.call("rewind", step=step), once_more=True)

    def trust(self, directory: Path, manifest: bytes, keep: Keep) -> None:
        """That checkpoint there has just been read in full."""
        fd = local.parcel(manifest)
        with suppress(RpcError):
            self._client.call("trust", [fd], directory=str(directory), **self._keeping(keep))
        os.close(fd)

    def close(self, *, durable: bool) -> None:
        """With all of it `durable`, the memory need not outlive this process."""
        with suppress(RpcError):
            if self._ranks.first:
                self._tell(self._client.call("words")[0])
            if durable:
                self._client.call("bye")
        self._client.close()
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()

    # The holder, and what it is told

    def _make_one_more(self, size: int) -> None:
        if self._taken is None:
            self._one_more(size, take=True)

    def _one_more(self, size: int, *, take: bool) -> None:
        while len(self._arenas) < self._most:
            try:
                self._make(next(n for n in range(self._slots) if n not in self._arenas), size, take=take)
                return
            except MemoryError as error:
                if self._arenas:
                    self._most = len(self._arenas)
                    self._say(f"{self._most} snapshot(s) in memory at a time and not {self._slots}: {error}")
                elif not self._secure():
                    raise

    def _take(self) -> int:
        words = self._ranks.first
        ask = lambda: self._client.call("take", patience=PATIENCE, words=words)  # noqa: E731
        while True:
            answer = self._again(ask, once_more=True)
            told = answer[0] if answer else {}
            self._tell(told)
            if told.get("index") is not None:
                self._taken = int(told["index"])
                self._shares.pop(self._taken, None)
                return self._taken
            if not self._told_busy:
                self._told_busy = True
                self._say(f"there is no memory yet for the next snapshot: {told.get('busy')}")
            if told.get("pinned") is not None and not self._secure():
                time.sleep(1.0)

    def _secure(self) -> bool:
        """There is no memory for the next snapshot beside the one that was restored: make that one durable, so that its
        memory may be used. Returns False where nothing is kept for a restore. Raises MemoryError: nothing was lost."""
        step = self._restored
        if step is None:
            return False
        record = self._records.get(step)
        ask = lambda: self._client.call("secure", step=step, by=self.by, attempt=self._attempt)  # noqa: E731
        try:
            answer = self._again(ask, once_more=True)
            if answer is None or not answer[0].get("kept"):
                self._restored = None  # a newer step counts by now: there may be memory
                return True
            why = "there is no memory for another beside it"
            self._say(f"step {step}, restored from memory, is written to disk: {why}")
            trouble = self._durability.outcome(step, record)
            if not trouble and not self._durability.on_disk(step, record):
                trouble = f"{step_name(step)} is not in {self._directory}"
        except Failed as error:
            trouble = error.what
        if trouble:
            raise MemoryError(f"no memory is free beside that of step {step}, which cannot be made durable: {trouble}")
        self._restored = None
        self._again(lambda: self._client.call("durable", step=step), once_more=True)
        return True

    def _keeping(self, keep: Keep) -> dict[str, Any]:
        return {"attempt": self._attempt, "keep": keep.newest, "keep_every": keep.every}

    def _tell(self, told: Mapping[str, Any]) -> None:
        for line in told.get("words", ()):
            self._say(str(line))

    def _give_back(self, index: int) -> None:
        self._arenas.pop(index).close()
        self._again(lambda: self._client.call("drop", index=index))

    def _make(self, index: int, size: int, *, take: bool = True) -> Arena:
        arena = Arena(size, hurry=self.awaited or not self._arenas)  # the first save waits for the first one
        self._arenas[index] = arena
        try:
            self._again(lambda: self._lend(index, arena, write=take), once_more=True)
        except BaseException:
            del self._arenas[index]
            arena.close()
            raise
        if take:
            self._taken = index
        return arena

    def _lend(self, index: int, arena: Arena, *, write: bool) -> None:
        self._client.call("lend", [arena.fd], index=index, size=arena.size, write=write)

    def _tell_share(self, share: Share, index: int | None) -> None:
        fd = local.parcel(json.dumps(share.segments).encode("ascii"))
        try:
            about = {"file": share.file, "size": share.size, "sum": share.sum}
            self._client.call("hold", [fd], TIMEOUT, index=index, step=share.step, **about)
        finally:
            os.close(fd)

    def _tell_record(self, step: int, record: Record, reserve: list[str], *, restored: bool = False) -> None:
        fd = local.parcel(record.manifest + record.metadata)
        about = {"restored": True} if restored else {}
        try:
            self._client.call("commit", [fd], step=step, manifest=len(record.manifest), reserve=reserve, **about)
        finally:
            os.close(fd)

    def _tell_plan(self) -> None:
        if self._plan is not None:
            with suppress(Failed):  # a holder of before there were plans
                self._client.call("plan", **self._plan)

    def _listen(self) -> None:
        answer = self._client.call("listen", port=self._port, **self._training())[0]
        self._port = int(answer["port"])

    def _training(self) -> dict[str, Any]:
        about: dict[str, Any] = {"directory": str(self._directory), "token": self._token, "node": self._node}
        return {**about, "launch": self.launch.as_json(), "key": self._key}

    def _join(self) -> dict[int, Arena]:
        """Returns the memory that an earlier rank of this number has lent."""
        told, fds = self._client.call(
            "join", **self._training(), rank=self._ranks.rank, places=self._places, protect=str(self._protection),
            rate=self._rate, domains={n: d for n, d in self._domains.items() if d},
            also=[[str(path), every] for path, every in self._also.items()],
        )  # fmt: skip
        return {int(n): Arena.lent(fd, int(size)) for (n, size), fd in zip(told["buffers"], fds, strict=True)}

    def _again(self, act: Callable[[], T], *, once_more: bool = False) -> T | None:
        """What `act` returns. If the holder is gone a new one is told all that this rank has; with `once_more` it is
        asked what the old one was."""
        try:
            return act()
        except Unreachable:
            self._client.close()
        deadline = time.monotonic() + _REPLACED
        while True:
            self._client = self._at.connect(afresh=True)
            try:
                self._tell_all()
                return act() if once_more else None
            except Unreachable:  # one that is being killed still takes connections for a moment
                self._client.close()
                if time.monotonic() >= deadline:
                    raise

    def _tell_all(self) -> None:
        if self._places:
            self._listen()
        for arena in self._join().values():  # another rank has told the new one of nothing of ours
            arena.close()
        for index, arena in self._arenas.items():
            self._lend(index, arena, write=False)
            if index in self._shares:
                self._tell_share(self._shares[index], index)
        for step, record in self._records.items():
            self._tell_record(step, record, [], restored=step == self._restored)
        self._tell_plan()
        if self._taken is not None:
            self._client.call("take", patience=0.0, index=self._taken, words=False)
