"""From a seed to a plan: which faults, where, when, and how long. Pure: the same seed always gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

NODES = 3  # of a run
SANDBOX_NODES = 6  # the two that may be isolated within the cap, and one more, leave three
CAP = 2  # nodes isolated within the hour: transom's default

LOSES_NODE = frozenset({"node-kill", "node-stop"})
DISK = frozenset({"disk-full", "disk-readonly", "disk-stall"})
CONTROLLER = frozenset({"controller-kill", "controller-stop"})
CLOCK = frozenset({"clock-jump"})

# kind: how often beside the others, and for how many seconds (None: nothing undoes it)
_KINDS: dict[str, tuple[int, tuple[float, float] | None]] = {
    "rank-kill": (4, None),
    "rank-stop": (2, None),
    "rank-pause": (2, (1.0, 12.0)),
    "rank-slow": (2, (2.0, 8.0)),
    "agent-kill": (2, None),
    "agent-stop": (2, (2.0, 15.0)),
    "agent-hang": (1, None),
    "launcher-kill": (3, None),
    "launcher-stop": (2, (2.0, 15.0)),
    "launcher-hang": (1, None),
    "operator-kill": (4, (0.5, 12.0)),
    "operator-away": (1, (22.0, 40.0)),  # longer than the launcher waits for one
    "node-kill": (3, None),
    "node-stop": (2, None),
    "node-pause": (1, (2.0, 30.0)),
    "admin-drain": (2, (5.0, 30.0)),
    "admin-requeue": (1, None),
    "limit-warning": (2, None),
    "controller-kill": (2, (1.0, 15.0)),
    "controller-stop": (2, (1.0, 15.0)),
    "disk-full": (2, (1.0, 12.0)),
    "disk-readonly": (2, (1.0, 12.0)),
    "disk-stall": (2, (1.0, 12.0)),
    "clock-jump": (2, (3.0, 20.0)),
}
KINDS = tuple(_KINDS)
_UNTARGETED = ("launcher", "operator", "controller", "disk", "admin-requeue", "limit")
_COUNTS = (2, 2, 2, 3, 3, 4)
_JUMPS = (-7200.0, -600.0, -30.0, 30.0, 600.0, 7200.0)


@dataclass(frozen=True)
class Moment:
    """`seconds` after: `start`, the submission; `step`, when every rank has done `step`; `recovery`, when the first
    sign of trouble after the first fault was seen by operator or launcher; `fault`, the fault before it; `steady`, when
    the training steps and has recovered from the faults before; `ready`, when its standbys are ready too."""

    after: str
    seconds: float
    step: int = 0

    @property
    def words(self) -> str:
        what = {
            "start": "the submission",
            "recovery": "the recovery began",
            "fault": "the fault before",
            "steady": "the training steps",
            "ready": "the standbys are ready",
        }
        return f"{self.seconds:.1f} s after {what.get(self.after, f'step {self.step}')}"


@dataclass(frozen=True)
class Injection:
    """`target`: which rank, or which of the job's nodes at that moment. `lasting`: seconds until it is undone, or None.
    `amount`: the share of time that a slow rank keeps; the seconds by which a clock jumps. `story`: what several faults
    are together."""

    kind: str
    target: int
    moment: Moment
    lasting: float | None = None
    amount: float = 0.0
    story: str = ""

    @property
    def words(self) -> str:
        until = f", undone after {self.lasting:.1f} s" if self.lasting is not None else ""
        amount = f" ({self.amount:g})" if self.amount else ""
        target = "" if self.kind.startswith(_UNTARGETED) else f" of {self.target}"
        story = f"{self.story}: " if self.story else ""
        return f"{story}{self.kind}{amount}{target}, {self.moment.words}{until}"


@dataclass(frozen=True)
class Plan:
    seed: str
    injections: tuple[Injection, ...]
    spares: int = 0  # of the run
    options: tuple[str, ...] = ()  # of `transom run`

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(seed: str, steps: int, available: Collection[str] = KINDS) -> Plan:
    """`available`: the kinds that can be made here; in the place of another one the next that is drawn comes.

    At most one node more is lost than may be isolated. The controller and the disk have one fault at a time.
    """
    rng = random.Random(seed)
    count = rng.choice(_COUNTS)
    drawn: list[str] = []
    while len(drawn) < count:
        kind = rng.choices(KINDS, [weight for weight, _ in _KINDS.values()])[0]
        if kind in available and _fits(kind, drawn):
            drawn.append(kind)
    injections: list[Injection] = []
    for kind in drawn:
        bounds = _KINDS[kind][1]
        lasting = round(rng.uniform(*bounds), 1) if bounds is not None else None
        amount = {"rank-slow": round(rng.uniform(0.2, 0.7), 2), "clock-jump": rng.choice(_JUMPS)}.get(kind, 0.0)
        target = rng.randrange(NODES + 2 if kind == "clock-jump" else NODES)  # a clock: of a node, login, or all
        injections.append(Injection(kind, target, _moment(rng, steps, bool(injections)), lasting, amount))
    return Plan(seed, tuple(injections), rng.choice((0, 0, 1)))


RECOVERY_OPTIONS = (
    *("--set", "launch.recoverable=true", "--set", "launch.standby=true"),
    *("--set", "health.preflight=off"),  # no fault of a node is made
)
STORIES = 3  # in a run, one after the other
# name: (kind, "one" or "other" of two ranks, when: "first", or after the first fault of the story)
_STORIES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "death": (("rank-kill", "one", "first"),),
    "two deaths": (("rank-kill", "one", "first"), ("rank-kill", "other", "recovery")),
    "death of the new rank": (("rank-kill", "one", "first"), ("rank-kill", "one", "recovery")),
    "standby dies before": (("standby-kill", "one", "first"), ("rank-kill", "one", "fault")),
    "standby dies too": (("both-kill", "one", "first"),),
    "survivor is stuck": (("rank-stuck", "other", "first"), ("rank-kill", "one", "fault")),
    "hang in a C call": (("rank-stuck", "one", "first"),),
    "hang": (("rank-stop", "one", "first"),),
    "hang and death": (("rank-stop", "one", "first"), ("rank-kill", "other", "recovery")),
}


def make_recovery_plan(seed: str) -> Plan:
    """Some `STORIES` around an in-process restart, in a run with `RECOVERY_OPTIONS`. Each begins when the training has
    recovered from the one before."""
    rng, number = random.Random(seed), int(seed.rpartition("/")[2])
    injections: list[Injection] = []
    for turn in range(number * STORIES, (number + 1) * STORIES):
        name = tuple(_STORIES)[turn % len(_STORIES)]
        ranks = dict(zip(("one", "other"), rng.sample(range(NODES), 2), strict=True))
        begins = "ready" if "standby" in name else rng.choice(("ready", "ready", "ready", "steady"))
        moments = {
            "first": Moment(begins, round(rng.uniform(0.0, 3.0), 2)),
            "recovery": Moment("recovery", round(rng.uniform(0.0, 4.0), 2)),
            "fault": Moment("fault", round(rng.uniform(0.2, 2.0), 2)),
        }
        injections += [Injection(kind, ranks[rank], moments[when], story=name) for kind, rank, when in _STORIES[name]]
        if rng.random() < 0.25:
            kind, lasting = rng.choice((("agent-kill", None), ("operator-kill", 5.0)))
            moment = Moment("recovery", round(rng.uniform(0.0, 4.0), 2))
            injections.append(Injection(kind, ranks["other"], moment, lasting, story=name))
    return Plan(seed, tuple(injections), options=RECOVERY_OPTIONS)


def _fits(kind: str, drawn: list[str]) -> bool:
    if kind in LOSES_NODE and sum(x in LOSES_NODE for x in drawn) > CAP:
        return False
    for group in (DISK, CONTROLLER, CLOCK, {"operator-kill", "operator-away"}):
        if kind in group and group.intersection(drawn):
            return False
    return True


def _moment(rng: random.Random, steps: int, follows: bool) -> Moment:
    kind = rng.choice(("recovery", "recovery", "fault", "step") if follows else ("step", "step", "step", "start"))
    if kind == "step":
        return Moment("step", round(rng.uniform(0.0, 0.5), 2), rng.randrange(2, max(3, steps * 2 // 3)))
    return Moment(kind, round(rng.uniform(0.0, 8.0), 2))
