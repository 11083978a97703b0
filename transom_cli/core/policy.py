"""What is done about a failure: a table of rules that a user can read and change. Pure.

The same table decides for the launcher and for the operator. The first rule that fits and has budget left decides; none
fits: what the evidence itself speaks for. A rule can ask for less than the evidence allows, never for more: `isolate`
keeps away the nodes that the evidence is against, and drains the proven ones, within the cap.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transom_cli.core.category import category_name
from transom_cli.core.events import Taken
from transom_cli.plural import ordinal

RELAUNCH, SWAP, ISOLATE, REQUEUE, STOP, IGNORE = ACTIONS = ("relaunch", "swap", "isolate", "requeue", "stop", "ignore")
ROLLBACK = "rollback"  # what can be done about a report, and never about a failure
JOB, NODE = SCOPES = ("job", "node")
DEFAULT = "default"  # the source of a rule of the default table: only its stops are reported
_UNKNOWN = "unknown"
_ENDED_SOMEHOW = ("rank_failed", "job_failed")  # causes that say no more than that
_LINE = 200  # characters of a root cause line that are quoted


@dataclass(frozen=True)
class Rule:
    """A rule of the policy table. All conditions must hold; an empty condition always holds.

    reported: any of these anomalies of a training that still steps. A rule with this condition matches no failure, and
    a rule without it matches no anomaly.
    budget: how often the action may be taken for one fingerprint within `within` seconds (None: in the whole run).
    Then `then` is taken, or, without it, the next rule that matches decides.
    """

    name: str
    action: str
    category: tuple[str, ...] = ()  # any of these (`diagnose.clue.Category`)
    cause: tuple[str, ...] = ()  # any of `core.diagnose.CAUSES`
    pattern: str = ""  # an RE2 expression that the root cause line contains
    exit_code: tuple[int, ...] = ()  # of the rank that died first, or of the job
    signal: tuple[int, ...] = ()
    slurm_state: tuple[str, ...] = ()  # in which the job ended
    before_first_step: bool | None = None  # no rank of the run has made a step
    first_attempt: bool | None = None  # the job's first start
    against_node: bool | None = None  # the evidence allows isolating a node
    repeats: int = 0  # the failure has happened this often in a row, and no start got past the same step
    on_nodes: int = 0  # and was the same exit code, or signal of the same rank, on at least this many nodes
    reported: tuple[str, ...] = ()
    lasting: float = 0.0  # the anomaly has lasted this many seconds
    skip_batches: bool = True  # whether a rollback skips the batches of the bad steps
    scope: str = JOB  # whether the budget is counted for the job or for each node
    budget: int | None = None
    within: float | None = None
    then: str = ""
    source: str = ""  # the file that the rule comes from


@dataclass(frozen=True)
class Facts:
    """What rules can ask of a failure. category: "" where it is none, but an attempt that was left on purpose."""

    category: str
    cause: str
    line: str = ""
    fingerprint: str = ""
    nodes: tuple[str, ...] = ()  # to blame
    exit_codes: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    slurm_state: str = ""
    before_first_step: bool = False
    first_attempt: bool = False
    against_node: bool = False
    repeats: int = 1  # how often in a row, never past the same step
    on_nodes: int = 0  # on how many nodes, if it was the same exit code, or the same signal of the same rank
    reported: str = ""  # what is odd, where nothing has failed
    lasting: float = 0.0  # for how many seconds so far


@dataclass(frozen=True)
class Verdict:
    """evidence: for a person, which rule and why: rule, its file, root line and how often. "" where that is no news."""

    action: str
    rule: str
    evidence: str


def decide_by(rules: Iterable[Rule], facts: Facts, history: Iterable[Taken], at: float) -> Verdict | None:
    """None: no rule fits. A first failure that nothing is known of is never a reason to stop: it restarts."""
    same = tuple(t for t in history if t.decided.fingerprint == facts.fingerprint)
    for rule in rules:
        if not fits(rule, facts):
            continue
        times = sum(1 for t in same if _counts(rule, facts, t, at))
        within_budget = rule.budget is None or times < rule.budget
        if not within_budget and not rule.then:
            continue
        action = rule.action if within_budget else rule.then
        if action == STOP and not same and not _is_evident(rule, facts):
            words = f"rule `{rule.name}`{_of(rule)} would stop, but a first unknown failure restarts"
            return Verdict(RELAUNCH, rule.name, words)
        return Verdict(action, rule.name, _words(rule, facts, action, times))
    return None


def fits(rule: Rule, facts: Facts) -> bool:
    return (
        bool(rule.reported) == bool(facts.reported)
        and (not rule.reported or (facts.reported in rule.reported and facts.lasting >= rule.lasting))
        and (not rule.category or facts.category in rule.category)
        and (not rule.cause or facts.cause in rule.cause)
        and (not rule.exit_code or any(code in rule.exit_code for code in facts.exit_codes))
        and (not rule.signal or any(number in rule.signal for number in facts.signals))
        and (not rule.slurm_state or facts.slurm_state in rule.slurm_state)
        and rule.before_first_step in (None, facts.before_first_step)
        and rule.first_attempt in (None, facts.first_attempt)
        and rule.against_node in (None, facts.against_node)
        and facts.repeats >= rule.repeats
        and facts.on_nodes >= rule.on_nodes
        and (not rule.pattern or compiled(rule.pattern).search(facts.line) is not None)
    )


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """By RE2, which is done with any line in time that grows with its length: a log may hold anything.

    Raises re2.error where it is no expression of RE2's (which has no look-around and no back-references).
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _counts(rule: Rule, facts: Facts, taken: Taken, at: float) -> bool:
    recent = rule.within is None or taken.at > at - rule.within
    here = rule.scope == JOB or bool(set(taken.nodes) & set(facts.nodes))
    return taken.decided.rule == rule.name and recent and here


def _is_evident(rule: Rule, facts: Facts) -> bool:
    """Whether more is known of the failure than that there was one."""
    cause = rule.cause and facts.cause not in _ENDED_SOMEHOW
    specific = rule.pattern or rule.exit_code or rule.signal or rule.slurm_state or rule.reported or cause
    return bool(specific) or facts.category != _UNKNOWN


def _words(rule: Rule, facts: Facts, action: str, times: int) -> str:
    often = f", for the {ordinal(times + 1)} time{_span(rule)}" if rule.budget is not None else ""
    where = f" on {facts.on_nodes} nodes" if rule.on_nodes > 1 else ""
    often = f", {facts.repeats} times in a row{where}, never past the same step" if rule.repeats else often
    if action != STOP:
        return "" if rule.source == DEFAULT else f"{action}, by rule `{rule.name}`{_of(rule)}{often}"
    kind = facts.category if facts.category != _UNKNOWN else ""
    kind = kind or facts.cause or facts.reported or facts.category
    return f"stopped by rule `{rule.name}`{_of(rule)}: {category_name(kind)}{root_line(facts)}{often}"


def root_line(facts: Facts) -> str:
    """As a verdict quotes it."""
    return f': "{facts.line[:_LINE]}"' if facts.line else ""


def _of(rule: Rule) -> str:
    return f" ({rule.source})" if rule.source else ""


def _span(rule: Rule) -> str:
    if rule.within is None:
        return " in this run"
    return f" within {in_words(rule.within)}{' on the same node' if rule.scope == NODE else ''}"


def in_words(seconds: float) -> str:
    """21600 is "6h"; what is no whole number of a unit stays in the smaller one."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
