"""How the training gets the members of its process group.

Every change of members, whether a relaunch, a swap, a shrink or a growth, is one `StartLaunch`, which becomes one
`Group`. The executor tries each `GroupChange` in turn. All members meet at a new rendezvous, those that replace lost
ranks of elastic replicas later than the others.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from transom_cli.ckpt.foreign import ForeignSealer
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.start import own
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import WRAPPER, StepPlan, TrainingStep, TrainingSteps


@dataclass(frozen=True)
class Group:
    """The members of one launch: the ranks on these nodes, in this order.

    master, port: the address of the rendezvous. lost: the ranks that are started; the others stay in the steps
    `former`. (): all ranks are started.
    """

    launch: int
    nodes: tuple[str, ...]
    master: str
    env: dict[str, str]  # of the launch's steps, with the rendezvous
    port: int
    lost: tuple[int, ...] = ()
    former: TrainingStep | TrainingSteps | None = None
    replicas: tuple[int, ...] = ()  # the ranks that train before the lost ones join; (): they wait for them

    @property
    def rendezvous(self) -> Mapping[str, str]:
        names = (*launchplan.RENDEZVOUS, paths.REPLICAS)
        return {name: self.env[name] for name in names if name in self.env}


class GroupChange(Protocol):
    def form(self, group: Group) -> TrainingStep | TrainingSteps | None:
        """Give the training these members. None: not possible in this way, and nothing was changed."""


class Survivors:
    """Orders the surviving ranks to enter their training again, and starts the lost ones in the first of `ways`."""

    def __init__(self, agents: Agents, attempt: AttemptDir, ways: tuple[GroupChange, ...]) -> None:
        self._agents, self._attempt, self._ways = agents, attempt, ways

    def form(self, group: Group) -> TrainingSteps | None:
        if not group.lost or group.former is None:
            return None
        order = (group.launch - 1, group.launch, group.nodes, group.master, group.port, group.replicas)
        threading.Thread(target=self._agents.reenter, args=order, name="re-entry", daemon=True).start()
        more = next(step for way in self._ways if (step := way.form(group)) is not None)
        return TrainingSteps.entered_again(group.former, group.lost, self._attempt.exits(group.launch), more.steps)


class NewRanks:
    """Starts the ranks: one step in each job whose nodes the launch uses."""

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
        steps = [TrainingStep(plan, exits) for plan in plans]
        return steps[0] if len(steps) == 1 else TrainingSteps(steps)

    def _plans(self, group: Group) -> list[StepPlan]:
        allocation, each, nodes = self._allocation, self._options.tasks_on_node, group.nodes
        lost = group.lost
        used = tuple(n for i, n in enumerate(nodes) if not lost or any(rank // each == i for rank in lost))
        jobs = allocation.by_job(used)
        one_job = set(jobs) == {allocation.job_id} and not lost
        plans = []
        for job_id, part in jobs.items():
            argv = launchplan.training_argv(
                allocation, self._options, self._attempt, group.launch, part,
                wrapper=WRAPPER, master=group.master, every=() if one_job else nodes, only=lost,
            )  # fmt: skip
            ranks = () if one_job else tuple(nodes.index(n) * each + i for n in part for i in range(each))
            plans.append(StepPlan(argv, allocation.step_env(group.env, job_id), part, each * len(part), ranks))
        return plans
