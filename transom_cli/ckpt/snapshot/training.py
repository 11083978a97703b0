"""Everything that a snapshot daemon has of one training: its store, its peers, and what it does for them.

`VERBS` lists what it answers to the daemons of other nodes, which are its peers. Its own node's processes use
`session`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import of_one_save
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.progress import Part, combined
from transom_cli.ckpt.schedule.plan import NextSaves
from transom_cli.ckpt.snapshot import requests
from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.ckpt.snapshot.buffer import part, views
from transom_cli.ckpt.snapshot.finder import Finder
from transom_cli.ckpt.snapshot.inventory import shares
from transom_cli.ckpt.snapshot.parity import Parity, read_group
from transom_cli.ckpt.snapshot.peers import Answer, Membership, Peers
from transom_cli.ckpt.snapshot.persist import COPYING, DONE, RESERVED, Persister
from transom_cli.ckpt.snapshot.protect import RESERVED as PROTECTING
from transom_cli.ckpt.snapshot.protect import Protector
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.ckpt.snapshot.rebuild import Rebuilder
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.ckpt.snapshot.verify import Verifier
from transom_cli.ckpt.snapshot.writer import Order
from transom_cli.core.codec import plain
from transom_cli.rpc.verbs import Call, Empty, Reply, Verb, dispatch
from transom_cli.rpc.wire import CLIENT, LIMITS

_WORDS = 20  # lines kept for a trainer that does not fetch them
RESERVE = 2.0  # seconds for a peer to note that a step must not be overwritten


class Training:
    def __init__(self, directory: str, token: str, own: str, say: Callable[[str], None]) -> None:
        self.store = Store(directory, token)
        self.members = members = Membership(Peers(self.store.directory, own, {}, b"", self.answer))
        self.parity = Parity()
        self.finder = Finder(self.store, members, Rebuilder(members).rebuild)
        self.persister = Persister(self.store, members, self.finder, self.tell)
        self.protector = Protector(self.store, members, self.parity, self.tell)
        self.verifier = Verifier(self.store, members, self.parity)
        self.protect = NONE  # as the newest launch requested
        self.rhythm = ""  # when the training saves and why, in words; known on the node of rank 0
        self.coming: NextSaves | None = None  # the planned saves
        self.restoring: dict[int, Part] = {}  # the progress of this node's ranks
        self.words: deque[str] = deque(maxlen=_WORDS)  # lines for the next rank that fetches them
        self._say = say
        self._left_out: tuple[str, ...] = ()  # nodes whose shares of the protected step the parity does not cover

    @property
    def peers(self) -> Peers:
        return self.members.current

    def begin(self) -> None:
        """Forget what the former launch reported: a newer one is here."""
        self.rhythm, self.coming = "", None
        self.restoring.clear()
        self.persister.distrust()

    def meet(self, own: str, places: Mapping[str, tuple[str, int]], key: bytes) -> None:
        """Set the daemons of the newest launch."""
        self.members.current = Peers(self.store.directory, own, places, key, self.answer)

    def tell(self, line: str) -> None:
        """Write a line to the daemon's log and to the trainer's."""
        self._say(line)
        self.words.append(line)

    def rewind(self, step: int | None) -> None:
        """The training continues from `step`. Call it after the store's `rewind`."""
        self.persister.forget(step)
        self.parity.rewind(step)

    def state(self) -> Answer:
        """Return the account as JSON."""
        answer: Answer = plain(self.account())
        return answer

    def account(self) -> Account:
        held: dict[int, list[Held]] = {}
        buffers, nodes = self.store.buffers(), len(self.peers.nodes)
        for rank, _, _, share in buffers:
            if share is not None:
                held.setdefault(share.step, []).append(Held(rank, share.file, share.size))
        steps = []
        for step, record, uses in self.store.committed():
            saved, here = record.read, tuple(held.get(step, ()))
            steps.append(
                Step(
                    step,
                    saved.created,
                    saved.attempt,
                    saved.world_size,
                    saved.size,
                    len(shares(saved)),
                    here,
                    tuple(uses),
                )
            )
        protected = self.store.protected if nodes > 1 else None  # a node alone has nothing to protect it
        left_out = () if protected is None else self._left_out
        return Account(
            self.store.directory, tuple(steps), str(self.protect), protected, left_out,
            self.parity.size, sum(size for _, _, size, _ in buffers), nodes, self.rhythm, self.coming,
            combined([*self.restoring.copy().values(), *self.persister.under_way()]),
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        return self.persister.busy or self.protector.busy

    def close(self) -> None:
        self.store.close()

    # For the launcher, when ranks are dead or hang

    def newest(self) -> dict[str, Any]:
        """Return the newest committed step here, None if there is none, and whether it is durable already."""
        step = self.store.newest
        durable = step is not None and self._on_disk(step)
        return {"directory": self.store.directory, "step": step, "durable": durable}

    def rescue(self, step: int, attempt: str, seconds: float) -> dict[str, Any]:
        """Make `step` durable without a trainer, in the name of `attempt`, the newest launch.

        Any daemon that has the step's record can do this with its peers' shares. Returns the state and the trouble
        (see `persist`) after at most `seconds`; a write that is under way then continues. Old checkpoints are deleted
        only if a rank has said how many to keep.
        """
        if self._on_disk(step):
            return {"state": DONE, "trouble": ""}
        self.peers.call_all("reserve", RESERVE, step=step)  # ranks that continue would overwrite it
        self.persister.begin(Order(step, attempt, self.persister.keep))
        state, trouble = self.persister.outcome(step, seconds)
        return {"state": DONE if state == COPYING else state, "trouble": trouble}

    def _on_disk(self, step: int) -> bool:
        record = self.store.records.get(step)
        if record is None:
            return False
        try:
            written = (Path(self.store.directory) / step_name(step) / MANIFEST).read_bytes()
            return of_one_save(written, record.manifest)
        except (OSError, BadManifest):
            return False

    # For peers

    def answer(self, call: Call) -> Reply:
        return dispatch(VERBS, self, call)

    def peer_all(self, _: Empty) -> Reply:
        """Return what is held, [step, file, sum], and the records, [step, bytes of manifest, bytes of metadata]."""
        held = [[share.step, share.file, share.sum] for *_, share in self.store.buffers() if share is not None]
        records = [[step, len(r.manifest), len(r.metadata)] for step, r in sorted(self.store.records.items())]
        return Reply({"held": held, "records": records})

    def peer_state(self, _: Empty) -> Reply:
        return Reply(self.state())

    def peer_held(self, request: requests.Step) -> Reply:
        return Reply({"held": [[file, share.sum] for file, share in self.store.shares(request.step).items()]})

    def peer_record(self, request: requests.Step) -> Reply:
        record = self.store.records.get(request.step)
        if record is None:
            raise ValueError(f"no record of step {request.step}")
        return Reply(bulk=(memoryview(record.manifest), memoryview(record.metadata)))

    def peer_read(self, request: requests.Read) -> Reply:
        """The pin ends before the bytes are sent. The peer verifies them, so a step that is overwritten meanwhile
        costs only that attempt."""
        try:
            with self.store.reading(request.step, request.file) as (share, buffer):
                return Reply(bulk=part(views(buffer.memory, share.segments), request.start, request.size))
        except KeyError:
            raise ValueError(f"{request.file} of step {request.step} is not here") from None

    def peer_write(self, request: requests.Write) -> Reply:
        work = self._work(request.step, request.work, request.files)
        trouble, lost = self.persister.write(request.step, work, list(request.files))
        return Reply({"trouble": trouble, "lost": lost})

    def peer_write_changes(self, request: requests.WriteChanges) -> Reply:
        work = self._work(request.step, request.work, request.sums)
        return Reply({"trouble": self.persister.write_changes(request.step, work, request.sums)})

    def _work(self, step: int, work: str, names: Iterable[str]) -> Path:
        """Raises ValueError if that is no working directory of this training and step."""
        path = Path(work)
        if not self.persister.writes_to(path.parent):
            raise ValueError("not a working directory of this training")
        if not path.name.startswith(f".tmp-{step_name(step)}-") or any("/" in name for name in names):
            raise ValueError("not a working directory of that step")
        return path

    def peer_protect(self, request: requests.Protect) -> Reply:
        return Reply({"lost": self.protector.compute(read_group(request.group))})

    def peer_rows(self, request: requests.Step) -> Reply:
        return Reply({"rows": [row.as_json() for row in self.parity.rows(request.step)]})

    def peer_row(self, request: requests.ReadRow) -> Reply:
        try:
            with self.parity.reading(request.step, request.nodes, request.stripe, request.row) as memory:
                return Reply(bulk=part([memory], request.start, request.size))
        except KeyError:
            raise ValueError("that parity is not here") from None

    def peer_check(self, request: requests.Step) -> Reply:
        return Reply(self.verifier.here(request.step))

    def peer_settled(self, request: requests.Protected) -> Reply:
        """The step is protected on all nodes."""
        self.store.settled(request.step)
        return self.peer_partly(request)

    def peer_partly(self, request: requests.Protected) -> Reply:
        """The step is protected except for the nodes that were left out."""
        self.store.release_all(request.step, PROTECTING)
        self.parity.only(request.step, self.store.protected)
        self._left_out = request.left_out
        return Reply()

    def peer_persist(self, request: requests.PersistFor) -> Reply:
        self.persister.tried_again(request.step)
        self.persister.begin(Order(request.step, request.attempt, self.persister.keep))
        return Reply()

    def peer_reserve(self, request: requests.Step) -> Reply:
        self.store.reserve(request.step, RESERVED)
        return Reply()

    def peer_release(self, request: requests.Release) -> Reply:
        self.store.release(request.step, request.why)
        return Reply()

    def peer_ended(self, request: requests.Ended) -> Reply:
        self.persister.hear(request.step, request.state, request.trouble)
        return Reply()

    def peer_outcome(self, request: requests.Step) -> Reply:
        state, trouble = self.persister.outcome(request.step)
        return Reply({"state": state, "trouble": trouble})


_LONG = LIMITS[CLIENT]  # lists of files or nodes

VERBS: dict[str, Verb] = {
    "all": Verb(Training.peer_all, Empty),
    "state": Verb(Training.peer_state, Empty),
    "held": Verb(Training.peer_held, requests.Step),
    "record": Verb(Training.peer_record, requests.Step),
    "read": Verb(Training.peer_read, requests.Read),
    "write": Verb(Training.peer_write, requests.Write, _LONG),
    "write_changes": Verb(Training.peer_write_changes, requests.WriteChanges, _LONG),
    "protect": Verb(Training.peer_protect, requests.Protect, _LONG),
    "rows": Verb(Training.peer_rows, requests.Step),
    "row": Verb(Training.peer_row, requests.ReadRow, _LONG),
    "check": Verb(Training.peer_check, requests.Step),
    "settled": Verb(Training.peer_settled, requests.Protected, _LONG),
    "partly": Verb(Training.peer_partly, requests.Protected, _LONG),
    "persist": Verb(Training.peer_persist, requests.PersistFor),
    "reserve": Verb(Training.peer_reserve, requests.Step),
    "release": Verb(Training.peer_release, requests.Release),
    "ended": Verb(Training.peer_ended, requests.Ended),
    "outcome": Verb(Training.peer_outcome, requests.Step),
}
