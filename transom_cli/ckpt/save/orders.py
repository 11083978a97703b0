"""The rank's side of a flush: it tells how far it is, and finds the order for one more checkpoint. No collective.

All ranks make the same calls of save(), so "the first call with at least the order's step" is the same call on all
that find the order in time; the launcher picks the step such that they do (agent.flush). A rank that finds it late,
with that call behind it, leaves it: a checkpoint of another step would fit nobody's. Ranks that were in time then hold
theirs until the next save that all of them make, where it is given up (engine.Writer). Only that step is lost.

The node's files are those of beats.flush. Outside transom, or where they cannot be made, there is nothing here.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from concurrent.futures import Future

from transom_cli.ckpt.save import keeper
from transom_cli.heartbeat import flush, places


class Orders:
    """One Checkpointer's ear. `due` is called at every save(): it costs a microsecond."""

    def __init__(self, post: _Post) -> None:
        self._post: _Post | None = post
        self._before = self._settled = flush.NONE
        post.open.add(self)

    def due(self, step: int) -> bool:
        """Tell that save(step) is being called. Whether it must save, by an order; then `follow` is to be called."""
        post = self._post
        if post is None:
            return False
        before, self._before = self._before, step
        post.tell(step)  # before the look, see beats.flush
        order = post.order()
        if order <= self._settled or step < order:
            return False
        self._settled = order
        if before >= order:
            return False
        post.busy(+1)
        return True

    def follow(self, writing: Future[None] | None) -> None:
        """What was due is being written, or (None) there already: the process need not be kept for it any longer."""
        post = self._post
        if post is not None and writing is not None:
            writing.add_done_callback(lambda _: post.busy(-1))
        elif post is not None:
            post.busy(-1)

    def at(self, step: int) -> None:
        """The training goes on from `step`."""
        self._before = step
        if self._post is not None:
            self._post.tell(step)

    def close(self) -> None:
        """No order is heard any more; with the last Checkpointer to go, the process no longer keeps through TERM."""
        post, self._post = self._post, None
        if post is not None:
            post.open.discard(self)
            if not post.open:
                post.close()


class _Post:
    """This process's place on its node: shared by its Checkpointers, of which nearly always there is one."""

    def __init__(self, folder: str, launch: int, rank: int) -> None:
        self.open: weakref.WeakSet[Orders] = weakref.WeakSet()
        self._seen, self._order, self._told = b"", flush.NONE, flush.NONE
        self._busy, self._lock = 0, threading.Lock()
        fd = flush.open_order(folder, launch, os.O_RDONLY)
        try:
            self._node: mmap.mmap | bytes = mmap.mmap(fd, flush.SIZE, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._path = places.listen_prefix(folder, launch) + str(rank)
        self._fd = flush.claim(folder, launch, rank)
        mine = mmap.mmap(self._fd, flush.SIZE)
        self._cell = flush.Cell(mine)
        self._keeper = keeper.keep(self.look, self.pending)
        mine[flush.KEEPS] = self._keeper is not None

    def tell(self, step: int) -> None:
        if step > self._told:
            self._told = step
            self._cell.put(step)

    def order(self) -> int:
        """The order that stands; a slot that is being written is looked at again at the next call."""
        seen = self._node[flush.SLOTS :]
        if seen != self._seen:
            self._seen, self._order = seen, self.look()
        return self._order

    def look(self) -> int:
        """The same, for another thread than the training's."""
        found = flush.newest(self._node[flush.SLOTS :])
        return found[1] if found else flush.NONE

    def busy(self, change: int) -> None:
        with self._lock:
            self._busy += change

    def pending(self) -> bool:
        """Whether an order is still to be reached, or its checkpoint is being made."""
        return self._busy > 0 or self._told < self.look() < flush.END

    def close(self) -> None:
        global _post
        _post = None
        if self._keeper is not None:
            keeper.release(self._keeper)
        with contextlib.suppress(OSError):  # the folder has gone before us
            os.unlink(self._path)  # noqa: PTH108
        os.close(self._fd)

    def disconnect(self) -> None:
        """In a forked child: the files and the listening are its parent's."""
        self._node = bytes(flush.SIZE)
        self._cell = flush.Cell(bytearray(flush.SIZE))
        for orders in list(self.open):
            orders._post = None


_post: _Post | None = None
_hooked = False


def attend() -> Orders | None:
    """Listen for orders in this process. None outside transom, and where another process listens for this rank."""
    global _post, _hooked
    folder = os.environ.get(places.BEAT_DIR)
    if not folder:
        return None
    try:
        if _post is None:
            _post = _Post(folder, places.own_launch(), places.own_rank())
            if not _hooked:
                _hooked = True
                os.register_at_fork(after_in_child=_in_child)
        return Orders(_post)
    except (OSError, ValueError):
        return None  # training is what matters; the launcher sees that this rank does not listen


def _in_child() -> None:
    global _post
    if _post is not None:
        _post.disconnect()
        _post = None
