"""Keeps the next launch's ranks ready while this one trains (`launch.standby`).

The step of the next launch is started early, on the same nodes: its wrappers and interpreters have what Slurm gives
ranks (control group, binding, limits), import what rank 0 imports, and wait. When a launch on these nodes begins, one
line of standard input, which srun broadcasts, lets them go. Each ready spare has a step of its own, as it would get in
place of a node; that line also says which ranks its tasks become. Any other start is an ordinary one.
"""

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from transom_cli.core.launcher import reentry, standbys
from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.standby import REPORT
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.group import Group
from transom_cli.supervise.launcher.journal import JournalWriter
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import WRAPPER, StepPlan, TrainingStep, TrainingSteps

SETTLED = 5.0  # seconds for which a launch must step before standbys take CPU time from it
PATIENCE = 5.0  # seconds for a standby step to end
TRIES = 3  # standbys of one attempt that may end by themselves
LISTEN = 1.0  # seconds between two looks at what standbys say
HERE = ""  # in place of a spare: the nodes of the launch that trains
UNSAID = 10.0  # seconds after which the journal says how many are ready, though others have said nothing


@dataclass(frozen=True)
class Report:
    """What a standby said. at: where its script waits. why: it starts from scratch. failed: its script has ended."""

    rank: int
    node: str
    at: str = ""
    why: str = ""
    failed: str = ""


class Reports:
    """What the standbys of one launch have said, in the log of their steps, by node and place there."""

    def __init__(self, attempt: AttemptDir, launch: int, each: int) -> None:
        self._path, self._launch, self._each, self._offset = attempt.standby_log, launch, each, 0
        self._by_task: dict[tuple[str, int], Report] = {}
        self._said: dict[tuple[str, int], Report] = {}  # what the journal has said
        self._looked = self._changed = 0.0

    def look(self, now: float, tasks: int) -> bool:
        """Read what is new. True if the journal is to say it."""
        if now - self._looked < LISTEN:
            return False
        self._looked = now
        before = dict(self._by_task)
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._take(line.decode(errors="replace"))
        self._changed = now if self._by_task != before else self._changed
        late = len(self._by_task) < tasks and now - self._changed < UNSAID
        if self._by_task == self._said or late:
            return False
        self._said = dict(self._by_task)
        return True

    def _take(self, line: str) -> None:
        if not line.startswith(REPORT):
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a module may print the same
            said = json.loads(line[len(REPORT) :])
            if said["launch"] == self._launch:
                one = Report(int(said["rank"]), *(str(said[name]) for name in ("node", "at", "why", "failed")))
                task = one.node, one.rank % self._each
                former = self._by_task.get(task)
                kept = former.failed if former is not None else ""
                self._by_task[task] = replace(one, failed=one.failed or kept)

    def forget(self, nodes: tuple[str, ...]) -> None:
        """The standbys on these nodes are gone. The journal says again how many are ready."""
        self._by_task = {task: one for task, one in self._by_task.items() if task[0] not in nodes}
        self._said = {}

    def of(self, node: str, rank: int) -> Report | None:
        """What the standby that becomes this rank on this node has said."""
        return self._by_task.get((node, rank % self._each))

    @property
    def failed(self) -> bool:
        return any(one.failed for one in self._by_task.values())

    def ready(self) -> dict[str, int]:
        """How many are ready on each node."""
        return dict(Counter(one.node for one in self._by_task.values() if not one.why))

    def words(self, tasks: int, spares: Collection[str] = ()) -> str:
        """tasks: on the nodes of the launch that runs; as many are on each spare as on each of these."""
        ready = self.ready()
        here = [one for one in self._by_task.values() if one.node not in spares]
        text = f"{sum(not one.why for one in here)} of {tasks} for launch {self._launch}{_where(here)}"
        on = [f"{ready.get(node, 0)} of {self._each} on spare {node}" for node in spares]
        text = "; ".join((text, *on))
        bad = [one for one in self._by_task.values() if one.why or one.failed]
        if not bad:
            return text
        more = f" ({len(bad) - 1} more like it)" if len(bad) > 1 else ""
        who = f"on {bad[0].node}" if bad[0].node in spares else f"rank {bad[0].rank}"
        return f"{text}; {who}: {bad[0].why or bad[0].failed}{more}"


def _where(reports: Iterable[Report]) -> str:
    places = dict.fromkeys(one.at for one in reports if one.at and not one.why)
    return f", waiting {next(iter(places))}" if len(places) == 1 else ", waiting in several places" if places else ""


class Standby:
    """The standby steps of one launch: one on the nodes of the launch that trains, and one on each spare.

    Not thread-safe.
    """

    def __init__(
        self, allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, journal: JournalWriter,
        took: Callable[[int], None],
    ) -> None:  # fmt: skip
        """took: called with a launch whose ranks, or lost ranks, standbys have become."""
        self._allocation, self._options, self._attempt, self._journal = allocation, options, attempt, journal
        self._took = took
        self._steps: dict[str, TrainingStep] = {}  # by the spare's node; HERE: on the nodes that train
        self._launch = -1
        self._nodes: tuple[str, ...] = ()  # that train
        self._settled: tuple[int, float] = (-1, 0.0)  # a launch, and when it was first seen to step
        self._ended: Counter[str] = Counter()
        self._reports = Reports(attempt, -1, 1)
        self._ran_script = -1  # the launch whose ranks had run their script as standbys, until it steps
        self._without: set[tuple[str, str]] = set()  # spares without standbys, and why, as the journal has said

    def look(self, launch: int, nodes: tuple[str, ...], master: str, now: float, sites: standbys.Sites) -> None:
        """Start the standbys of the next launch once this one has stepped for a while."""
        if self._settled[0] != launch:
            self._settled = (launch, now)
            if self._ran_script not in (-1, launch):
                self._only_import(nodes, f"launch {self._ran_script}, which they became, has not stepped")
            self._ran_script = -1
        for node, why in sites.without:
            if (node, why) not in self._without:
                self._without.add((node, why))
                self._journal("standby", what="none on a spare", nodes=(node,), words=f"{node}: {why}")
        self._listen(now)
        own = all(node not in self._allocation.borrowed for node in nodes)
        wanted = (*((HERE,) if own else ()), *sites.spares)
        for node, step in list(self._steps.items()):
            if step.code is not None:
                self._ended[node] += 1
                self._remove(node, f"exit code {step.code}")
            elif node not in wanted:
                _end(step)
                self._remove(node, f"{node} is no ready spare any more")
        missing = [node for node in wanted if node not in self._steps and self._ended[node] < TRIES]
        if missing and now - self._settled[1] >= SETTLED and self._attempt.modules.exists():
            if self._launch != launch + 1:
                self._launch, self._nodes = launch + 1, nodes
                self._reports = Reports(self._attempt, self._launch, self._options.tasks_on_node)
            for node in missing:
                self._start(node, master)

    def form(self, group: Group) -> TrainingStep | TrainingSteps | None:
        """Let the standbys of this launch go, or those of its lost ranks. None if there are none for these nodes."""
        steps, each = self._steps if self._launch == group.launch else {}, self._options.tasks_on_node
        ranks = group.lost or tuple(range(each * len(group.nodes)))
        here, spares = self._nodes if HERE in steps else (), [node for node in steps if node != HERE]
        taken = standbys.take(group.nodes, ranks, each, here, spares)
        begin = {HERE: taken.here, **dict(taken.spares)} if taken.here else dict(taken.spares)
        used = {node: steps[node] for node in begin}
        why = taken.why or ("they have ended" if any(step.code is not None for step in used.values()) else "")
        if why:
            if group.former is not None and self._options.keeps_standby:
                self._journal("standby", what="not used", nodes=group.nodes, words=f"in launch {group.launch}: {why}")
            self.drop()
            return None
        self._steps = {node: step for node, step in self._steps.items() if node not in used}
        self.drop()
        places = {paths.HOSTS: ",".join(group.nodes)} if taken.spares else {}
        went = []
        for node, step in used.items():
            only = {paths.ONLY: ",".join(map(str, begin[node]))} if group.lost or places else {}
            went.append(step.go({**group.rendezvous, **places, **only}, begin[node]))
        if not any(went):  # if only one of them did not, its ranks are missed in this launch
            for step in used.values():
                _end(step)
            return None
        self._say_used(group, ranks, taken)
        self._ran_script = group.launch if self._options.standby_runs_script and taken.here else -1
        self._took(group.launch)
        return TrainingSteps(list(used.values())) if len(used) > 1 else next(iter(used.values()))

    def drop(self) -> None:
        """End the standbys."""
        for step in self._steps.values():
            _end(step)
        self._steps = {}
        self._forget()

    def _say_used(self, group: Group, ranks: tuple[int, ...], taken: standbys.Taken) -> None:
        only, was = ",".join(map(str, group.lost)), "was" if len(group.lost) == 1 else "were"
        who = f"{'rank' if len(group.lost) == 1 else 'ranks'} {only}" if only else "the ranks"
        took = [self._reports.of(group.nodes[rank // self._options.tasks_on_node], rank) for rank in ranks]
        was = f"{was} ready" if all(took) else f"{was} not ready yet, but had begun"
        at = _where(one for one in took if one is not None)
        on = "".join(f"; {reentry.named(some)} on spare {node}" for node, some in taken.spares)
        words = f"{who} of launch {group.launch} {was}{at}{on}"
        self._journal("standby", what="used", nodes=group.nodes, words=words)

    def _listen(self, now: float) -> None:
        reports, each = self._reports, self._options.tasks_on_node
        here, spares = len(self._nodes) * each, [node for node in self._steps if node != HERE]
        tasks = sum(step.tasks for step in self._steps.values())
        if not tasks or not reports.look(now, tasks):
            return
        ready, words = reports.ready(), reports.words(here, spares)
        about = {"schema": 1, "launch": self._launch, "ranks": tasks, "nodes": ready, "words": words}
        with contextlib.suppress(OSError):
            publish_text(self._attempt.standbys, json.dumps(about))
        self._journal("standby", what="ready", nodes=tuple(ready), ready=ready, words=words)
        if reports.failed:
            self._only_import(self._nodes, "a script has ended before it was a rank")

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._attempt.standbys.unlink()

    def _remove(self, node: str, why: str) -> None:
        nodes = self._steps.pop(node).nodes
        self._reports.forget(nodes)
        self._forget()
        self._journal("standby", what="ended", nodes=nodes, words=why)

    def _only_import(self, nodes: tuple[str, ...], why: str) -> None:
        """Run no script beforehand any more in this attempt."""
        if self._options.standby_runs_script:
            self._options = replace(self._options, standby_reach="imports")
            self._journal("standby", what="only import from now on", nodes=nodes, words=why)

    def _start(self, spare: str, master: str) -> None:
        """Start the standbys on the nodes that train, or on a spare. These only import: their ranks are not known."""
        allocation, options, attempt, launch = self._allocation, self._options, self._attempt, self._launch
        nodes = self._nodes
        every: tuple[str, ...] = ()
        if spare != HERE:
            nodes, every = (spare,), (*nodes[:-1], spare)  # any place will do until it has its own
            options = replace(options, standby_reach="imports")
        elif hosts := launchplan.hosts_file(allocation, options, nodes):
            make_private(attempt.hosts(launch).parent)
            publish_text(attempt.hosts(launch), hosts)
        argv = launchplan.training_argv(
            allocation, options, attempt, launch, nodes, wrapper=WRAPPER, master=master, standby=True, every=every
        )
        env = launchplan.training_env(os.environ, master, 0, options.run)
        if options.recovers:
            env[paths.RECOVERABLE] = "1"
        with contextlib.suppress(OSError):
            plan = StepPlan(argv, env, nodes, options.tasks_on_node * len(nodes), standby=True)
            self._steps[spare] = TrainingStep(plan, attempt.exits(launch))
            where = f" on spare {spare}" if spare != HERE else ""
            self._journal("standby", what="started", nodes=nodes, words=f"for launch {launch}{where}")


def _end(step: TrainingStep) -> None:
    """End a standby step. Its wrappers end when their input does; with a dead node, srun would not."""
    step.leave()

    def kill() -> None:
        if not step.wait(PATIENCE):
            step.kill()

    threading.Thread(target=kill, name="standby", daemon=True).start()
