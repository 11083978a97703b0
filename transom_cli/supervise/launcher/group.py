"""How the training gets the members of its process group.

Every change of members, whether a relaunch, a swap, a shrink or a growth, is one `StartLaunch`, which becomes one
`Group`. The executor tries each `GroupChange` in turn. Those of today start processes that meet at a new rendezvous. A
process group that can be reconfigured would be another one, whose ranks live on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from transom_cli.ckpt.foreign import ForeignSealer
from transom_cli.layout import AttemptDir
from transom_cli.start import own
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import WRAPPER, StepPlan, TrainingStep, TrainingSteps


@dataclass(frozen=True)
class Group:
    """The members of one launch: the ranks on these nodes, in this order.

    master: the address of the rendezvous. env: of the launch's steps, with the rendezvous.
    """

    launch: int
    nodes: tuple[str, ...]
    master: str
    env: dict[str, str]

    @property
    def rendezvous(self) -> Mapping[str, str]:
        return {name: self.env[name] for name in launchplan.RENDEZVOUS}


class GroupChange(Protocol):
    def form(self, group: Group) -> TrainingStep | TrainingSteps | None:
        """Give the training these members. None: not possible in this way, and nothing was changed."""


class NewRanks:
    """Starts all ranks: one step in each job whose nodes the launch uses."""

    def __init__(
        self, allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, foreign: ForeignSealer | None
    ) -> None:
        self._allocation, self._options, self._attempt, self._foreign = allocation, options, attempt, foreign

    def form(self, group: Group) -> TrainingStep | TrainingSteps:
        plans, exits = self._plans(group), self._attempt.exits(group.launch)
        if self._foreign is not None:  # verified in the process that becomes srun: it may take long
            created = self._options.run.settings.stat().st_mtime
            verify = own("transom_cli.ckpt.foreign", self._options.foreign, str(created), "--")
            plans = [replace(plan, argv=[*verify, *plan.argv]) for plan in plans]
            self._foreign.begin(exits.stat().st_mtime)
        return TrainingStep(plans[0], exits) if len(plans) == 1 else TrainingSteps(plans, exits)

    def _plans(self, group: Group) -> list[StepPlan]:
        allocation, each, nodes = self._allocation, self._options.tasks_on_node, group.nodes
        jobs = allocation.by_job(nodes)
        one_job = set(jobs) == {allocation.job_id}
        plans = []
        for job_id, part in jobs.items():
            argv = launchplan.training_argv(
                allocation, self._options, self._attempt, group.launch, part,
                wrapper=WRAPPER, master=group.master, every=() if one_job else nodes,
            )  # fmt: skip
            ranks = () if one_job else tuple(nodes.index(n) * each + i for n in part for i in range(each))
            plans.append(StepPlan(argv, allocation.step_env(group.env, job_id), part, each * len(part), ranks))
        return plans
