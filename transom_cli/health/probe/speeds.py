"""What is usual for a job's devices, learned from themselves, and who is below it. Pure.

A median and the median distance from it (MAD) hold still while fewer than half of the values are off, so that the slow
ones do not shift what they are measured by. Rates differ by factors, so that the spread is that of their logarithms:
one that is a hundred times too slow stands out however noisy the others are. Fewer than three values have no such
middle: of two that differ, nobody can tell whether one is slow or the other fast. Then only earlier runs (the baseline)
can.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.reading import Norm
from transom_cli.health.probe.shapes import Computed

FEWEST = 3  # values that have a middle
_LEAST = 1e-9  # of no rate at all, so that it has a logarithm
_NORMAL = 1.4826  # the standard deviation of what is distributed normally, by its MAD

Device = tuple[str, int]  # node, number of the device


class Speed(enum.Enum):
    USUAL = "usual"
    ODD = "odd"  # below what chance would explain
    SLOW = "slow"  # so far below that it is worth a second look


def learn(kind: str, name: str, values: Sequence[float]) -> Norm | None:
    """None of fewer than three."""
    if len(values) < FEWEST:
        return None
    median, spread = middle(values)
    return Norm(kind, name, median, spread, len(values))


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Their median, and the spread about it as the standard deviation of their logarithms: 0.1 is about 10 %."""
    median = statistics.median(values)
    return median, _NORMAL * statistics.median(abs(math.log(max(value, _LEAST) / median)) for value in values)


def below(value: float, norm: Norm, share: float, limits: ProbeLimits) -> bool:
    """Whether it is less than this share of the median, and further from it than chance would bring it."""
    return value < norm.median * min(share, math.exp(-limits.probe_spread * norm.spread))


def speed(value: float, norm: Norm, limits: ProbeLimits) -> Speed:
    if value < limits.probe_again * norm.median:  # whatever the noise: it is looked at twice more
        return Speed.SLOW
    return Speed.ODD if below(value, norm, 1 - limits.probe_odd, limits) else Speed.USUAL


def rates_by_kernel(
    look: Iterable[Computed], kinds: Mapping[Device, str]
) -> dict[tuple[str, str], dict[Device, float]]:
    """By kind and kernel, the rate of each device."""
    found: dict[tuple[str, str], dict[Device, float]] = {}
    for one in look:
        for name, rate in one.rates:
            found.setdefault((kinds[one.node, one.index], name), {})[one.node, one.index] = rate
    return found


def norms(
    look: Iterable[Computed], kinds: Mapping[Device, str], baseline: Iterable[Norm] = ()
) -> dict[tuple[str, str], Norm]:
    """What is usual, by kind and kernel: of the job itself where there are enough of them, else of earlier runs."""
    found = {(norm.kind, norm.name): norm for norm in baseline}
    for (kind, name), rates in rates_by_kernel(look, kinds).items():
        learned = learn(kind, name, tuple(rates.values()))
        if learned is not None:
            found[kind, name] = learned
    return found


def slow_devices(
    look: Iterable[Computed], kinds: Mapping[Device, str], usual: Mapping[tuple[str, str], Norm], limits: ProbeLimits
) -> dict[Device, tuple[str, ...]]:
    """The kernels in which each slow device is slow."""
    found: dict[Device, tuple[str, ...]] = {}
    for (kind, name), rates in rates_by_kernel(look, kinds).items():
        norm = usual.get((kind, name))
        for device, rate in rates.items():
            if norm is not None and speed(rate, norm, limits) is Speed.SLOW:
                found[device] = (*found.get(device, ()), name)
    return found
