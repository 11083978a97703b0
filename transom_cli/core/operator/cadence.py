"""How often Slurm is asked about a run's job. Pure.

Files tell the operator almost everything: the launcher's journal reports a start, its outcome reports the end, and its
sign of life shows that it is there. So Slurm is asked often only just after something changed, and at once when a
launcher falls silent. One run per user must stay below two calls a minute while nothing happens.
"""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.core.incident import Stage
from transom_cli.core.operator.state import Phase, State

FAST = 60.0  # seconds after a change
GROWTH = 0.5  # while fast: the pause, as a share of the time since the change
SHARE, FAST_SHARE = 0.01, 0.1  # most of the time that is spent waiting for slurmctld
LONGEST = 600.0  # seconds, however slow Slurm answers
AGE = 30.0  # seconds: an answer that another run got is new enough while nothing happens


@dataclass(frozen=True)
class Pause:
    """seconds: until the next question. age: how old, in seconds, an answer to another run's question may be then."""

    seconds: float
    age: float


@dataclass(frozen=True)
class Cadence:
    """Seconds between two questions.

    Attributes:
        first: just after a change.
        blind: while the job runs and no launcher gives a sign of life, up to a third more.
        calm: while the job waits, or runs under a living launcher: a third less to a third more.
        held: while the job is held, up to a third more.
    """

    first: float = 1.0
    blind: float = 30.0
    calm: float = 90.0
    held: float = 300.0

    def pause(self, state: State, *, since: float, launcher_lives: bool, took: float, spread: float) -> Pause:
        """Return when to ask next.

        Args:
            since: seconds since the last change (`changes`).
            launcher_lives: the launcher of the present attempt gives signs of life.
            took: seconds that Slurm needed for the last answer.
            spread: a random number from 0 to 1, so that runs do not ask at the same time.
        """
        if since < FAST and not state.restarting:
            seconds = max(self.first, GROWTH * since, took / FAST_SHARE)
            return Pause(min(seconds, LONGEST), min(seconds, LONGEST))
        if state.phase is Phase.HELD:
            seconds = self.held * (1 + spread / 3)
        elif launcher_lives or state.job.state == "PENDING":
            seconds = self.calm * (2 + 2 * spread) / 3
        else:
            seconds = self.blind * (1 + spread / 3)
        return Pause(min(max(seconds, took / SHARE), LONGEST), max(AGE, seconds / 2))


def new_enough(age: float, took: float) -> float:
    """Return how old an answer may be that one question got for all runs of a user: older, the slower Slurm answers.

    Args:
        age: as in `Pause`; 0 if something has just happened.
        took: seconds that Slurm needed for that answer.
    """
    share = SHARE if age >= AGE else FAST_SHARE
    return min(max(age, took / share), LONGEST) if age else 0.0


def changes(state: State) -> tuple[object, ...]:
    """Return what makes Slurm worth asking again when it changes: the attempt, an open incident, orders.

    A relaunch in the same allocation is the launcher's: Slurm knows nothing of it.
    """
    incident = state.incident
    stage = (incident.id, incident.stage) if incident is not None and incident.stage is not Stage.RELAUNCHING else None
    ending = state.phase if state.phase in (Phase.STOPPING, Phase.FINISHING) else None
    return state.attempt, stage, ending, tuple(action.key for action in state.pending)
