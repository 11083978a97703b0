"""An incident, as both deciders know it: its stage, the evidence, the diagnosis and its timeline. Frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from transom_cli.core.events import UNDECIDED, Decided, NodeFault, OutcomeSeen, RankExit, Stall
from transom_cli.core.policy import IGNORE, RELAUNCH, SWAP
from transom_cli.layout import attempt_name

SECOND_PROBE = 1.0  # seconds between the two failing probes that condemn a node
UNKNOWN_PROBES = 3  # probes without an answer, before the node is left alone


class Stage(enum.Enum):
    """The stage of an incident."""

    RELAUNCHING = "relaunching"  # the launcher handles it, inside the allocation
    EXAMINING = "examining"  # probes and logs are being read
    ISOLATING = "isolating"
    WAITING = "waiting"  # back-off
    RESTARTING = "restarting"  # the job is being given back to Slurm
    STARTING = "starting"  # waiting for the first step of the new launch
    WITHHELD = "withheld"  # decided, but not carried out: the run is only observed
    CLOSED = "closed"


_PLANNED = ("time_limit", "preempted", "maintenance", "requested")  # causes that are no fault


@dataclass(frozen=True)
class Diagnosis:
    """Cause, suspects and confidence, from findings; and what the policy makes of it.

    `sure` and `isolate` apply to all nodes, except those with `faults`: there each node's own faults count.
    """

    cause: str  # node_lost, rank_killed, rank_failed, hang, user_error, ...
    words: str  # one line for a person
    nodes: tuple[str, ...]  # the suspects; often none
    sure: bool
    isolate: str  # drain, exclude or none
    restart: bool
    exit_code: int = 1  # of the run, when it is not restarted
    faults: tuple[NodeFault, ...] = ()  # what checks found against suspects
    decided: Decided = UNDECIDED  # by which rule of the policy
    end: RankExit | None = None  # of the rank that ended first, if `crash_loop.same_ends` may count it

    @property
    def planned(self) -> bool:
        """The attempt ended on purpose, and the run continues in the next one."""
        return self.cause in _PLANNED

    def faults_of(self, node: str) -> tuple[NodeFault, ...]:
        return faults_of(self.faults, node)

    def sure_of(self, node: str) -> bool:
        """The node's fault is proven: it is kept away until a person lifts it."""
        own = self.faults_of(node)
        return own[0].proven if own else self.sure

    def isolates(self, node: str) -> str:
        """drain, exclude or none: what the evidence allows, unless the policy asks for less."""
        return "none" if self.decided.action in (RELAUNCH, SWAP, IGNORE) else self.by_evidence(node)

    def by_evidence(self, node: str) -> str:
        """drain, exclude or none."""
        own = self.faults_of(node)
        return ("drain" if own[0].proven else "exclude") if own else self.isolate

    def reason(self, node: str) -> str:
        """Why this node is isolated, for the person who finds it drained."""
        own = self.faults_of(node)
        more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
        return f"{own[0].words}{more}" if own else f"{self.cause}: {self.words}"


def faults_of(faults: tuple[NodeFault, ...], node: str) -> tuple[NodeFault, ...]:
    """Return the faults of one node, proven ones first."""
    return tuple(sorted((f for f in faults if f.node == node), key=lambda f: not f.proven))


@dataclass(frozen=True)
class NodeProbes:
    """The results of probes of one node so far."""

    node: str
    fails: int = 0
    passes: int = 0
    unknowns: int = 0
    evidence: str = ""
    suspects: int = 0  # failures in a row, with or without a second opinion

    @property
    def dead(self) -> bool:
        return self.fails >= 2

    @property
    def suspected(self) -> bool:
        """The operator's host cannot reach the node, and nobody confirms it."""
        return self.suspects >= 2 and not self.dead

    @property
    def open(self) -> bool:
        """No probe gave an answer about the node."""
        return self.unknowns > 0 and not self.passes and not self.suspects

    def after(self, verdict: str, evidence: str) -> NodeProbes:
        """Add the result of one more probe."""
        if verdict == "FAIL":
            return replace(self, fails=self.fails + 1, suspects=self.suspects + 1, evidence=evidence)
        if verdict == "SUSPECT":
            return replace(self, fails=0, suspects=self.suspects + 1, evidence=evidence)
        if verdict == "UNKNOWN":
            unknowns, evidence = self.unknowns + 1, self.evidence or evidence
            return replace(self, unknowns=unknowns, fails=0, suspects=0, evidence=evidence)
        return replace(self, passes=self.passes + 1, fails=0, suspects=0, evidence=evidence)

    def inconclusive(self, verdict: str) -> bool:
        """Whether the node needs another probe after this verdict.

        A failure needs a confirmation, and an unknown result a few more tries. The restart waits for no more than that.
        """
        if verdict == "FAIL":
            return self.fails < 2
        if verdict == "SUSPECT":
            return self.suspects < 2
        return verdict == "UNKNOWN" and self.unknowns < UNKNOWN_PROBES


@dataclass(frozen=True)
class Mark:
    """One line of an incident's timeline."""

    at: float
    what: str
    words: str


@dataclass(frozen=True)
class Sign:
    """A sign of trouble in the present attempt."""

    at: float
    words: str
    suspects: tuple[str, ...] = ()  # nodes that it points at
    hang: bool = False  # the ranks stopped stepping (a hang, or a death that nobody reported)
    stall: Stall | None = None
    outcome: OutcomeSeen | None = None
    faults: tuple[NodeFault, ...] = ()
    ended: str = ""  # the Slurm state in which the job ended, with its exit code
    exit_code: int | None = None


@dataclass(frozen=True)
class Incident:
    id: str
    job_id: int
    restarts: int
    began: float
    step: int  # the last step seen before it
    stage: Stage = Stage.EXAMINING
    launcher_number: int = 0  # the launcher's own number of it, if the launcher handles it
    suspect_nodes: tuple[str, ...] = ()  # nodes that a detector points at
    stalled: bool = False  # the ranks stopped stepping (a hang, or a death that nobody reported)
    stall_over: bool = False  # ... and continued by themselves
    stall: Stall | None = None  # as detected; None also where only the launcher reported a hang
    outcome: OutcomeSeen | None = None
    ended: str = ""  # the Slurm state in which the job ended, if it did
    exit_code: int | None = None
    probes: tuple[NodeProbes, ...] = ()
    log_category: str = ""
    log_line: str = ""
    log_rank: int | None = None  # whose log has that line
    faults: tuple[NodeFault, ...] = ()  # what checks found against nodes, as the launcher reported it
    diagnosis: Diagnosis | None = None
    not_before: float | None = None  # when the back-off ends; None: the budget was not charged yet
    marks: tuple[Mark, ...] = ()
    result: str = ""  # recovered, stopped (the run), interrupted (a person did), nothing, unproven (no probe answered)
    ended_at: float | None = None
    ran: float = 0.0  # seconds that the attempt, or the launcher's launch, was seen to run before it began
    since_start: bool = False  # `step` counts from the start of the processes
    durable: int = -1  # the newest checkpoint before it

    @property
    def dead(self) -> tuple[str, ...]:
        return tuple(probes.node for probes in self.probes if probes.dead)

    @property
    def silent_nodes(self) -> tuple[str, ...]:
        """Nodes that a detector points at, and nodes that could not be seen when the ranks fell silent."""
        return tuple(dict.fromkeys((*self.suspect_nodes, *(self.stall.overdue if self.stall is not None else ()))))

    @property
    def silence_only(self) -> bool:
        """Nothing has ended and no node is known to be gone: all that was seen is a silence."""
        return not (self.outcome or self.ended or self.dead)

    @property
    def lost_rank(self) -> bool:
        """A rank has ended badly: no step of the others means that the launch recovers."""
        return self.outcome is not None and any(x.bad for x in self.outcome.exits)

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restarts)

    def marked(self, at: float, what: str, words: str) -> Incident:
        return replace(self, marks=(*self.marks, Mark(at, what, words)))

    def with_faults(self, at: float, faults: tuple[NodeFault, ...]) -> Incident:
        """Add what checks found against nodes, each fault once."""
        new = tuple(f for f in dict.fromkeys(faults) if f not in self.faults)
        incident = replace(self, faults=(*self.faults, *new))
        for fault in new:
            remedy = f"; remedy: {fault.remedy}" if fault.remedy != "none" else ""
            words = f"{fault.node}: {fault.verdict.lower()}, {fault.words}{remedy}"
            incident = incident.marked(at, "found", words)
        return incident

    def with_sign(self, sign: Sign) -> Incident:
        """Add a sign; the incident is then being examined (again)."""
        incident = replace(self, stage=Stage.EXAMINING).marked(sign.at, "seen", sign.words)
        if sign.hang:
            incident = replace(incident, stalled=True, stall_over=False, stall=sign.stall or self.stall)
        if sign.hang or sign.suspects:
            incident = replace(incident, suspect_nodes=sign.suspects)
        if sign.outcome is not None:
            incident = replace(incident, outcome=sign.outcome)
        if sign.ended:
            incident = replace(incident, ended=sign.ended, exit_code=sign.exit_code)
        return incident.with_faults(sign.at, sign.faults)

    def with_probe(self, at: float, node: str, verdict: str, evidence: str) -> Incident:
        probes = self.probes_of(node).after(verdict, evidence)
        others = (x for x in self.probes if x.node != node)
        words = f"{node}: {verdict.lower()}, {evidence}"
        return replace(self, probes=(*others, probes)).marked(at, "probed", words)

    def probes_of(self, node: str) -> NodeProbes:
        return next((x for x in self.probes if x.node == node), NodeProbes(node))
