"""What happens next, and when. Pure: whoever acts by itself owes that to whoever looks on."""

from __future__ import annotations

from transom_cli.core.actions import Examine, Isolate, Probe
from transom_cli.core.state import Incident, Phase, Stage, State
from transom_cli.ui.view import Ahead
from transom_cli.ui.words import some


def ahead(
    state: State,
    limit_at: float | None,
    *,
    warned: bool,
    hung_at: float | None = None,
    operator: bool = True,
    launcher: bool = True,
) -> tuple[Ahead, ...]:
    """By the wall clock, limit_at: when the job's time is over; hung_at: when a launch without a step counts as hung.

    warned: the ranks save before the time limit, and the run goes on. operator: one is alive.
    launcher: the script starts one; else nobody sees its ranks.
    """
    if state.phase.over or state.phase is Phase.HELD:
        return ()
    if state.phase is Phase.STOPPING:
        return (Ahead("the job is being cancelled; the run is over when Slurm says that it has ended"),)
    if state.phase is Phase.FINISHING:
        return (Ahead("the training is done; waiting for Slurm to end the job"),)
    found = [_of_incident(state, state.incident)] if state.incident is not None else []
    if state.phase is Phase.SUBMITTING:
        found.append(Ahead("the job is being submitted" if operator else "the job is submitted by its operator"))
    if state.phase is Phase.STARTING:
        first = Ahead("waiting for the first step; a launch without one counts as hung", hung_at)
        ranks = "waiting for the ranks to be started" if launcher else "the script runs; of its steps nothing is seen"
        found.append(first if state.launched else Ahead(ranks))
    if limit_at is not None:
        then = "all ranks save, and the run goes on in its next attempt" if warned else "Slurm ends the attempt"
        found.append(Ahead("time limit", limit_at, then))
    return tuple(found)


def _of_incident(state: State, incident: Incident) -> Ahead:
    stage, asked = incident.stage, [a for a in state.pending if a.key.startswith(f"{incident.id}/")]
    if stage is Stage.HEALING:
        return Ahead(f"{incident.id}: the launcher relaunches the ranks, or swaps a node, in this allocation")
    if stage is Stage.EXAMINING:
        nodes = tuple(a.node for a in asked if isinstance(a, Probe))
        doing = [f"probing {some(nodes)}"] if nodes else []
        doing += ["reading the logs"] if any(isinstance(a, Examine) for a in asked) else []
        return Ahead(f"{incident.id}: {' and '.join(doing) or 'looking for the cause'}, then a decision")
    if stage is Stage.ISOLATING:
        nodes = tuple(a.node for a in asked if isinstance(a, Isolate))
        return Ahead(f"{incident.id}: isolating {some(nodes) or 'what is to blame'}, then a restart")
    if stage is Stage.WAITING:
        return Ahead(f"{incident.id}: restart after the back-off", incident.not_before)
    if stage is Stage.RESTARTING:
        without = f" without {some(state.excluded)}" if state.exclusions else ""
        return Ahead(f"{incident.id}: the job is being given back to Slurm{without}")
    if incident.marks and incident.marks[-1].what == "waiting":  # the launcher's word: srun could not ask for the step
        left = "slurmctld, without which no rank can be started" if state.slurm_lost else "Slurm to start the ranks"
        return Ahead(f"{incident.id}: waiting for {left}")
    back = f", from checkpoint {state.durable:,} or what is in memory" if state.durable >= 0 else ""
    pending = state.slurm_state == "PENDING"
    return Ahead(f"{incident.id}: waiting for {'Slurm to start the job' if pending else f'the first new step{back}'}")
