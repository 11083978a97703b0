"""What a check says about a node, which remedy it names, and which changes of it are worth reporting. Pure."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class Verdict(enum.Enum):
    """PASS: healthy. MONITOR: unusual, worth watching. SUSPECT: probably at fault, not proven. FAIL: proven.

    SUSPECT excludes a node from a run for a while; FAIL drains it. Neither is used for a setting that a person got
    wrong on all nodes, nor for what another job on the node may cause. UNKNOWN: the check itself did not work; it never
    isolates a node.
    """

    PASS = "pass"
    MONITOR = "monitor"
    SUSPECT = "suspect"
    FAIL = "fail"
    UNKNOWN = "unknown"

    @property
    def bad(self) -> bool:
        """Whether the node should run no ranks."""
        return self in (Verdict.SUSPECT, Verdict.FAIL)


WORST_FIRST = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR, Verdict.UNKNOWN, Verdict.PASS)
"""Order for people: a check that did not work comes before one that passed."""


class Remedy(enum.Enum):
    """What would cure the finding. The policy decides whether it is done."""

    NONE = "none"
    WATCH = "watch"  # look again
    RESTART_APP = "restart_app"  # the program, on the same node
    SETUP = "setup"  # a person has to change a setting
    AVOID = "avoid"  # exclude the node for a while
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPAIR = "repair"  # replace or repair the device or the node


@dataclass(frozen=True)
class Finding:
    """check: its name ("reach"). evidence: what was seen, for people, in the tool's own words.

    device, serial: the device that it is about, as the device's own tools name it (a GPU's UUID, "mlx5_0/1"). applies:
    False if there was nothing to check (no GPU in the node, and none requested); the verdict is PASS then.
    """

    check: str
    verdict: Verdict
    node: str
    evidence: str
    remedy: Remedy = Remedy.NONE
    device: str = ""
    serial: str = ""
    applies: bool = True


def not_applicable(check: str, node: str, why: str) -> Finding:
    return Finding(check, Verdict.PASS, node, f"not applicable: {why}", applies=False)


def rank(verdict: Verdict) -> int:
    """Return the verdict's severity. UNKNOWN is below PASS: a check that did not work hides no other result."""
    return (Verdict.UNKNOWN, Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL).index(verdict)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict by `rank`; UNKNOWN without findings."""
    return max((f.verdict for f in findings), key=rank, default=Verdict.UNKNOWN)


BETTER = 3  # consecutive better readings before an improvement is reported: a value that swings around a limit is noise


@dataclass(frozen=True)
class Reported:
    """verdict: last reported for a check. better: consecutive readings that were better than that."""

    verdict: Verdict
    better: int = 0


def changes(
    reported: Mapping[str, Reported], findings: Iterable[Finding], events: frozenset[str] = frozenset()
) -> tuple[dict[str, Reported], tuple[Finding, ...]]:
    """Select the findings to report: a check that got worse (at once) or better (once that lasts), and every event.

    A first PASS is not reported.

    Args:
        reported: by `key`; the new state is returned.
        events: checks whose finding is something that happened, not a state that lasts.
    """
    now, news = dict(reported), []
    for found in findings:
        if found.check in events:
            news.append(found)
            continue
        name = key(found)
        last = now.get(name, Reported(Verdict.PASS))
        better = last.better + 1 if rank(found.verdict) < rank(last.verdict) else 0
        first_unknown = name not in now and found.verdict is Verdict.UNKNOWN
        if rank(found.verdict) > rank(last.verdict) or better >= BETTER or first_unknown:
            news.append(found)
            last, better = Reported(found.verdict), 0
        now[name] = Reported(last.verdict, better)
    return now, tuple(news)


def key(found: Finding) -> str:
    """Return the name under which a check's changes are tracked, per device."""
    return f"{found.check} {found.device}" if found.device else found.check
