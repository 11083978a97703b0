"""An incident in brief: what broke, where, the evidence, what was done, and how it ended. Pure.

Screens, notifications and the report use these words, so that a person recognises the incident everywhere.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from transom_cli.core.crash_loop import no_further, reached
from transom_cli.core.incident import Incident
from transom_cli.core.log_lines import without_advice
from transom_cli.core.operator.state import Exclusion
from transom_cli.diagnose.clue import Category
from transom_cli.plural import some

_REPAIRS = {"swapped": "swapped", "requeued": "requeued", "launched": "relaunched"}  # by kind of mark
_OUTCOMES = {
    "relaunching": "launcher is recovering",
    "examining": "being diagnosed",
    "isolating": "isolating",
    "waiting": "waiting to restart",
    "starting": "coming back",
    "held": "waits for the release of the job",
    "withheld": "only observed",
    "recovered": "back in",
    "nothing": "false alarm, closed after",
    "unproven": "not confirmed, closed after",
    "ignored": "ignored, closed after",
    "stopped": "stopped the run after",
    "interrupted": "open until a person stopped the run, after",
    "done": "run ended after",
}
_EVIDENCE = ("found", "probed", "evidence")  # kinds of marks, the best first
_SILENT = ("node_lost", "node_silent")  # causes that the other ranks' stacks do not prove, but the first sign does
_BEFORE = 60.0  # seconds by which a node may be isolated before its incident begins
RESIZED = "continues on "  # begins a mark's words after which the run has another number of nodes
# Begins a mark of a restart in a new job.
_NEW_JOB = re.compile(r"(?:new job|the job's launcher, without an operator, submitted job) (\d+)")
_HOW = r"ended with exit code \d+|killed by (?:SIG\w+|signal \d+)"
_RANK = re.compile(rf"(rank \d+) on (\S+) ({_HOW})(?:: (.*))?", re.DOTALL)
_EARLY = re.compile(r"(.*) \((rank \d+ on \S+|the job) (ended with exit code \d+, [^)]*)\)", re.DOTALL)
_NODE = re.compile(r"([^:]* (?:lost|silent|died)): (.*)", re.DOTALL)
_UNHEARD = re.compile(rf"no answer from ([^;]+); (rank \d+ on \S+ (?:{_HOW})).*", re.DOTALL)
_KILLED = "nothing shows why; the kernel's out-of-memory killer sends SIGKILL too"
_MEMORY = "request more memory (`--mem`), or use fewer DataLoader workers"
_KERNELS = re.compile(r"(Killed process \d+ .*?anon-rss:\w+), .*")  # of the numbers that follow, none says more


@dataclass(frozen=True)
class Fault:
    title: str  # what broke
    nodes: tuple[str, ...] = ()  # at fault
    evidence: str = ""  # one line, or "" if the title has it
    done: str = ""  # isolation or repair

    @property
    def line(self) -> str:
        """What broke, and where."""
        names = some(self.nodes, 3)
        return self.title if not names or all(n in self.title for n in self.nodes[:3]) else f"{self.title} on {names}"


NOTHING = Fault("")


def fault_of(incident: Incident, exclusions: Iterable[Exclusion] = ()) -> Fault:
    diagnosis = incident.diagnosis
    words = diagnosis.words if diagnosis else incident.marks[0].words if incident.marks else "not known yet"
    nodes = diagnosis.nodes if diagnosis else incident.suspect_nodes
    title, evidence = _parted(without_advice(words), nodes)
    line = without_advice(incident.log_line) if incident.log_category not in ("", "unknown") else ""
    out_of_memory = diagnosis is not None and diagnosis.decided.category == Category.HOST_OOM.value
    if out_of_memory:
        title, evidence, line = (_KERNELS.sub(r"\1", text) for text in (title, evidence, line))
        title += ": out of memory" * title.endswith("killed by SIGKILL")
    if diagnosis is not None and diagnosis.decided.category == "process_crash" and title.endswith("killed by SIGKILL"):
        line = _KILLED
    silent = diagnosis is not None and diagnosis.cause in _SILENT
    isolations = [x for x in exclusions if x.incident == incident.id or (silent and _of_launchers(x, incident, nodes))]
    if not evidence and silent:
        evidence = next((x.reason for x in isolations if x.reason not in title), "")
    hung = diagnosis is not None and diagnosis.cause == "hang"
    if hung and any(m.what == "evidence" for m in incident.marks):
        line = ""  # the stacks say for which rank the others wait
    if not evidence and line not in title and (line.partition(": ")[2] or line) not in title and not silent:
        evidence = line
    if not evidence:
        # that its node answers is no evidence of a hang
        best = ("found", "probed", "seen") if silent else ("found", "evidence", "probed") if hung else _EVIDENCE
        marks = [m for kind in best for m in incident.marks if m.what == kind and m.words not in words]
        evidence = without_advice(marks[0].words) if marks else ""
    if found := _UNHEARD.fullmatch(title):  # what the rank that lost its peer printed is no news
        title = f"{found[1]} lost" if any(x.how == "drained" for x in isolations) else f"no answer from {found[1]}"
        evidence = evidence or f"{'their agents do' if len(nodes) > 1 else 'its agent does'} not answer; {found[2]}"
    evidence = "; ".join(x for x in (evidence, _MEMORY if out_of_memory else "") if x)
    done = " and ".join(dict.fromkeys(x.how for x in isolations))
    resized = next((m.words.partition(",")[0] for m in reversed(incident.marks) if m.words.startswith(RESIZED)), "")
    jobs = [found[1] for m in incident.marks if m.what in ("requeued", "seen") and (found := _NEW_JOB.match(m.words))]
    repair, kinds = resized, {mark.what for mark in incident.marks}
    if jobs:
        repair = ", ".join(x for x in (resized, f"requeued as job {jobs[-1]} (was {incident.job_id})") if x)
    elif not resized and incident.result == "recovered" and not any(x.incident for x in isolations):
        repair = next((text for kind, text in _REPAIRS.items() if kind in kinds), "")
    return Fault(title, nodes, " ".join(evidence.split()), ", ".join(x for x in (done, repair) if x))


def _of_launchers(one: Exclusion, incident: Incident, nodes: tuple[str, ...]) -> bool:
    """Whether a node was isolated for an incident that its launcher handled."""
    until = incident.ended_at if incident.ended_at is not None else one.since
    return not one.incident and one.node in nodes and incident.began - _BEFORE <= one.since <= until


def _parted(words: str, nodes: tuple[str, ...]) -> tuple[str, str]:
    """Split a diagnosis into title and evidence. The rule that stopped the run is evidence."""
    words, stops, rule = words.partition("; stopped by ")
    if stops:
        title, evidence = _parted(words, nodes)
        return title, "; ".join(x for x in (evidence, f"stopped by {rule}") if x)
    if found := _RANK.fullmatch(words):
        rank, node, how, line = found.groups()
        who = rank if nodes == (node,) else f"{rank} on {node}"
        failed = bool(line) and "exit code" in how
        return (f"{who} failed: {line}", "") if failed else (f"{who} {how}", line or "")
    if found := _EARLY.fullmatch(words):
        line, who, how = found.groups()
        return f"{who} failed: {line}", how
    if found := _NODE.fullmatch(words):
        return found[1], found[2]
    return (words.removeprefix(f"{nodes[0]}: ") if len(nodes) == 1 else words), ""


def outcome(result: str) -> str:
    """Return what comes before a duration. result: of an incident, or its stage while it is open."""
    return _OUTCOMES.get(result, result if result.endswith("ing") else f"{result} after")


def failed_again(incidents: Sequence[Incident]) -> set[str]:
    """Return the IDs of recoveries after which the same failure occurred, at or before the same step.

    Args:
        incidents: Oldest first.
    """
    return {one.id for one, later in pairwise(incidents) if one.result == "recovered" and _same(one, later)}


def _same(one: Incident, later: Incident) -> bool:
    if one.diagnosis is None or later.diagnosis is None or one.diagnosis.planned:
        return False
    fingerprint = one.diagnosis.decided.fingerprint
    same = bool(fingerprint) and fingerprint == later.diagnosis.decided.fingerprint
    return same and no_further(reached(later), later.durable, one)
