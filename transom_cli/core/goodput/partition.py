"""Divides the time of a run, from submission to its end or to now, into spans without gap or overlap. Pure.

Spans are only ever appended up to the next boundary (`_Ledger.until`), so whatever the journals contain, and in
whatever order, the lengths of the spans add up to the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from transom_cli.core.goodput.model import NS, Attempt, Cause, History, How, Kind, Launch, Sample, Sign, Span

START = "start"  # the cause of the time before the first step of a run
SLACK = 180 * NS  # a training counts as stepping this long after its last sample, or three of its intervals


_ON_PURPOSE = ("done", "left", "stopped")
_WITHOUT_CAUSE = (Kind.PRODUCTIVE, Kind.CHECKPOINT, Kind.IDLE, Kind.UNSEEN)


def partition(history: History) -> tuple[tuple[Span, ...], tuple[Cause, ...]]:
    """Return the spans in order of time, from `begin` to `until`, and the causes that they name."""
    walk = _Walk(history)
    for number, attempt in enumerate(history.attempts):
        walk.attempt(attempt, history.attempts[number + 1 :])
    walk.gap(history.until)
    return tuple(walk.ledger.spans), tuple(walk.causes.values())


class _Ledger:
    def __init__(self, begin: int, until: int) -> None:
        self.spans: list[Span] = []
        self.now, self._end = begin, until

    def until(self, at: int, kind: Kind, attempt: str, cause: str = "") -> None:
        """Count the time up to `at` as of this kind. A time before the current boundary adds nothing."""
        at = min(at, self._end)
        if at <= self.now:
            return
        begin, last = self.now, self.spans[-1] if self.spans else None
        if last is not None and (last.kind, last.attempt, last.cause) == (kind, attempt, cause):
            begin = self.spans.pop().begin
        self.spans.append(Span(begin, at, kind, attempt, cause))
        self.now = at


@dataclass(frozen=True)
class _Ending:
    """How a launch ended."""

    stop: int  # from then on, it is known not to step
    sign: Sign | None = None  # the first sign of the fault
    goes_on: bool = False  # it has not ended
    purpose: str = ""  # the attempt's status if it was ended on purpose


class _Walk:
    def __init__(self, history: History) -> None:
        self._history = history
        self._signs: dict[str, list[Sign]] = {}  # operator's incidents, by attempt
        for name, sign in history.signs:
            self._signs.setdefault(name, []).append(sign)
        self.ledger = _Ledger(history.begin, history.until)
        self.causes: dict[str, Cause] = {START: Cause(START, at=history.begin)}
        self._cause = self._undone = START  # why it does not step; why steps are repeated
        self._bests: dict[str, int] = {}  # by job step: the newest step ever finished
        self._job_step = ""  # of the present launch
        self._attempt = history.attempts[0].name if history.attempts else ""
        self._between, self._handoff = Kind.IDLE, False  # the last launcher's account of the time after it

    @property
    def _best(self) -> int:
        """The newest step that the present job step has ever finished."""
        return self._bests.get(self._job_step, -1)

    # --- between two attempts ---

    def gap(self, end: int) -> None:
        """Count the time up to `end` without an attempt, by what the operator or the last launcher knew."""
        kind = self._between
        for one in self._history.observations:
            if one.at <= self.ledger.now and not (one.at == self.ledger.now and not self._handoff):
                continue
            if one.at > end:
                break
            self._wait(one.at, Kind.IDLE if one.restarted and self._deserted(kind) else kind)
            kind = kind if one.restarted and self._handoff else one.kind
        away = end == self._history.until and not self._history.over and not self._history.alive
        self._wait(end, Kind.IDLE if away and self._deserted(kind) else kind)

    def _deserted(self, kind: Kind) -> bool:
        """Whether the run needs an operator to continue, and has none."""
        return kind is Kind.RESTART and not self._handoff

    def _wait(self, at: int, kind: Kind) -> None:
        self.ledger.until(at, kind, self._attempt, "" if kind is Kind.IDLE else self._cause)

    # --- an attempt ---

    def attempt(self, attempt: Attempt, later: Sequence[Attempt]) -> None:
        starts = [at for at in (attempt.began, *(one.at for one in attempt.launches[:1])) if at is not None]
        if not starts:
            return
        self.gap(min(starts))
        self._attempt = attempt.name
        end = self._end(attempt, later)
        if attempt.checked is not None:
            self._spend(min(attempt.checked, end), Kind.PREFLIGHT)
        bounds = [*(one.at for one in attempt.launches[1:]), end]
        between = Kind.RESTART
        for launch, bound in zip(attempt.launches, bounds, strict=False):
            self._spend(min(launch.at, end), between)
            self._continue(launch.how if launch is not attempt.launches[0] else How.RESTART)
            until = bound if launch.done is None else min(bound, launch.done)
            self._launch(attempt, launch, min(until, end), last=launch is attempt.launches[-1])
            between = Kind.RESTART if launch.done is None else Kind.IDLE  # then the script does something else
        if not attempt.launches and attempt.ended is not None:
            self._blame(attempt, self._sign(attempt, self.ledger.now, end), stepped=False)
        self._spend(end, between)
        stopped = attempt.status == "stopped" and not later and self._history.over
        done = attempt.status == "done" or between is Kind.IDLE or stopped
        self._between, self._handoff = Kind.IDLE if done else Kind.RESTART, False
        if attempt.handoff is not None:
            self._spend(attempt.handoff, Kind.RESTART)
            self._between, self._handoff = Kind.HOLD if attempt.held else Kind.QUEUE, True

    def _end(self, attempt: Attempt, later: Sequence[Attempt]) -> int:
        if attempt.ended is not None:
            return attempt.ended
        after = (p for p in self._history.observations if p.at > self.ledger.now and p.attempt)
        other = (p.at for p in after if Attempt(p.attempt).order > attempt.order)
        began = (a.began for a in later if a.began is not None)
        return min((*other, *began, self._history.until))

    def _launch(self, attempt: Attempt, launch: Launch, end: int, *, last: bool) -> None:
        self._job_step = launch.job_step
        samples = _rising(launch.samples, self.ledger.now, end)
        ending = self._ending(attempt, launch, samples, end, last=last)
        if not launch.exact:
            samples = _rising(launch.samples, self.ledger.now, ending.stop)
        seen = attempt.launcher and self._history.steps_seen  # else only its checkpoints are known
        if samples:
            best = -1 if launch.since_start else self._best
            self._first(samples[0], Kind.RESTART if seen else Kind.UNSEEN, own_steps=not launch.since_start)
            self._steps(samples, best)
        else:
            self._spend(ending.stop, Kind.RESTART if seen else Kind.UNSEEN)
        if not launch.since_start:
            sign = ending.sign.step if ending.sign is not None and samples else -1
            newest = max(self._best, attempt.step if last else -1, samples[-1].step if samples else -1, sign)
            self._bests[self._job_step] = newest
        if ending.goes_on:
            self._tail(samples, end, -1 if launch.since_start else self._best, seen=seen)
        elif ending.purpose == "done":
            self._spend(end, Kind.PRODUCTIVE)
        else:
            made = samples[-1].step if samples and launch.since_start else -1
            planned = bool(launch.left) and ending.purpose == launch.left
            self._blame(attempt, ending.sign, stepped=bool(samples), made=made, planned=planned)
            if not ending.purpose:
                self._spend(ending.stop, Kind.DETECTION if seen else Kind.UNSEEN)
        self._spend(end, Kind.RESTART)

    def _ending(self, attempt: Attempt, launch: Launch, samples: Sequence[Sample], end: int, *, last: bool) -> _Ending:
        """Find the first sign of the fault: after the last step, or before it if the ranks stepped until they ended.

        A sign after which the ranks stepped on for long was no fault.
        """
        if launch.done is not None:
            return _Ending(end, purpose="done")
        if launch.left and not last:
            stop = samples[-1].at if samples else launch.at
            return _Ending(stop, Sign(stop, f"{attempt.name}.{launch.number + 1}", launch.left), purpose=launch.left)
        purpose = attempt.status if last and attempt.ended is not None and attempt.status in _ON_PURPOSE else ""
        if purpose:
            return _Ending(end, self._sign(attempt, launch.at, end), purpose=purpose)
        since = samples[-1].at if samples and launch.exact else launch.at
        sign = self._sign(attempt, since, end)
        if sign is None and last and attempt.ended is None and end == self._history.until:
            return _Ending(end, goes_on=True)
        sign = sign or self._sign(attempt, launch.at, since)
        return _Ending(end if sign is None else min(max(sign.at, since), end), sign)

    def _continue(self, how: How) -> None:
        """Note how the training continues after the present cause."""
        known = self.causes[self._cause]
        if known.key != START and known.how is None and not known.planned:
            self.causes[known.key] = replace(known, how=how)

    def _first(self, sample: Sample, kind: Kind, *, own_steps: bool) -> None:
        """Count the time up to a launch's first step, and the steps lost by the rollback.

        Args:
            own_steps: Steps count from the start of the training, not of the processes.
        """
        self._spend(sample.at, kind)
        if kind is Kind.RESTART and own_steps:
            known = self.causes[self._undone]
            first = 1 if self._history.from_zero else sample.step
            self.causes[self._undone] = replace(known, lost=max(known.lost, 0, self._best - first + 1))

    def _steps(self, samples: Sequence[Sample], best: int) -> None:
        for one, other in pairwise(samples):
            stall = 0
            if one.stalled is not None and other.stalled is not None:
                stall = min(max(other.stalled - one.stalled, 0), other.at - one.at)
            if one.step < best:
                share = min(best, other.step) - one.step
                redone = one.at + (other.at - one.at) * share // (other.step - one.step)
                self._spend(min(redone, other.at - stall), Kind.REDONE)
            if stall:
                self._spend(other.at - stall, Kind.PRODUCTIVE)
                self._spend(other.at, Kind.CHECKPOINT)
        self._spend(samples[-1].at, Kind.PRODUCTIVE)  # all since the last of these

    def _tail(self, samples: Sequence[Sample], end: int, best: int, *, seen: bool) -> None:
        """Count the time after the newest sample of a live training: as stepping for a while, then as unseen."""
        if not samples or not seen:
            return self._spend(end, Kind.UNSEEN)
        slack = max(SLACK, 3 * max((b.at - a.at for a, b in pairwise(samples)), default=0))
        known = end if self._history.stepless is None else max(self._history.stepless, samples[-1].at)
        self._spend(
            min(end, known, samples[-1].at + slack), Kind.REDONE if samples[-1].step < best else Kind.PRODUCTIVE
        )
        self._spend(end, Kind.UNSEEN)

    def _spend(self, at: int, kind: Kind) -> None:
        cause = "" if kind in _WITHOUT_CAUSE else self._undone if kind is Kind.REDONE else self._cause
        self.ledger.until(at, kind, self._attempt, cause)

    # --- faults ---

    def _sign(self, attempt: Attempt, since: int, end: int) -> Sign | None:
        """Return the first sign in this time, with the operator's name if it has one."""
        own = [s for s in attempt.signs if since <= s.at <= end]
        theirs = [s for s in self._signs.get(attempt.name, ()) if since <= s.at <= end]
        found = min((*own, *theirs), key=lambda s: s.at, default=None)
        if found is None or not own or not theirs:
            return found
        named = next((s for s in own if s.incident[:1] == "i"), theirs[0])
        return replace(named, at=found.at, category=named.category or found.category, hang=any(s.hang for s in own))

    def _blame(
        self, attempt: Attempt, sign: Sign | None, *, stepped: bool, made: int = -1, planned: bool = False
    ) -> None:
        """Set the cause of the time from now to the next step. A launch that failed at its start lost no step.

        Args:
            made: the launch's steps, if they count from the start of the processes.
        """
        newest = max(self._best, made)
        late = (s for s in self._signs.get(attempt.name, ()) if s.at >= self.ledger.now)
        sign = sign or next(late, None)
        if sign is None:
            cause = Cause(attempt.name, attempt.cause or attempt.status, self.ledger.now, newest)
        else:
            named = planned or sign.incident[:1] == "i"
            key = sign.incident if named else f"{attempt.name}/{sign.incident}"
            cause = Cause(key, sign.category or attempt.cause, sign.at, newest, hang=sign.hang, planned=planned)
        self._cause = cause.key
        self._undone = cause.key if stepped else self._undone
        self.causes.setdefault(cause.key, cause)


def _rising(samples: Sequence[Sample], begin: int, end: int) -> list[Sample]:
    """Return samples in order of time and step. Those reported later than `end` were finished by then."""
    found: list[Sample] = []
    for sample in sorted(samples, key=lambda s: s.at):
        if sample.at >= begin and (not found or sample.step > found[-1].step):
            found.append(sample if sample.at <= end else replace(sample, at=end))
    return found
