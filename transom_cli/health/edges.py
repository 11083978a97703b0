"""From a check's findings, look by look, to what is worth telling: the edges. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Verdict

BETTER = 3  # looks in a row that must be better before it is told: a value that swings about a limit is one edge
_WORSE = (Verdict.UNKNOWN, Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL)


@dataclass(frozen=True)
class Told:
    """verdict: what was told of a check last. better: looks in a row that found it better than that."""

    verdict: Verdict
    better: int = 0


def watch(
    told: Mapping[str, Told], findings: Iterable[Finding], events: frozenset[str] = frozenset()
) -> tuple[dict[str, Told], tuple[Finding, ...]]:
    """What to tell: a check that got worse at once, one that got better when it stays so, and each of `events`.

    A first PASS is no news. events: checks whose finding is something that happened, not a state that lasts.
    """
    now, news = dict(told), []
    for found in findings:
        if found.check in events:
            news.append(found)
            continue
        name = key(found)
        last = now.get(name, Told(Verdict.PASS))
        better = last.better + 1 if _rank(found.verdict) < _rank(last.verdict) else 0
        first_unknown = name not in now and found.verdict is Verdict.UNKNOWN
        if _rank(found.verdict) > _rank(last.verdict) or better >= BETTER or first_unknown:
            news.append(found)
            last, better = Told(found.verdict), 0
        now[name] = Told(last.verdict, better)
    return now, tuple(news)


def key(found: Finding) -> str:
    """What the edges of a check are kept by: of each device its own."""
    return f"{found.check} {found.device}" if found.device else found.check


def worst(findings: Iterable[Finding]) -> Verdict:
    """Of one node's findings. UNKNOWN ranks below PASS: a check that did not work takes nothing from the others."""
    return max((f.verdict for f in findings), key=_rank, default=Verdict.UNKNOWN)


def _rank(verdict: Verdict) -> int:
    return _WORSE.index(verdict)
