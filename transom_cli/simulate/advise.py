"""Which settings pay, one at a time, by simulation on the same failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transom_cli.simulate.campaign import Interval, simulate
from transom_cli.simulate.model import Scenario

CLEAR = 0.0005  # a gain of goodput below this is not worth a change


@dataclass(frozen=True)
class Choice:
    """A setting: its present value, the others to try, and the scenario with one of them."""

    name: str
    now: Any
    others: tuple[Any, ...]
    apply: Callable[[Scenario, Any], Scenario]


@dataclass(frozen=True)
class Advice:
    """The best value of one setting.

    Attributes:
        gain: Of useful node time against the present value, run by run. Spares count as used nodes.
        values: (value, mean useful share of node time) of all values tried: the sensitivity.
        clear: The gain is worth a change, and 19 of 20 runs have it.
    """

    name: str
    now: Any
    best: Any
    gain: Interval
    values: tuple[tuple[Any, float], ...]

    @property
    def clear(self) -> bool:
        return self.best != self.now and self.gain.mean >= CLEAR and self.gain.low > 0


def choices(scenario: Scenario) -> tuple[Choice, ...]:
    costs = scenario.costs
    spares = sorted({0, 1, 2, 4, 8, max(1, scenario.nodes // 100), max(1, scenario.nodes // 50)})
    every, nth = costs.save_every, costs.persist_every
    return (
        Choice("spares", scenario.spares, tuple(spares), lambda s, v: replace(s, spares=v)),
        Choice("steps between saves", every, tuple(max(1, round(every * f)) for f in (0.1, 0.3, 3, 10)),
               lambda s, v: replace(s, costs=replace(s.costs, save_every=v))),
        Choice("saves per durable checkpoint", nth, (1, 3, 10, 30),
               lambda s, v: replace(s, costs=replace(s.costs, persist_every=v))),
        Choice("protection", costs.protect, ("none", "xor:4", "replica", "rs:4+2"),
               lambda s, v: replace(s, costs=replace(s.costs, protect=v))),
        Choice("restart.relaunches", scenario.launcher.relaunches, (0, 1, 3, 6),
               lambda s, v: replace(s, launcher=replace(s.launcher, relaunches=v))),
        Choice("isolate.expiry", scenario.operator.expiry, (3600.0, 6 * 3600.0, 86400.0),
               lambda s, v: replace(s, operator=replace(s.operator, expiry=v))),
        Choice("isolate.expiry_by_cost", scenario.operator.expiry_by_cost, (False, True),
               lambda s, v: replace(s, operator=replace(s.operator, expiry_by_cost=v))),
    )  # fmt: skip


def advise(
    scenario: Scenario, runs: int, seed: int, workers: int = 0, done: Callable[[], None] = lambda: None,
    tried: Sequence[Choice] = (),
) -> list[Advice]:  # fmt: skip
    """Try each choice alone, all on the same failures."""
    tried = tried or choices(scenario)
    work = [scenario]
    for choice in tried:
        work += [choice.apply(scenario, value) for value in _others(choice)]
    found = iter(simulate(work, runs, seed, workers, done))
    width = [one.nodes / one.requested for one in work]
    shares = [[r.goodput * w for r in outcomes] for outcomes, w in zip(found, width, strict=True)]
    now, rest = shares[0], iter(shares[1:])
    advice = []
    for choice in tried:
        values = {choice.now: now, **{value: next(rest) for value in _others(choice)}}
        means = {value: sum(share) / len(share) for value, share in values.items()}
        best = max(means, key=lambda value: (means[value], value == choice.now))
        gain = Interval.of([b - a for a, b in zip(now, values[best], strict=True)])
        advice.append(Advice(choice.name, choice.now, best, gain, tuple(means.items())))
    return advice


def count(scenario: Scenario) -> int:
    """Return how many scenarios `advise` simulates."""
    return 1 + sum(len(_others(choice)) for choice in choices(scenario))


def _others(choice: Choice) -> list[Any]:
    return [value for value in dict.fromkeys(choice.others) if value != choice.now]
