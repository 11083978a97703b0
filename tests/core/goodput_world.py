"""Runs for the account: an operator's journal as it would be, and what launchers leave, both with made-up times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.goodput import NS, Account, account, attempt_of, history
from transom_cli.core.goodput.model import Attempt
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, Request, State

NODES = ("n1", "n2")


def played(*events: ev.Event) -> list[tuple[ev.Event, State]]:
    state, seen = State(policy=Policy(), request=Request(num_nodes=2)), []
    for event in events:
        state, _ = decide(state, event)
        seen.append((event, state))
    return seen


def running(at: float, restarts: int = 0, job: int = 7) -> ev.JobSeen:
    return ev.JobSeen(at, job, restarts, "RUNNING", nodes=NODES, batch_host="n1")


def submitted(at: float = 0.0) -> tuple[ev.Event, ...]:
    return ev.Started(at, 1), ev.Submitted(at, "submit", 7)


class Launched:
    """What one attempt's launcher writes. Each method adds records of the time it is given (seconds)."""

    def __init__(self, name: str, began: float) -> None:
        self.name = name
        self.journal: list[dict[str, Any]] = [{"type": "attempt", "wall": began}]
        self.progress: list[dict[str, Any]] = []
        self.outcome: dict[str, Any] = {}
        self._launch = -1

    def checked(self, at: float) -> Launched:
        return self._add("recovery", at, incident="", what="checked", words="none is bad")

    def launch(self, at: float, **fields: Any) -> Launched:
        self._launch += 1
        return self._add("launch", at, **fields)

    def standby(self, at: float) -> Launched:
        return self._add("standby", at, what="used")

    def steps(self, *told: tuple[float, int], stalled: Sequence[float] = ()) -> Launched:
        for number, (wall, step) in enumerate(told):
            line: dict[str, Any] = {"wall": wall, "launch": self._launch, "step": step}
            if stalled:
                line["seconds"] = {"checkpoint": stalled[number], "forward": 1.0}
            self.progress.append(line)
        return self

    def fault(self, at: float, name: str, category: str = "rank_killed", cause: str = "x") -> Launched:
        decided = {"category": category}
        self._add("recovery", at, incident=name, what="seen", words="rank 1 on n2 killed by SIGKILL")
        return self._add("recovery", at, incident=name, what="diagnosed", words="killed", cause=cause, decided=decided)

    def relaunched(self, at: float, what: str, cause: str) -> Launched:
        """On purpose, without an incident. The launcher counts the next launch already."""
        return self._add("recovery", at, incident="", what=what, words="continues on 3 of 3 nodes", cause=cause)

    def ended(self, at: float, status: str, cause: str = "", step: int = -1) -> Launched:
        self.outcome = {"status": status, "cause": cause, "step": step}
        return self._add("outcome", at, status=status)

    def handoff(self, at: float, how: str) -> Launched:
        return self._add("requeued", at, how=how)

    def _add(self, kind: str, at: float, **fields: Any) -> Launched:
        self.journal.append({"type": kind, "wall": at, "launch": self._launch, **fields})
        return self

    @property
    def told(self) -> Attempt:
        return attempt_of(self.name, self.journal, self.progress, self.outcome)


def accounted(events: Iterable[ev.Event], *launchers: Launched, now: float = 0.0, alive: bool = True) -> Account:
    """Sums are held to the wall time here, for every test."""
    found = account(history(played(*events), [one.told for one in launchers], now, alive=alive))
    at = found.begin
    for span in found.spans:
        assert span.begin == at < span.end
        at = span.end
    assert at == found.until
    assert found.whole.wall == found.until - found.begin == sum(s.wall for _, s in found.attempts) + _nowhere(found)
    return found


def _nowhere(found: Account) -> int:
    return sum(span.length for span in found.spans if not span.attempt)


def seconds(found: Account) -> Mapping[str, float]:
    """By kind, those that there are."""
    return {kind.value: ns / NS for kind, ns in found.whole.ns.items() if ns}


def row(found: Account) -> list[tuple[float, str, str]]:
    """(seconds, kind, cause) in the order of time."""
    return [(span.length / NS, span.kind.value, span.cause) for span in found.spans]
