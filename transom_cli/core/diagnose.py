"""From an incident's findings to a diagnosis: cause, suspects, confidence, and restart or stop. Pure.

The default is restart; a stop needs evidence. A node is blamed for good (drained where that is allowed) only when its
slurmd failed two probes or a check has proven a fault of it; a check's suspicion, and a mere repeat on the same node,
exclude it for a while.
"""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.category import OWN_ERRORS, OWN_WORDS
from transom_cli.core.events import NodeFault, RankExit
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator.state import State

PREFLIGHT = "preflight"  # the launcher's checks left too few good nodes to begin with
NODE_FAULT = "node_fault"  # a check found it, beside a training
SLOW, DIVERGED = REPORTED = ("slow", "diverged")  # a training that stepped was ended for what the policy saw in it
DO_NOT_RESTART = 93  # a trainer's own word, as in NVIDIA's resiliency tools
NO_CHECKPOINT = 15
WRONG_WORLD = 17  # of a rank, as its first heartbeat finds it (beats.world)
RUN_DIR_UNSEEN = 14
CANNOT_RUN = (126, 127)  # of a command, as shells tell it, and the ranks' wrapper too
UNKNOWN = 22
CAUSES = (
    *("node_lost", "node_silent", "node_fail", "node_fault", "boot_fail", "launch_failure", "preflight"),
    *("rank_killed", "rank_failed", "job_failed", "hang", "user_error", "host_oom", "unknown_end"),
    *("do_not_restart", "no_checkpoint", "run_dir_unseen"),
    *("time_limit", "preempted", "maintenance", "isolated_nodes", "left"),
    *REPORTED,
)
"""Every cause that a diagnosis can name."""
TOLD_BY_CODE = ("do_not_restart", "no_checkpoint", "run_dir_unseen")  # exit codes of ours, whichever rank has them
SOON = 300.0  # seconds after its start in which a script whose steps nobody sees counts as before its first one
TOLD = 3  # faults that a diagnosis names, of more

_SPLIT = "the ranks do not form the world that was launched; the log of this rank says why, and what to do"
_WHY = {126: "the command may not be executed", 127: "there is no such command"}
_ENDINGS = {
    "TIMEOUT": ("time_limit", "the job reached its time limit"),
    "PREEMPTED": ("preempted", "the job was preempted"),
    "OUT_OF_MEMORY": ("host_oom", "the job ran out of host memory"),
    "BOOT_FAIL": ("boot_fail", "a node did not boot"),
    "NODE_FAIL": ("node_fail", "Slurm reports a node failure"),
}


def first_bad(exits: tuple[RankExit, ...]) -> RankExit | None:
    """The rank that died first. Ranks killed by the step's own end (TERM, KILL) come later in time."""
    bad = [x for x in exits if x.bad]
    return min(bad, key=lambda x: (x.wall, x.rank), default=None)


def diagnose(incident: Incident, state: State) -> Diagnosis | None:
    """None: there was nothing after all (the sign went away and everything answers)."""
    exits = incident.outcome.exits if incident.outcome else ()
    first = first_bad(exits)
    diagnosis = (
        _node_lost(incident)
        or _told_to_stop(exits, incident, state)
        or _left(incident)
        or _reported(incident)
        or _node_fault(incident, state)
        or _user_error(incident, state, first)
        or _node_unreachable(incident)
        or _never_started(incident, state)
        or _slurm_ended(incident)
        or _rank_ended(incident, state, first)
        or _hang(incident, state)
    )
    return _with_faults(diagnosis, incident.faults) if diagnosis is not None else None


def _with_faults(diagnosis: Diagnosis, faults: tuple[NodeFault, ...]) -> Diagnosis:
    """Whatever the cause is, the nodes that checks speak against are to blame as well, each by its own fault.

    Of a lost node a mere suspicion says nothing more.
    """
    lost = diagnosis.nodes if diagnosis.isolate == "drain" else ()
    faults = tuple(f for f in faults if f.proven or f.node not in lost)
    if not faults:
        return diagnosis
    new = [f"{f.node}: {f.words}" for f in faults if f.evidence not in diagnosis.words]
    told = [diagnosis.words, *new[:TOLD]] + ([f"and {len(new) - TOLD} more"] if len(new) > TOLD else [])
    nodes = tuple(dict.fromkeys((*diagnosis.nodes, *(f.node for f in faults))))
    # nodes that were to blame and not to be isolated stay so: only those with a fault are
    return replace(diagnosis, words="; ".join(x for x in told if x), nodes=nodes, faults=faults)


def _node_lost(incident: Incident) -> Diagnosis | None:
    dead = [look for look in incident.looks if look.dead]
    if not dead:
        return None
    names = tuple(look.node for look in dead)
    words = f"{', '.join(names)} lost: {dead[0].evidence}"
    return Diagnosis("node_lost", words, names, sure=True, isolate="drain", restart=True)


def _node_unreachable(incident: Incident) -> Diagnosis | None:
    """Nobody but one host has found that these nodes are gone, so they are suspected.

    That host is the operator's, or the batch host: the launcher blames the node, and no probe could tell anything.
    """
    looks = [look for look in incident.looks if look.suspected]
    blamed = incident.outcome.blamed if incident.outcome is not None else ()
    told = [look for look in incident.looks if look.open and incident.outcome is not None]
    told = [look for look in told if look.node in blamed and look.node in incident.outcome.missing]  # type: ignore[union-attr]
    if not looks and not told:
        return None
    names = tuple(dict.fromkeys(look.node for look in (*looks, *told)))
    if looks:
        why = looks[0].evidence
    else:
        why = f"the launcher does not reach it ({incident.outcome.why})" if incident.outcome else ""
    return Diagnosis("node_silent", f"{', '.join(names)} silent: {why}", names, False, "exclude", restart=True)


def _told_to_stop(exits: tuple[RankExit, ...], incident: Incident, state: State) -> Diagnosis | None:
    codes = {x.code for x in exits} | {incident.exit_code}
    told = (
        (DO_NOT_RESTART, "do_not_restart", "the trainer ended with 93: do not restart", 1),
        (WRONG_WORLD, "do_not_restart", _SPLIT, 1),
        (NO_CHECKPOINT, "no_checkpoint", "checkpoints exist, but none of them restores", NO_CHECKPOINT),
        (RUN_DIR_UNSEEN, "run_dir_unseen", "a node cannot see or write the run directory", RUN_DIR_UNSEEN),
    )
    for code, cause, words, exit_code in told:
        if code in codes:
            where = next((f" ({x.words})" for x in exits if x.code == code), "")
            if code == RUN_DIR_UNSEEN and max(state.max_step, state.durable) >= 0:
                return _unseen_now(exits, cause, words + where)
            return Diagnosis(cause, words + where, (), sure=True, isolate="none", restart=False, exit_code=exit_code)
    return None


def _unseen_now(exits: tuple[RankExit, ...], cause: str, words: str) -> Diagnosis:
    """It was seen before: a disk in need, if no node sees it; else it is those nodes'."""
    blind = {x.node for x in exits if x.code == RUN_DIR_UNSEEN}
    some = tuple(sorted(blind)) if blind < {x.node for x in exits} else ()
    return Diagnosis(cause, words, some, sure=False, isolate="exclude" if some else "none", restart=True)


def _left(incident: Incident) -> Diagnosis | None:
    """The launcher ended the attempt on purpose, to go on in another one."""
    outcome = incident.outcome
    if outcome is None or outcome.status != "left":
        return None
    blamed = outcome.suspects if outcome.cause in ("isolated_nodes", PREFLIGHT) else ()
    how = "exclude" if blamed else "none"
    return Diagnosis(outcome.cause or "left", outcome.why, blamed, sure=not blamed, isolate=how, restart=True)


def _reported(incident: Incident) -> Diagnosis | None:
    """The launcher's word stands; which node is to blame for a slow training, if one is, its faults tell."""
    outcome = incident.outcome
    if outcome is None or outcome.cause not in REPORTED:
        return None
    return Diagnosis(outcome.cause, outcome.why, (), sure=False, isolate="none", restart=True)


def _node_fault(incident: Incident, state: State) -> Diagnosis | None:
    """A fault for which the launcher ended the launch, or a proven one of a node with ranks, explains what was seen."""
    told = incident.outcome or incident.diagnosis
    named = told is not None and told.cause == NODE_FAULT and bool(incident.faults)
    if not named and not any(f.proven and f.node not in state.idle for f in incident.faults):
        return None
    return Diagnosis(NODE_FAULT, "", (), sure=False, isolate="none", restart=True)


def _user_error(incident: Incident, state: State, first: RankExit | None) -> Diagnosis | None:
    """A Python traceback or a usage error before the run's very first step, or a command that no node could run: a
    restart would only say it again. Where one node alone cannot run it, that node is the likelier cause.
    """
    if state.max_step >= 0 or state.durable >= 0 or state.step >= 0:
        return None
    code = first.code if first else incident.exit_code
    exits = incident.outcome.exits if incident.outcome else ()
    usage = code == 2 or (bool(exits) and all(x.code in CANNOT_RUN for x in exits))
    silent = incident.outcome.why if incident.outcome and not first and code is None else ""  # srun failed by itself
    if not usage and not (incident.log_category in OWN_ERRORS and (code or silent)):
        return None
    if not state.launched and incident.outcome is None and incident.ran > SOON:
        return None  # a script without a launcher: it may have trained all that time, and nobody has seen its steps
    who = first.words if first else silent or f"the job ended with exit code {code}"
    line = incident.log_line or _WHY.get(code or 0, "a usage error (exit code 2)")
    words = who if line in who else f"{line} ({who}, before the first step)"
    return Diagnosis("user_error", words, (), sure=True, isolate="none", restart=False)


def _never_started(incident: Incident, state: State) -> Diagnosis | None:
    """Slurm could not even start the batch script: most often the node does not see the folder of the job's log.

    In a run's first attempt that is a mistake of set-up, which a restart would only repeat; later it is that node's.
    """
    if incident.ended != "FAILED" or state.launched or state.slurm_reason != "JobLaunchFailure":
        return None
    node = state.batch_host
    words = f"Slurm could not start the batch script on {node} (JobLaunchFailure); does it see the run directory?"
    first = state.starts == 0
    return Diagnosis(
        "launch_failure",
        words,
        () if first else (node,),
        sure=False,
        isolate="none" if first else "exclude",
        restart=not first,
        exit_code=RUN_DIR_UNSEEN,
    )


def _slurm_ended(incident: Incident) -> Diagnosis | None:
    if incident.ended in _ENDINGS:
        cause, words = _ENDINGS[incident.ended]
        return Diagnosis(cause, words, (), sure=True, isolate="none", restart=True)
    return None


def _rank_ended(incident: Incident, state: State, first: RankExit | None) -> Diagnosis | None:
    if first is None:
        if not incident.ended and (incident.outcome is None or incident.outcome.cause == "hang"):
            return None
        if incident.ended == "GONE" and not state.launched:
            words = "Slurm has forgotten the job, and nothing tells how it ended"
            return Diagnosis("unknown_end", words, (), False, "none", restart=False, exit_code=UNKNOWN)
        why = incident.outcome.why if incident.outcome else ""
        words = why or _job_ended(incident)
        told = incident.log_line and (incident.ended != "GONE" or incident.log_category not in ("", "unknown"))
        line = f": {incident.log_line}" if told and incident.log_line not in words else ""
        return Diagnosis("job_failed", words + line, (), sure=False, isolate="none", restart=True)
    cause = "rank_killed" if first.signal is not None else "rank_failed"
    line = f": {incident.log_line}" if incident.log_line and first.signal is None else ""
    own_words = incident.log_category in OWN_WORDS
    again = 0 if own_words or len(state.nodes) == 1 else _blamed_before(state, first.node)
    return Diagnosis(
        cause,
        first.words + line + (f"; {first.node} for the {again + 1}. time" if again else ""),
        () if own_words else (first.node,),
        sure=False,
        isolate="exclude" if again else "none",
        restart=True,
    )


def _job_ended(incident: Incident) -> str:
    if incident.ended == "GONE":
        return "Slurm no longer knows the job: slurmctld has lost it, or it ended long ago"
    return f"the job ended: {incident.ended} (exit code {incident.exit_code})"


def _hang(incident: Incident, state: State) -> Diagnosis | None:
    if not incident.quiet or incident.quiet_over:
        return None
    nodes = incident.quiet_nodes
    where = f" ({', '.join(nodes)} stand out)" if nodes else ""
    again = len(nodes) == 1 < len(state.nodes) and _blamed_before(state, nodes[0]) > 0
    last = f"step {incident.step}{' of this start' if incident.since_start else ''}"
    words = f"no rank has stepped since {last}{where}"
    return Diagnosis("hang", words, nodes, sure=False, isolate="exclude" if again else "none", restart=True)


def _blamed_before(state: State, node: str) -> int:
    """How many earlier incidents of this run blamed the node."""
    return sum(1 for i in state.incidents if i.diagnosis is not None and node in i.diagnosis.nodes)
