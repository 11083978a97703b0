"""A health run: have the nodes read, judge what they read, probe how they compute and communicate.

Everything has a deadline: a node that does not answer in time gets a finding and is no longer waited for. The caller
decides what happens to a bad node.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from transom_cli.core.codec import plain
from transom_cli.health.check import About, Check, Tier, limits_of, unwanted
from transom_cli.health.checks.run_dir import RUN_DIR, judge_missing, read_missing, remove_files
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.judge import ANSWER, SILENT, Clock, Readings, fell_silent, judge
from transom_cli.health.node_worker import STARTING
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.plan import ProbeLimits
from transom_cli.health.protocol import Message, Transport
from transom_cli.health.registry import of_tier
from transom_cli.health.report import Report
from transom_cli.health.system import BackgroundCall
from transom_cli.health.transport import SrunTransport

LATE_FACTOR = 3.0  # a worker is suspected if it takes longer than this times the slowest other
PINGS = 3
_KILLED = "the health check's process was killed on the node"
POLL = 0.5  # seconds without an answer before looking whose worker has ended
DEEP_PROBE = 60.0  # seconds that a deep run reserves for the probe, which takes about 40 s with 64 nodes
TRIES = 4  # steps; a node on which two of them could not start is left out of the next
MIN_TRY = 5.0  # seconds that must be left for another try


@dataclass(frozen=True)
class Waits:
    """Seconds to wait for others.

    arrival: for workers to start, after the first one has. transfer: for an answer to arrive. visible: for the nodes'
    files to become visible here, through a network file system. remove: for removing these files, where a file system
    that hangs blocks nobody.
    """

    arrival: float = 15.0
    transfer: float = 2.0
    visible: float = 5.0
    remove: float = 5.0


@dataclass(frozen=True)
class HealthRequest:
    """What to check, and how. off: names of findings to leave out.

    limits: overrides of thresholds, by name. probe: whether to run the probe. devices: accelerators per node, 0 for the
    CPU. python: an interpreter that has the job's torch, with its flags. addresses: by node, at which the others reach
    it, if known. budget: seconds in all. checks: these instead of all checks of the tier. on_read: called with the
    number of nodes that have been read.
    """

    about: About
    off: frozenset[str] = frozenset()
    limits: tuple[tuple[str, float], ...] = ()
    probe: bool = True
    devices: int = 0
    python: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    budget: float = 30.0
    waits: Waits = Waits()
    checks: tuple[Check, ...] = ()
    on_read: Callable[[int], object] | None = None


@dataclass
class Inbox:
    """A transport's messages, sorted by kind: each is kept until somebody takes its kind."""

    transport: Transport
    now: Callable[[], float]
    kept: dict[str, deque[Message]] = field(default_factory=dict)

    def take(self, kinds: Sequence[str], until: float) -> Message | None:
        while True:
            kept = next((self.kept[kind].popleft() for kind in kinds if self.kept.get(kind)), None)
            if kept is not None:
                return kept
            remaining = until - self.now()
            message = self.transport.receive(min(remaining, 1.0)) if remaining > 0 else None
            if message is None:
                if remaining <= 0 or self.over:
                    return None
                continue
            self.kept.setdefault(str(message.get("re")), deque()).append({**message, "received": self.now()})

    @property
    def over(self) -> bool:
        return bool(getattr(self.transport, "over", False))

    @property
    def killed(self) -> set[str]:
        """Nodes whose worker was killed: by a person, or for memory. That says nothing about the node."""
        return set(getattr(self.transport, "killed", tuple)())


class ProbeTransport:
    """The transport as the probe sees it: only some nodes, and only the probe's messages."""

    def __init__(self, inbox: Inbox, nodes: tuple[str, ...]) -> None:
        self._inbox, self.nodes = inbox, nodes

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        self._inbox.transport.send(message, to or self.nodes)

    def receive(self, timeout: float) -> Message | None:
        return self._inbox.take(("probe",), self._inbox.now() + timeout)

    def gone(self) -> tuple[str, ...]:
        return tuple(n for n in self._inbox.transport.gone() if n in self.nodes)

    def close(self) -> None:
        """Do nothing: the health run closes the transport."""


class HealthRun:
    """One check of a transport's nodes, from start to end."""

    def __init__(self, transport: Transport, request: HealthRequest, now: Callable[[], float] = time.monotonic) -> None:
        self._request, self._now = request, now
        self._inbox = Inbox(transport, now)
        self._began = now()
        self._deadline = self._began + request.budget
        wanted = request.checks or of_tier(request.about.tier)
        self._checks = tuple(c for c in wanted if not all(unwanted(f.rstrip(":"), request.off) for f in c.findings))
        self._readings: Readings = {}
        self._clocks: dict[str, Clock] = {}
        self._seconds: dict[str, float] = {}
        self._slowest = 0.0  # seconds until the last worker that started was there

    def run(self) -> Report:
        request = self._request
        nodes = self._inbox.transport.nodes
        present = self._wait_for_workers(nodes)
        if present and request.probe:
            start = {"do": "start", "python": list(request.python), "devices": request.devices}
            self._inbox.transport.send(start, present)  # importing torch takes seconds: read the nodes meanwhile
        self._ping(present)
        self._read(present)
        killed = self._inbox.killed
        for node in killed.difference(present, self._readings):
            self._readings[node] = {check.name: {"error": _KILLED} for check in self._checks}
        missing = self._not_visible(self._wrote(present))
        judged = judge(nodes, self._checks, self._readings, self._clocks, request.about, request.limits)
        responsive = tuple(n for n in present if n not in killed and not fell_silent(self._readings.get(n, {})))
        probed = self._probe(responsive) if request.probe and responsive else None
        unseen = judge_missing(missing, request.about, len(present))
        judged = tuple(f if f.node in present else self._excuse_slow_start(f) for f in judged)
        found = (*judged, *unseen, *(probed.findings if probed else ()))
        findings = tuple(f for f in found if not unwanted(f.check, request.off))
        silent = tuple(n for n in nodes if n not in present)
        self._seconds["all"] = round(self._now() - self._began, 2)
        report = Report(nodes, findings, self._readings, self._clocks, self._seconds, silent=silent)
        if probed is None:
            return report
        notes = (probed.reading.untried,) if probed.reading.untried else ()
        return replace(report, notes=notes, cells=probed.matrix, probe=probed.reading)

    def _wait_for_workers(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes whose worker has started. After the first, others have `Waits.arrival`."""
        came: dict[str, None] = {}
        until = self._deadline
        while len(came) < len(nodes):
            message = self._inbox.take(("here",), until)
            if message is None:
                break
            if not came:
                until = min(until, self._now() + min(self._request.waits.arrival, self._request.budget / 2))
            came[message["node"]] = None
            self._slowest = message["received"] - self._began
        self._seconds["start"] = round(self._now() - self._began, 2)
        return tuple(n for n in nodes if n in came)

    def _excuse_slow_start(self, found: Finding) -> Finding:
        """Demote a missing worker to UNKNOWN if workers start slowly everywhere (an interpreter on a file server)."""
        waited = self._seconds["start"]
        if found.check != ANSWER or not found.verdict.bad or waited >= LATE_FACTOR * self._slowest:
            return found
        text = f"{found.evidence}; the slowest node took {self._slowest:.1f} s, and this one had {waited:.1f} s"
        return replace(found, verdict=Verdict.UNKNOWN, remedy=Remedy.NONE, evidence=text)

    def _ping(self, present: tuple[str, ...]) -> None:
        """Compare each node's wall clock with ours; half the round trip is the error."""
        nodes = present
        for n in range(PINGS):
            sent, wall = self._now(), time.time()
            self._inbox.transport.send({"do": "ping", "n": n}, nodes)
            pending = set(nodes)
            while pending:
                message = self._inbox.take(("ping",), min(self._deadline, sent + self._request.waits.transfer))
                if message is None:
                    break
                if message.get("n") == n and isinstance(message.get("wall"), float):
                    took = message["received"] - sent
                    clock = Clock(message["wall"] - (wall + took / 2), took / 2)
                    known = self._clocks.get(message["node"])
                    if known is None or clock.error < known.error:
                        self._clocks[message["node"]] = clock
                    pending.discard(message["node"])
            nodes = tuple(node for node in nodes if node not in pending)  # a mute node costs one wait

    def _read(self, present: tuple[str, ...]) -> None:
        began = self._now()
        checks = [{"name": c.name, "reader": c.reader, "seconds": c.seconds} for c in self._checks]
        if not checks or not present:
            return
        self._inbox.transport.send({"do": "read", "about": plain(self._request.about), "checks": checks}, present)
        longest = STARTING + max(c.seconds for c in self._checks) + self._request.waits.transfer
        until = min(self._deadline - self._reserved(), began + longest)
        pending = {(node, c.name) for node in present for c in self._checks}
        gone: set[str] = set()
        unread = dict.fromkeys(present, len(self._checks))
        while any(node not in gone for node, _ in pending):
            now_gone = set(self._inbox.transport.gone())  # before `take`, so that such a node's messages are all here
            message = self._inbox.take(("read",), min(until, self._now() + POLL))
            if message is None:
                if self._now() >= until or self._inbox.over:
                    break
                gone = now_gone
                continue
            key = (message["node"], str(message.get("check")))
            if key in pending:
                pending.discard(key)
                unread[key[0]] -= 1
                if not unread[key[0]] and self._request.on_read is not None:
                    self._request.on_read(sum(not left for left in unread.values()))
                result = {k: v for k, v in message.items() if k in ("reading", "error", "waited", "seconds")}
                self._readings.setdefault(key[0], {})[key[1]] = result
        waited = round(self._now() - began, 1)
        mute = [node for node in present if node not in self._readings]
        silent = set(mute) - self._alive(tuple(node for node in mute if node not in gone)) - self._inbox.killed
        for node, check in pending:
            result = {SILENT: waited} if node in silent else self._no_result(node, check, waited, node in gone)
            self._readings.setdefault(node, {})[check] = result
        self._seconds["read"] = round(self._now() - began, 2)

    def _reserved(self) -> float:
        """Return seconds to keep for the probe, if a check may take so long that none would be left (DCGM)."""
        deep = self._request.probe and self._request.about.tier is Tier.DEEP
        return min(DEEP_PROBE, self._request.budget / 2) if deep else 0.0

    def _alive(self, mute: tuple[str, ...]) -> set[str]:
        """Return which nodes without any reading still answer a ping: their checks take too long."""
        found: set[str] = set()
        if mute:
            self._inbox.transport.send({"do": "ping", "n": PINGS}, mute)
        until = self._now() + self._request.waits.transfer
        while len(found) < len(mute):
            message = self._inbox.take(("ping",), until)
            if message is None:
                break
            if message.get("n") == PINGS:
                found.add(message["node"])
        return found

    def _no_result(self, node: str, check: str, waited: float, gone: bool) -> dict[str, object]:
        """Return the result of a check that a responsive node did not answer."""
        if gone:
            return {"error": _KILLED if node in self._inbox.killed else "the node's worker process has ended"}
        late = waited >= next(c.seconds for c in self._checks if c.name == check)  # otherwise our own time ran out
        return {"waited": waited} if late else {"error": f"no answer in the {waited:g} s that were left"}

    def _wrote(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes that report writing their file in the run directory; the others have a finding already."""
        read = {n: self._readings.get(n, {}).get(RUN_DIR, {}).get("reading") or {} for n in present}
        return tuple(n for n in present if read[n].get("same") and read[n].get("wrote"))

    def _not_visible(self, wrote: tuple[str, ...]) -> tuple[str, ...]:
        """Return nodes whose file is not visible here: all if the file system hangs here, which accuses none."""
        timeout = min(self._request.waits.visible, max(0.0, self._deadline - self._now()))
        call = BackgroundCall(lambda: read_missing(self._request.about, wrote, timeout))
        missing = call.result(timeout + self._request.waits.transfer)
        return wrote if missing is None else missing

    def _probe(self, nodes: tuple[str, ...]) -> ProbeResult:
        """Run the probe within the time that is left."""
        began = self._now()
        request = self._request
        limits = limits_of(ProbeLimits, dict(request.limits))
        remaining = max(0.0, self._deadline - began)
        quick, deep = min(limits.probe_quick, remaining), min(limits.probe_deep, remaining)
        limits = replace(limits, probe_quick=quick, probe_deep=deep)
        transport, addresses = ProbeTransport(self._inbox, nodes), dict(request.addresses)
        result = drive(transport, request.about, limits, addresses=addresses, clock=self._now)
        self._seconds["probe"] = round(self._now() - began, 2)
        self._seconds.update({name: round(took, 2) for name, took in result.timings})
        return result


def check_job(job_id: int, nodes: Sequence[str], request: HealthRequest, srun_options: Sequence[str] = ()) -> Report:
    """Check nodes of a running job in one Slurm step, without nodes on which Slurm cannot start a task.

    Takes at most a few seconds longer than the budget.
    """
    remaining, refused, deadline = tuple(nodes), [], time.monotonic() + request.budget
    failed_once: set[str] = set()  # a busy controller or network may refuse once: that accuses nobody
    for _ in range(TRIES):
        transport = SrunTransport(job_id, remaining, srun_options)
        report = check_nodes(transport, replace(request, budget=max(1.0, deadline - time.monotonic())))
        bad = transport.not_started()
        all_silent, all_bad = set(report.silent) == set(remaining), set(bad) == set(remaining)
        if not all_silent or not bad or all_bad or time.monotonic() > deadline - MIN_TRY:
            break
        failed_twice = [n for n in bad if n in failed_once]
        failed_once.update(bad)
        refused += [(n, _srun_error(transport, n)) for n in failed_twice]
        remaining = tuple(n for n in remaining if n not in failed_twice)
    return _with_refused(report, tuple(nodes), refused, tuple(transport.errors) if report.silent else ())


def check_nodes(transport: Transport, request: HealthRequest, now: Callable[[], float] = time.monotonic) -> Report:
    """Check a transport's nodes, close it, and remove the files that the nodes wrote."""
    try:
        return HealthRun(transport, request, now).run()
    finally:
        transport.close()
        BackgroundCall(lambda: remove_files(request.about, transport.nodes)).result(request.waits.remove)


def _srun_error(transport: SrunTransport, node: str) -> str:
    return next((line for line in reversed(tuple(transport.errors)) if node in line), "srun could not start its task")


def _with_refused(
    report: Report, nodes: tuple[str, ...], refused: list[tuple[str, str]], errors: tuple[str, ...]
) -> Report:
    found = tuple(
        Finding(ANSWER, Verdict.SUSPECT, n, f"Slurm cannot start a task on it: {why}", Remedy.AVOID)
        for n, why in refused
    )
    notes = (*report.notes, *(f"srun: {line}" for line in errors[-3:]))
    return replace(report, nodes=nodes, findings=(*found, *report.findings), notes=notes)
