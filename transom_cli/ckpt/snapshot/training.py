"""Everything that a snapshot daemon has of one training: its store, its peers, and what it does for them.

`VERBS` lists what it answers to the daemons of other nodes, which are its peers. Its own node's processes use
`session`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import of_one_save, shares
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.progress import Part, combined
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.ckpt.snapshot.peers import Answer, Membership, Peers
from transom_cli.ckpt.snapshot.persist import COPYING, DONE, RESERVED, Persister
from transom_cli.ckpt.snapshot.protect import RESERVED as PROTECTING
from transom_cli.ckpt.snapshot.protect import Parity, Protector, read_group
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.ckpt.snapshot.rebuild import Finder, Rebuilder
from transom_cli.ckpt.snapshot.record import part, views
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.ckpt.snapshot.verify import Verifier
from transom_cli.ckpt.snapshot.writer import Order
from transom_cli.core.codec import plain
from transom_cli.rpc.verbs import Call, Reply, dispatch, verb, verbs_of
from transom_cli.rpc.wire import CLIENT, LIMITS

_LONG = LIMITS[CLIENT]  # lists of files or nodes
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
            combined([*self.restoring.copy().values(), *self.persister.writer.under_way()]),
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

    @verb()
    def peer_all(self) -> Reply:
        """Return what is held, [step, file, sum], and the records, [step, bytes of manifest, bytes of metadata]."""
        held = [[share.step, share.file, share.sum] for *_, share in self.store.buffers() if share is not None]
        records = [[step, len(r.manifest), len(r.metadata)] for step, r in sorted(self.store.records.items())]
        return Reply({"held": held, "records": records})

    @verb()
    def peer_state(self) -> Reply:
        return Reply(self.state())

    @verb()
    def peer_held(self, step: int) -> Reply:
        return Reply({"held": [[file, share.sum] for file, share in self.store.shares(step).items()]})

    @verb()
    def peer_record(self, step: int) -> Reply:
        record = self.store.records.get(step)
        if record is None:
            raise ValueError(f"no record of step {step}")
        return Reply(bulk=(memoryview(record.manifest), memoryview(record.metadata)))

    @verb()
    def peer_read(self, step: int, file: str, start: int, size: int) -> Reply:
        """The pin ends before the bytes are sent. The peer verifies them, so a step that is overwritten meanwhile
        costs only that attempt."""
        try:
            with self.store.reading(step, file) as (share, buffer):
                return Reply(bulk=part(views(buffer.memory, share.segments), start, size))
        except KeyError:
            raise ValueError(f"{file} of step {step} is not here") from None

    @verb(limit=_LONG)
    def peer_write(self, step: int, work: str, files: tuple[str, ...]) -> Reply:
        trouble, lost = self.persister.writer.write(step, self._work(step, work, files), list(files))
        return Reply({"trouble": trouble, "lost": lost})

    @verb(limit=_LONG)
    def peer_write_changes(self, step: int, work: str, sums: dict[str, str]) -> Reply:
        return Reply({"trouble": self.persister.writer.write_changes(step, self._work(step, work, sums), sums)})

    def _work(self, step: int, work: str, names: Iterable[str]) -> Path:
        """Raises ValueError if that is no working directory of this training and step."""
        path = Path(work)
        if not self.persister.writes_to(path.parent):
            raise ValueError("not a working directory of this training")
        if not path.name.startswith(f".tmp-{step_name(step)}-") or any("/" in name for name in names):
            raise ValueError("not a working directory of that step")
        return path

    @verb(limit=_LONG)
    def peer_protect(self, step: int, group: dict[str, Any]) -> Reply:
        return Reply({"lost": self.protector.compute(read_group(group))})

    @verb()
    def peer_rows(self, step: int) -> Reply:
        return Reply({"rows": [row.as_json() for row in self.parity.rows(step)]})

    @verb(limit=_LONG)
    def peer_row(self, step: int, nodes: tuple[str, ...], stripe: int, row: int, start: int, size: int) -> Reply:
        try:
            with self.parity.reading(step, nodes, stripe, row) as memory:
                return Reply(bulk=part([memory], start, size))
        except KeyError:
            raise ValueError("that parity is not here") from None

    @verb()
    def peer_check(self, step: int) -> Reply:
        return Reply(self.verifier.here(step))

    @verb(limit=_LONG)
    def peer_settled(self, step: int, left_out: tuple[str, ...] = ()) -> Reply:
        """The step is protected on all nodes."""
        self.store.settled(step)
        return self.peer_partly(step, left_out)

    @verb(limit=_LONG)
    def peer_partly(self, step: int, left_out: tuple[str, ...] = ()) -> Reply:
        """The step is protected except for the nodes that were left out."""
        self.store.release_all(step, PROTECTING)
        self.parity.only(step, self.store.protected)
        self._left_out = left_out
        return Reply()

    @verb()
    def peer_persist(self, step: int, attempt: str) -> Reply:
        self.persister.tried_again(step)
        self.persister.begin(Order(step, attempt, self.persister.keep))
        return Reply()

    @verb()
    def peer_reserve(self, step: int) -> Reply:
        self.store.reserve(step, RESERVED)
        return Reply()

    @verb()
    def peer_release(self, step: int, why: str) -> Reply:
        self.store.release(step, why)
        return Reply()

    @verb()
    def peer_ended(self, step: int, state: str, trouble: str = "") -> Reply:
        self.persister.hear(step, state, trouble)
        return Reply()

    @verb()
    def peer_outcome(self, step: int) -> Reply:
        state, trouble = self.persister.outcome(step)
        return Reply({"state": state, "trouble": trouble})


VERBS = verbs_of(Training, "peer_")
