"""Restarts a node's agent that has died, in a step of its own beside the training.

An agent counts as dead if its table is late and it does not answer, or if nothing listens on its port any more. If the
node itself is dead, nothing is started, since srun would wait for its slurmd. The training is never touched, and a
node's agent is started at most `TRIES` times.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable

from transom_cli.errors import TransomError
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.reach import Peer, StepTimes, judge_reach, read_reach
from transom_cli.heartbeat.paths import ROLE
from transom_cli.layout import AttemptDir
from transom_cli.slurm.port import Connect, SlurmDenied, SlurmRefused, SlurmUnknown
from transom_cli.start import upgraded
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.journal import JournalWriter, say
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

TRIES = 3  # per node and attempt
PAUSES = (15.0, 60.0)  # seconds before the second try, and before each further one
ALIVE = 10.0  # seconds until an agent that answered is asked again, while its table is late
AWAY = 15.0  # seconds until a node is checked again if slurmctld does not answer
ANSWER = 3.0  # seconds for an agent to answer a probe
STOPPED = 12.0  # seconds: a probe that took longer was suspended with this process
COME = 15.0  # seconds for a new agent to publish its endpoint
PEERS = 8  # other nodes of the job that this host should reach
PARALLEL = 8  # nodes at a time: a slow file system makes all tables late


class Revival:
    """Thread-safe. lives: probes an agent."""

    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        lives: Callable[[str], bool],
        journal: JournalWriter,
        connect: Connect,
    ) -> None:
        self._allocation, self._options, self._attempt, self._connect = allocation, options, attempt, connect
        self._lives, self._journal = lives, journal
        self._lock = threading.Lock()
        self._under_way: dict[str, threading.Event] = {}
        self._tries: dict[str, int] = {}
        self._due: dict[str, float] = {}  # when a node may be checked again, by the monotonic clock
        self._steps: list[subprocess.Popen[bytes]] = []
        self._over = False
        self._times = StepTimes()
        self._resumed = 0  # how often
        self._dead: set[str] = set()  # nodes whose slurmd did not answer the last probe

    def begin(self, node: str) -> None:
        """Start an agent on a node that has joined, or has come back: with new tries."""
        with self._lock:
            self._tries.pop(node, None)
            self._due.pop(node, None)
        self._dead.discard(node)
        self.at_once(node)

    def dead(self, node: str) -> bool:
        """Whether neither the node's agent nor its slurmd answers, as far as that is known."""
        return node in self._dead

    def look(self, nodes: tuple[str, ...]) -> None:
        """Check nodes whose tables are late, in threads. Returns at once."""
        for node in nodes:
            if len(self._under_way) >= PARALLEL:
                return
            done = self._take(node)
            if done is not None:
                threading.Thread(target=self._revive, args=(node, done), name="revive", daemon=True).start()

    def at_once(self, node: str) -> None:
        """Restart an agent whose port is closed, or wait for a restart in progress.

        Takes at most `COME` seconds, and the time to probe the slurmd.
        """
        done = self._take(node, closed=True)
        if done is not None:
            self._revive(node, done)
            return
        with self._lock:
            done = self._under_way.get(node)
        if done is not None:
            done.wait(COME)

    def resumed(self) -> None:
        """Ignore answers that are late because this process and the agents were stopped."""
        self._resumed += 1

    def stop(self, *, at_once: bool, patience: float) -> None:
        """Restart no more agents. Their steps end by themselves once the outcome is written."""
        with self._lock:
            self._over = True
        until = time.monotonic() + (0.0 if at_once else patience)
        for step in self._steps:
            try:
                step.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                step.kill()

    def _take(self, node: str, *, closed: bool = False) -> threading.Event | None:
        """Claim a node. None if another thread has it, it is not due, or its tries are used up.

        closed: its port is closed. Then it does not count that the agent answered a moment ago.
        """
        with self._lock:
            tries = self._tries.get(node, 0)
            early = time.monotonic() < self._due.get(node, 0.0) and not (closed and not tries)
            if self._over or tries >= TRIES or node in self._under_way or early:
                return None
            return self._under_way.setdefault(node, threading.Event())

    def _revive(self, node: str, done: threading.Event) -> None:
        try:
            pause = self._again(node)
        except (OSError, TransomError) as error:
            pause = self._failed(node, str(error))
        finally:
            with self._lock:
                self._due[node] = time.monotonic() + pause
                del self._under_way[node]
            done.set()

    def _again(self, node: str) -> float:
        """Restart the node's agent if it is dead. Returns seconds until the next check."""
        began, resumed = time.monotonic(), self._resumed
        lives = self._lives(node)
        if time.monotonic() - began > STOPPED:
            return 0.0  # this process was stopped meanwhile, and the agent with it: ask again
        try:
            found = None if lives else self._reach(node)
        except SlurmUnknown:
            return AWAY  # no step starts without slurmctld; this is not counted as a try
        if resumed != self._resumed:
            return 0.0
        if found is None or not found.verdict.bad:
            self._dead.discard(node)
        if found is None:
            return ALIVE
        if found.verdict.bad:
            self._dead.add(node)
            return self._failed(node, found.evidence, unreachable=True)
        if words := upgraded():
            say(f"transom: {words}: the new agent on {node} has the new version, and this launcher the old one")
        before = self._endpoint(node)
        argv = launchplan.agent_argv(self._allocation, self._options, self._attempt, node)
        env = self._allocation.step_env(os.environ, self._allocation.job_of(node))
        step = subprocess.Popen(argv, stdin=subprocess.DEVNULL, umask=0o077, env={**env, ROLE: "agent"})
        self._steps.append(step)
        until = time.monotonic() + COME
        while self._endpoint(node) == before:
            code = step.poll()
            if code is not None:
                return self._failed(node, f"srun ended with exit code {code}")
            if time.monotonic() >= until or self._over:
                step.terminate()
                return self._failed(node, f"its step did not come up within {COME:.0f} s")
            time.sleep(0.1)
        number = self._count(node)
        self._journal("agent", node=node, what="started again", words=f"start {number} of {TRIES}")
        return self._pause(number)

    def _failed(self, node: str, words: str, *, unreachable: bool = False) -> float:
        """unreachable: agent and slurmd do not answer, although this host reaches other nodes."""
        number = self._count(node)
        about = {"unreachable": True} if unreachable else {}
        self._journal("agent", node=node, what="not started again", words=f"try {number} of {TRIES}: {words}", **about)
        return self._pause(number)

    def _count(self, node: str) -> int:
        self._tries[node] = self._tries.get(node, 0) + 1
        return self._tries[node]

    def _pause(self, number: int) -> float:
        return PAUSES[min(number, len(PAUSES)) - 1]

    def _reach(self, node: str) -> Finding:
        """Probe the node's slurmd. UNKNOWN if Slurm refuses to say where it is: then srun finds out.

        Raises:
            SlurmUnknown: slurmctld does not answer.
        """
        slurm = self._connect(10.0)
        job, inside = self._allocation.job_of(node), tuple(n for n in self._allocation.nodes if n != node)[:PEERS]

        def peers() -> list[Peer]:
            with contextlib.suppress(TransomError):
                known = slurm.nodes(inside) if inside else []
                return [Peer(n.name, n.address, n.port, in_job=True) for n in known if not n.not_responding]
            return []

        with contextlib.suppress(SlurmRefused, SlurmDenied):
            for found in slurm.nodes([node]):
                return judge_reach(read_reach(node, found.address, found.port, job, times=self._times, peers=peers))
        return Finding("reach", Verdict.UNKNOWN, node, "Slurm does not say where its slurmd is")

    def _endpoint(self, node: str) -> bytes:
        try:
            return self._attempt.endpoint(node).read_bytes()
        except OSError:
            return b""
