"""Make a committed snapshot a durable checkpoint: by the daemons alone, from shared memory, without another copy.

One daemon leads the write: the one with the request, usually that of rank 0's node. It needs no trainer, so the write
also finishes when the trainer is gone. After the checkpoint is durable, every n-th one is written from the same memory
into each further directory. A failure there is reported, and only the end of the training waits for it.
"""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from transom_cli.ckpt.failures import one_line
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import COPIES_OF, step_name
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule import CopyTurns
from transom_cli.ckpt.snapshot.increments import Increments
from transom_cli.ckpt.snapshot.peers import Membership
from transom_cli.ckpt.snapshot.rebuild import Finder
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.ckpt.snapshot.writer import CheckpointWriter, Order
from transom_cli.ckpt.tiers.mirror import Mirror
from transom_cli.rpc.errors import RpcError

RESERVED = "being made durable"
_ANSWER = 5.0  # seconds for a peer
ALL = Keep(1 << 30)  # none is deleted


RUNNING, COPYING, DONE, FAILED, UNKNOWN = "running", "copying", "done", "failed", "unknown"
SUPERSEDED = "superseded"  # dropped before it began, because a newer step is to be written
ENDED = frozenset((COPYING, DONE, FAILED, SUPERSEDED))  # nothing more becomes of the checkpoint itself
GRACE = 1.0  # seconds that a write waits for its turn in any case
_LOOK = 0.1  # seconds between looks whether a write has been superseded
_REPORT_DROPS = 600.0  # seconds between reports that writes are dropped
_REMEMBERED = 64  # of each kind
_SILENCE = 10.0  # seconds until the missing report is requested
_UNSURE = 2.0  # seconds between questions while the answer is that nothing is known

T = TypeVar("T")
State = tuple[str, str]  # and the trouble, of one that failed


class Persister:
    def __init__(self, store: Store, members: Membership, finder: Finder, say: Callable[[str], None]):
        self._store, self._members, self._say = store, members, say
        self.keep = ALL  # which checkpoints, as a rank has said last
        self.increments = Increments()
        self.writer = CheckpointWriter(store, members, finder, say, self.increments)
        self._outcomes = Outcomes()
        self._turns: CopyTurns[Path] = CopyTurns({})
        self.mirror = Mirror(Path(store.directory), say)
        self._one_at_a_time, self._one_copy, self._one_look = (threading.Lock() for _ in range(3))
        self._pending: dict[int, Order] = {}  # by step: those whose write has not begun
        self._pending_lock = threading.Lock()
        self._reported_drop = -math.inf

    def copy_to(self, also: dict[Path, int]) -> None:
        """Copy durable checkpoints to further directories: every n-th one, by directory."""
        if also != self._turns.also:
            self._turns = CopyTurns(also)

    def writes_to(self, directory: Path) -> bool:
        return directory == Path(self._store.directory) or directory in self._turns.also

    def trust(self, directory: Path, attempt: str, keep: Keep, manifest: Manifest) -> None:
        """A rank has read that checkpoint in full, and training resumes from it."""
        self.keep = keep
        self.writer.trust(directory, attempt, keep, manifest)
        if directory == Path(self._store.directory):
            self.mirror.published(manifest.step, attempt, keep)  # its upload may have been interrupted

    def distrust(self) -> None:
        """Another launch is here: what was known of the checkpoints on disk may have changed."""
        self.writer.distrust()
        self.increments.clear()
        self._turns = CopyTurns(self._turns.also)
        self.mirror.again()

    def begin(self, order: Order) -> None:
        """Start to persist a step, and return at once. Ignore a step that is in progress or done.

        A write that waits for its turn for `GRACE` is dropped if a newer one waits too: its memory is needed, however
        slow the disk is. Of those that were requested, or that `keep_every` keeps, the newest is not dropped.
        """
        self.keep = order.keep
        if not self._outcomes.begin(order.step):
            if self._outcomes.own(order.step)[0] == DONE:  # another launch has committed it again, and reserved it
                threading.Thread(target=self._tell, args=(order.step, DONE), daemon=True).start()
            return
        with self._pending_lock:
            self._pending[order.step] = order
        threading.Thread(target=self._run, args=(order,), name=f"persist-{order.step}", daemon=True).start()

    def tried_again(self, step: int) -> None:
        """The step was saved again: forget why it could not be written before."""
        self._outcomes.tried_again(step)

    def outcome(self, step: int, patience: float = 0.0) -> State:
        """Return the state of a write that this daemon leads, after at most `patience` seconds.

        RUNNING, COPYING (already durable), DONE, FAILED with the error, or UNKNOWN.
        """
        return self._outcomes.own(step, patience)

    def outcome_by(self, node: str, step: int, patience: float) -> State:
        """Return the state of a write that the daemon of `node` leads."""
        if node == self._members.current.own:
            return self.outcome(step, patience)
        if self._outcomes.reported(step, patience)[0] not in ENDED:
            self._ask_if_due(node, step)
        return self._outcomes.reported(step)

    def hear(self, step: int, state: str, trouble: str) -> None:
        """Note what the leading daemon reports. After the end, nothing but copies is made of the step."""
        self._outcomes.hear(step, state, trouble)
        if state in ENDED:
            self.writer.over(step)
            self.increments.over(step)
        if state in (COPYING, DONE):
            self._store.persisted(step)
        if state in (DONE, FAILED, SUPERSEDED):
            self._store.release(step, RESERVED)

    @property
    def busy(self) -> bool:
        return self._outcomes.busy or self.tidying or self.mirror.busy

    @property
    def tidying(self) -> bool:
        """Whether old checkpoints are being removed; or one is being written."""
        return self._one_at_a_time.locked()

    def copying_by(self, node: str) -> bool:
        """Whether that daemon, or this one, has copies written."""
        for step in self._outcomes.copying(own=False):
            self._ask_if_due(node, step)
        return bool(self._outcomes.copying(own=True) or self._outcomes.copying(own=False)) or self.mirror.busy

    def forget(self, step: int | None) -> None:
        """What is newer than `step` is of a past that did not happen: it may be requested again."""
        self._outcomes.forget(step)
        self.increments.clear()

    def still(self) -> float:
        """Seconds since the write that is in progress moved; 0 if none is. One that waits for other nodes moves."""
        return self.writer.still if self._one_at_a_time.locked() else 0.0

    def _run(self, order: Order) -> None:
        if not self._awaited_turn(order):
            self._tell(order.step, SUPERSEDED)
            return
        directory = Path(self._store.directory)
        try:
            with self._pending_lock:
                del self._pending[order.step]
            self.writer.moves()
            trouble = self._attempted(order, directory)
            copies = [] if trouble else self._copies_of(order)
            self._tell(order.step, FAILED if trouble else COPYING if copies else DONE, trouble)
            if not trouble:
                self.mirror.published(order.step, order.attempt, order.keep)
                self.writer.tidy(order, directory, self.mirror.used)
        finally:
            self._one_at_a_time.release()
        if copies:
            self._copy(order, copies)
            self._tell(order.step, DONE)

    def _awaited_turn(self, order: Order) -> bool:
        """Wait until nothing else is written. False: the write is dropped."""
        grace = time.monotonic() + GRACE
        while not self._one_at_a_time.acquire(timeout=max(_LOOK, grace - time.monotonic())):
            with self._pending_lock:
                newer = [one for step, one in self._pending.items() if step > order.step]
                if not newer or (order.wanted and not any(one.wanted for one in newer)):
                    continue
                del self._pending[order.step]
            if time.monotonic() - self._reported_drop >= _REPORT_DROPS:
                self._reported_drop = time.monotonic()
                self._say(f"saves come faster than the disk writes: {step_name(order.step)} stays in memory only")
            return False
        return True

    def _copies_of(self, order: Order) -> list[Path]:
        """Into which further directories that step is to be written now. It is one step's turn at a time, so that no
        more than one snapshot is kept for it: where there are some, `_copy` ends it."""
        with self._one_look:
            due = self._turns.due()
        if not due or self._one_copy.acquire(blocking=False):
            return due
        for directory in due:
            self._not_copied(order, directory, "the copies before it are still being written")
        return []

    def _copy(self, order: Order, directories: list[Path]) -> None:
        try:
            for directory in directories:
                there = (directory / COPIES_OF).exists()
                trouble = self._attempted(order, directory) if there else f"its {COPIES_OF} is gone; is it mounted?"
                if trouble:
                    self._not_copied(order, directory, trouble)
                else:
                    self.writer.tidy(order, directory)
        finally:
            self._one_copy.release()

    def _not_copied(self, order: Order, directory: Path, trouble: str) -> None:
        self._say(f"{step_name(order.step)} was not copied to {directory}: {trouble}")
        with self._one_look:
            self._turns.failed(directory)

    def _attempted(self, order: Order, directory: Path) -> str:
        try:
            return self.writer.checkpoint(order, directory)
        except Exception as error:  # the waiting ranks must get an answer
            return one_line(error)

    def _tell(self, step: int, state: str, trouble: str = "") -> None:
        """Tell this node's ranks and those of all other nodes."""
        peers = self._members.current  # the nodes that took part; the next launch may have others
        self._outcomes.set(step, state, trouble)
        peers.call_all("ended", _ANSWER, step=step, state=state, trouble=trouble)

    def _ask_if_due(self, node: str, step: int) -> None:
        if not self._outcomes.due(step):
            return
        try:
            answer = self._members.current.call(node, "outcome", _ANSWER, step=step)
        except RpcError as error:
            answer = {"state": UNKNOWN, "trouble": error.what}
        self.hear(step, str(answer.get("state")), str(answer.get("trouble", "")))


class Outcomes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._own: dict[int, State] = {}
        self._reported: dict[int, State] = {}
        self._ask_at: dict[int, float] = {}
        self._changed = threading.Condition()

    def begin(self, step: int) -> bool:
        """False where it is under way or done already."""
        with self._changed:
            if self._own.get(step, ("", ""))[0] in (RUNNING, COPYING, DONE):
                return False
            _remember(self._own, step, (RUNNING, ""))
            return True

    def set(self, step: int, state: str, trouble: str = "") -> None:
        with self._changed:
            self._own[step] = state, trouble
            self._changed.notify_all()

    def hear(self, step: int, state: str, trouble: str) -> None:
        """Note what the leading daemon reports."""
        with self._changed:
            _remember(self._reported, step, (state, trouble))
            _remember(self._ask_at, step, time.monotonic() + (_UNSURE if state == UNKNOWN else _SILENCE))
            self._changed.notify_all()

    def tried_again(self, step: int) -> None:
        """Forget earlier failures of a step that was saved again."""
        with self._changed:
            for known in (self._own, self._reported):
                if known.get(step, ("", ""))[0] == FAILED:
                    del known[step]

    def own(self, step: int, patience: float = 0.0) -> State:
        """Return the state of a write that this daemon leads: when it has ended, or after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._own.get(step, ("", ""))[0] in ENDED, patience)
            return self._own.get(step, (UNKNOWN, ""))

    def reported(self, step: int, patience: float = 0.0) -> State:
        """Return the state of another daemon's write. It counts as running until that daemon reports otherwise."""
        with self._changed:
            self._changed.wait_for(lambda: self._reported.get(step, ("", ""))[0] in ENDED, patience)
            return self._reported.get(step, (RUNNING, ""))

    def due(self, step: int) -> bool:
        """Return whether to ask the leading daemon now. Of several waiting threads, one gets True."""
        with self._changed:
            now = time.monotonic()
            at = self._ask_at.get(step, now + _SILENCE)
            _remember(self._ask_at, step, at if now < at else now + _SILENCE)
            return now >= at

    def copying(self, *, own: bool) -> list[int]:
        """Steps that are durable, and being written into a further directory."""
        with self._changed:
            return [n for n, (state, _) in (self._own if own else self._reported).items() if state == COPYING]

    @property
    def busy(self) -> bool:
        with self._changed:
            return any(state in (RUNNING, COPYING) for state, _ in self._own.values())

    def forget(self, step: int | None) -> None:
        """What is newer than `step` is of a past that did not happen: it may be requested again, and so may what
        failed."""
        with self._changed:
            for known in (self._own, self._reported):
                for n in [n for n, (state, _) in known.items() if step is None or n > step or state == FAILED]:
                    if known is self._reported or known[n][0] not in (RUNNING, COPYING):
                        del known[n]
            self._ask_at = {n: at for n, at in self._ask_at.items() if step is not None and n <= step}


def _remember(known: dict[int, T], step: int, what: T) -> None:
    known[step] = what
    for old in sorted(known)[:-_REMEMBERED]:
        del known[old]
