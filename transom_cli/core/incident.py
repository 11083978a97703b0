"""An incident, as both deciders know it: its stage, the evidence, the diagnosis and its timeline. Frozen."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from transom_cli.core.decided import UNDECIDED, Decided
from transom_cli.core.events import NodeFault, OutcomeSeen
from transom_cli.core.policy import IGNORE, RELAUNCH, SWAP
from transom_cli.layout import attempt_name


class Stage(enum.Enum):
    """Where an incident stands."""

    HEALING = "healing"  # the launcher is at it, inside the allocation
    EXAMINING = "examining"  # probes and logs are being read
    ISOLATING = "isolating"
    WAITING = "waiting"  # back-off
    RESTARTING = "restarting"  # the job is being given back to Slurm
    STARTING = "starting"  # waiting for the first new step
    CLOSED = "closed"


@dataclass(frozen=True)
class Diagnosis:
    """Cause + suspects + confidence, from findings; and what the policy makes of it.

    `sure` and `isolate` are about all nodes alike, but for those of which `faults` speak: there each node's own count.
    """

    cause: str  # node_lost, rank_killed, rank_failed, hang, user_error, ...
    words: str  # one line for a person
    nodes: tuple[str, ...]  # the nodes to blame; often none
    sure: bool
    isolate: str  # drain, exclude or none
    restart: bool
    exit_code: int = 1  # of the run, when it is not restarted
    faults: tuple[NodeFault, ...] = ()  # what checks found against nodes among those to blame
    decided: Decided = UNDECIDED  # which rule of the policy made of it what

    def faults_of(self, node: str) -> tuple[NodeFault, ...]:
        return faults_of(self.faults, node)

    def sure_of(self, node: str) -> bool:
        """The node's fault is proven: it is kept away until a person lifts it."""
        own = self.faults_of(node)
        return own[0].proven if own else self.sure

    def isolates(self, node: str) -> str:
        """drain, exclude or none: what the evidence allows, where the policy does not ask for less."""
        return "none" if self.decided.action in (RELAUNCH, SWAP, IGNORE) else self.by_evidence(node)

    def by_evidence(self, node: str) -> str:
        """drain, exclude or none."""
        own = self.faults_of(node)
        return ("drain" if own[0].proven else "exclude") if own else self.isolate

    def reason(self, node: str) -> str:
        """Why this node is isolated, for whoever finds it drained."""
        own = self.faults_of(node)
        more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
        return f"{own[0].words}{more}" if own else f"{self.cause}: {self.words}"


def faults_of(faults: tuple[NodeFault, ...], node: str) -> tuple[NodeFault, ...]:
    """Those of one node, the proven ones first."""
    return tuple(sorted((f for f in faults if f.node == node), key=lambda f: not f.proven))


@dataclass(frozen=True)
class Look:
    """What the probes of one node said so far."""

    node: str
    fails: int = 0
    passes: int = 0
    unknowns: int = 0
    evidence: str = ""
    suspects: int = 0  # in a row that failed, with or without a second opinion

    @property
    def dead(self) -> bool:
        return self.fails >= 2

    @property
    def suspected(self) -> bool:
        """It cannot be reached, and nobody but the operator's host has found that."""
        return self.suspects >= 2 and not self.dead

    @property
    def open(self) -> bool:
        """No probe could tell anything of it."""
        return self.unknowns > 0 and not self.passes and not self.suspects


@dataclass(frozen=True)
class Mark:
    """One line of an incident's story."""

    at: float
    what: str
    words: str


@dataclass(frozen=True)
class Incident:
    id: str
    job_id: int
    restarts: int
    began: float
    step: int  # the last step seen before it
    stage: Stage = Stage.EXAMINING
    healing: int = 0  # the launcher's own number of it, if it is at it
    quiet_nodes: tuple[str, ...] = ()  # nodes that a detector points at
    overdue_nodes: tuple[str, ...] = ()  # nodes that could not be seen any more when the ranks fell silent
    quiet: bool = False  # the ranks stopped stepping (a hang, or a death nobody reported)
    quiet_over: bool = False  # ... and went on again by themselves
    outcome: OutcomeSeen | None = None
    ended: str = ""  # the Slurm state in which the job ended, if it did
    exit_code: int | None = None
    looks: tuple[Look, ...] = ()
    log_category: str = ""
    log_line: str = ""
    faults: tuple[NodeFault, ...] = ()  # what checks found against nodes, as the launcher told it
    diagnosis: Diagnosis | None = None
    not_before: float | None = None  # when the back-off ends; None: the budget has not been asked yet
    marks: tuple[Mark, ...] = ()
    result: str = ""  # recovered, stopped, nothing
    ended_at: float | None = None
    ran: float = 0.0  # seconds that the attempt was seen to run before it began
    since_start: bool = False  # `step` counts from the start of the processes

    @property
    def dead(self) -> tuple[str, ...]:
        return tuple(look.node for look in self.looks if look.dead)

    @property
    def silence_only(self) -> bool:
        """Nothing has ended and no node is known to be gone: all that was seen is a silence."""
        return not (self.outcome or self.ended or self.dead)

    @property
    def attempt(self) -> str:
        return attempt_name(self.job_id, self.restarts)
