"""A crash loop: the same failure again and again, never past the same step. Pure.

The policy ends such a loop (`repeats` in a rule), and every screen names it: between two crashes the run trains, and
would look healthy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile

from transom_cli.core.category import DEVICE
from transom_cli.core.events import RankExit, Taken, signal_name
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.policy import STOP, Rule
from transom_cli.core.progress import NEAR, newest_step

OWN = "user_code"  # a second failure of this category is a loop, or of any that a rule ends; of any other, a third one
QUICK = 60.0  # seconds within which a program that exits before its first step has not begun to train
_CODES = range(1, 126)  # that a program chooses; shells use the others
_HOST_OOM = "host_oom"
_LINE = 160  # characters of the root cause line


@dataclass(frozen=True)
class CrashLoop:
    count: int  # failures in a row
    step: int  # the newest step that any of these starts reached
    line: str
    first: str  # ID of the first incident
    ends_at: int = 0  # the count at which the policy ends the run; 0: only the restart budget ends it
    nodes: int = 0  # on which the same signal killed the same rank; 0: no signal did


def reached(incident: Incident) -> tuple[int, bool]:
    """Return the newest step that the failed start is known to have done, and whether it counts from that start.

    Heartbeats are up to a second old; the exit records of the ranks are not.
    """
    steps = [(one.step, one.since_start) for one in (incident.outcome.exits if incident.outcome else ())]
    return reduce(newest_step, steps, (incident.step, incident.since_start))


def no_further(at: tuple[int, bool], durable: int, incident: Incident, near: int = 0) -> bool:
    """Whether a start that reached `at` came no further than the failed one.

    Steps that count from a start are no place in the training. They show a loop if both starts made as many, and the
    newest checkpoint, step `durable`, is the same.
    """
    (step, counted), (there, also_counted) = at, reached(incident)
    if step < 0 or counted != also_counted:
        return False
    if counted:
        return durable <= incident.durable and abs(step - there) <= max(near, 1)
    return step <= there + near


def repeats(fingerprint: str, incident: Incident, earlier: Sequence[Incident]) -> int:
    """Count this failure and the ones before it with the same fingerprint, as long as none got past the same step.

    Returns 1 if steps are not seen. Counts a program that exits by itself at once, before its first step, too.

    Args:
        earlier: oldest first.
    """
    at = reached(incident)
    if codes := _exits_at_once(incident):

        def same(one: Incident) -> bool:
            known = one.diagnosis is not None and one.diagnosis.decided.fingerprint == fingerprint
            return known and _exits_at_once(one) == codes

        return 1 + len(list(takewhile(same, reversed(earlier))))
    return 1 + len(_tail(fingerprint, at, incident.durable, earlier, 0))


def comparable(incident: Incident, first: RankExit, others: tuple[RankExit, ...], *, ours: bool) -> RankExit | None:
    """Return the end of the rank for `same_ends`: it was killed, or its exit code is all that is known of the cause."""
    if first.step < 0 or (ours and incident.log_category != _HOST_OOM):
        return None
    if first.signal is not None:
        return first if not others and incident.log_category not in DEVICE else None
    unknown = incident.log_category in ("", "unknown") and first.code in _CODES
    return first if unknown and all(x.code == first.code for x in others) else None


def same_ends(
    end: RankExit, durable: int, incidents: Sequence[Incident], before: Sequence[Taken] = ()
) -> tuple[RankExit, ...]:
    """Return the ends just before this one that were alike: the same exit code, or the same signal of the same rank,
    at the same step. Newest first.

    A killed process has left no error that would show that the cause is the same: so the step must be, within one.

    Args:
        incidents: oldest first. before: what was decided in earlier attempts, oldest first.
    """
    known = [(t.end, -1) for t in before] + [(i.diagnosis.end if i.diagnosis else None, i.durable) for i in incidents]
    found = []
    for other, there in reversed(known):
        if other is None or not _alike(end, other) or (end.since_start and durable > there):
            break
        found.append(other)
    return tuple(found)


def _alike(end: RankExit, other: RankExit) -> bool:
    same = (end.signal, end.code, end.since_start) == (other.signal, other.code, other.since_start)
    return same and (end.signal is None or end.rank == other.rank) and abs(end.step - other.step) <= 1


def _exits_at_once(incident: Incident) -> set[int]:
    """Return the exit codes that the program chose before it began to train."""
    exits = [one for one in (incident.outcome.exits if incident.outcome else ()) if one.bad and one.signal is None]
    codes = {one.code or 0 for one in exits} or {incident.exit_code or 0}
    at_once = 0 < incident.ran <= QUICK and reached(incident)[0] < 0 and codes <= set(_CODES)
    return codes if at_once else set()


def _tail(
    fingerprint: str, at: tuple[int, bool], durable: int, incidents: Sequence[Incident], near: int
) -> tuple[Incident, ...]:
    """Return the last incidents, oldest first, with this fingerprint, whose starts reached `at`.

    Ends of the program that nothing explains are left out: their logs could not be read in time, or survivors failed
    too before they entered the next launch.
    """
    found: list[Incident] = []
    for one in reversed(incidents):
        if one.diagnosis is None:
            break
        if one.diagnosis.decided.fingerprint != fingerprint:
            if one.diagnosis.decided.category == "unknown" and one.diagnosis.cause == "rank_failed":
                continue
            break
        if not no_further(at, durable, one, near):
            break
        found.append(one)
    return tuple(reversed(found))


def crash_loop(incidents: Iterable[Incident | None], step: int, rules: Iterable[Rule] = ()) -> CrashLoop | None:
    """Return the loop that the newest incident belongs to; None once the run gets past the step.

    incidents: oldest first. step: the newest of the present start.
    """
    known = [(one, one.diagnosis) for one in incidents if one is not None and one.diagnosis is not None]
    if not known:
        return None
    (newest, diagnosis), decided = known[-1], known[-1][1].decided
    past, end = [one for one, _ in known], diagnosis.end
    alike = same_ends(end, newest.durable, past) if end is not None else ()
    nodes = len({one.node for one in alike})
    ends = next((r.repeats for r in rules if _ends(r, diagnosis) and nodes >= r.on_nodes), 0)
    if not decided.fingerprint or (diagnosis.nodes and not ends):
        return None
    before, counted = reached(newest)
    at = (max(before, step), counted)
    if end is None:
        found = _tail(decided.fingerprint, at, newest.durable, past, NEAR)
    else:
        found = tuple(past[-len(alike) :]) if no_further(at, newest.durable, newest, NEAR) else ()
    if len(found) < (2 if ends or decided.category == OWN else 3):
        return None
    top = max(reached(one)[0] for one in found)
    killed = end is not None and end.signal is not None
    return CrashLoop(len(found), top, cause(diagnosis), found[0].id, ends, nodes if killed else 0)


def _ends(rule: Rule, diagnosis: Diagnosis) -> bool:
    """Whether the rule ends a loop of this failure. A loop has stepped."""
    stops = rule.repeats and rule.action == STOP and not rule.before_first_step
    caused = not rule.cause or diagnosis.cause in rule.cause
    return bool(stops) and caused and diagnosis.decided.category in rule.category


def cause(diagnosis: Diagnosis) -> str:
    """Return the diagnosis without the rank, which may differ each time: `KeyError: 'learning_rate'`."""
    end = diagnosis.end
    if end is not None and end.signal is not None:
        return f"rank {end.rank} killed by {signal_name(end.signal)}"
    if end is not None:
        return f"exit code {end.code}"
    before, _, line = diagnosis.words.partition(": ")
    return (line if line and " ended with " in before else diagnosis.words)[:_LINE]
