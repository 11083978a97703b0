"""Reads the logs of an attempt for the first cause: the end of one rank's log, or of the job's own output."""

import contextlib
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transom_cli.core.category import OWN_ERRORS
from transom_cli.core.events import Examined
from transom_cli.core.log_lines import clean, is_ours, log_order
from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs import matches
from transom_cli.diagnose.logs.cause import Incident, incidents
from transom_cli.diagnose.logs.culprits import CRIES, alike
from transom_cli.diagnose.logs.matches import Hit
from transom_cli.diagnose.logs.rulebook import Level
from transom_cli.diagnose.unknown.store import new_errors
from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.plural import several
from transom_cli.supervise.agent.logs import hits_of_tail, last_line, read_log, rulebook, tail_of
from transom_cli.supervise.own_checkpoints import folders
from transom_cli.supervise.past_runs import of_past_runs

SECONDS = 8.0  # to find the cause: the agents of all nodes, then the logs that no agent has read
SETTLE = 2.0  # seconds for a log on a network file system to show its end
LAST = "(its last line)"  # which no rule knows: a pointer for a person, and no root line
UNKNOWN = Category.UNKNOWN.value
LOOKED_AT = 4  # logs in which it is looked for what is new, where no rule knows why: of each some megabytes
ALL = 64  # logs that are read at most
WRONG = 1.0  # seconds by which a node's clock is off before times in its logs are corrected
# Slurm's last word in the logs of ranks that were ended
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED")
_REPORTS = re.compile(
    r"(?i:(?:^|[\s\[(:])(?:error|fatal|critical|panic|traceback)\b(?!\W{0,3}\d))|[A-Za-z](?:Error|Exception)\b"
    r"|(?i:\b(?:failed|failure|aborted|aborting|cannot|could not|unable to|segmentation fault|core dumped)\b)"
)
MEASURE = 1.0  # seconds to note how long the logs of a launch are
HITS = 32768  # matched lines of all nodes that are compared


def candidates(
    run: RunDir, attempt: AttemptDir, rank: int | None, without: Collection[str] = frozenset()
) -> list[Path]:
    """Return the logs to read, best first: the rank that died first, other ranks, the batch script's output.

    The output is shared by all attempts of a job.

    Args:
        without: Names of rank logs that have been read already.
    """
    launches = [p for p in (attempt.path / "logs").glob("*") if p.name.isdecimal()]
    ranks: list[Path] = []
    if launches:
        launch = max(launches, key=lambda p: int(p.name))
        unread = [p for p in launch.glob("*.log") if p.name not in without]
        ranks = sorted(unread, key=lambda p: log_order(p.name, rank))
    job_id, _ = parse_attempt(attempt.name)
    return [*ranks[:ALL], run.job_log(job_id)]


def examine(
    key: str,
    run: RunDir,
    attempt: AttemptDir,
    rank: int | None,
    now: float,
    asked: Sequence[Mapping[str, object]] = (),
    since: int = 0,
    seconds: float = SECONDS,
    sizes: Mapping[str, int] | None = None,
) -> Examined:
    """Return the cause that the rules find (`diagnose.logs.cause`), or the last line of the rank that died first.

    That line is the failure only if it clearly reports an error.

    The batch script's output counts only if no rank has written anything, and only this attempt's part of it
    (`batchlog.of_attempt`).

    Args:
        asked: What the nodes' agents have read (see `agent.logs.read_cause`); only the other logs are read here.
        since: Length of the batch script's output, in bytes, when an earlier attempt ended.
        seconds: For all logs together. Logs that were not read by then are left out, and `where` says so.
        sizes: Of the rank logs when the launcher ended the launch, although no rank had failed (`log_sizes`). What
            ranks print after that is no cause.
    """
    until = time.monotonic() + seconds
    deadline = min(until, time.monotonic() + SETTLE)
    heard, last, read, skipped = _heard(asked)
    while True:
        hits, said, left_out, unread = list(heard), dict(last), skipped, 0
        *ranks, batch = candidates(run, attempt, rank, read)
        for number, path in enumerate(ranks):
            if number and time.monotonic() > until:
                unread = len(ranks) - number
                break
            log = read_log(path, (until - time.monotonic()) / (len(ranks) - number))
            hits += log.hits
            left_out += log.left_out
            if log.last:
                said[path.name] = log.last
        own = b""
        if not said:
            data, start = tail_of(batch)
            data, start = data[max(0, since - start) :], max(since, start)
            data = of_attempt(data, attempt.name)
            if data.strip():
                hits += hits_of_tail(batch, data, start)
                own = error_in(data)
                said[batch.name] = last_line(own or data)
        if said:
            if sizes is not None:
                hits = [hit for hit in hits if hit.offset < sizes.get(Path(hit.file).name, 0)]
                said = {next(iter(said)): ""}
            cause = _examined(now, key, hits, said, rank, read)
            if own and cause.last:
                cause = replace(cause, line=cause.last, last="")
            if cause.category == UNKNOWN and sizes is None:
                cause = _with_new(cause, run, candidates(run, attempt, rank)[:LOOKED_AT], until)
            elif cause.category == Category.CHECKPOINT_CORRUPT.value and (folder := unproven_checkpoint(run)):
                cause = replace(cause, line=f"{folder} has no seal (move it to use the one before): {cause.line}")
            return replace(cause, where=cause.where + _without(left_out, unread))
        if time.monotonic() >= deadline:
            return Examined(now, key, UNKNOWN, "", "no log")
        time.sleep(0.1)


def unproven_checkpoint(run: RunDir) -> Path | None:
    """Return the newest checkpoint without a seal in a folder that the batch script names; None if there is none."""
    from transom_cli.ckpt.seal import unsealed  # its hash function takes a while to load, and no other cause needs it

    try:
        return max((found for folder in folders(run)[1] for found in unsealed(folder)), default=(-1, None))[1]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _examined(
    now: float, key: str, hits: Sequence[Hit], said: Mapping[str, str], rank: int | None, read: Collection[str]
) -> Examined:
    """Return the cause in the matches. A cancelled step is no cause: the rest of a failed launch ends that way.

    Slurm knows whether the job was cancelled.
    """
    lost = CRIES if _ended_without_a_cry(hits, {*said, *read}, rank) else ()
    passed_over = (Category.SLURM_CANCELLED, *lost)
    found = incidents([hit for hit in hits if hit.rule.category not in passed_over], died=rank)
    if found:
        root, category = found[0].root, found[0].category.value
        if root.level < Level.ENDING and category in OWN_ERRORS:
            category = UNKNOWN  # how a process ended is no word of its own: a stop needs evidence
        elif root.level < Level.ENDING and category == Category.HOST_OOM.value:
            category = Category.PROCESS_CRASH.value  # that a process was killed is no sign of too little memory
        return Examined(now, key, category, clean(root.record.text), root.file + _others(found[0]))
    name = min(said, key=lambda name: log_order(name, rank))
    of_another = rank is not None and name.startswith("rank-") and log_order(name, rank)[0]
    last = "" if of_another or _CANCELLED.search(said[name]) else said[name]
    line = last if is_error(last) else ""
    return Examined(now, key, UNKNOWN, line, f"{name} {LAST}", "" if line else last)


def is_error(line: str) -> bool:
    """Whether a line that no rule knows clearly reports an error. A metric called "error" has a value."""
    return is_ours(line) or _REPORTS.search(line) is not None


def log_sizes(attempt: AttemptDir, launch: int, seconds: float = MEASURE) -> dict[str, int]:
    """Return how many bytes each rank of a launch has printed so far. Logs for which there is no time are left out."""
    until, found = time.monotonic() + seconds, {}
    with contextlib.suppress(OSError), os.scandir(attempt.logs(launch)) as entries:
        for entry in entries:
            if time.monotonic() > until:
                break
            found[entry.name] = entry.stat().st_size
    return found


def _others(cause: Incident) -> str:
    """Return which other ranks report the same error of the program, in words: which was first may be chance."""
    others = alike(cause.root, cause.others) - {cause.root.record.rank} if cause.category.value in OWN_ERRORS else set()
    if not others:
        return ""
    return f" (rank {others.pop()} reports the same)" if len(others) == 1 else f" ({len(others)} more report the same)"


def _ended_without_a_cry(hits: Sequence[Hit], read: Collection[str], rank: int | None) -> bool:
    """Return whether the log of the rank that died first has no errors: then those of the others are about it.

    read: Names of the logs with a last line, and of those that their node's agent has read, as the writer's host sees
    them: an empty one counts.
    """
    own = f"rank-{rank}.log"
    return own in read and not any(Path(hit.file).name == own and hit.rule.category in CRIES for hit in hits)


def _without(left_out: int, unread: int) -> str:
    """Return what was not read, in words."""
    parts = [several(unread, "log")] if unread else []
    parts += [f"{left_out / 1e6:.1f} MB of large logs"] if left_out else []
    return f" ({' and '.join(parts)} not read)" if parts else ""


def _with_new(cause: Examined, run: RunDir, paths: Sequence[Path], until: float) -> Examined:
    """If no rule knows the cause, prefer lines that no run has printed before to the last line."""
    try:
        found = new_errors([path for path in paths if path.exists()], of_past_runs(run), until)
    except OSError:
        return cause
    if not found:
        return cause
    first = found[0].first
    return replace(cause, line=f"unrecognised: {clean(first.text)}", where=Path(first.file).name, last="")


def _heard(asked: Sequence[Mapping[str, object]]) -> tuple[list[Hit], dict[str, str], set[str], int]:
    """Return what the agents' answers contain: matches, last lines, logs that were read, bytes left out of each.

    Invalid answers are left out.
    """
    left_out = 0
    hits: list[Hit] = []
    last: dict[str, str] = {}
    read: set[str] = set()
    most = max(1, HITS // max(1, len(asked)))  # the first ones of an answer are the most telling
    for answer in asked:
        names, lines = answer.get("names"), answer.get("last")
        if isinstance(names, list):
            read |= {name for name in names if isinstance(name, str)}
        if isinstance(lines, dict):
            last.update({clean(str(name)): clean(str(line)) for name, line in lines.items()})
        skipped = answer.get("left_out")
        if isinstance(skipped, dict):
            left_out += sum(size for size in skipped.values() if isinstance(size, int) and size > 0)
        entries, behind = answer.get("hits"), answer.get("behind")
        found = matches.decode(entries[:most] if isinstance(entries, list) else (), rulebook().by_name)
        wrong = behind if isinstance(behind, float) and abs(behind) >= WRONG else 0.0
        hits += [_at_launchers(hit, wrong) for hit in found] if wrong else found
    return hits, last, read, left_out


def _at_launchers(hit: Hit, behind: float) -> Hit:
    """Return the hit with the time that the launcher's clock showed then."""
    at = hit.record.at
    return hit if at is None else replace(hit, record=replace(hit.record, at=at + behind))


OURS = b"transom: "  # how each of the launcher's lines begins
LAUNCH = b"transom: launch %d of attempt %s: "
_ANY_LAUNCH = b"transom: launch "
_REQUEUED = b"DUE TO JOB REQUEUE ***"  # slurmstepd's last word for an attempt
_ERROR, _HINT = b"error: ", b"hint: "  # how transom's commands print an error (`errors.TransomError`)


def of_attempt(data: bytes, attempt: str) -> bytes:
    """Return the lines of this attempt, with empty lines for the others, so that line numbers stay the same.

    Lines before the attempt's last launch do not count; without a launch (the script failed before), lines before the
    last line of an earlier attempt's launcher do not count. Without a launcher, all lines count.
    """
    lines = data.split(b"\n")
    first = max((n + 1 for n, line in enumerate(lines) if _REQUEUED in line), default=0)
    launches = [n for n, line in enumerate(lines) if line.startswith(_ANY_LAUNCH)]
    if launches:
        ours = b" of attempt %s: " % attempt.encode() in lines[launches[-1]]
        said = [n for n, line in enumerate(lines) if line.startswith(OURS)]
        first = max(first, (launches if ours else said)[-1] + 1)
    return b"\n".join(b"" if n < first or line.startswith(OURS) else line for n, line in enumerate(lines))


def error_in(data: bytes) -> bytes:
    """Return the message of one of transom's own errors at the end of the text, if there is one."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    at = max((n for n, line in enumerate(lines) if line.startswith(_ERROR)), default=-1)
    rest = lines[at + 1 :]
    if at < 0 or not all(line.startswith((b" ", _HINT)) for line in rest):
        return b""
    return lines[at].removeprefix(_ERROR)
