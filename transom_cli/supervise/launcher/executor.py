"""Carries out the actions of the launcher's state machine: start and end a launch, save, roll back, read logs.

Whatever may take long runs in a thread, and the answer goes into the inbox: dead or slow nodes must not keep the
launcher's loop from Slurm's signals.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.ckpt import fence
from transom_cli.ckpt.foreign import ForeignSealer
from transom_cli.ckpt.restore.rollback import Rollback, roll_back
from transom_cli.core.launcher import State, standbys
from transom_cli.core.launcher import actions as act
from transom_cli.core.launcher import events as ev
from transom_cli.diagnose.clue import Clue
from transom_cli.diagnose.hangs.reader import clues, gather, read_hang
from transom_cli.errors import TransomError, printable
from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.supervise.attempt_files import newest_checkpoint
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.agents import GRACE, Agents, hearing
from transom_cli.supervise.launcher.final_checkpoint import persist_memory, plan_checkpoint
from transom_cli.supervise.launcher.group import Group, GroupChange, NewRanks, Survivors
from transom_cli.supervise.launcher.journal import JournalWriter, say
from transom_cli.supervise.launcher.node_release import OrphanReaper
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.standby import Standby
from transom_cli.supervise.launcher.training import TrainingStep, TrainingSteps
from transom_cli.supervise.root_cause import SECONDS as LOGS
from transom_cli.supervise.root_cause import examine, log_sizes

SRUN_END = 10.0  # seconds for srun to see that all its tasks have ended
SRUN_AWAY = 2.0  # the same, if a node of its tasks has been replaced, and may be dead
SECONDS = 5.0  # to judge the evidence of a hang: thousands of stacks, a hundred full flight recorders
SUSPECTS = 0.75  # confidence from which a node is a suspect: if blamed twice, it is excluded for a while
RECORDED = 3.0  # seconds for the exit of a killed rank to be recorded
SURE = 0.45  # confidence below which a verdict would only mislead


class Executor:
    """Carries out actions. Answers go into `inbox`."""

    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        agents: Agents,
        inbox: queue.SimpleQueue[ev.Event],
        journal: JournalWriter,
    ) -> None:
        self._allocation, self._options, self._attempt = allocation, options, attempt
        self._agents, self._inbox = agents, inbox
        self._nodes: tuple[str, ...] = ()  # of the present launch
        self._group: Group | None = None
        self._port = 0  # of its rendezvous
        self._said_rendezvous = False
        self._cannot_roll_back = ""  # why
        self._foreign = ForeignSealer(options.foreign, say) if options.foreign else None
        self.orphans = OrphanReaper(agents.end, journal)
        took = lambda launch: inbox.put(ev.StandbyTook(0.0, launch))  # noqa: E731
        # by launch: how long its logs were when we ended ranks although none had failed
        self._sizes: dict[int, dict[str, int]] = {}
        self._standby = Standby(allocation, options, attempt, journal, took)
        self._new = NewRanks(allocation, options, attempt, self._foreign)
        started = (self._standby, self._new)
        self._ways: tuple[GroupChange, ...] = (Survivors(agents, attempt, started), *started)
        self.step: TrainingStep | TrainingSteps | None = None
        self.before_verdict: Callable[[tuple[str, ...]], None] = lambda _: None  # with the nodes of a launch that ends

    def start(self, action: act.StartLaunch) -> list[str] | None:
        """Start a launch.

        Returns:
            srun's command line; None, and an event in the inbox, if the launch cannot be requested.
        """
        if self._cannot_roll_back:
            self._inbox.put(ev.StartFailed(0.0, action.launch, self._cannot_roll_back))
            return None
        try:
            return self._start(action)
        except (OSError, TransomError) as error:
            words = f"launch {action.launch} cannot be started: {error}"
            self._inbox.put(ev.StartFailed(0.0, action.launch, words))
            return None

    def _start(self, action: act.StartLaunch) -> list[str]:
        allocation, options, attempt = self._allocation, self._options, self._attempt
        launch, nodes, replicas = action.launch, action.nodes, action.replicas
        for path in (attempt.logs(launch), attempt.exits(launch)):
            make_private(path)
        if hosts := launchplan.hosts_file(allocation, options, nodes):
            path = attempt.hosts(launch)
            make_private(path.parent)
            publish_text(path, hosts)
        host = nodes[replicas[0] // options.tasks_on_node if replicas else 0]
        master = self._agents.addresses[host]
        self._port = self._agents.free_port(host)
        self._say_rendezvous()
        env = launchplan.training_env(os.environ, master, self._port, options.run)
        if options.recovers:
            env[paths.RECOVERABLE] = "1"
            env[paths.REPLICAS] = ",".join(map(str, replicas))
        self._fence(launch)
        self._nodes = nodes
        self._group = group = Group(launch, nodes, master, env, self._port, action.lost, self.step, replicas)
        self.step = next(step for way in self._ways if (step := way.form(group)) is not None)
        return self.step.argv

    def replace(self, action: act.ReplaceRanks) -> None:
        """Start ranks of the present launch again. Standbys are those of the next launch."""
        launch, former, exits = action.launch, self.step, self._attempt.exits(action.launch)
        assert self._group is not None and former is not None
        try:
            for rank in action.ranks:  # one that entered the launch at the last moment has left a record
                (exits / f"rank-{rank}.json").unlink(missing_ok=True)
            more = self._new.form(replace(self._group, lost=action.ranks)).steps
            self.step = TrainingSteps.entered_again(former, action.ranks, exits, more)
        except OSError as error:
            self._inbox.put(ev.StartFailed(0.0, launch, f"ranks of launch {launch} cannot be started again: {error}"))

    def keep_standby(self, state: State, now: float) -> None:
        """Keep the ranks of the next launch ready, while this one steps."""
        if self._options.keeps_standby and self._nodes:
            sites = standbys.on_spares(state, self._allocation.borrowed, self._options.srun_args)
            master = self._agents.addresses[self._nodes[0]]
            self._standby.look(state.launch.number, self._nodes, master, now, sites)

    def drop_standby(self) -> None:
        self._standby.drop()

    def _say_rendezvous(self) -> None:
        """Say once that the user's rendezvous is not used. torchrun's ranks find each other by its flags instead."""
        theirs = [f"{name}={os.environ[name]}" for name in launchplan.RENDEZVOUS if name in os.environ]
        if theirs and not self._said_rendezvous and self._options.kind == "srun":
            self._said_rendezvous = True
            why = "each launch has a rendezvous of its own, where no rank of an older one can join"
            say(f"transom: {' '.join(theirs)} in the batch script's environment is not used: {why}")

    def _fence(self, launch: int) -> None:
        """Train even if the disk is too full to write the fence: there may be space by the next checkpoint."""
        try:
            fence.take(self._options.checkpoints, f"{self._attempt.name}.{launch}")
        except OSError as error:
            say(f"transom: ranks of older launches are not fenced off from the checkpoints: {error}")

    def roll_back(self, action: act.RollBack) -> None:
        """Set the training back. If that fails, no launch is started, since it would resume from the bad state."""
        name = f"{self._attempt.name}.{action.launch}"
        try:
            self._fence(action.launch)
            setback = Rollback(name, action.to, action.skip, action.why, time.time())
            moved = roll_back(self._options.checkpoints, setback)
        except (OSError, TransomError) as error:
            self._cannot_roll_back = f"the training cannot be set back to step {action.to}: {error}"
            say(f"transom: {self._cannot_roll_back}")
            return
        aside = f"; {', '.join(moved)} are kept as step-<n>.undone-<k>" if moved else ""
        say(f"transom: launch {action.launch} continues from step {action.to}{aside}")

    def request_checkpoint(self, action: act.RequestCheckpoint, overdue: tuple[str, ...], step_time: float) -> None:
        """Request a final checkpoint. overdue: nodes whose tables are late, so that their agents would not answer."""
        world = self._options.tasks_per_node * len(self._nodes)
        nodes, launch = self._nodes, action.launch

        def failed(why: str) -> ev.Event:
            return ev.CheckpointPlanned(0.0, launch, -1, why, keeps=True, again=True)

        def work() -> ev.Event:
            if any(n in nodes for n in overdue):
                return failed(f"no sign of life from {', '.join(overdue)}")
            return plan_checkpoint(lambda step: self._agents.flush(launch, nodes, step), launch, world, step_time)

        self._thread("final checkpoint", work, lambda error: failed(repr(error)))

    def persist_memory(self, action: act.PersistMemory) -> None:
        """Ask all nodes of the allocation: a node that a spare has replaced may hold a snapshot that no other has."""
        launch, checkpoints = action.launch, self._options.checkpoints

        def work() -> ev.Event:
            nodes = self._allocation.every_node
            words = persist_memory(self._agents.memory, nodes, checkpoints, launch, action.seconds - 1.0)
            return ev.MemoryPersisted(0.0, launch, newest_checkpoint(checkpoints), words)

        def failed(error: Exception) -> ev.Event:
            return ev.MemoryPersisted(0.0, launch, -1, f"what is in memory is lost: {error!r}")

        self._thread("persist", work, failed)

    def end(self, action: act.EndLaunch) -> None:
        """End a launch; without grace if its state is durable, since nothing of it is worth waiting for."""
        step, nodes, launch = self.step, self._nodes, action.launch
        grace = GRACE if action.incident else 0.0
        grace = grace if action.grace is None else action.grace
        if self._foreign is not None:
            self._foreign.pause()

        def work() -> ev.Event:
            lines = self._evidence(launch, action.incident, nodes) if action.evidence else ()
            self._note_logs(launch, step)
            ended = self._agents.end(launch, nodes, grace, action.incident)
            if evidence := (*lines, *ended.evidence):  # the verdict first: the journal holds only the first lines
                verdict = judge_hang(self._attempt.evidence(action.incident)) if action.incident else HangVerdict()
                ended = replace(ended, evidence=(*verdict.words, *evidence), suspects=verdict.nodes)
            self.before_verdict(nodes)
            self.orphans.watch(launch, ended, nodes)
            if step is None:
                return ended
            if ended.unheard:
                step.kill()  # it would wait for those nodes
            elif not step.wait(SRUN_AWAY if (away := set(step.nodes) - set(nodes)) else SRUN_END):
                step.kill()
                survivor = (ev.THIS_LAUNCHER, f"srun of launch {launch}")
                ended = replace(ended, survivors=(*ended.survivors, *(() if away else (survivor,))))
            with contextlib.suppress(OSError):  # a run directory that does not answer is no survivor
                ended = replace(ended, exits=step.exits())
            return ended

        def failed(error: Exception) -> ev.Event:  # a bug here must not leave the attempt waiting
            return ev.LaunchEnded(0.0, launch, survivors=((ev.THIS_LAUNCHER, repr(error)),))

        self._thread("end", work, failed)

    def judge(self, action: act.JudgeHang) -> None:
        nodes, launch = self._nodes, action.launch

        def work() -> ev.Event:
            lines = self._evidence(launch, action.incident, nodes)
            verdict = judge_hang(self._attempt.evidence(action.incident))
            return ev.HangJudged(0.0, launch, verdict.ranks, (*verdict.words, *lines), verdict.nodes)

        self._thread("hang", work, lambda error: ev.HangJudged(0.0, launch, evidence=(repr(error),)))

    def kill(self, action: act.KillRanks) -> None:
        step, launch, each = self.step, action.launch, self._options.tasks_on_node
        all_nodes = self._nodes
        nodes = tuple(dict.fromkeys(all_nodes[rank // each] for rank in action.ranks))

        def work() -> ev.Event:
            self._note_logs(launch, step)
            ended = self._agents.kill(launch, nodes, action.ranks)
            self.orphans.watch(launch, ended, ended.unheard)
            expected = {rank for rank in action.ranks if all_nodes[rank // each] not in ended.unheard}
            until, exits = time.monotonic() + RECORDED, step.exits() if step is not None else ()
            while step is not None and not {x.rank for x in exits} >= expected and time.monotonic() < until:
                time.sleep(0.05)
                exits = step.exits()
            left = "; ".join(f"{what} on {node} cannot be killed" for node, what in ended.survivors)
            return ev.RanksKilled(0.0, launch, exits, ended.unheard, left)

        self._thread("kill ranks", work, lambda error: ev.RanksKilled(0.0, launch, words=repr(error)))

    def observe(self, action: act.EndLaunch, unheard: tuple[str, ...]) -> None:
        """Answer as after the end of the launch, with the evidence, but leave its processes alone."""
        step, nodes, launch = self.step, self._nodes, action.launch

        def work() -> ev.Event:
            lines = self._evidence(launch, action.incident, nodes) if action.evidence else ()
            verdict = judge_hang(self._attempt.evidence(action.incident)) if lines else HangVerdict()
            exits = step.exits() if step is not None else ()
            return ev.LaunchEnded(
                0.0, launch, exits, unheard, evidence=(*verdict.words, *lines), suspects=verdict.nodes
            )

        self._thread("observe", work, lambda error: ev.LaunchEnded(0.0, launch, evidence=(repr(error),)))

    def _note_logs(self, launch: int, step: TrainingStep | TrainingSteps | None) -> None:
        """Note how long the logs are if no rank has failed: what ranks print once some are ended is no cause.

        The launch must be ended even if that fails.
        """
        with contextlib.suppress(Exception):
            if launch not in self._sizes and step is not None and step.code is None and not step.exits():
                self._sizes = {launch: log_sizes(self._attempt, launch)}

    def _evidence(self, launch: int, incident: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Collect evidence. The launch must be ended even if that fails."""
        try:
            return self._agents.evidence(launch, incident, nodes)
        except Exception as error:
            return (f"no evidence: {error!r}",)

    def read_logs(self, action: act.ReadLogs) -> None:
        nodes, port = tuple(n for n in self._nodes if n not in action.without), self._port

        def work() -> ev.Event:
            until = time.monotonic() + LOGS
            answers = self._agents.logs(action.launch, nodes)
            left = until - time.monotonic()
            sizes = self._sizes.get(action.launch)
            found = examine("", self._options.run, self._attempt, action.rank, 0.0, answers, 0, left, sizes)
            taken = launchplan.says_in_use(found.line, port)
            said = ev.LogsRead(0.0, action.launch, found.category, found.line, found.where, last=found.last)
            if action.alive:  # rank 0 itself holds the port
                ranks, elastic = hearing(answers)
                return replace(said, hearing=ranks, elastic=elastic)
            taken = self._agents.holds_port(nodes[0], port) if taken is None else taken
            return replace(said, port_taken=taken)

        def failed(error: Exception) -> ev.Event:
            return ev.LogsRead(0.0, action.launch, "unknown", repr(error), "the logs could not be read")

        self._thread("read logs", work, failed)

    def _thread(self, name: str, work: Callable[[], ev.Event], failed: Callable[[Exception], ev.Event]) -> None:
        def run() -> None:
            try:
                self._inbox.put(work())
            except Exception as error:
                self._inbox.put(failed(error))

        threading.Thread(target=run, name=name, daemon=True).start()


@dataclass(frozen=True)
class HangVerdict:
    """What the evidence of a hang shows."""

    words: tuple[str, ...] = ()  # for a person
    nodes: tuple[str, ...] = ()  # the node that the others wait for; () if that is uncertain or not a single node
    ranks: tuple[int, ...] = ()  # those that the others wait for; () if that is uncertain


def judge_hang(folder: Path, seconds: float = SECONDS) -> HangVerdict:
    """Judge the evidence in `folder`, within `seconds`: the next launch waits for this. Never raises."""
    found: list[HangVerdict] = []

    def work() -> None:
        try:
            found.append(verdict_of(clues(gather(folder, flights=False))))
            found.append(verdict_of(read_hang(folder)))
        except Exception as error:  # a bug here must not keep the next launch from starting
            found.append(HangVerdict((f"evidence not judged: {printable(repr(error))}",)))

    thread = threading.Thread(target=work, name="hang", daemon=True)
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        return found[-1]
    late = f"evidence not judged within {seconds:.0f} s: see {folder}"
    return replace(found[-1], words=(*found[-1].words, late)) if found else HangVerdict((late,))


def verdict_of(clues: tuple[Clue, ...]) -> HangVerdict:
    culprits = clues[0].culprits if clues and clues[0].confidence >= SUSPECTS else ()
    nodes, ranks = {culprit.node for culprit in culprits}, {c.rank for c in culprits if c.rank is not None}
    sure = len(nodes) == 1 and "" not in nodes
    return HangVerdict(hang_words(clues), tuple(nodes) if sure else (), tuple(sorted(ranks)))


def hang_words(clues: tuple[Clue, ...]) -> tuple[str, ...]:
    """The two strongest sentences of the first clue, if it is certain enough."""
    if not clues or clues[0].confidence < SURE:
        return ()
    first, *more = clues[0].evidence
    return f"{first} (confidence {clues[0].confidence:.2f})", *more[:1]
