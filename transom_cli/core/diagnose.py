"""From an incident's findings to a diagnosis: cause, suspects, confidence, and restart or stop. Pure.

The default is restart; a stop needs evidence. A node is proven bad (drained where that is allowed) only when its
slurmd failed two probes or a check has proven a fault of it; a check's suspicion, or a second failure on the
same node, excludes it for a while.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from transom_cli.core.category import CRIES, OWN_ERRORS, OWN_WORDS, category_of
from transom_cli.core.clocks import failed_first
from transom_cli.core.crash_loop import comparable, repeats, same_ends
from transom_cli.core.events import Decided, NodeFault, RankExit, Taken
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.log_lines import fingerprint, is_ours
from transom_cli.core.policy import STOP, Facts, Rule, Verdict, decide_by, root_line
from transom_cli.diagnose.clue import Category
from transom_cli.plural import ordinal, several

PREFLIGHT = "preflight"  # the launcher's checks left too few good nodes to begin with
NODE_FAULT = "node_fault"  # a check found it, beside a training
SLOW, DIVERGED, CORRUPTED = REPORTED = (
    "slow",
    "diverged",
    "corrupted",
)  # a training that stepped was ended for what the policy saw in it
DO_NOT_RESTART = 93  # a trainer's own word, as in NVIDIA's resiliency tools
NO_CHECKPOINT = 15
STATE_DIFFERS = 18  # a trainer refuses a restored state that is not the saved one
OTHER_WORLD_SIZE = 19  # a trainer refuses a checkpoint of another number of ranks
WRONG_WORLD = 17  # of a rank, as its first heartbeat finds it (beats.world)
RUN_DIR_UNSEEN = 14
CANNOT_RUN = (126, 127)  # of a command, as shells and the rank wrapper report it
UNKNOWN = 22
UNWRITTEN = 120  # of Python, if it cannot flush its output as it ends
WORLD_SIZE, RESIZE = "world_size", "resize"  # no start can use the checkpoint; one on as many nodes as wrote it can
CAUSES = (
    *("node_lost", "node_silent", "node_fail", "node_fault", "boot_fail", "launch_failure", "preflight"),
    *("rank_killed", "rank_failed", "job_failed", "hang", "user_error", "host_oom", "unknown_end"),
    *("do_not_restart", "no_checkpoint", "state_differs", "run_dir_unseen", WORLD_SIZE, RESIZE),
    *("time_limit", "preempted", "maintenance", "isolated_nodes", "left", "requested"),
    *REPORTED,
)
"""Every cause that a diagnosis can name."""
TOLD_BY_CODE = (
    "do_not_restart",
    "no_checkpoint",
    "state_differs",
    "run_dir_unseen",
    WORLD_SIZE,
    RESIZE,
)  # exit codes of ours, whichever rank has them
CRASHES = frozenset((4, 7, 8, 9, 11))
"""Signals that no watchdog sends itself: ILL, BUS, FPE, KILL, SEGV. The peers' messages are consequences."""
KILL, TERM = 9, 15
SOON = 300.0  # seconds after its start in which a script whose steps nobody sees counts as before its first one
_BY_LINE = ("rank_failed", "rank_killed", "job_failed", "user_error", WORLD_SIZE, RESIZE)  # a rank's log explains them
TOLD = 3  # faults that a diagnosis names, of more

_UNWRITTEN = "Python could not write its last output: the disk of the log is full, or nothing reads it"
_SIZES = re.compile(r"(step-\S+ was written by (\d+) ranks?), and this training has (\d+)")  # `restore()` says so
_SPLIT = "the ranks do not form the world that was launched; the log of this rank says why, and what to do"
_WHY = {126: "the command may not be executed", 127: "there is no such command"}
_ENDINGS = {
    "TIMEOUT": ("time_limit", "the job reached its time limit"),
    "PREEMPTED": ("preempted", "the job was preempted"),
    "OUT_OF_MEMORY": ("host_oom", "the job ran out of host memory"),
    "BOOT_FAIL": ("boot_fail", "a node did not boot"),
    "NODE_FAIL": ("node_fail", "Slurm reports a node failure"),
}


SILENT = "the launcher is silent"
_SCRIPT = re.compile(r"the job ended: .*, its batch script by signal (\d+)")


@dataclass(frozen=True)
class RunFacts:
    """What a diagnosis needs to know of the run around an incident."""

    nodes: tuple[str, ...] = ()  # of the job
    carrying: int = 0  # how many of them carry ranks
    fewest: int = 0  # that may carry them; 0: always as many
    wanted: int = 0
    idle: tuple[str, ...] = ()  # those of them that carry no rank
    launched: bool = False  # the training step was started
    stopped: str = ""  # what the launcher wrote about a signal that ended the attempt
    step: int = -1  # the newest of this attempt
    max_step: int = -1  # of the run
    durable: int = -1  # the newest checkpoint's step
    starts: int = 0  # how often the job was started again
    slurm_reason: str = ""
    batch_host: str = ""
    incidents: tuple[Incident, ...] = ()
    taken: tuple[Taken, ...] = ()  # what was decided in earlier attempts
    rules: tuple[Rule, ...] = ()


def diagnose(incident: Incident, run: RunFacts) -> Diagnosis | None:
    """None: there was nothing after all (the sign went away and everything answers)."""
    exits = incident.outcome.exits if incident.outcome else ()
    found = _failed_first(incident)
    first = found[0] if found else None
    diagnosis = (
        _node_lost(incident)
        or _stopped_on_request(exits, incident, run)
        or _other_world_size(exits, incident, run)
        or _left(incident)
        or _signalled(incident, run)
        or _reported(incident)
        or _node_fault(incident, run)
        or _user_error(incident, run, first)
        or _node_unreachable(incident)
        or _never_started(incident, run)
        or _slurm_ended(incident)
        or _rank_ended(incident, run, first, found[1:])
        or _hang(incident, run)
    )
    return _with_faults(diagnosis, incident.faults) if diagnosis is not None else None


def _failed_first(incident: Incident) -> tuple[RankExit, ...]:
    """The ranks that may have failed first. If the clocks do not show the order, the one whose log has the cause."""
    candidates = failed_first(incident.outcome.exits if incident.outcome else ())
    return tuple(x for x in candidates if x.rank == incident.log_rank) or candidates


def _with_faults(diagnosis: Diagnosis, faults: tuple[NodeFault, ...]) -> Diagnosis:
    """Add the nodes that checks found faulty, each with its own fault, whatever the cause is.

    Ignore unproven faults on a lost node.
    """
    lost = diagnosis.nodes if diagnosis.isolate == "drain" else ()
    faults = tuple(f for f in faults if f.proven or f.node not in lost)
    if not faults:
        return diagnosis
    new = [f"{f.node}: {f.words}" for f in faults if f.evidence not in diagnosis.words]
    parts = [diagnosis.words, *new[:TOLD]] + ([f"and {len(new) - TOLD} more"] if len(new) > TOLD else [])
    nodes = tuple(dict.fromkeys((*diagnosis.nodes, *(f.node for f in faults))))
    # nodes that were to blame and not to be isolated stay so: only those with a fault are
    return replace(diagnosis, words="; ".join(x for x in parts if x), nodes=nodes, faults=faults)


def _node_lost(incident: Incident) -> Diagnosis | None:
    dead = [probes for probes in incident.probes if probes.dead]
    if not dead:
        return None
    names = tuple(probes.node for probes in dead)
    words = f"{', '.join(names)} lost: {dead[0].evidence}"
    return Diagnosis("node_lost", words, names, sure=True, isolate="drain", restart=True)


def _node_unreachable(incident: Incident) -> Diagnosis | None:
    """Suspect nodes that a single host cannot reach: the operator's host, or the batch host.

    The batch host counts if the launcher blames the node and no probe gave an answer.
    """
    outcome = incident.outcome
    suspected = [probes for probes in incident.probes if probes.suspected]
    blamed = {n for n in outcome.blamed if n in outcome.missing} if outcome is not None else set()
    unanswered = [probes for probes in incident.probes if probes.open and probes.node in blamed]
    if not suspected and not unanswered:
        return None
    names = tuple(dict.fromkeys(probes.node for probes in (*suspected, *unanswered)))
    why = f"the launcher does not reach it ({outcome.why})" if outcome is not None else ""
    why = suspected[0].evidence if suspected else why
    return Diagnosis("node_silent", f"{', '.join(names)} silent: {why}", names, False, "exclude", restart=True)


def _stopped_on_request(exits: tuple[RankExit, ...], incident: Incident, run: RunFacts) -> Diagnosis | None:
    codes = {x.code for x in exits} | {incident.exit_code}
    signs = (
        (DO_NOT_RESTART, "do_not_restart", "the trainer ended with 93: do not restart", 1),
        (WRONG_WORLD, "do_not_restart", _SPLIT, 1),
        (NO_CHECKPOINT, "no_checkpoint", "checkpoints exist, but none of them restores", NO_CHECKPOINT),
        (STATE_DIFFERS, "state_differs", "a restored state is not the one that was saved", STATE_DIFFERS),
        (RUN_DIR_UNSEEN, "run_dir_unseen", "a node cannot see or write the run directory", RUN_DIR_UNSEEN),
    )
    for code, cause, words, exit_code in signs:
        if code in codes:
            where = next((f" ({x.words})" for x in exits if x.code == code), "")
            if code == RUN_DIR_UNSEEN and max(run.max_step, run.durable) >= 0:
                return _unseen_now(exits, cause, words + where)
            return Diagnosis(cause, words + where, (), sure=True, isolate="none", restart=False, exit_code=exit_code)
    return None


def _other_world_size(exits: tuple[RankExit, ...], incident: Incident, run: RunFacts) -> Diagnosis | None:
    """The trainer cannot use the checkpoint with this number of ranks. No node is to blame.

    A run that may change its number of nodes can start on as many as wrote the checkpoint.
    """
    sizes = _SIZES.search(incident.log_line)
    if OTHER_WORLD_SIZE not in {incident.exit_code, *(x.code for x in exits)} and not sizes:
        return None
    what = sizes[0] if sizes else "the checkpoint was written by another number of ranks"
    nodes = nodes_of_checkpoint(incident.log_line, run.carrying)
    if 0 < run.fewest <= nodes <= run.wanted:
        words = f"{what}: it can continue on {several(nodes, 'node')}"
        return Diagnosis(RESIZE, words, (), sure=True, isolate="none", restart=True)
    many = several(int(sizes[2]), "rank") if sizes else "as many ranks"
    words = f"{what}: start with {many}, or declare what is kept per rank (reshard=, from_rank_0=)"
    return Diagnosis(WORLD_SIZE, words, (), sure=True, isolate="none", restart=False, exit_code=OTHER_WORLD_SIZE)


def nodes_of_checkpoint(line: str, carrying: int) -> int:
    """Return on how many nodes a checkpoint was written, by the trainer's refusal of it; 0: unknown.

    carrying: number of nodes on which its ranks are now, as many on each.
    """
    sizes = _SIZES.search(line)
    if sizes is None:
        return 0
    nodes, rest = divmod(int(sizes[2]) * carrying, int(sizes[3]) or 1)
    return 0 if rest else nodes


def _unseen_now(exits: tuple[RankExit, ...], cause: str, words: str) -> Diagnosis:
    """It was seen before: a disk in need, if no node sees it; else it is those nodes'."""
    blind = {x.node for x in exits if x.code == RUN_DIR_UNSEEN}
    some = tuple(sorted(blind)) if blind < {x.node for x in exits} else ()
    return Diagnosis(cause, words, some, sure=False, isolate="exclude" if some else "none", restart=True)


def _left(incident: Incident) -> Diagnosis | None:
    """The launcher ended the attempt on purpose; the training continues in another one."""
    outcome = incident.outcome
    if outcome is None or outcome.status != "left":
        return None
    blamed = outcome.suspects if outcome.cause in ("isolated_nodes", PREFLIGHT) else ()
    how = "exclude" if blamed else "none"
    return Diagnosis(outcome.cause or "left", outcome.why, blamed, sure=not blamed, isolate=how, restart=True)


def _signalled(incident: Incident, run: RunFacts) -> Diagnosis | None:
    """Slurm says that the job failed by itself, so the signal that its launcher got did not come from Slurm."""
    if incident.ended != "FAILED" or incident.outcome is not None or not run.stopped:
        return None
    return Diagnosis("left", f"the launcher was {run.stopped}", (), sure=True, isolate="none", restart=True)


def _reported(incident: Incident) -> Diagnosis | None:
    """Accept the launcher's report. Faults show which node is to blame for a slow training, if one is."""
    outcome = incident.outcome
    if outcome is None or outcome.cause not in REPORTED:
        return None
    return Diagnosis(outcome.cause, outcome.why, (), sure=False, isolate="none", restart=True)


def _node_fault(incident: Incident, run: RunFacts) -> Diagnosis | None:
    """A fault for which the launcher ended the launch, or a proven one of a node with ranks, explains what was seen."""
    judged = incident.outcome or incident.diagnosis
    named = judged is not None and judged.cause == NODE_FAULT and bool(incident.faults)
    if not named and not any(f.proven and f.node not in run.idle for f in incident.faults):
        return None
    return Diagnosis(NODE_FAULT, "", (), sure=False, isolate="none", restart=True)


def _user_error(incident: Incident, run: RunFacts, first: RankExit | None) -> Diagnosis | None:
    """A Python traceback or a usage error before the run's very first step, or a command that no node could run: a
    restart would only say it again. Where one node alone cannot run it, that node is the likelier cause.
    """
    if _has_stepped(incident, run):
        return None
    code = first.code if first else incident.exit_code
    exits = incident.outcome.exits if incident.outcome else ()
    usage = code == 2 or (bool(exits) and all(x.code in CANNOT_RUN for x in exits))
    silent = incident.outcome.why if incident.outcome and not first and code is None else ""  # srun failed by itself
    if not usage and not (incident.log_category in OWN_ERRORS and (code or silent)):
        return None
    if not run.launched and incident.outcome is None and incident.ran > SOON:
        return None  # a script without a launcher: it may have trained all that time, and nobody has seen its steps
    who = first.words if first else silent or f"the job ended with exit code {code}"
    line = incident.log_line or _WHY.get(code or 0, "a usage error (exit code 2)")
    words = who if line in who else f"{line} ({who}, no step was reported)"
    return Diagnosis("user_error", words, (), sure=True, isolate="none", restart=False)


def _has_stepped(incident: Incident, run: RunFacts) -> bool:
    """Whether a rank of the run has completed a step. A launch may end before its first heartbeat is read."""
    exits = incident.outcome.exits if incident.outcome else ()
    return max(run.max_step, run.durable, run.step, *(x.step for x in exits)) >= 0


def _never_started(incident: Incident, run: RunFacts) -> Diagnosis | None:
    """Slurm could not even start the batch script: most often the node does not see the folder of the job's log.

    In a run's first attempt that is a mistake of set-up, which a restart would only repeat; later it is that node's.
    """
    if incident.ended != "FAILED" or run.launched or run.slurm_reason != "JobLaunchFailure":
        return None
    node = run.batch_host
    words = f"Slurm could not start the batch script on {node} (JobLaunchFailure)"
    words += "; does it see the run directory, and the folder of the script's --output?"
    first = run.starts == 0
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


def _rank_ended(
    incident: Incident, run: RunFacts, first: RankExit | None, others: tuple[RankExit, ...]
) -> Diagnosis | None:
    """Diagnose the end of a rank. If `others`, ranks of other nodes, may have ended before it, blame no node."""
    silent = incident.outcome is not None and incident.outcome.why.endswith(SILENT)
    killed = next((found[1] for m in incident.marks if (found := _SCRIPT.search(m.words))), "")
    if run.launched and ((silent and first is not None and first.signal == TERM) or (killed and first is None)):
        how = f"its batch script was ended by signal {killed}" if killed else "it is silent"
        words = f"the launcher died: {how}, and the ranks ended with it"
        return Diagnosis("job_failed", words, (), sure=False, isolate="none", restart=True)
    if first is None:
        if not incident.ended and (incident.outcome is None or incident.outcome.cause == "hang"):
            return None
        if incident.ended == "GONE" and not run.launched:
            words = "Slurm has forgotten the job, and nothing tells how it ended"
            return Diagnosis("unknown_end", words, (), False, "none", restart=False, exit_code=UNKNOWN)
        why = incident.outcome.why if incident.outcome else ""
        words = why or _job_ended(incident)
        explains = incident.log_line and incident.log_category not in ("", "unknown")
        line = f": {incident.log_line}" if explains and incident.log_line not in words else ""
        return Diagnosis("job_failed", words + line, (), sure=False, isolate="none", restart=True)
    exits = incident.outcome.exits if incident.outcome else ()
    # A traceback before a crash is the cause of it: many programs abort while they end because of an exception.
    raised = incident.log_category in OWN_ERRORS and first.signal not in (KILL, TERM)
    cause = "rank_failed" if first.signal is None or raised else "rank_killed"
    said = _UNWRITTEN if first.code == UNWRITTEN else incident.log_line
    explains = first.signal is None or incident.log_category == Category.HOST_OOM.value
    line = f": {said}" if said and explains else ""
    everywhere = (
        not _has_stepped(incident, run)
        and bool(first.code)
        and len({x.node for x in exits if x.code == first.code}) > 1
    )
    ours = incident.log_category in OWN_WORDS or is_ours(incident.log_line) or first.code == UNWRITTEN
    end = comparable(incident, first, others, ours=ours)
    alike = _same_ends(end, incident, run)
    elsewhere = next((one.node for one in alike if one.node != first.node), "")
    # The same exit code at the same step is the program's; so is a signal that has followed the rank to another node.
    own = bool(elsewhere) if first.signal is not None else bool(alike)
    blameless = ours or bool(others) or everywhere or own
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    line += f"; or first {others[0].words}{more}: the nodes' clocks do not show the order" if others else ""
    if elsewhere and first.signal is not None:
        line += f"; at this step on {elsewhere} too, so it is the program or its memory, not the node"
    again = 0 if blameless or len(run.nodes) == 1 else _blamed_before(run, first.node)
    return Diagnosis(
        cause,
        first.words + line + (f"; {first.node} for the {ordinal(again + 1)} time" if again else ""),
        () if blameless else (first.node,),
        sure=False,
        isolate="exclude" if again else "none",
        restart=True,
        end=end,
    )


def _same_ends(end: RankExit | None, incident: Incident, run: RunFacts) -> tuple[RankExit, ...]:
    if end is None:
        return ()
    before = run.taken if run.max_step <= end.step + 1 else ()  # an earlier attempt may have got past the step
    return same_ends(end, incident.durable, run.incidents, before)


def _job_ended(incident: Incident) -> str:
    if incident.ended == "GONE":
        return "Slurm no longer knows the job: slurmctld has lost it, or it ended long ago"
    how = "its batch script was killed" if incident.exit_code == 0 else f"exit code {incident.exit_code}"
    return f"the job ended: {incident.ended} ({how})"


def _hang(incident: Incident, run: RunFacts) -> Diagnosis | None:
    if not incident.stalled or incident.stall_over:
        return None
    nodes = incident.suspect_nodes
    where = f" ({', '.join(nodes)} {'stands' if len(nodes) == 1 else 'stand'} out)" if nodes else ""
    again = len(nodes) == 1 < len(run.nodes) and _blamed_before(run, nodes[0]) > 0
    last = f"step {incident.step}{' of this start' if incident.since_start else ''}"
    words = f"no rank has {f'stepped since {last}' if incident.step >= 0 else 'made a step'}{where}"
    if again and _hung_elsewhere(incident, run, nodes[0]):
        again = False
        words += "; it hung there on other nodes too, so it is the program's own hang, not the node's"
    return Diagnosis("hang", words, nodes, sure=False, isolate="exclude" if again else "none", restart=True)


def _hung_elsewhere(incident: Incident, run: RunFacts, node: str) -> bool:
    """Whether another node was excluded for a hang after the same step, and the run has not got past it."""
    hangs = [(i, i.diagnosis) for i in run.incidents if i.diagnosis is not None and i.diagnosis.cause == "hang"]
    at = (incident.step, incident.since_start)
    return any(
        d.isolate == "exclude" and node not in d.nodes and (i.step, i.since_start) == at and incident.step >= 0
        for i, d in hangs
    )


def _blamed_before(run: RunFacts, node: str) -> int:
    """How many earlier incidents of this run blamed the node."""
    return sum(1 for i in run.incidents if i.diagnosis is not None and node in i.diagnosis.nodes)


def judged(diagnosis: Diagnosis | None, incident: Incident, run: RunFacts, at: float) -> Diagnosis | None:
    """The diagnosis with what the first rule of the run's table makes of it.

    Without a rule that fits it stays as it is: so do the journals of runs that were begun without a table.
    """
    if diagnosis is None or not run.rules:
        return diagnosis
    facts = facts_of(diagnosis, incident, run)
    history = (*run.taken, *taken_in(run.incidents))
    verdict = _stopped_by_launcher(incident, facts) or decide_by(run.rules, facts, history, at)
    if verdict is None:
        return replace(diagnosis, decided=Decided("", "", facts.category, facts.fingerprint))
    decided = Decided(verdict.rule, verdict.action, facts.category, facts.fingerprint, verdict.evidence)
    stops = verdict.action == STOP
    words = _stopped(diagnosis.words, verdict.evidence, facts) if stops else diagnosis.words
    return replace(diagnosis, words=words, restart=not stops, decided=decided)


def _stopped(words: str, evidence: str, facts: Facts) -> str:
    """Add which rule stops the run. The root cause line is left out if the diagnosis quotes it already."""
    line = root_line(facts)
    told = line and (facts.line in words or (facts.line.partition(": ")[2] or facts.line) in words)  # with its class
    short = evidence.replace(line, "") if told else evidence
    return words if short in words else f"{words}; {short}"


def _stopped_by_launcher(incident: Incident, facts: Facts) -> Verdict | None:
    """Accept the launcher's own stop for the same failure: it may have counted attempts that no operator has seen."""
    outcome = incident.outcome
    if outcome is None:
        return None
    reported = outcome.cause in REPORTED  # where the launcher alone knows of what
    same = (t.decided for t in outcome.taken if reported or t.decided.fingerprint == facts.fingerprint)
    stops = (decided for decided in same if decided.action == STOP)
    return next((Verdict(STOP, d.rule, d.words) for d in stops), None)


def facts_of(diagnosis: Diagnosis, incident: Incident, run: RunFacts) -> Facts:
    exits = incident.outcome.exits if incident.outcome else ()
    first = next(iter(_failed_first(incident)), None)
    signal = first.signal if first is not None else None
    # A killed rank's last line may not explain it, its end has caused what its peers print, and "Killed" is no news.
    silent = {"unknown", *(CRIES if signal in CRASHES else ()), *(("process_crash",) if signal == KILL else ())}
    explains = signal is None or incident.log_category not in silent
    line = incident.log_line if explains else ""
    category = category_of(
        diagnosis.cause,
        incident.log_category if explains else "unknown",
        signalled=signal is not None,
        checks={f.check for f in diagnosis.faults},
        stopped=incident.stall is not None and incident.stall.stopped,
    )
    codes = {first.code if first is not None else incident.exit_code}
    if diagnosis.cause in TOLD_BY_CODE:  # by any of the ranks
        codes |= {incident.exit_code, *(x.code for x in exits)}
    exit_codes = tuple(sorted(c for c in codes if c))
    about, alike = line if diagnosis.cause in _BY_LINE else "", _same_ends(diagnosis.end, incident, run)
    same = fingerprint(category, about or _how(diagnosis, signal, exit_codes), run.nodes)
    return Facts(
        category,
        diagnosis.cause,
        line,
        same,
        diagnosis.nodes,
        exit_codes,
        (signal,) if signal is not None else (),
        incident.ended,
        before_first_step=not _has_stepped(incident, run),
        first_attempt=run.starts == 0,
        against_node=any(diagnosis.by_evidence(n) != "none" for n in diagnosis.nodes),
        repeats=1 + len(alike) if diagnosis.end is not None else repeats(same, incident, run.incidents),
        on_nodes=len({one.node for one in (diagnosis.end, *alike) if one is not None}),
    )


def taken_in(incidents: Iterable[Incident]) -> tuple[Taken, ...]:
    """What was decided of incidents that are over, for the budgets of rules; also where no rule decided."""
    judged = ((i.began, i.diagnosis) for i in incidents)
    return tuple(Taken(at, d.decided, d.nodes, d.end) for at, d in judged if d is not None and d.decided.fingerprint)


def _how(diagnosis: Diagnosis, signal: int | None, codes: tuple[int, ...]) -> str:
    """How it ended, and what checks found: for a failure without a log line."""
    ended = f"signal {signal}" if signal is not None else " ".join(f"exit code {c}" for c in codes)
    found = " ".join(sorted({f.check for f in diagnosis.faults}))
    return " ".join(x for x in (diagnosis.cause, ended, found) if x)
