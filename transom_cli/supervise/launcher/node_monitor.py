"""Monitors the allocation's nodes: spares and their warm-up, drains by others, and faults that agents have found.

Everything runs in daemon threads, which put events into the launcher's inbox. During warm-up, a spare reads the
training's programs and libraries before they are needed (see `agent.warm`).
"""

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import NodeFault
from transom_cli.core.launcher import Event, FaultsFound, NodeReturned, NodesDraining, Phase, SpareChecked, State
from transom_cli.errors import TransomError, printable
from transom_cli.heartbeat.table import NodeTable
from transom_cli.plural import several
from transom_cli.rpc.wire import CLIENT, LIMITS
from transom_cli.slurm.port import Slurm
from transom_cli.supervise.agent.warm import MOST
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.journal import JournalWriter

DRAIN_EVERY = 30.0  # interval in seconds between queries for drained nodes
WARM_EVERY = 1.0  # interval in seconds between warm-up attempts while the training does not step yet
SPARE_EVERY = 10.0  # interval in seconds between probes of a spare
FAILS = 2  # failed probes in a row after which a spare is no longer ready

Probe = Callable[[str], Mapping[str, object]]  # an agent's answer, with "ok" in it, or an "error"
Warm = Callable[[str], bool]  # warm up this spare; False: too early, call again


class NodeMonitor:
    """One daemon thread for drains, and one for each spare."""

    def __init__(self, inbox: queue.SimpleQueue[Event]) -> None:
        self._inbox = inbox
        self._end = threading.Event()
        self._watched: set[str] = set()  # spares
        self.started = False

    def watch(self, spares: Iterable[str]) -> None:
        """Probe further spares. Call after `start`."""
        for spare in spares:
            if spare not in self._watched:
                self._watched.add(spare)
                self._thread(self._spare, spare, self._probe, self._warm_up)

    def start(
        self,
        nodes: tuple[str, ...],
        spares: tuple[str, ...],
        probe: Probe,
        slurm: Callable[[], Slurm],
        warm: Warm = lambda _: True,
        silent: Callable[[], tuple[str, ...]] = lambda: (),
        answers: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Start the threads.

        Args:
            nodes: whose drains are reported, once per node.
            spares: probed by `probe`, and warmed up once they are ready. A warm-up may take minutes.
            silent: returns the nodes that carry no rank since they did not answer.
            answers: whether such a node, which Slurm can use, answers again and no rank survives there.
        """
        self.started, self._probe, self._warm_up = True, probe, warm
        self._silent, self._answers = silent, answers
        self.watch(spares)
        if nodes:
            self._thread(self._drains, nodes, slurm)

    def stop(self) -> None:
        self._end.set()

    def _thread(self, work: Callable[..., None], *about: object) -> None:
        threading.Thread(target=work, args=about, name="nodes", daemon=True).start()

    def _spare(self, node: str, probe: Probe, warm: Warm) -> None:
        """Probe a spare repeatedly: its agent may come up late, or die and be restarted."""
        fails, good, warming = 0, False, False
        while True:
            answer = probe(node)
            fails = 0 if answer.get("ok") else fails + 1
            if not fails and not good:
                good = True
                self._inbox.put(SpareChecked(0.0, node, good=True))
                if not warming:
                    warming = True
                    self._thread(self._warm, node, warm)
            if fails >= FAILS and good:
                good = False
                self._inbox.put(SpareChecked(0.0, node, good=False, words=str(answer.get("error", ""))))
            if self._end.wait(1.0 if 0 < fails < FAILS else SPARE_EVERY):
                return

    def _warm(self, node: str, warm: Warm) -> None:
        while not warm(node) and not self._end.wait(WARM_EVERY):
            pass

    def _drains(self, nodes: tuple[str, ...], slurm: Callable[[], Slurm]) -> None:
        reported: set[str] = set()
        while not self._end.wait(DRAIN_EVERY):
            with contextlib.suppress(TransomError):
                for node in slurm().nodes(nodes):
                    if node.name in self._silent() and node.usable and self._answers(node.name):
                        self._inbox.put(NodeReturned(0.0, node.name))
                    if node.drain and node.name not in reported:
                        reported.add(node.name)
                        by = f" ({node.reason_user})" if node.reason_user else ""
                        words = f"{node.name} is being drained: {node.reason or 'no reason given'}{by}"
                        self._inbox.put(NodesDraining(0.0, (node.name,), words))


AT_ONCE = 32  # agents asked at a time: if a shared file system hangs, all nodes report it at once
AGAIN = 5.0  # seconds before an agent that did not answer is asked again
Ask = Callable[[str], Mapping[str, object]]  # the agent's answer with "faults", or an "error"


class FaultMonitor:
    """Asks an agent for the faults of its node as soon as its heartbeat table announces some."""

    def __init__(self, inbox: queue.SimpleQueue[Event], ask: Ask) -> None:
        self._inbox, self._ask = inbox, ask
        self._seen: dict[str, int] = {}  # by node, the alarms that were asked about
        self._due: dict[str, float] = {}
        self._busy: set[str] = set()

    def look(self, tables: Mapping[str, NodeTable], now: float) -> None:
        """Ask the agents with new alarms. Returns at once."""
        for node, table in tables.items():
            if len(self._busy) >= AT_ONCE:
                return
            news = table.alarms != self._seen.get(node, 0)
            if news and node not in self._busy and now >= self._due.get(node, 0.0):
                self._busy.add(node)
                self._due[node] = now + AGAIN
                threading.Thread(target=self._learn, args=(node, table.alarms), name="faults", daemon=True).start()

    def _learn(self, node: str, alarms: int) -> None:
        try:
            answer = self._ask(node).get("faults")
            if isinstance(answer, list):
                self._seen[node] = alarms
                self._due.pop(node, None)
                found = tuple(f for f in (_fault(node, one) for one in answer) if f is not None)
                if found:
                    self._inbox.put(FaultsFound(0.0, found))
        finally:
            self._busy.discard(node)


def _fault(node: str, said: object) -> NodeFault | None:
    """Accept only faults of the agent's own node, with text that is safe for a terminal."""
    try:
        found = build(NodeFault, {**said, "node": node} if isinstance(said, dict) else {})
    except BadRecord:
        return None
    plain = {name: printable(text)[:500] for name, text in vars(found).items()}
    return NodeFault(**plain) if found.verdict in ("FAIL", "SUSPECT") else None


MAPPED = 10.0  # seconds for an agent to list the files of its ranks
WARM = 300.0  # seconds for a spare to read one message's files
MESSAGE = LIMITS[CLIENT] // 2  # bytes of file names per message


class WarmUp:
    """Has spares read the training's files. `state` is called from any thread. Failures are only journalled."""

    def __init__(self, agents: Agents, journal: JournalWriter, state: Callable[[], State]) -> None:
        self._agents, self._journal, self._state = agents, journal, state

    def __call__(self, spare: str) -> bool:
        """Warm up a spare; blocks while it reads. False: too early, since the training has not loaded its files yet."""
        state = self._state()
        if spare not in state.nodes.spares:
            return True  # it trains now, or was given up
        if state.phase is not Phase.TRAINING or state.progress.step < 0:
            return False
        self._journal(
            "spare", node=spare, good=True, words=self._warm(spare, state.launch.number, state.nodes.training[0])
        )
        return True

    def _warm(self, spare: str, launch: int, node: str) -> str:
        answer = self._agents.ask(node, "mapped", MAPPED, launch=launch)
        files = answer.get("files")
        if not isinstance(files, list) or not files:
            return f"not warm: {answer.get('error') or f'no files of launch {launch} are known from {node}'}"
        count = size = 0
        for part in parts((str(path), int(length)) for path, length in files):
            answer = self._agents.ask(spare, "warm", WARM, files=part)
            if not answer.get("ok"):
                return f"not warm: {answer.get('error')}"
            count, size = count + int(str(answer.get("files"))), size + int(str(answer.get("bytes")))
        return f"warm: {several(count, 'file')}, {size / 1e6:.0f} MB"


def parts(files: Iterable[tuple[str, int]], message: int = MESSAGE, most: int = MOST) -> Iterator[list[str]]:
    """Split paths into lists of one message each, skipping files beyond a total of `most` bytes."""
    part: list[str] = []
    length = total = 0
    for path, size in files:
        if total + size > most:
            continue
        total += size
        more = len(json.dumps(path)) + 1
        if part and length + more > message:
            yield part
            part, length = [], 0
        part.append(path)
        length += more
    if part:
        yield part
