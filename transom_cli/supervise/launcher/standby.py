"""Keeps the next launch's ranks ready while this one trains (`launch.standby`).

The step of the next launch is started early, on the same nodes: its wrappers and interpreters have what Slurm gives
ranks (control group, binding, limits), import what rank 0 imports, and wait. When a launch on these nodes begins, one
line of standard input, which srun broadcasts, lets them go. Any other start is an ordinary one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.standby import REPORT
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.group import Group
from transom_cli.supervise.launcher.journal import JournalWriter
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import WRAPPER, StepPlan, TrainingStep

SETTLED = 5.0  # seconds for which a launch must step before standbys take CPU time from it
PATIENCE = 5.0  # seconds for a standby step to end
TRIES = 3  # standbys of one attempt that may end by themselves
LISTEN = 1.0  # seconds between two looks at what standbys say
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
    """What the standbys of one launch have said, in the log of their step, by rank."""

    def __init__(self, attempt: AttemptDir, launch: int) -> None:
        self._path, self._launch, self._offset = attempt.standby_log, launch, 0
        self.by_rank: dict[int, Report] = {}
        self._said: dict[int, Report] = {}  # what the journal has said
        self._looked = self._changed = 0.0

    def look(self, now: float, tasks: int) -> bool:
        """Read what is new. True if the journal is to say it."""
        if now - self._looked < LISTEN:
            return False
        self._looked = now
        before = dict(self.by_rank)
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._take(line.decode(errors="replace"))
        self._changed = now if self.by_rank != before else self._changed
        late = len(self.by_rank) < tasks and now - self._changed < UNSAID
        if self.by_rank == self._said or late:
            return False
        self._said = dict(self.by_rank)
        return True

    def _take(self, line: str) -> None:
        if not line.startswith(REPORT):
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a module may print the same
            said = json.loads(line[len(REPORT) :])
            if said["launch"] == self._launch:
                one = Report(int(said["rank"]), *(str(said[name]) for name in ("node", "at", "why", "failed")))
                former = self.by_rank.get(one.rank)
                kept = former.failed if former is not None else ""
                self.by_rank[one.rank] = replace(one, failed=one.failed or kept)

    @property
    def failed(self) -> bool:
        return any(one.failed for one in self.by_rank.values())

    def ready(self) -> dict[str, int]:
        """How many are ready on each node."""
        return dict(Counter(one.node for one in self.by_rank.values() if not one.why))

    def words(self, tasks: int) -> str:
        text = f"{sum(self.ready().values())} of {tasks} for launch {self._launch}{_where(self.by_rank.values())}"
        bad = [one for one in self.by_rank.values() if one.why or one.failed]
        if not bad:
            return text
        more = f" ({len(bad) - 1} more like it)" if len(bad) > 1 else ""
        return f"{text}; rank {bad[0].rank}: {bad[0].why or bad[0].failed}{more}"


def _where(reports: Iterable[Report]) -> str:
    places = dict.fromkeys(one.at for one in reports if one.at and not one.why)
    return f", waiting {next(iter(places))}" if len(places) == 1 else ", waiting in several places" if places else ""


class Standby:
    """The standby step of one launch. Not thread-safe."""

    def __init__(
        self, allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, journal: JournalWriter,
        took: Callable[[int], None],
    ) -> None:  # fmt: skip
        """took: called with a launch whose ranks, or lost ranks, standbys have become."""
        self._allocation, self._options, self._attempt, self._journal = allocation, options, attempt, journal
        self._took = took
        self._step: TrainingStep | None = None
        self._launch = -1
        self._nodes: tuple[str, ...] = ()
        self._settled: tuple[int, float] = (-1, 0.0)  # a launch, and when it was first seen to step
        self._ended = 0
        self._reports = Reports(attempt, -1)
        self._ran_script = -1  # the launch whose ranks had run their script as standbys, until it steps

    def look(self, launch: int, nodes: tuple[str, ...], master: str, now: float) -> None:
        """Start the standbys of the next launch once this one has stepped for a while."""
        if self._settled[0] != launch:
            self._settled = (launch, now)
            if self._ran_script not in (-1, launch):
                self._only_import(nodes, f"launch {self._ran_script}, which they became, has not stepped")
            self._ran_script = -1
        if self._step is not None:
            if self._step.code is None:
                self._listen(now)
                return
            self._ended += 1
            self._forget()
            self._journal("standby", what="ended", nodes=self._nodes, words=f"exit code {self._step.code}")
            self._step = None
        own = all(node not in self._allocation.borrowed for node in nodes)
        due = own and self._ended < TRIES and now - self._settled[1] >= SETTLED
        if due and self._attempt.modules.exists():
            self._start(launch + 1, nodes, master)

    def form(self, group: Group) -> TrainingStep | None:
        """Let the standbys of this launch go, or those of its lost ranks. None if there are none for these nodes."""
        step, fits = self._step, self._launch == group.launch and self._nodes == group.nodes
        if step is None or not fits:
            if group.former is not None and self._options.keeps_standby:
                why = "no standby is ready" if step is None else "the standbys are on other nodes"
                self._journal("standby", what="not used", nodes=group.nodes, words=f"in launch {group.launch}: {why}")
            self.drop()
            return None
        self._step = None
        self._forget()
        only = ",".join(map(str, group.lost))
        if step.code is None and step.go({**group.rendezvous, paths.ONLY: only} if only else group.rendezvous):
            who = f"{'rank' if len(group.lost) == 1 else 'ranks'} {only}" if only else "the ranks"
            was = "was" if len(group.lost) == 1 else "were"
            took = [self._reports.by_rank.get(rank) for rank in group.lost or range(step.tasks)]
            was = f"{was} ready" if all(took) else f"{was} not ready yet, but had begun"
            at = _where(one for one in took if one is not None)
            self._journal("standby", what="used", nodes=group.nodes, words=f"{who} of launch {group.launch} {was}{at}")
            self._ran_script = group.launch if self._options.standby_runs_script else -1
            self._took(group.launch)
            return step
        _end(step)
        return None

    def drop(self) -> None:
        """End the standbys."""
        if self._step is not None:
            _end(self._step)
            self._step = None
            self._forget()

    def _listen(self, now: float) -> None:
        reports, step = self._reports, self._step
        if step is None or not reports.look(now, step.tasks):
            return
        ready, words = reports.ready(), reports.words(step.tasks)
        about = {"schema": 1, "launch": self._launch, "ranks": step.tasks, "nodes": ready, "words": words}
        with contextlib.suppress(OSError):
            publish_text(self._attempt.standbys, json.dumps(about))
        self._journal("standby", what="ready", nodes=tuple(ready), ready=ready, words=words)
        if reports.failed:
            self._only_import(self._nodes, "a script has ended before it was a rank")

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._attempt.standbys.unlink()

    def _only_import(self, nodes: tuple[str, ...], why: str) -> None:
        """Run no script beforehand any more in this attempt."""
        if self._options.standby_runs_script:
            self._options = replace(self._options, standby_reach="imports")
            self._journal("standby", what="only import from now on", nodes=nodes, words=why)

    def _start(self, launch: int, nodes: tuple[str, ...], master: str) -> None:
        allocation, options, attempt = self._allocation, self._options, self._attempt
        if hosts := launchplan.hosts_file(allocation, options, nodes):
            make_private(attempt.hosts(launch).parent)
            publish_text(attempt.hosts(launch), hosts)
        argv = launchplan.training_argv(
            allocation, options, attempt, launch, nodes, wrapper=WRAPPER, master=master, standby=True
        )
        env = launchplan.training_env(os.environ, master, 0, options.run)
        if options.recovers:
            env[paths.RECOVERABLE] = "1"
        self._launch, self._nodes = launch, nodes
        self._reports = Reports(attempt, launch)
        with contextlib.suppress(OSError):
            tasks = options.tasks_on_node * len(nodes)
            self._step = TrainingStep(StepPlan(argv, env, nodes, tasks, standby=True), attempt.exits(launch))
            self._journal("standby", what="started", nodes=nodes, words=f"for launch {launch}")


def _end(step: TrainingStep) -> None:
    """End a standby step. Its wrappers end when their input does; with a dead node, srun would not."""
    step.leave()

    def kill() -> None:
        if not step.wait(PATIENCE):
            step.kill()

    threading.Thread(target=kill, name="standby", daemon=True).start()
