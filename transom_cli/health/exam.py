"""The head of an examination: asks a crew's nodes, judges what they read, probes how they compute and send.

Everything has its deadline: what a node does not answer in time is a finding, and is waited for no longer. Whoever
calls this decides what becomes of a bad node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from transom_cli.core.codec import plain
from transom_cli.health.about import About, Tier
from transom_cli.health.checks import limits_of, unwanted
from transom_cli.health.crew import Crew
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.judging import ANSWER as ANSWER_CHECK
from transom_cli.health.judging import SILENT, Clock, Readings, fell_silent, judge
from transom_cli.health.looking import STARTING
from transom_cli.health.mixed import Probing, Talk
from transom_cli.health.node.asked import Asked
from transom_cli.health.node.run_dir import CHECK as RUN_DIR
from transom_cli.health.node.run_dir import judge_seen, read_seen
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.registry import of_tier
from transom_cli.health.report import Report

ANSWER = 15.0  # seconds for the examiners to come up, once the first of them is there
LATER = 3.0  # so many times what the slowest other took, before one that does not come up is suspected
PINGS = 3
SEEN = 5.0  # seconds for what the nodes wrote to be seen here, through a network file system
GONE = 0.5  # seconds without an answer, after which it is asked who has ended
DEEP_PROBE = 60.0  # seconds that a deep look leaves to the probe, which takes some 40 of them with 64 nodes
LATE = 2.0  # seconds more for what a node has read to come here


@dataclass(frozen=True)
class Wishes:
    """What is to be examined, and how. off: findings that nobody wants, by the name of their check.

    limits: the settings' own thresholds, by name. probe: whether to compute and send at all. devices: accelerators a
    node, 0 for the CPU. python: the interpreter that has the job's torch, with its flags. addresses: by node, under
    which the others reach it, where that is known. budget: seconds in all.
    """

    about: About
    off: frozenset[str] = frozenset()
    limits: tuple[tuple[str, float], ...] = ()
    probe: bool = True
    devices: int = 0
    python: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    budget: float = 30.0


class Exam:
    """One examination of a crew's nodes, from beginning to end. `drive`: the probe's own head (`probe.drive`)."""

    def __init__(self, crew: Crew, wishes: Wishes, now: Callable[[], float] = time.monotonic) -> None:
        self._wishes, self._now = wishes, now
        self._talk = Talk(crew, now)
        self._began = now()
        self._deadline = self._began + wishes.budget
        self._checks = tuple(
            c for c in of_tier(wishes.about.tier) if not all(unwanted(f.rstrip(":"), wishes.off) for f in c.findings)
        )
        self._readings: Readings = {}
        self._clocks: dict[str, Clock] = {}
        self._seconds: dict[str, float] = {}
        self._slowest = 0.0  # seconds until the last of the examiners that came was there

    def run(self) -> Report:
        nodes = self._talk.crew.nodes
        here = self._arrive(nodes)
        if here and self._wishes.probe:
            start = {"do": "start", "python": list(self._wishes.python), "devices": self._wishes.devices}
            self._talk.crew.send(start, here)  # torch takes seconds to come up: meanwhile the nodes are looked at
        self._ping(here)
        self._look(here)
        missing = self._not_seen(self._wrote(here))
        judged = judge(nodes, self._checks, self._readings, self._clocks, self._wishes.about, self._wishes.limits)
        came = set(here)
        able = tuple(n for n in here if not fell_silent(self._readings.get(n, {})))
        probed = self._probe(able) if self._wishes.probe and able else None
        seen = judge_seen(missing, self._wishes.about, len(here))
        judged = tuple(f if f.node in came else self._fair(f) for f in judged)
        found = (*judged, *seen, *(probed.findings if probed else ()))
        findings = tuple(f for f in found if not unwanted(f.check, self._wishes.off))
        silent = tuple(n for n in nodes if n not in here)
        self._seconds["all"] = round(self._now() - self._began, 2)
        report = Report(nodes, findings, self._readings, self._clocks, self._seconds, silent=silent)
        if probed is None:
            return report
        notes = (probed.reading.untried,) if probed.reading.untried else ()
        return replace(report, notes=notes, cells=probed.matrix, probe=probed.reading)

    def _arrive(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """The nodes whose examiner is there. Once one is, the others have `ANSWER` seconds more, or half of all."""
        came: dict[str, None] = {}
        until = self._deadline
        while len(came) < len(nodes):
            message = self._talk.take(("here",), until)
            if message is None:
                break
            if not came:
                until = min(until, self._now() + min(ANSWER, self._wishes.budget / 2))
            came[message["node"]] = None
            self._slowest = message["heard"] - self._began
        self._seconds["start"] = round(self._now() - self._began, 2)
        return tuple(n for n in nodes if n in came)

    def _fair(self, found: Finding) -> Finding:
        """Where examiners come up slowly everywhere (an interpreter from a file server, a thousand times at once) one
        that is late tells nothing."""
        waited = self._seconds["start"]
        if found.check != ANSWER_CHECK or not found.verdict.bad or waited >= LATER * self._slowest:
            return found
        said = f"{found.evidence}; the slowest took {self._slowest:.1f} s, and this one was given {waited:.1f} s"
        return replace(found, verdict=Verdict.UNKNOWN, remedy=Remedy.NONE, evidence=said)

    def _ping(self, here: tuple[str, ...]) -> None:
        """Each node's wall clock against ours: half of the way there and back is how wrong that may be."""
        left = here
        for n in range(PINGS):
            sent, wall = self._now(), time.time()
            self._talk.crew.send({"do": "ping", "n": n}, left)
            owed = set(left)
            while owed:
                message = self._talk.take(("ping",), min(self._deadline, sent + LATE))
                if message is None:
                    break
                if message.get("n") == n and isinstance(message.get("wall"), float):
                    took = message["heard"] - sent
                    clock = Clock(message["wall"] - (wall + took / 2), took / 2)
                    known = self._clocks.get(message["node"])
                    if known is None or clock.error < known.error:
                        self._clocks[message["node"]] = clock
                    owed.discard(message["node"])
            left = tuple(node for node in left if node not in owed)  # one that is mute costs one wait

    def _look(self, here: tuple[str, ...]) -> None:
        began = self._now()
        checks = [{"name": c.name, "reader": c.reader, "seconds": c.seconds} for c in self._checks]
        if not checks or not here:
            return
        self._talk.crew.send({"do": "look", "about": plain(self._wishes.about), "checks": checks}, here)
        until = min(self._deadline - self._kept_back(), began + STARTING + max(c.seconds for c in self._checks) + LATE)
        owed = {(node, c.name) for node in here for c in self._checks}
        gone: set[str] = set()
        while any(node not in gone for node, _ in owed):
            now_gone = set(self._talk.crew.gone())  # asked first: what such a node has said is there by then
            message = self._talk.take(("look",), min(until, self._now() + GONE))
            if message is None:
                if self._now() >= until or self._talk.over:
                    break
                gone = now_gone
                continue
            key = (message["node"], str(message.get("check")))
            if key in owed:
                owed.discard(key)
                said = {k: v for k, v in message.items() if k in ("reading", "error", "waited", "seconds")}
                self._readings.setdefault(key[0], {})[key[1]] = said
        waited = round(self._now() - began, 1)
        mute = [node for node in here if node not in self._readings]
        silent = set(mute) - self._alive(tuple(node for node in mute if node not in gone))
        for node, check in owed:
            said = {SILENT: waited} if node in silent else self._owed(check, waited, node in gone)
            self._readings.setdefault(node, {})[check] = said
        self._seconds["look"] = round(self._now() - began, 2)

    def _kept_back(self) -> float:
        """Seconds for the probe, where a check may take so long that it would leave none (DCGM's diagnostic)."""
        deep = self._wishes.probe and self._wishes.about.tier is Tier.DEEP
        return min(DEEP_PROBE, self._wishes.budget / 2) if deep else 0.0

    def _alive(self, mute: tuple[str, ...]) -> set[str]:
        """Those who have answered no check, but do answer: it is the checks that take so long."""
        found: set[str] = set()
        if mute:
            self._talk.crew.send({"do": "ping", "n": PINGS}, mute)
        until = self._now() + LATE
        while len(found) < len(mute):
            message = self._talk.take(("ping",), until)
            if message is None:
                break
            if message.get("n") == PINGS:
                found.add(message["node"])
        return found

    def _owed(self, check: str, waited: float, gone: bool) -> dict[str, object]:
        """Of a node that has answered other checks, or a ping."""
        if gone:
            return {"error": "its examiner has ended"}
        late = waited >= next(c.seconds for c in self._checks if c.name == check)  # else it was we who had no time left
        return {"waited": waited} if late else {"error": f"no answer within the {waited:g} s that were left"}

    def _wrote(self, here: tuple[str, ...]) -> tuple[str, ...]:
        """Those who say that they have written where the others read. Of the rest it is told already."""
        read = {n: self._readings.get(n, {}).get(RUN_DIR, {}).get("reading") or {} for n in here}
        return tuple(n for n in here if read[n].get("same") and read[n].get("wrote"))

    def _not_seen(self, wrote: tuple[str, ...]) -> tuple[str, ...]:
        """All of them where the file system does not answer us: that speaks against nobody (`judge_seen`)."""
        patience = min(SEEN, max(0.0, self._deadline - self._now()))
        missing = Asked(lambda: read_seen(self._wishes.about, wrote, patience)).answer(patience + LATE)
        return wrote if missing is None else missing

    def _probe(self, here: tuple[str, ...]) -> ProbeResult:
        """Within what time is left. It is given to whoever computes and sends, and to nobody else."""
        began = self._now()
        limits = limits_of(ProbeLimits, dict(self._wishes.limits))
        left = max(0.0, self._deadline - began)
        limits = replace(limits, probe_quick=min(limits.probe_quick, left), probe_deep=min(limits.probe_deep, left))
        probing = Probing(self._talk, here)
        result = drive(probing, self._wishes.about, limits, addresses=dict(self._wishes.addresses), clock=self._now)
        self._seconds["probe"] = round(self._now() - began, 2)
        self._seconds.update({name: round(took, 2) for name, took in result.timings})
        return result
