"""What a node's memory gives out to be overwritten, in any order of what its ranks may ask, is never what still counts.

The machine keeps its own account of the calls to the store: which step is in which buffer, which is committed, what
is reserved and what is read. The promises are checked against that account alone.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from ckpt_memory_made import SIZE, buffer, launch, record, share
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.snapshot.reservations import Reservations
from transom_cli.ckpt.snapshot.store import Store

RANKS = (0, 1)
A_RANK = st.sampled_from(RANKS)


class Account:
    """One rank, as the store knows it: its launch, the step in each buffer or None, and the buffer that it writes."""

    def __init__(self, launch: int) -> None:
        self.launch = launch
        self.buffers: dict[int, int | None] = {}
        self.writing: int | None = None


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store("/checkpoints", "token")
        self.launches = 1
        self.step = 0  # the newest that any rank has begun
        self.ranks: dict[int, Account] = {}
        self.committed: set[int] = set()
        self.reserved: set[int] = set()
        self.early: set[int] = set()  # released before they were committed here
        self.readers: list[tuple[int, ExitStack]] = []
        self.restored: int | None = None  # the step that the launch was restored from, until a newer one is safe
        self.promised: set[tuple[int, int]] = set()  # rank and buffer of its shares

    def teardown(self) -> None:
        for _, reader in self.readers:
            reader.close()
        self.store.close()

    @property
    def now(self):
        return launch(self.launches)

    def here(self, rank: int) -> bool:
        """Whether that rank is of the newest launch."""
        return rank in self.ranks and self.ranks[rank].launch == self.launches

    def in_use(self) -> set[int]:
        return self.reserved | {step for step, _ in self.readers}

    def pinned(self) -> set[int]:
        return set() if self.restored is None else {self.restored}

    def former_go(self, kept: set[int]) -> None:
        """What ranks of older launches have left is given back, but for these steps."""
        for rank in [rank for rank in self.ranks if not self.here(rank)]:
            mine = self.ranks[rank]
            mine.buffers = {n: step for n, step in mine.buffers.items() if step in kept}
            if not mine.buffers:
                del self.ranks[rank]

    def let_restored_go(self) -> None:
        self.restored, self.promised = None, set()
        self.former_go(self.in_use())

    # A rank comes and goes

    @initialize()
    def come_all(self) -> None:
        for rank in RANKS:
            self.come(rank)
            self.lend(rank, 0)

    @rule(rank=A_RANK)
    def come(self, rank: int) -> None:
        back = self.store.join(self.now, rank, False)
        mine = self.ranks.setdefault(rank, Account(self.launches))
        assert {n: one.share and one.share.step for n, one in back.items()} == mine.buffers
        mine.launch, mine.writing = self.launches, None

    @rule(rank=A_RANK)
    def come_anew(self, rank: int) -> None:
        self.launches += 1
        self.reserved.clear()
        self.early.clear()
        self.restored, self.promised = None, set()
        self.come(rank)

    @rule(rank=A_RANK, index=st.integers(0, 2))
    def lend(self, rank: int, index: int) -> None:
        if not self.here(rank):
            return
        mine = self.ranks[rank]
        fresh = buffer()
        if mine.buffers.get(index) is not None and mine.writing != index:
            with pytest.raises(ValueError, match="holds"):
                self.store.lend(self.now, rank, index, fresh, write=True)
            fresh.close()
            return
        self.store.lend(self.now, rank, index, fresh, write=True)
        mine.buffers[index] = None
        if mine.writing is None:
            mine.writing = index

    @rule(rank=A_RANK)
    def leave(self, rank: int) -> None:
        if self.here(rank):
            last = self.store.leave(self.now, rank)
            del self.ranks[rank]
            self.promised = {place for place in self.promised if place[0] != rank}
            if not any(self.here(other) for other in RANKS):
                self.ranks.clear()
                self.promised.clear()
            assert last == (not self.ranks)

    # A save

    @rule(rank=A_RANK)
    def take(self, rank: int) -> None:
        if not self.here(rank):
            return
        mine = self.ranks[rank]
        kept = self.in_use() | self.pinned()
        kept |= {max(self.committed)} if self.committed and len(mine.buffers) > 1 else set()
        may = {n for n, step in mine.buffers.items() if step not in kept}
        index, why = self.store.take(self.now, rank, 0.0)
        if mine.writing is not None:
            assert index == mine.writing  # it has one already
        elif may:
            assert index in may, f"buffer {index} was given out, and only {may} may be"
            empty = {n for n in may if mine.buffers[n] is None}
            assert not empty or index in empty, "a snapshot was overwritten for nothing"
        else:
            assert index is None and why
        if index is not None:
            mine.writing, mine.buffers[index] = index, None

    @rule(rank=A_RANK)
    def drop(self, rank: int) -> None:
        if self.here(rank) and self.ranks[rank].writing is not None:
            index = self.ranks[rank].writing
            self.store.drop(self.now, rank, index)
            del self.ranks[rank].buffers[index]
            self.ranks[rank].writing = None

    @rule(rank=A_RANK, next_one=st.booleans())
    def hold(self, rank: int, next_one: bool) -> None:
        """Of the step that the other rank has begun, or of the next."""
        if not self.here(rank):
            return
        mine = self.ranks[rank]
        if mine.writing is None:
            with pytest.raises(ValueError, match="no buffer"):
                self.store.hold(self.now, rank, share(self.step, rank))
            return
        self.step += next_one or self.step == 0 or self.step in mine.buffers.values() or self.step in self.committed
        self.store.hold(self.now, rank, share(self.step, rank))
        mine.buffers[mine.writing], mine.writing = self.step, None

    @rule(durable=st.booleans())
    def commit(self, durable: bool) -> None:
        """When all ranks of the launch hold it."""
        ours = [rank for rank in RANKS if self.here(rank)]
        if not ours or not all(self.step in self.ranks[rank].buffers.values() for rank in ours):
            return
        again = self.step in self.committed
        self.store.commit(self.now, self.step, record(self.step, len(RANKS)), ["disk"] if durable else [])
        self.committed.add(self.step)
        if self.restored is None:
            self.former_go(self.in_use())
        if durable and not again and self.step not in self.early:
            self.reserved.add(self.step)

    @rule(durable=st.booleans(), read=st.booleans(), buffers=st.integers(1, 3), early=st.booleans())
    def save(self, durable: bool, read: bool, buffers: int, early: bool) -> None:
        """A whole one, as a training makes one after the other, so that deep states are reached."""
        for rank in RANKS:
            if not self.here(rank):
                self.come(rank)
            for index in range(buffers):
                if index not in self.ranks[rank].buffers and self.ranks[rank].writing is None:
                    self.lend(rank, index)
            self.take(rank)
        if all(self.ranks[rank].writing is not None for rank in RANKS):
            if early:
                self.release_the_next_one()
            self.step += 1
            for rank in RANKS:
                self.hold(rank, next_one=False)
            self.commit(durable)
            if read:
                self.read(0)

    @rule(data=st.data())
    @precondition(lambda self: self.reserved)
    def release(self, data) -> None:
        step = data.draw(st.sampled_from(sorted(self.reserved)))
        self.store.release(step, "disk")
        self.reserved.discard(step)

    @rule()
    def release_the_next_one(self) -> None:
        """Who sees to it was sooner than this node's own ranks."""
        if any(self.here(rank) for rank in RANKS):
            self.store.release(self.step + 1, "disk")
            self.early.add(self.step + 1)

    @rule(data=st.data())
    @precondition(lambda self: self.reserved)
    def release_all(self, data) -> None:
        step = data.draw(st.sampled_from(sorted(self.reserved)))
        self.store.release_all(step, "network")
        assert self.reserved <= {n for n, _, uses in self.store.committed() if "disk" in uses}
        self.store.release_all(step, "disk")
        self.reserved = {n for n in self.reserved if n > step}

    # A restore

    @rule(back=st.integers(0, 1))
    def restore(self, back: int) -> None:
        """From memory: this node's ranks, and those that have gone, keep what they hold of it."""
        held = {step for mine in self.ranks.values() for step in mine.buffers.values()} & self.committed
        if not any(self.here(rank) for rank in RANKS) or len(held) <= back:
            return
        step = sorted(held)[-1 - back]
        self.store.commit(self.now, step, record(step, len(RANKS)), restored=True)
        self.store.rewind(self.now, step)
        self.restored = step
        self.forget_newer(step)
        self.former_go(self.in_use() | {step})
        self.promised = {(rank, n) for rank, mine in self.ranks.items() for n, s in mine.buffers.items() if s == step}

    @rule()
    @precondition(lambda self: self.restored is not None)
    def a_newer_step_counts_everywhere(self) -> None:
        if any(self.here(rank) for rank in RANKS) and max(self.committed) > self.restored:
            self.store.superseded(self.now, max(self.committed))
            self.let_restored_go()

    @rule()
    @precondition(lambda self: self.restored is not None)
    def the_restored_step_is_on_disk(self) -> None:
        if any(self.here(rank) for rank in RANKS):
            self.store.durable(self.now, self.restored)
            self.let_restored_go()

    @rule(rank=A_RANK)
    @precondition(lambda self: self.committed)
    def read(self, rank: int) -> None:
        if rank not in self.ranks:
            return
        for step in {step for step in self.ranks[rank].buffers.values() if step is not None}:
            reader = ExitStack()
            found, _ = reader.enter_context(self.store.reading(step, share(step, rank).file))
            assert found == share(step, rank)
            self.readers.append((step, reader))

    @rule()
    @precondition(lambda self: self.readers)
    def have_read(self) -> None:
        self.readers.pop(0)[1].close()

    @rule(back=st.integers(0, 2))
    def rewind(self, back: int) -> None:
        """To a step that is still held, or to the start."""
        if not any(self.here(rank) for rank in RANKS):
            return
        held = {step for mine in self.ranks.values() for step in mine.buffers.values()} & self.committed
        step = sorted(held)[-1 - back] if len(held) > back else None
        self.store.rewind(self.now, step)
        self.forget_newer(step)
        if step is None or step != self.restored:
            self.restored, self.promised = None, set()
            self.former_go(self.in_use())
        else:
            self.former_go(self.in_use() | {step})

    def forget_newer(self, step: int | None) -> None:
        past = {known for known in self.committed if step is not None and known <= step}
        self.committed = past
        self.reserved &= past
        self.early.clear()
        for mine in self.ranks.values():
            mine.buffers = {n: s if s is not None and step is not None and s <= step else None
                          for n, s in mine.buffers.items()}  # fmt: skip

    # Who comes too late

    @rule(rank=A_RANK, what=st.sampled_from(["join", "lend", "take", "drop", "leave", "hold", "commit", "rewind"]))
    @precondition(lambda self: self.launches > 1)
    def an_older_launch(self, rank: int, what: str) -> None:
        if not any(self.here(rank) for rank in RANKS):
            return
        old, before, records = launch(self.launches - 1), self.store.buffers(), dict(self.store.records)
        spare = buffer()
        with pytest.raises(TakenOver):
            {
                "join": lambda: self.store.join(old, rank, False),
                "lend": lambda: self.store.lend(old, rank, 0, spare, write=True),
                "take": lambda: self.store.take(old, rank, 0.0),
                "drop": lambda: self.store.drop(old, rank, 0),
                "leave": lambda: self.store.leave(old, rank),
                "hold": lambda: self.store.hold(old, rank, share(self.step, rank)),
                "commit": lambda: self.store.commit(old, self.step + 1, record(self.step + 1, 2)),
                "rewind": lambda: self.store.rewind(old, None),
            }[what]()
        spare.close()
        assert self.store.buffers() == before and self.store.records == records

    @invariant()
    def what_is_held_is_what_was_held(self) -> None:
        told = {(rank, n): (one and one.step) for rank, n, size, one in self.store.buffers() if size == SIZE}
        assert told == {(rank, n): step for rank, mine in self.ranks.items() for n, step in mine.buffers.items()}
        for step in {step for step in told.values() if step is not None}:
            daemons = {rank for (rank, _), held in told.items() if held == step}
            assert self.store.shares(step) == {share(step, rank).file: share(step, rank) for rank in daemons}

    @invariant()
    def what_is_reserved_is_known(self) -> None:
        assert {step for step, _, uses in self.store.committed() if uses} == self.reserved

    @invariant()
    def the_newest_counts(self) -> None:
        assert self.store.newest == max(self.committed, default=None)

    @invariant()
    def the_restored_step_stays_until_a_newer_one_is_safe(self) -> None:
        told = {(rank, n): (one and one.step) for rank, n, _, one in self.store.buffers()}
        assert {told.get(place) for place in self.promised} <= self.pinned()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize("back", ["rewind", "clear"])
def test_what_was_released_early_counts_for_the_past_that_it_was_of(back: str) -> None:
    kept = Reservations()
    kept.release(5, "disk", committed=False)
    kept.release(5, "network", committed=True)  # it was not kept for that any more
    kept.rewind(4) if back == "rewind" else kept.clear()
    kept.commit(5, ["disk", "network"])
    assert kept.of(5) == ("disk", "network")
    kept.release(5, "disk", committed=True)
    kept.rewind(4)
    assert kept.in_use() == {}
