"""From a number to a situation: a profile of the cluster, what happens there, and when. Pure.

`BLAMELESS` events are a person's doing, the program's, the network's or Slurm's: no node may be drained or excluded.
`FAULTY` events are a node's: exactly this node must be isolated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

STEPS = 60
STEPS_AT_FAULT = 200  # of about 0.1 s: an agent reads the kernel's log and the GPUs every 5 s

# Site profiles of the sandbox, also two at once; where one has users of its own, the run belongs to alice.
SITES = (
    "strict", "ad-users", "no-export", "rewriting", "firewalled", "contended", "slow-prolog", "cgroup", "suspending",
    "purging", "ad-users+no-export", "contended+slow-prolog", "firewalled+rewriting",
)  # fmt: skip
# Further settings in slurm.conf beside the sandbox's own. SCRIPTS stands for a folder with the bench's scripts.
PROFILES: dict[str, dict[str, str]] = {
    "plain": {},
    "impatient": {"TaskPlugin": "task/affinity", "WaitTime": "5", "KillWait": "10", "JobRequeue": "0"},
    "noisy-prolog": {
        "Prolog": "SCRIPTS/prolog", "Epilog": "SCRIPTS/prolog", "TaskProlog": "SCRIPTS/noise",
        "RebootProgram": "/bin/true",
    },
    "preempting": {
        "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE",
        "PartitionName": "high Nodes=ALL PriorityTier=9",
    },
    "gang": {
        "PreemptType": "preempt/partition_prio", "PreemptMode": "SUSPEND,GANG", "SchedulerTimeSlice": "10",
        "PartitionName": "high Nodes=ALL PriorityTier=9",
    },
}  # fmt: skip

MOMENTS = ("pending", "starting", "step", "recovery", "ending")

# event: seconds until it is undone (0: nothing undoes it), and the profiles in which it can be made (none: in all)
BLAMELESS: dict[str, tuple[float, tuple[str, ...]]] = {
    "rank-kill": (0, ()),
    "rank-pause": (9, ()),
    "ranks-killed-on-a-node": (0, ()),
    "agent-kill": (0, ()),
    "agents-kill": (0, ()),
    "agent-pause": (14, ()),
    "launcher-kill": (0, ()),
    "launcher-pause": (12, ()),
    "operator-kill": (4, ()),
    "controller-kill": (8, ()),
    "controller-hang": (12, ()),
    "controller-and-rank": (15, ()),
    "slurmd-restart": (3, ()),
    "slurmds-restart": (5, ()),
    "reconfigure": (0, ()),
    "clock-jump": (10, ()),
    "disk-stall": (10, ()),
    "disk-readonly": (8, ()),
    "disk-full": (8, ()),
    "kernel-noise": (0, ()),
    "kernel-suspicion": (0, ()),
    "kernel-noise-everywhere": (0, ()),
    "gpu-warning": (0, ()),
    "user-cancel": (0, ()),
    "user-requeue": (0, ()),
    "user-requeuehold": (6, ()),
    "user-suspend": (15, ()),
    "admin-drain": (10, ()),
    "admin-reboot": (0, ("noisy-prolog",)),
    "maintenance": (12, ()),
    "preemption": (0, ("preempting", "gang")),
}
FAULTY: dict[str, tuple[float, tuple[str, ...]]] = {
    "node-kill": (0, ()),
    "node-hang": (0, ()),
    "batch-host-kill": (0, ()),
    "node-kill-controller-away": (8, ()),
    "node-kill-operator-away": (6, ()),
    "xid-79": (0, ()),
    "xid-95": (0, ()),
    "xid-119": (0, ()),
    "xid-140": (0, ()),
    "xid-64": (0, ()),
    "gpu-lost": (0, ()),
    "gpu-reset_required": (0, ()),
    "gpu-recovery_reboot": (0, ()),
    "gpu-row_remap_failed": (0, ()),
    "gpu-sram_threshold": (0, ()),
    "gpu-missing": (0, ()),
    "disk-error-then-failure": (0, ()),
    "memory-error-then-failure": (0, ()),
    "repeated-rank-failure": (0, ()),
    "site-check": (0, ()),
}
PROVEN_LATER = ("disk-error-then-failure", "memory-error-then-failure", "repeated-rank-failure")  # need a running rank


@dataclass(frozen=True)
class Situation:
    """target: which of the job's nodes. lasting: seconds until the event is undone; 0: never."""

    name: str
    profile: str
    event: str
    moment: str
    target: int
    spares: int
    lasting: float
    faulty: bool

    @property
    def steps(self) -> int:
        return STEPS_AT_FAULT if self.faulty else STEPS

    @property
    def words(self) -> str:
        return f"{self.name} [{self.profile}] {self.event} at {self.moment}, node {self.target}, spares {self.spares}"


def situation(number: int, *, faulty: bool, seed: str = "1") -> Situation:
    """Events take turns; profile, moment and target are drawn. The same number always gives the same situation."""
    kind = "faulty" if faulty else "blameless"
    rng = random.Random(f"{seed}/{kind}/{number}")
    events = FAULTY if faulty else BLAMELESS
    event = list(events)[number % len(events)]
    lasting, only = events[event]
    profile = rng.choice(only or (*PROFILES, *(() if event.startswith("disk-") and not faulty else SITES)))
    moment = rng.choice(MOMENTS)
    if event.startswith("xid-") and moment in ("pending", "starting"):
        moment = "step"  # lines before the launcher's start are about earlier jobs
    if event in ("kernel-suspicion", *PROVEN_LATER):  # with a failure after it, a suspicion is evidence
        moment = "step"
    if faulty and moment == "pending" and {"contended", "suspending"}.intersection(profile.split("+")):
        moment = "starting"  # which nodes the job gets is open until then
    if event == "site-check":
        moment = "pending"  # the preflight runs it
    if faulty and moment == "ending":
        moment = "step"  # the run would be over before anything is isolated
    spares = rng.choice((0, 0, 1))
    return Situation(f"{kind}-{number}", profile, event, moment, rng.randrange(1, 3), spares, lasting, faulty)
