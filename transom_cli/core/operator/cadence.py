"""How often Slurm is asked about a run's job. Pure.

Files tell the operator almost everything: the launcher's journal reports a start, its outcome reports the end, and its
sign of life shows that it is there. So Slurm is asked often only while a decision waits for its answer (`urgent`), and
at once when a launcher falls silent. A job that was just submitted or requeued, or has just started, is worth two
questions, which runs of one user share: 600 runs of 100 users may start in the same second. One run per user must stay
below two calls a minute while nothing happens.
"""

from dataclasses import dataclass

from transom_cli.core.incident import Stage
from transom_cli.core.operator.state import Phase, State

FAST = 60.0  # seconds after a change in which an urgent question is repeated often
GROWTH = 0.5  # then the pause is this share of the time since the change
AGAIN = 10.0  # seconds from a change that is not urgent to the second question about it, a third less or more
SHARED = 20.0  # seconds from one list of a user's jobs to the next that is not urgent
SHARE, FAST_SHARE = 0.01, 0.1  # most of the time that is spent waiting for slurmctld
LONGEST = 600.0  # seconds, however slow Slurm answers
AGE = 30.0  # seconds: an answer that another run got is new enough while nothing happens


@dataclass(frozen=True)
class Pause:
    seconds: float  # until the next question
    age: float  # how old, in seconds, an answer to another run's question may be then


@dataclass(frozen=True)
class Cadence:
    """Seconds between two questions."""

    # between two urgent questions, just after a change; and before the first question that is not urgent, up to twice
    # as long, so that runs of a user that change together share it
    first: float = 1.0
    blind: float = 30.0  # while the job runs and no launcher gives a sign of life, up to a third more
    calm: float = 90.0  # while the job waits, or runs under a living launcher: a third less to a third more
    held: float = 300.0  # while the job is held, up to a third more

    def delay(self, state: State, *, silent: bool, spread: float, rest: float) -> float:
        """Return in how many seconds to ask after a change. silent, spread, rest: as in `pause`."""
        return 0.0 if urgent(state, silent=silent) else max(self.first * (1 + spread), rest)

    def pause(
        self,
        state: State,
        *,
        since: float,
        launcher_lives: bool,
        took: float,
        spread: float,
        silent: bool = False,
        rest: float = 0.0,
    ) -> Pause:
        """Return when to ask next.

        Args:
            since: seconds since the last change (`changes`).
            launcher_lives: the launcher of the present attempt gives signs of life.
            took: seconds that Slurm needed for the last answer.
            spread: a random number from 0 to 1, so that runs do not ask at the same time.
            silent: the launcher gave signs of life, and gives none any more.
            rest: seconds until `SHARED` is over, if several runs share the answers.
        """
        if since < FAST and urgent(state, silent=silent):
            return _no_older(max(self.first, GROWTH * since, took / FAST_SHARE))
        if since < AGAIN / 2 and not launcher_lives and not state.restarting:
            return _no_older(max(self.first, AGAIN * _third(spread) - since, took / FAST_SHARE, rest))
        if state.phase is Phase.HELD:
            seconds = self.held * (1 + spread / 3)
        elif launcher_lives or state.job.state == "PENDING":
            seconds = self.calm * _third(spread)
        else:
            seconds = self.blind * (1 + spread / 3)
        return Pause(min(max(seconds, took / SHARE), LONGEST), max(AGE, seconds / 2))


def _third(spread: float) -> float:
    """From a third less to a third more."""
    return (2 + 2 * spread) / 3


def _no_older(seconds: float) -> Pause:
    """The answer must be newer than this pause."""
    seconds = min(seconds, LONGEST)
    return Pause(seconds, seconds)


def urgent(state: State, *, silent: bool) -> bool:
    """Return whether a decision may wait for Slurm's answer.

    So it is while an incident is examined, a run ends, or a silent launcher may have ended with its job; and while a
    job waits that Slurm may be unable to start without suspected nodes, or with nodes for its spares.
    """
    incident = state.incident
    examined = incident is not None and incident.stage not in (Stage.RELAUNCHING, Stage.RESTARTING, Stage.STARTING)
    ends = state.phase in (Phase.STOPPING, Phase.FINISHING)
    demands = bool(state.isolation.suspected) or (
        state.request.least < state.request.num_nodes and incident is not None
    )
    limited = demands and state.job.state == "PENDING"
    return (examined or ends or silent or limited) and not state.restarting


def new_enough(age: float, took: float) -> float:
    """Return how old an answer may be that one question got for all runs of a user: older, the slower Slurm answers.

    age: as in `Pause`; 0 if something has just happened. took: seconds that Slurm needed for that answer.
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
