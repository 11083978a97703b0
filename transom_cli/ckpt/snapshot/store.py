"""The snapshots that a node holds of one training: which there are, which is complete, and what may be overwritten.

A step is *held* here when this node's ranks have said that their copies are whole; it is *committed* when its record
has come: the manifest that names every rank's share by its checksum, made when all of them were held. Never given out
to be overwritten: the newest committed step, the newest that is protected unless it is durable, the step that this
launch was restored from, what is reserved to be made durable or protected, and what is being read. A step that was held
and never committed is only a candidate: another node may know its record.

After a restore the ranks may be on other nodes, or fewer. The restored step stays in the buffers of the former ranks
until a newer step is committed on all nodes, and protected if requested, or until the restored one is
durable.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.snapshot.record import Buffer, Launch, Record, Share
from transom_cli.ckpt.snapshot.reservations import Reservations


@dataclass
class _Rank:
    buffers: dict[int, Buffer]
    launch: Launch
    writing: int | None = None  # the buffer that was given out
    caller: object = None  # the rank's newest connection: what an earlier one still requests is refused


class Store:
    """Thread-safe. What it returns of memory is good while the step is read or reserved."""

    def __init__(self, directory: str, token: str) -> None:
        self.directory, self.token = directory, token
        self.launch: Launch | None = None
        self._former: set[str] = set()  # tokens of launches that a later one took over from
        self.protect = False  # whether a step counts only once it is protected
        self.protected: int | None = None
        self.records: dict[int, Record] = {}
        self._ranks: dict[int, _Rank] = {}
        self._restored: int | None = None  # the step that this launch was restored from, while it must be kept
        self._superseded: int | None = None  # the newest step that is committed on all nodes, after a restore
        self._durable: int | None = None  # a restored step that is on disk by now
        self.on_disk: int | None = None  # the newest step that became durable under this launch
        self._readers: Counter[int] = Counter()
        self._reserved = Reservations()
        self._changed = threading.Condition()

    def join(self, launch: Launch, rank: int, protect: bool, caller: object = None) -> dict[int, Buffer]:
        """A rank of `launch` is here. Returns the memory that the rank of this number had, now lent by this one.

        Raises TakenOver when a newer launch is here, or a later one has been.
        """
        with self._changed:
            self.admit(launch)
            if self.launch is not None and self.launch != launch:
                self._former.add(self.launch.token)
                self._reserved.clear()  # who was to ask for it is gone
                self._restored = self._superseded = self._durable = self.on_disk = None  # the restore to come says
            self.launch = launch
            self.protect = protect
            mine = self._ranks.setdefault(rank, _Rank({}, launch))
            mine.launch, mine.writing, mine.caller = launch, None, caller
            return dict(mine.buffers)

    def admit(self, launch: Launch) -> None:
        """Raises TakenOver when a newer launch is here, or a later one has been."""
        with self._changed:
            if self.launch is not None and (launch.token in self._former or launch.older_than(self.launch)):
                self._fence(launch)

    def lend(
        self, launch: Launch, rank: int, index: int, buffer: Buffer, *, write: bool, caller: object = None
    ) -> None:
        """Memory for that rank's snapshots, in place of what was lent as `index`. `write`: it is given out at once."""
        with self._changed:
            mine = self._mine(launch, rank, caller)
            former = mine.buffers.get(index)
            if former is not None and former.share is not None and mine.writing != index:
                raise ValueError(f"buffer {index} holds {former.share.file} of step {former.share.step}")
            mine.buffers[index] = buffer
            if write and mine.writing is None:
                mine.writing = index
            if former is not None:
                former.close()
            self._changed.notify_all()

    def take(
        self, launch: Launch, rank: int, patience: float, index: int | None = None, caller: object = None
    ) -> tuple[int | None, str]:
        """Return a buffer that may be overwritten, whose content is forgotten at once, or why there is none (yet).

        A rank with a single buffer gets it if nothing reads it, even if it holds the newest step. If that step was
        restored (`pinned`), this returns at once without one. `index`: the buffer that a former daemon had given out.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            while True:
                mine = self._mine(launch, rank, caller)
                if index in mine.buffers:
                    mine.writing = index
                if mine.writing is not None:
                    mine.buffers[mine.writing].share = None
                    return mine.writing, ""
                kept = self._kept() if len(mine.buffers) > 1 else {**self._in_use(), **self._pinned()}
                free = [(self._worth(buffer), n) for n, buffer in mine.buffers.items() if not _is_of(buffer, kept)]
                if free:
                    mine.writing = min(free)[1]
                    mine.buffers[mine.writing].share = None
                    return mine.writing, ""
                busy = ", ".join(f"step {step} is {why}" for step, why in sorted(kept.items()))
                pinned = self._pinned()
                if (
                    mine.buffers
                    and not self._in_use()
                    and all(_is_of(buffer, pinned) for buffer in mine.buffers.values())
                ):
                    return None, busy  # nothing but a copy on disk frees it
                if not mine.buffers or not self._changed.wait(deadline - time.monotonic()):
                    return None, busy or "there is no memory for it"

    def drop(self, launch: Launch, rank: int, index: int, caller: object = None) -> None:
        """The rank has given back the memory that it was given out."""
        with self._changed:
            mine = self._mine(launch, rank, caller)
            if mine.writing != index:
                raise ValueError(f"buffer {index} was not given out")
            mine.buffers.pop(index).close()
            mine.writing = None

    def leave(self, launch: Launch, rank: int) -> bool:
        """The rank needs nothing of it any more: all is durable. Returns whether it was the last of its launch; what
        earlier ranks have left goes with that one."""
        with self._changed:
            self._mine(launch, rank)
            for buffer in self._ranks.pop(rank).buffers.values():
                buffer.close()
            if all(had.launch != self.launch for had in self._ranks.values()):
                self._close_former({})
            return not self._ranks

    def hold(self, launch: Launch, rank: int, share: Share, caller: object = None) -> None:
        """The copy into the buffer that was given out is whole."""
        with self._changed:
            mine = self._mine(launch, rank, caller)
            if mine.writing is None:
                raise ValueError("no buffer was given out")
            mine.buffers[mine.writing].holds(share)
            mine.writing = None

    def again(self, launch: Launch, rank: int, index: int, share: Share, caller: object = None) -> None:
        """What a rank reported to a daemon that has ended."""
        with self._changed:
            self._mine(launch, rank, caller).buffers[index].holds(share)

    def commit(
        self, launch: Launch, step: int, record: Record, reserve: Iterable[str] = (), *, restored: bool = False
    ) -> None:
        """Raises BadManifest and ValueError for a record that is not that of `step`. `reserve`: for what the step will
        be read soon; each ends with `release`. `restored`: the launch was restored from it."""
        if record.read.step != step:
            raise ValueError(f"a record of step {record.read.step}, not {step}")
        with self._changed:
            self._fence(launch)
            if self.records.get(step) != record:
                self.records[step] = record
                self._reserved.commit(step, reserve)
            if restored:
                self._restored = step
            elif self._restored is None:
                self._close_former(self._in_use())
            self._forget_old()

    def superseded(self, launch: Launch, step: int) -> None:
        """All ranks of all nodes have committed `step`, which is newer than the one that was restored."""
        with self._changed:
            self._fence(launch)
            self._superseded = step
            self._let_restored_go()

    def durable(self, launch: Launch, step: int) -> None:
        """The restored step is on disk: its memory may be used."""
        with self._changed:
            self._fence(launch)
            if step == self._restored:
                self._durable = step
                self._let_restored_go()

    def persisted(self, step: int) -> None:
        """`step` is durable: it and older steps need not be kept in memory for the loss of a node."""
        with self._changed:
            self.on_disk = step if self.on_disk is None else max(self.on_disk, step)
            self._forget_old()

    @property
    def pinned(self) -> int | None:
        """The step that was restored, while it must be kept."""
        return self._restored

    def rewind(self, launch: Launch, step: int | None) -> None:
        """The training resumes from `step` (None: from its start): drop newer steps, which will be made again."""
        with self._changed:
            self._fence(launch)
            for newer in [n for n in self.records if step is None or n > step]:
                del self.records[newer]
            self._reserved.rewind(step)
            if self.protected is not None and (step is None or self.protected > step):
                self.protected = None
            if self.on_disk is not None and (step is None or self.on_disk > step):
                self.on_disk = None
            for had in self._ranks.values():
                for buffer in had.buffers.values():
                    if buffer.share is not None and (step is None or buffer.share.step > step):
                        buffer.share = None
            if step is None or step != self._restored:
                self._restored = None  # it was not restored from memory
            self._close_former(self._kept() if self._restored is not None else self._in_use())
            self._changed.notify_all()

    def settled(self, step: int) -> None:
        """`step` is protected, as far as that can be."""
        with self._changed:
            self.protected = step if self.protected is None else max(self.protected, step)
            self._let_restored_go()
            self._forget_old()

    def reserve(self, step: int, why: str) -> None:
        """A committed step is not overwritten until `release`. Raises ValueError where there is no such step."""
        with self._changed:
            if step not in self.records:
                raise ValueError(f"no record of step {step}")
            self._reserved.add(step, why)

    def shares(self, step: int) -> dict[str, Share]:
        with self._changed:
            return {share.file: share for share, _ in self._held(step)}

    def buffers(self) -> list[tuple[int, int, int, Share | None]]:
        """Rank, index, bytes, and what is in it."""
        with self._changed:
            found = sorted(self._ranks.items())
            return [
                (rank, n, buffer.size, buffer.share) for rank, had in found for n, buffer in sorted(had.buffers.items())
            ]

    def committed(self) -> list[tuple[int, Record, tuple[str, ...]]]:
        """Newest first: step, record, and for what it is reserved."""
        with self._changed:
            return [
                (step, record, self._reserved.of(step)) for step, record in sorted(self.records.items(), reverse=True)
            ]

    @contextmanager
    def reading(self, step: int, file: str) -> Iterator[tuple[Share, Buffer]]:
        """The share's buffer, which is not given out until the block ends. Raises KeyError."""
        with self._changed:
            share, buffer = next((pair for pair in self._held(step) if pair[0].file == file), (None, None))
            if share is None or buffer is None:
                raise KeyError(file)
            self._readers[step] += 1
        try:
            yield share, buffer
        finally:
            with self._changed:
                self._readers -= Counter((step,))
                self._forget_old()

    def release(self, step: int, why: str) -> None:
        with self._changed:
            self._reserved.release(step, why, committed=step in self.records)
            self._forget_old()

    def release_all(self, step: int, why: str) -> None:
        """Release that step and older ones."""
        with self._changed:
            self._reserved.release_all(step, why)
            self._forget_old()

    def close(self) -> None:
        with self._changed:
            for had in self._ranks.values():
                for buffer in had.buffers.values():
                    buffer.close()
            self._ranks.clear()
            self.records.clear()
            self._changed.notify_all()

    @property
    def newest(self) -> int | None:
        """The newest committed step."""
        return max(self.records, default=None)

    def _mine(self, launch: Launch, rank: int, caller: object = None) -> _Rank:
        self._fence(launch)
        if rank not in self._ranks:
            raise ValueError(f"rank {rank} has not joined")
        mine = self._ranks[rank]
        if caller is not None and mine.caller is not caller:
            raise ValueError(f"rank {rank} has another connection by now")
        return mine

    def _fence(self, launch: Launch) -> None:
        if self.launch is not None and self.launch != launch:
            newer, older = self.launch.attempt, launch.attempt
            raise TakenOver(f"launch {newer} has taken over; {older} publishes and deletes no more checkpoints")

    def _held(self, step: int) -> Iterator[tuple[Share, Buffer]]:
        for had in self._ranks.values():
            for buffer in had.buffers.values():
                if buffer.share is not None and buffer.share.step == step:
                    yield buffer.share, buffer

    def _in_use(self) -> dict[int, str]:
        return {**dict.fromkeys(self._readers, "being read"), **self._reserved.in_use()}

    def _kept(self) -> dict[int, str]:
        """Steps that must not be overwritten, and why."""
        kept = {**self._pinned(), **self._in_use()}
        if self.newest is not None:
            kept.setdefault(self.newest, "the newest")
        durable = max((step for step in (self._durable, self.on_disk) if step is not None), default=-1)
        if self.protect and self.protected is not None and self.protected > durable:
            kept.setdefault(self.protected, "the newest that is protected")
        return kept

    def _pinned(self) -> dict[int, str]:
        return {} if self._restored is None else {self._restored: "restored, and no newer one counts everywhere yet"}

    def _let_restored_go(self) -> None:
        """Where a newer step is as safe as the restored one was, or that one is on disk."""
        if self._restored is None:
            return
        newer = self._superseded is not None and self._superseded > self._restored
        safe = not self.protect or (self.protected is not None and self.protected > self._restored)
        if self._durable == self._restored or (newer and safe):
            self._restored = None
            self._close_former(self._in_use())
            self._forget_old()

    def _close_former(self, kept: dict[int, str]) -> None:
        """Free the memory of ranks of other launches, except where it holds one of the `kept` steps."""
        for rank, had in [(rank, had) for rank, had in self._ranks.items() if self.launch != had.launch]:
            for index in [n for n, buffer in had.buffers.items() if not _is_of(buffer, kept)]:
                had.buffers.pop(index).close()
            if not had.buffers:
                del self._ranks[rank]

    def _worth(self, buffer: Buffer) -> tuple[int, int]:
        """Lowest goes first: nothing in it; an old committed step; one that was never committed."""
        if buffer.share is None:
            return (0, 0)
        return (1 if buffer.share.step in self.records else 2, buffer.share.step)

    def _forget_old(self) -> None:
        kept = self._kept()
        held = {buffer.share.step for had in self._ranks.values() for buffer in had.buffers.values() if buffer.share}
        for step in [n for n in self.records if n not in kept and n not in held]:
            del self.records[step]
        self._changed.notify_all()


def _is_of(buffer: Buffer, steps: dict[int, str]) -> bool:
    return buffer.share is not None and buffer.share.step in steps
