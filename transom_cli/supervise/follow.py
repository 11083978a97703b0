"""Polls the run directory for the operator: launcher's journal, outcome, heartbeats, checkpoints, requests.

It reads the present attempt, and newer ones of the same job. A missing file is no error: on a network file system it
may appear seconds late.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from transom_cli.ckpt.save.status import SaveStatus
from transom_cli.core import events as ev
from transom_cli.core import stall
from transom_cli.core.codec import BadRecord, build
from transom_cli.core.incident import Stage
from transom_cli.core.operator.silent_launcher import LAUNCHER_SILENT, LaunchEnd, handles_stall, lost_before_launch
from transom_cli.core.operator.state import State
from transom_cli.diagnose.clue import NO_NUMBER
from transom_cli.files import listed, read_json, refresh_directory
from transom_cli.heartbeat.table import NodeTable
from transom_cli.layout import AttemptDir, RunDir, attempt_name, parse_attempt
from transom_cli.supervise import attempt_files
from transom_cli.supervise.handoff_record import attempt_numbers, read_handoff
from transom_cli.supervise.heartbeat_monitor import HeartbeatMonitor
from transom_cli.supervise.requests import event_of

PROGRESS_EVERY = 60.0  # one progress line a minute in the journal
LONGEST_POLL = 2.0  # seconds; what a poll took longer was a stall of our own
LOOK_EVERY = 1.0  # for what changes slowly: new attempts, checkpoints, requests
FILES_EVERY = 0.2  # for the launcher's journal and the outcome
SIGN_EVERY = 0.5  # for the launcher's sign of life
RARELY = 10.0  # for the report of saves, if nothing shows that it has changed


class AttemptFollower:
    """Turns the files of one attempt into events."""

    def __init__(self, attempt: AttemptDir, limits: stall.StallLimits) -> None:
        self._dir = attempt
        self._tail = attempt_files.Tail(attempt.launcher_journal)
        self._watch = HeartbeatMonitor(attempt.nodes, limits, attempt.heartbeats)
        self._journal_changed = attempt_files.FileChange(attempt.launcher_journal, LOOK_EVERY)
        self._saves_changed = attempt_files.FileChange(attempt.saves, RARELY)
        self._files_looked = self._sign_looked = float("-inf")
        self._outcome = False
        self._step = -1
        self._since_start = False  # it counts from the start of the processes
        self._reported = (-1, 0.0)  # the step last put in an event, and when
        self._launch: ev.LaunchSeen | None = None
        self._looked = float("-inf")  # at the ranks' own exit records
        self._anew = float("-inf")  # when it was last asked for files that were not there
        self._there = False  # the attempt's directory was seen: a job that waits has none
        self._ended_since: float | None = None  # when the end of the launch was first seen
        self._sign = b""  # the launcher's sign of life, and when it was last seen to change
        self._signed = float("-inf")
        self.launcher_lives = False  # whether it gave a sign of life in time, as of the last poll
        self._held: ev.Stalled | None = None  # a silence that is left to the launcher as long as it lives
        self._taken: ev.RecoverySeen | None = None  # the launcher is at a fault of this launch
        self._waited = (0.0, float("-inf"))  # silence of the launcher before its first launch, and when last counted
        self._saves_looked = float("-inf")
        self._saves: tuple[SaveStatus, float] | None = None  # what was last reported of the saves, and when
        self._saves_read: SaveStatus | None = None
        self._between = False  # a job step is done, and the script has not started another one
        self._suspended = (False, "")  # whether Slurm has stopped the job, and when it last stopped or resumed it

    @property
    def name(self) -> str:
        return self._dir.name

    @property
    def tables(self) -> dict[str, NodeTable]:
        return self._watch.seen

    def poll(self, now: float, batch_host: str = "", suspended: tuple[bool, str] = (False, "")) -> Iterator[ev.Event]:
        """Yield what is new.

        Args:
            suspended: Whether Slurm has stopped the job, and when it last stopped or resumed it. The silence of a
                stopped job is not judged, and afterwards the time limits start again.
        """
        if suspended != self._suspended:
            self._suspended = suspended
            self._watch.resumed(now)
            self._signed, self._held, self._ended_since = now, None, None
        if now - self._anew >= LOOK_EVERY:
            self._anew = now
            self._there = refresh_directory(self._dir.path) or self._there
        if not self._there:
            return
        self.launcher_lives = self._launcher_lives(now)
        files = not 0.0 <= now - self._files_looked < FILES_EVERY
        self._files_looked = now if files else self._files_looked
        for record in self._tail.records() if files and self._journal_changed(now) else ():
            event = _from_journal(now, self.name, record)
            if isinstance(event, ev.OutcomeSeen):  # what it would have led to; the ranks live on
                yield from self._report_step(now)
            if isinstance(event, ev.JobStepDone):
                yield from self._report_step(now)
                self._between, self._held = True, None
            if isinstance(event, ev.LaunchSeen):
                if self._between:  # its agents have just been started
                    self._between = False
                    self._watch.resumed(now)
                if self._launch is not None and event.launch > self._launch.launch:
                    self._begin_launch()
                self._launch = event
                self._watch.expect((*event.nodes, *event.idle))
            if isinstance(event, ev.RecoverySeen) and event.what == "seen":
                self._taken = event
            if event is not None:
                yield event
        if not suspended[0]:
            yield from self._beats(now)
        if now - self._saves_looked >= LOOK_EVERY:
            self._saves_looked = now
            yield from self._report_saves(now)
        if files and not self._outcome:
            outcome = attempt_files.read_outcome(self._dir, now)
            if outcome is None and not suspended[0]:
                outcome = self._abandoned(now, batch_host)
            if outcome is not None:
                self._outcome = True
                yield from self._report_step(now)
                yield from self._report_saves(now)
                yield outcome

    def _begin_launch(self) -> None:
        """Forget the steps and the end of the launch before."""
        self._step, self._reported, self._ended_since = -1, (-1, 0.0), None
        self._since_start = False
        self._held = self._taken = None

    def _launcher_lives(self, now: float) -> bool:
        if not 0.0 <= now - self._sign_looked < SIGN_EVERY:
            self._sign_looked, sign = now, attempt_files.read_sign(self._dir)
            if sign and sign != self._sign:
                self._sign, self._signed = sign, now
        return now - self._signed < LAUNCHER_SILENT

    def _abandoned(self, now: float, batch_host: str) -> ev.OutcomeSeen | None:
        """Read how the ranks ended; `core.operator.silent_launcher` decides whether that is the outcome."""
        if self._launch is None or self._between or now - self._looked < LOOK_EVERY:
            return None
        self._looked = now
        if self.launcher_lives:
            self._ended_since = None
            return None
        exits = attempt_files.ExitRecords(self._dir.exits(self._launch.launch)).read()
        gone = self._watch.gone(self._launch.launch, self._launch.world_size)
        end = LaunchEnd(self._launch, tuple(exits[n] for n in sorted(exits)), gone, self._taken)
        if not end.over:
            self._ended_since = None
            return None
        self._ended_since = now if self._ended_since is None else self._ended_since
        since = now - self._ended_since
        return end.outcome(now, since, launcher_seen=bool(self._sign), batch_host=batch_host)

    def lost_before_launch(self, now: float, first_step: float | None, batch_host: str) -> ev.OutcomeSeen | None:
        """Return the outcome of a running job whose launcher is silent without a launch. Each poll counts up to 2 s.

        Args:
            batch_host: The launcher's own node, which counts as missing: it is probed before the restart.
            first_step: Seconds allowed for the launcher's first sign of life; None if the job may have no launcher.
        """
        if self._outcome or self._launch is not None or self._suspended[0] or self._launcher_lives(now):
            self._waited = 0.0, now
            return None
        silent = self._waited[0] + min(now - self._waited[1], LONGEST_POLL)
        self._waited = silent, now
        limit = float("inf") if first_step is None else first_step
        why = lost_before_launch(silent, began=bool(self._sign), first_step=limit)
        if not why:
            return None
        self._outcome = True
        return ev.OutcomeSeen(now, self.name, "failed", why, missing=(batch_host,) if batch_host else ())

    def _beats(self, now: float) -> Iterator[ev.Event]:
        if self._between:
            return  # the agents have ended
        findings = self._watch.look(now, self._signed)
        launch = self._launch.launch if self._launch else 0
        step, since_start = self._watch.step(launch), self._watch.since_start(launch)
        if self._since_start and not since_start and step >= 0:  # now the training's own step is known
            self._step, self._reported = -1, (-1, 0.0)
        self._since_start = since_start if step >= 0 else self._since_start
        self._step = max(self._step, step)
        if self._step > self._reported[0] and (self._reported[0] < 0 or now - self._reported[1] >= PROGRESS_EVERY):
            yield from self._report_step(now)
        for finding in findings:
            event = self._event(finding, now)
            if event is not None:
                yield from self._report_step(now)
                yield event
        held = self._held
        if held is not None and handles_stall(
            held, now, launcher_lives=self.launcher_lives, taken_up=self._taken is not None
        ):
            yield from self._report_step(now)
            self._held = None
            seen = replace(held.stall, overdue=self._watch.overdue(now), unseen=self._watch.blind(now))
            yield replace(held, at=now, stall=seen)

    def _report_step(self, now: float) -> Iterator[ev.Event]:
        if self._step > self._reported[0]:
            self._reported = (self._step, now)
            yield ev.StepSeen(now, self.name, self._step, self._since_start)

    def _report_saves(self, now: float) -> Iterator[ev.Event]:
        """Report that saves fail and why, that they succeed again, and once a minute how many have failed."""
        reported, at = self._saves if self._saves is not None else (None, 0.0)
        if not self._saves_changed(now) and self._saves_read == reported:
            return
        saves = self._saves_read = attempt_files.read_saves(self._dir)
        if saves is None:
            return
        same = reported is not None and (saves.failed > 0, saves.why) == (reported.failed > 0, reported.why)
        if same and (saves == reported or now - at < PROGRESS_EVERY):
            return
        self._saves = saves, now
        yield ev.SavesSeen(now, self.name, saves.failed, saves.step, saves.why, saves.good)

    def _event(self, finding: stall.StallFinding, now: float) -> ev.Event | None:
        if isinstance(finding, stall.NodeSilent):
            return ev.NodeSilent(now, self.name, finding.node, finding.silent_for, self.launcher_lives)
        if isinstance(finding, stall.NodeBack):
            return ev.NodeBack(now, self.name, finding.node)
        if isinstance(finding, ev.Stall):
            if self._launch is not None and self._watch.launch != self._launch.launch:
                return None  # of the launch before this one
            self._held = ev.Stalled(now, self.name, replace(finding, overdue=self._watch.overdue(now)))
            return None
        if isinstance(finding, stall.RanksResumed):
            held, self._held = self._held, None
            return None if held is not None else ev.StallEnded(now, self.name)
        return None  # `_report_step` reports the first step


class Follower:
    """Everything the operator reads from files, as events."""

    def __init__(
        self, run: RunDir, checkpoints: Path, limits: stall.StallLimits, launcher_within: float | None = None
    ) -> None:
        """launcher_within: seconds from a job's start to its launcher's first sign; None: it may have no launcher."""
        self._run = run
        self._launcher_within = launcher_within
        self._checkpoints = self._set = checkpoints  # of the present job step; of the settings
        self._job_step = ""
        self._limits = limits
        self._attempt: AttemptFollower | None = None
        self._known = ""  # the attempt that the state knew at the last poll
        self._looked = float("-inf")
        self._durable = -1
        self._requests: set[str] = set()

    @property
    def tables(self) -> dict[str, NodeTable]:
        return self._attempt.tables if self._attempt else {}

    @property
    def launcher_lives(self) -> bool:
        return self._attempt is not None and self._attempt.launcher_lives

    def poll(self, state: State, now: float) -> Iterator[ev.Event]:
        slow = now - self._looked >= LOOK_EVERY
        if slow:
            self._looked = now
            yield from self._slow(now)
        look = slow or self._attempt is None or state.attempt != self._known
        name = self._newest_attempt(state) if look or self._attempt is None else self._attempt.name
        self._known = state.attempt
        if name and (self._attempt is None or self._attempt.name != name):
            self._attempt = AttemptFollower(AttemptDir(self._run.attempts / name), self._limits)
        if self._attempt is not None:
            suspended = (state.job.suspended, state.job.suspended_at)
            for event in self._attempt.poll(now, state.job.batch_host, suspended):
                if isinstance(event, (ev.OutcomeSeen, ev.NodeSilent, ev.Stalled)):
                    yield from self._checkpoint(now)  # the budget of a restart counts on what is durable by now
                if isinstance(event, ev.RecoverySeen) and event.durable is not None:
                    self._durable = event.durable  # set back: what comes now counts from there
                if isinstance(event, ev.LaunchSeen):
                    self._in_job_step(event)
                if isinstance(event, ev.LaunchSeen) and parse_attempt(event.attempt)[0] != state.job.id:
                    event = replace(event, succeeds=state.job.id)
                yield event
            if state.job.state == "RUNNING" and state.attempt == self._attempt.name and not state.restarting:
                lost = self._attempt.lost_before_launch(now, self._launcher_within, state.job.batch_host)
                if lost is not None:
                    yield lost

    def _in_job_step(self, launch: ev.LaunchSeen) -> None:
        """Follow the checkpoints of another job step, and report its newest one."""
        if launch.job_step != self._job_step:
            self._job_step, self._durable = launch.job_step, -1
            self._checkpoints = Path(launch.checkpoints) if launch.checkpoints else self._set

    def _newest_attempt(self, state: State) -> str:
        """Return the attempt that the state knows, or a newer start that Slurm has not reported yet.

        That start is one of the same job, or of the job that the launcher says it submitted as its successor.

        A newer attempt counts once its launcher writes, because only a launch reports it to the core; and not during a
        restart, whose own answer reports it. An event that comes too early would be lost, because each event is sent
        once.
        """
        if not state.job.id or (state.incident is not None and state.incident.stage is Stage.RESTARTING):
            return state.attempt
        newest = (state.job.id, state.job.restarts)
        for number in sorted(n for n in attempt_numbers(self._run) if n > newest):
            if number[0] != newest[0] and not self._succeeds(newest, number[0]):
                continue
            if self._run.attempt(*number).launcher_journal.exists():
                newest = number
        return attempt_name(*newest)

    def _succeeds(self, attempt: tuple[int, int], job_id: int) -> bool:
        handed = read_handoff(self._run.attempt(*attempt))
        return handed is not None and handed.job_id == job_id

    def _checkpoint(self, now: float) -> Iterator[ev.Event]:
        step = attempt_files.newest_checkpoint(self._checkpoints)
        if step > self._durable:
            self._durable = step
            yield ev.CheckpointSeen(now, step)

    def _slow(self, now: float) -> Iterator[ev.Event]:
        yield from self._checkpoint(now)
        for path in listed(self._run.requests):
            if path.name in self._requests or not path.name.endswith(".json"):
                continue
            self._requests.add(path.name)
            request = read_json(path)
            event = event_of(request, now, str(request.get("who", "somebody")), path.name)
            if event is not None:
                yield event


def _from_journal(now: float, attempt: str, record: dict[str, object]) -> ev.Event | None:
    """Return the event of a line of the launcher's journal; None if the core need not know it."""
    known = {"launch": 0, "nodes": [], "idle": [], "world_size": 0, **record, "at": now, "attempt": attempt}
    try:
        if record.get("type") == "launch":
            return build(ev.LaunchSeen, known)
        if record.get("type") == "withheld" and isinstance(outcome := record.get("outcome"), dict):
            return build(ev.OutcomeSeen, {**outcome, "at": now, "attempt": attempt})
        if record.get("type") == "job_step":
            return build(ev.JobStepDone, known)
        if record.get("type") == "report" and record.get("what") in NO_NUMBER and not record.get("over"):
            return build(ev.RecoverySeen, {**known, "incident": "", "what": "report", "cause": record["what"]})
        return build(ev.RecoverySeen, known) if record.get("type") == "recovery" else None
    except BadRecord:
        return None  # another version's launcher
