"""Moments of a run that its state does not keep, collected from the operator's journal event by event. Pure."""

from dataclasses import dataclass

from transom_cli.core import events as ev
from transom_cli.layout import parse_attempt

RECENT = 900.0  # seconds over which the step time is averaged
_MANY = 64  # steps that are kept before the old ones are dropped


@dataclass
class JournalTimes:
    """Moments from the journal (Unix time); None: unknown."""

    begun: float | None = None  # the first event
    submitted: float | None = None
    durable_step: int = -1
    durable: float | None = None  # when the newest checkpoint on disk was seen; `durable_step` is its step
    attempt: str = ""  # the current attempt, which the following fields describe
    running: float | None = None  # when Slurm started it
    launched: float | None = None  # when its newest launch was seen
    # (time, step) since its last launch: at least those of the last `RECENT` seconds
    steps: tuple[tuple[float, int], ...] = ()

    def hear(self, event: ev.Event, attempt: str) -> None:
        """Take in the next event. attempt: the current one, after the event."""
        if attempt != self.attempt:
            self.attempt, self.running, self.launched, self.steps = attempt, None, None, ()
        if self.begun is None:
            self.begun = event.at
        if isinstance(event, ev.StepSeen):
            if event.attempt == attempt:
                self.stepped(event)
        elif isinstance(event, ev.CheckpointSeen):
            self.saved(event.at, event.step)
        elif isinstance(event, ev.OutcomeSeen):
            self.saved(event.at, event.durable)
        elif isinstance(event, ev.Resumed) and event.back_to >= 0:
            self.durable_step, self.durable = event.back_to, None
        elif isinstance(event, ev.Submitted):
            self.submitted = event.at if self.submitted is None else self.submitted
        elif isinstance(event, ev.LaunchSeen) and event.attempt == attempt:
            self.steps, self.launched = (), event.at
            self.running = event.at if self.running is None else self.running
        elif isinstance(event, ev.JobSeen) and event.state == "RUNNING" and self.running is None:
            ours = (event.job_id, event.restarts) == parse_attempt(attempt or "0.0")
            self.running = event.at if ours else None

    def saved(self, at: float, step: int) -> None:
        """Take in a checkpoint on disk."""
        if step > self.durable_step:
            self.durable_step, self.durable = step, at

    def stepped(self, event: ev.StepSeen) -> None:
        """Take in a step of the current attempt."""
        if self.steps and event.step < self.steps[-1][1]:  # the way of counting steps has changed
            self.steps = ()
        self.steps = (*self.steps, (event.at, event.step))
        if len(self.steps) > _MANY:
            recent = tuple(one for one in self.steps if event.at - one[0] <= RECENT)
            self.steps = recent if len(recent) > 1 else self.steps[-2:]
