"""What comes next: planned saves, operations in progress, transom's next actions, the user's commands. Pure."""

import math
import shlex
from collections.abc import Iterable
from pathlib import Path

from transom_cli.ckpt.progress import CHECKING, WRITING, Part
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.core.category import OWN_ERRORS
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.journal_times import RECENT
from transom_cli.core.operator.actions import Isolate, Probe, ReadLogs
from transom_cli.core.operator.state import Phase, State
from transom_cli.errors import NoCheckpoint, StateDiffers
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import RunDir
from transom_cli.plural import several, was
from transom_cli.slurm.port import cluster_command
from transom_cli.slurm.port import release_commands as let_go_on
from transom_cli.view.model import NextStep, Operation, PlannedSave, RunView
from transom_cli.view.text import count, size_of, some, span

SHORT = 2.0  # seconds: shorter operations end before anybody reads about them
FREQUENT = 10.0  # seconds: saves that follow each other faster are not announced
LONG, MANY = 60.0, 10  # seconds, or steps, over which a step time is computed
_BUSY_PHASES = {"restore": "restoring", "checkpoint": "saving"}  # phases that ranks report


def step_time(steps: tuple[tuple[float, int], ...], last: tuple[float, int] | None = None) -> float | None:
    """Return seconds per step over the last 15 minutes.

    Args:
        steps: (time, step) by the operator's clock.
        last: The newest step of all and its time, by another clock. It is used if `steps` has one entry, or if it shows
            that the newest of them, which the operator may read a minute late, was done earlier.

    Times of `steps` are those at which the operator read them, so a stalled file system delays them. A few steps within
    a short time give no figure.
    """
    points = [*steps, last] if last is not None and len(steps) == 1 else [*steps]
    if last is not None and len(steps) > 1 and steps[-1][1] == last[1] and steps[-2][0] < last[0] < steps[-1][0]:
        points[-1] = last
    if len(points) < 2:
        return None
    end, step = points[-1]
    began, first = next((p for p in points[:-1] if end - p[0] <= RECENT), points[-2])
    if points[-1] is not last and end - began < LONG and step - first < MANY:
        return None
    return (end - began) / (step - first) if step > first and end > began else None


# --- saves and restores ---


def operations(parts: Iterable[Part], directory: str, durable: int, now: float) -> tuple[Operation, ...]:
    """Describe saves and restores in progress.

    parts: Progress summed over all nodes. directory: The training's checkpoint directory; any other is a copy.
    durable: The newest step on disk: a node that died while it saved an older one never says that it ended.
    """
    found = []
    for part in parts:
        what, title = _part_title(part, directory)
        if now - part.began < SHORT or (what == "saving" and part.step <= durable):
            continue
        checked = " checked" if part.what == CHECKING else ""
        share = f": {size_of(part.done, part.of)}{checked}" if part.of else ""
        message = f"{title}{share}, {span(now - part.began)} so far"
        found.append(Operation(what, part.step, message, part.began, part.done, part.of, "bytes"))
    return tuple(found)


def rank_operation(ranks: Iterable[RankBeat], *, first: bool = False) -> Operation | None:
    """Describe a save or restore from the phases that ranks report, if nothing reports bytes.

    first: It is the first start, and no checkpoint is known.
    """
    every = list(ranks)
    for phase, what in _BUSY_PHASES.items():
        busy = [r for r in every if r.phase == phase and r.age >= SHORT]
        if busy:
            doing = "looking for" if first and what == "restoring" else what
            message = f"{doing} a checkpoint: {count(len(busy))} of {several(len(every), 'rank')}"
            return Operation(what, -1, message, None, len(busy), len(every), "ranks")
    return None


def _part_title(part: Part, directory: str) -> tuple[str, str]:
    step, elsewhere = f"step {count(part.step)}", part.place if part.place != directory else ""
    if part.what == WRITING:
        return ("copying", f"copying {step} to {elsewhere}") if elsewhere else ("saving", f"saving {step} to disk")
    return "restoring", f"restoring {step} from {elsewhere or ('disk' if part.place else 'memory')}"


def planned_saves(
    coming: NextSaves, step: int, step_time: float | None, stepped: float | None, now: float
) -> tuple[PlannedSave | None, PlannedSave | None]:
    """Return the next save and the next save to disk; None if unknown or too frequent to announce.

    step: The last finished step; `stepped` is when it finished (Unix time). step_time: Seconds per step.
    """
    following = coming.after(step)
    pace = step_time if stepped is not None else None

    def planned(then: int) -> PlannedSave:
        at = stepped + (then - step) * pace if stepped is not None and pace is not None else None
        return PlannedSave(then, at if at is not None and at > now else None)  # no time if the training is late

    to_disk = coming.durable_after(step)
    if to_disk is None and coming.durable_from is not None and pace and stepped is not None:  # scheduled by time
        waits = coming.durable_from - stepped - (following - step) * pace
        to_disk = following + coming.every * max(0, math.ceil(waits / (coming.every * pace)))
    apart = coming.every * pace if pace is not None else FREQUENT
    soon = to_disk is not None and coming.durable is not None and apart * (coming.persist or 1) < FREQUENT
    return None if apart < FREQUENT else planned(following), None if to_disk is None or soon else planned(to_disk)


def planned_saves_line(save: PlannedSave | None, durable: PlannedSave | None, now: float) -> str:
    """Return `next save in 40 s, to disk in 6m 12s`; "" if nothing is known."""
    if save is not None and durable is not None and save.step == durable.step:
        return f"next save {_when(save, now)}, also to disk"
    to_disk = f"to disk {_when(durable, now)}" if durable is not None else ""
    if save is None:
        return f"next save {to_disk}" if to_disk else ""
    return ", ".join(x for x in (f"next save {_when(save, now)}", to_disk) if x)


def _when(save: PlannedSave, now: float) -> str:
    return f"at step {count(save.step)}" if save.at is None else f"in {span(save.at - now)}"


# --- transom's next actions ---


def next_steps(
    state: State,
    limit_at: float | None,
    *,
    warned: bool,
    hung_at: float | None = None,
    operator: bool = True,
    launcher: bool = True,
    listens: bool | None = None,
    preflight: bool = False,
    memory: int = -1,
) -> tuple[NextStep, ...]:
    """Return what transom does next.

    Args:
        limit_at: When the job reaches its time limit (Unix time).
        warned: The ranks save before the time limit, and the run continues.
        hung_at: When a launch without a step counts as hung (Unix time).
        operator: An operator is alive.
        launcher: The script starts a launcher; without one, nobody sees the ranks.
        listens: The ranks save on request; None: not known yet.
        preflight: The launcher checks the nodes before it starts the ranks.
        memory: The newest step in node memory.
    """
    if state.phase.over or state.phase is Phase.HELD:
        return ()
    if state.phase is Phase.STOPPING:
        if state.job.completing:
            return (NextStep("all is over but Slurm's clean-up (COMPLETING), which can take minutes on a dead node"),)
        return (NextStep("cancelling the job; the run ends when Slurm confirms it"),)
    if state.phase is Phase.FINISHING:
        return (NextStep("training finished; waiting for Slurm to end the job"),)
    if state.ends:
        return (NextStep("the job has ended; waiting for Slurm to remove its processes"),)
    leaving = state.launch.leaving
    if leaving is not None and leaving.why == "stop_request" and state.incident is None:
        return (NextStep("the attempt ends; the job is requeued, and the run continues from the newest checkpoint"),)
    found = [_incident_step(state, state.incident, memory)] if state.incident is not None else []
    if state.phase is Phase.SUBMITTING:
        found.append(NextStep("submitting the job" if operator else "the operator will submit the job"))
    if state.phase is Phase.STARTING:
        known = state.progress.max_step >= 0  # else transom may not see this trainer's steps
        without = "the launch counts as hung" if known else "this screen and a notification say so"
        first = NextStep(f"the ranks start Python, then a first step; without it, {without}", hung_at)
        if state.launch.late:
            first = NextStep(f"{state.launch.late}; transom does nothing about it")
        ranks = f"the launcher {'checks the nodes, then it ' * preflight}starts the ranks"
        ranks = ranks if launcher else "script running, steps not visible"
        found.append(_lost_at_start(state) or first if state.launch.started else NextStep(ranks))
    if limit_at is not None:
        then = "all ranks save, and the run continues in its next attempt" if warned else "Slurm ends the attempt"
        # without a Checkpointer and a callback, steps are usually counted from the start
        if warned and (state.progress.since_start if listens is None else not listens):
            then = "the ranks get SIGUSR2; the next attempt continues from what the trainer has saved"
        found.append(NextStep("time limit", limit_at, then))
    return tuple(found)


def _lost_at_start(state: State) -> NextStep | None:
    """A node of a launch without a step is dead, or does not answer: the launch does not wait for its limit."""
    own = state.carrying
    since = state.job.running_since or 0.0
    lost = tuple(n for n in own if any(x.node == n and x.since >= since for x in state.avoided))
    if lost:
        isolated = f"{some(lost)} {was(len(lost), 'is', 'are')} isolated"
        return NextStep(f"{isolated}: the launcher ends this launch, and starts the ranks on other nodes if it can")
    silent = tuple(a.node for a in state.pending if isinstance(a, Probe) and a.node in own)
    return NextStep(f"probing {some(silent)}, then the launch continues or is ended") if silent else None


def _incident_step(state: State, incident: Incident, memory: int) -> NextStep:
    if incident.stage is Stage.WITHHELD:
        return NextStep(f"{incident.id}: nothing, since the run is only observed; Slurm or you decide")
    stage, pending = incident.stage, [a for a in state.pending if a.key.startswith(f"{incident.id}/")]
    if stage is Stage.RELAUNCHING:
        return NextStep(f"{incident.id}: the launcher relaunches the ranks or swaps a node within this allocation")
    if stage is Stage.EXAMINING:
        nodes = tuple(a.node for a in pending if isinstance(a, Probe))
        doing = [f"probing {some(nodes)}"] if nodes else []
        doing += ["reading the logs"] if any(isinstance(a, ReadLogs) for a in pending) else []
        return NextStep(f"{incident.id}: {' and '.join(doing) or 'looking for the cause'}, then a decision")
    if stage is Stage.ISOLATING:
        nodes = tuple(a.node for a in pending if isinstance(a, Isolate))
        return NextStep(f"{incident.id}: isolating {some(nodes) or 'the nodes at fault'}, then a restart")
    if stage is Stage.WAITING:
        return NextStep(f"{incident.id}: restart after the back-off", incident.not_before)
    if stage is Stage.RESTARTING:
        without = f" without {some(state.isolation.excluded)}" if state.isolation.exclusions else ""
        return NextStep(f"{incident.id}: requeueing the job{without}")
    if incident.marks and incident.marks[-1].what == "waiting":  # the launcher's srun cannot create the step
        target = "slurmctld, which is needed to start ranks" if state.slurm_error else "Slurm to start the ranks"
        return NextStep(f"{incident.id}: waiting for {target}")
    durable = state.progress.durable
    sources = [f"step {memory:,} in node memory"] if memory > durable else []
    sources += [f"checkpoint {durable:,}"] if durable >= 0 else []
    back = f", from {' or '.join(sources)}" if sources else ""
    target = "Slurm to start the job" if state.job.state == "PENDING" else f"the next step{back}"
    return NextStep(f"{incident.id}: waiting for {target}")


# --- the user's commands ---


def next_commands(view: RunView) -> list[tuple[str, str]]:
    """Return (label, command) for what the user can do. Run IDs need no quotes; paths are quoted."""
    run, status, job = view.run_id, view.confirmed, view.job_id
    explain, stop = ("details", f"transom explain {run}"), ("stop", f"transom stop {run}")
    attach = [("attach", f"transom attach {run}")] if not view.operator and not view.over and not view.owner else []
    if view.operator_pending:  # a second operator would only wait for the first
        attach = [("check", cluster_command(f"squeue --start -j {view.operator_job}", view.cluster))]
    root = [("root cause", view.root_line)] if view.root_line else []
    if view.status == "failing":
        return [*attach, explain, ("output", f"transom logs {run}"), *root]
    if view.status == "crash loop":
        return [*attach, explain, ("output", f"transom logs {run}"), *root, stop]
    if view.status == "starved":
        lift = [("use again", f"transom nodes --lift {node}") for node in view.to_lift]
        return [*attach, *lift, ("all nodes", "sinfo -R"), stop]
    if status == "held" and job and view.observed:
        return [explain, ("requeue", cluster_command(f"scontrol requeue {job}", view.cluster)), stop]
    if status == "held" and job:
        excluded = tuple(node for node, *_ in view.excluded)
        return [explain, *release_commands(job, view.slurm_reason, excluded, view.cluster), stop]
    if status == "unknown":
        return [*attach, ("ask Slurm", cluster_command(f"scontrol show job {job}", view.cluster))] if job else attach
    if status == "pending":
        return [*attach, *_pending_commands(view), stop]
    if status == "submitting" and view.operator_pending:
        return [*attach, stop]
    if status == "submitting" and view.path:
        return [*attach, ("its log", f"tail {shlex.quote(str(RunDir(Path(view.path)).operator_log))}")]
    if status == "starting" and view.path:
        return [*attach, ("output", f"transom logs -f {run}")]
    if status == "recovering":
        return [*attach, explain, *root, *_pending_commands(view)]
    if status in ("failed", "stopped"):
        command = continue_command(view)
        gone = f"   # a new run: without {some(view.missing_files)}, this one cannot be resumed"
        mend = "   # once mended" if ended_by_program(view) else ""
        further = [("continue", command + (gone if view.missing_files else mend))] if command else []
        if not command and view.bad_resume is not None:
            further = [("check", f"transom ckpt ls {run}")]
            if command := forced_command(view):
                further.append(("continue", f"{command}   # {FORCED}"))
        further += [("output", f"transom logs {run}")] if job and view.path else []
        further += root
        if view.exit_code == StateDiffers.exit_code:
            further = [("check", f"transom ckpt verify --deep {run}")]
        if view.exit_code == NoCheckpoint.exit_code:
            further = [("check", f"transom ckpt verify {run}")]
        return [explain, *further] if view.incidents else further
    if status == "done" and view.durable >= 0:
        return [("the result", f"transom ckpt ls {run}")]
    return attach


def release_commands(job_id: int, reason: str, excluded: tuple[str, ...], cluster: str = "") -> list[tuple[str, str]]:
    """Return (label, command) that release a held job."""
    commands = let_go_on(job_id, reason, excluded, cluster)
    return [("release" if label == "continue" else label, command) for label, command in commands.items()]


def _pending_commands(view: RunView) -> list[tuple[str, str]]:
    """For a queued job: ask for Slurm's estimate, and accept a start on any switch."""
    if not view.job_id or view.slurm_state != "PENDING":
        return []
    check = [("check", cluster_command(f"squeue --start -j {view.job_id}", view.cluster))]
    if view.switches and view.slurm_reason == "Resources":  # Slurm 22.05 accepts switches=0 but keeps waiting
        return [
            *check,
            ("any switch", cluster_command(f"scontrol update jobid={view.job_id} switches=999", view.cluster)),
        ]
    return check


def ended_by_program(view: RunView) -> bool:
    """Whether an error of the program ended the run, so that it would end in the same way again."""
    newest = view.incidents[0] if view.incidents else None
    return view.phase == "failed" and newest is not None and newest.category in OWN_ERRORS


FORCED = "from the bad state; or start a new run"


def forced_command(view: RunView) -> str:
    """Return what continues a run that has no checkpoint from before its NaN loss; "" for any other run."""
    bad = view.bad_resume
    again = view.phase in ("failed", "stopped") and not view.observed and not view.owner and not view.missing_files
    return f"transom resume {view.run_id} --force" if again and bad is not None and bad.instead < 0 else ""


def how_to_continue(view: RunView) -> str:
    """Return the command that continues a run that is over, and from what state; "" if nothing can be done."""
    if command := forced_command(view):
        return f"to continue: `{command}` continues {FORCED}"
    command = continue_command(view)
    return f"to continue: `{command}`" if command else ""


def continue_command(view: RunView) -> str:
    """Return the command that continues a run that is over; "" if it would end in the same way."""
    refused = (NoCheckpoint.exit_code, StateDiffers.exit_code)
    again = view.phase in ("failed", "stopped") and not view.observed and not view.owner
    if not again or view.exit_code in refused:
        return ""
    if view.bad_resume is not None:  # the newest checkpoint may be of a state with NaN
        instead = view.bad_resume.instead
        return f"transom resume {view.run_id} --from {instead}" if instead >= 0 and not view.missing_files else ""
    if not view.missing_files:
        return f"transom resume {view.run_id}"
    begin = f" --set checkpoint.directory={shlex.quote(view.checkpoints)}" if view.durable >= 0 else ""
    return f"transom run{begin} -- COMMAND"
