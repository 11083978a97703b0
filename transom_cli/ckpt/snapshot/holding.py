"""All that a holder has of one training: its shelf, its neighbours, and what it does for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.progress import Part, combined
from transom_cli.ckpt.schedule.plan import NextSaves
from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.ckpt.snapshot.checking import Checking
from transom_cli.ckpt.snapshot.finding import Finder
from transom_cli.ckpt.snapshot.inventory import shares
from transom_cli.ckpt.snapshot.neighbours import Answer, Neighbours
from transom_cli.ckpt.snapshot.parity import Parity, read_group
from transom_cli.ckpt.snapshot.persisting import RESERVED, Persisting
from transom_cli.ckpt.snapshot.protecting import RESERVED as PROTECTING
from transom_cli.ckpt.snapshot.protecting import Protecting
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.ckpt.snapshot.rebuilding import Rebuilding
from transom_cli.ckpt.snapshot.shelf import Shelf
from transom_cli.ckpt.snapshot.slot import part, views
from transom_cli.ckpt.snapshot.writing import Order
from transom_cli.core.codec import plain

_WORDS = 20  # sentences kept for a trainer that asks for nothing


class Holding:
    def __init__(self, directory: str, token: str, own: str, say: Callable[[str], None]) -> None:
        self.shelf = Shelf(directory, token)
        self.neighbours = Neighbours(self.shelf.directory, own, {}, b"", self.answer)
        self.parity = Parity()
        self.rebuilding = Rebuilding(lambda: self.neighbours)
        self.finder = Finder(self.shelf, lambda: self.neighbours, self.rebuilding.rebuild)
        self.protecting = Protecting(self.shelf, lambda: self.neighbours, self.parity, self.tell)
        self.checking = Checking(self.shelf, lambda: self.neighbours, self.parity)
        self.protect = NONE  # as the newest launch has asked for it
        self.rhythm = ""  # when the training saves, and why, in words, if rank 0 is here
        self.coming: NextSaves | None = None  # and as planned
        self.restoring: dict[int, Part] = {}  # how far ranks of this node are, by rank
        self.words: deque[str] = deque(maxlen=_WORDS)  # for the rank that is the next to ask
        self._say = say
        self._left_out: tuple[str, ...] = ()  # nodes whose shares of the protected step are not
        self.persisting = Persisting(self.shelf, lambda: self.neighbours, self.finder, self.tell)

    def begin(self) -> None:
        """Another launch is here: what the one before has told of itself is over."""
        self.rhythm, self.coming = "", None
        self.restoring.clear()
        self.persisting.distrust()

    def meet(self, own: str, places: dict[str, tuple[str, int]], key: bytes) -> None:
        """Who holds the other nodes' snapshots, as the newest launch has it."""
        self.neighbours = Neighbours(self.shelf.directory, own, places, key, self.answer)

    def tell(self, line: str) -> None:
        """To the holder's log, and to the trainer's."""
        self._say(line)
        self.words.append(line)

    def rewind(self, step: int | None) -> None:
        """The training goes on from `step`: the shelf knows already."""
        self.persisting.forget(step)
        self.parity.rewind(step)

    def answer(self, name: str, about: dict[str, object]) -> tuple[Answer, Sequence[memoryview]]:
        """A neighbour's question. What this raises becomes the answer's error."""
        step = about.get("step")
        if name == "all":
            return {"held": self._held(), "records": self._records()}, ()
        if name == "state":
            return self.state(), ()
        if type(step) is not int:
            raise ValueError("a question about no step")
        if name == "held":
            return {"held": [[file, share.sum] for file, share in self.shelf.shares(step).items()]}, ()
        if name == "record":
            return self._record(step)
        if name == "read":
            return self._read(step, str(about.get("file")), _number(about, "start"), _number(about, "size"))
        if name == "write":
            return self._write(step, Path(str(about.get("work"))), about.get("files"))
        if name == "protect":
            return {"lost": self.protecting.compute(read_group(about.get("group")))}, ()
        if name == "rows":
            return {"rows": [row.as_json() for row in self.parity.rows(step)]}, ()
        if name == "row":
            return self._row(step, about)
        if name == "check":
            return self.checking.here(step), ()
        if name in ("settled", "partly"):
            if name == "settled":
                self.shelf.settled(step)
            self.shelf.release_all(step, PROTECTING)
            self.parity.only(step, self.shelf.protected)
            left_out = about.get("left_out")
            self._left_out = tuple(map(str, left_out)) if isinstance(left_out, list) else ()
            return {}, ()
        if name == "persist":
            self.persisting.tried_again(step)
            self.persisting.begin(Order(step, str(about.get("attempt")), self.persisting.keep))
            return {}, ()
        if name == "reserve":
            self.shelf.reserve(step, RESERVED)
            return {}, ()
        if name == "release":
            self.shelf.release(step, str(about.get("why")))
            return {}, ()
        if name == "ended":
            self.persisting.hear(step, str(about.get("state")), str(about.get("trouble", "")))
            return {}, ()
        if name == "outcome":
            state, trouble = self.persisting.outcome(step)
            return {"state": state, "trouble": trouble}, ()
        raise ValueError(f"a holder is not asked for {name!r}")

    def state(self) -> Answer:
        """The account, as JSON."""
        told: Answer = plain(self.account())
        return told

    def account(self) -> Account:
        held: dict[int, list[Held]] = {}
        slots, nodes = self.shelf.slots(), len(self.neighbours.nodes)
        for rank, _, _, share in slots:
            if share is not None:
                held.setdefault(share.step, []).append(Held(rank, share.file, share.size))
        steps = []
        for step, record, uses in self.shelf.committed():
            told, here = record.read, tuple(held.get(step, ()))
            steps.append(
                Step(step, told.created, told.attempt, told.world_size, told.size, len(shares(told)), here, tuple(uses))
            )
        protected = self.shelf.protected if nodes > 1 else None  # by whom, where there is one?
        left_out = () if protected is None else self._left_out
        return Account(
            self.shelf.directory, tuple(steps), str(self.protect), protected, left_out,
            self.parity.size, sum(size for _, _, size, _ in slots), nodes, self.rhythm, self.coming,
            combined([*self.restoring.copy().values(), *self.persisting.under_way()]),
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        return self.persisting.busy or self.protecting.busy

    def close(self) -> None:
        self.shelf.close()

    def _held(self) -> list[list[Any]]:
        return [[share.step, share.file, share.sum] for *_, share in self.shelf.slots() if share is not None]

    def _records(self) -> list[list[int]]:
        """Step, bytes of the manifest, bytes of torch's metadata."""
        return [[step, len(r.manifest), len(r.metadata)] for step, r in sorted(self.shelf.records.items())]

    def _record(self, step: int) -> tuple[Answer, Sequence[memoryview]]:
        record = self.shelf.records.get(step)
        if record is None:
            raise ValueError(f"no record of step {step}")
        return {}, (memoryview(record.manifest), memoryview(record.metadata))

    def _read(self, step: int, file: str, start: int, size: int) -> tuple[Answer, Sequence[memoryview]]:
        """The pin ends before the bytes are sent: the asker checks them, and nothing is lost by a step overwritten
        meanwhile but its own try."""
        try:
            with self.shelf.reading(step, file) as (share, slot):
                return {}, part(views(slot.memory, share.segments), start, size)
        except KeyError:
            raise ValueError(f"{file} of step {step} is not here") from None

    def _row(self, step: int, about: dict[str, object]) -> tuple[Answer, Sequence[memoryview]]:
        nodes, start, size = about.get("nodes"), _number(about, "start"), _number(about, "size")
        key = tuple(map(str, nodes)) if isinstance(nodes, list) else ()
        try:
            with self.parity.reading(step, key, _number(about, "stripe"), _number(about, "row")) as memory:
                return {}, part([memory], start, size)
        except KeyError:
            raise ValueError("that parity is not here") from None

    def _write(self, step: int, work: Path, names: object) -> tuple[Answer, Sequence[memoryview]]:
        if not isinstance(names, list) or not self.persisting.writes_to(work.parent):
            raise ValueError("not a working directory of this training")
        if not work.name.startswith(f".tmp-{step_name(step)}-") or any("/" in str(name) for name in names):
            raise ValueError("not a working directory of that step")
        trouble, lost = self.persisting.write(step, work, [str(name) for name in names])
        return {"trouble": trouble, "lost": lost}, ()


def _number(about: dict[str, object], name: str) -> int:
    value = about.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value
