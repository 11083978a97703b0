"""Do the devices compute as fast as others of their kind in this job? Pure.

The usual rate is learned from the job itself. A median and the median absolute deviation (MAD) are stable while fewer
than half of the values are wrong, so slow devices do not shift their own reference. Rates differ by factors, so the
spread is that of their logarithms: a device that is a hundred times too slow is an outlier at any noise. With two
values, it is unknown whether one is slow or the other fast.
"""

import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.messages import Computed, Device, Norm, ProbeReading
from transom_cli.health.probe.plan import ProbeLimits

FEWEST = 3  # values needed for a median
_LEAST = 1e-9  # in place of a rate of 0, which has no logarithm
_NORMAL = 1.4826  # standard deviation of a normal distribution per MAD


class Speed(enum.Enum):
    USUAL = "usual"
    ODD = "odd"  # below what chance would explain
    SLOW = "slow"  # so far below that it is worth a second look


def learn(values: Sequence[float]) -> Norm | None:
    """Return None for fewer than `FEWEST` values."""
    if len(values) < FEWEST:
        return None
    median, spread = middle(values)
    return Norm(median, spread, len(values))


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the spread as the standard deviation of the logarithms: 0.1 is about 10%."""
    median = statistics.median(values)
    return median, _NORMAL * statistics.median(abs(math.log(max(value, _LEAST) / median)) for value in values)


def below(value: float, norm: Norm, share: float, limits: ProbeLimits) -> bool:
    """Return whether the value is less than this share of the median, and lower than chance explains."""
    return value < norm.median * min(share, math.exp(-limits.probe_spread * norm.spread))


def speed(value: float, norm: Norm, limits: ProbeLimits) -> Speed:
    if value < limits.probe_again * norm.median:  # at any noise: it is measured twice more
        return Speed.SLOW
    return Speed.ODD if below(value, norm, 1 - limits.probe_odd, limits) else Speed.USUAL


def rates_by_kernel(
    look: Iterable[Computed], kinds: Mapping[Device, str]
) -> dict[tuple[str, str], dict[Device, float]]:
    """Return each device's rate, by kind and kernel."""
    found: dict[tuple[str, str], dict[Device, float]] = {}
    for one in look:
        for name, rate in one.rates:
            found.setdefault((kinds[one.node, one.index], name), {})[one.node, one.index] = rate
    return found


def norms(look: Iterable[Computed], kinds: Mapping[Device, str]) -> dict[tuple[str, str], Norm]:
    """Return what is usual in this job, by kind and kernel, if it has enough devices."""
    learned = ((key, learn(tuple(rates.values()))) for key, rates in rates_by_kernel(look, kinds).items())
    return {key: norm for key, norm in learned if norm is not None}


def slow_devices(
    look: Iterable[Computed], kinds: Mapping[Device, str], usual: Mapping[tuple[str, str], Norm], limits: ProbeLimits
) -> dict[Device, tuple[str, ...]]:
    """Return the kernels in which each slow device is slow."""
    found: dict[Device, tuple[str, ...]] = {}
    for (kind, name), rates in rates_by_kernel(look, kinds).items():
        norm = usual.get((kind, name))
        for device, rate in rates.items():
            if norm is not None and speed(rate, norm, limits) is Speed.SLOW:
                found[device] = (*found.get(device, ()), name)
    return found


SPEED = "compute_speed"
PROCESSOR = "processor"  # in place of a kernel's name: the process got no CPU
LOOKS = 3  # measurements: one of all nodes, two more of slow ones and some beside them


def kinds_of(reading: ProbeReading) -> dict[Device, str]:
    return {device: hello.kind for device, hello in reading.by_device().items()}


def again(reading: ProbeReading, limits: ProbeLimits) -> tuple[str, ...]:
    """Return the nodes to measure once more: those slow in every measurement so far, and as many others (at least two)
    to compare them with. () if no node is slow, or after all measurements."""
    if not reading.looks or len(reading.looks) >= LOOKS:
        return ()
    kinds = kinds_of(reading)
    slow = _always_slow(reading, kinds, limits)
    suspects = tuple(dict.fromkeys(node for node, _ in slow))
    if not suspects:
        return ()
    well = [node for node in reading.nodes if node not in suspects and any(n == node for n, _ in kinds)]
    return (*suspects, *well[: max(len(suspects), 2)])


def judge_speed(reading: ProbeReading, limits: ProbeLimits) -> tuple[Finding, ...]:
    """Return one finding per measured device. Slow is SUSPECT after all measurements, MONITOR after fewer."""
    if not reading.looks:
        return ()
    kinds, hellos = kinds_of(reading), reading.by_device()
    first = [one for one in reading.looks[0] if (one.node, one.index) in kinds and one.rates]
    usual = norms(first, kinds)
    slow = _always_slow(reading, kinds, limits)
    starved = statistics.median(one.starved for one in first) if first else 0.0
    job = _Job(kinds, usual, rates_by_kernel(first, kinds), starved, limits)
    found = []
    for one in first:
        device = (one.node, one.index)
        named = hellos[device].device
        if device in slow:
            sure = len(reading.looks) >= LOOKS
            name = slow[device][0]
            text = _starved_text(reading, device) if name == PROCESSOR else _slow_text(reading, device, name, kinds)
            verdict, remedy = (Verdict.SUSPECT, Remedy.AVOID) if sure else (Verdict.MONITOR, Remedy.WATCH)
            found.append(Finding(SPEED, verdict, one.node, text, remedy, named))
        else:
            found.append(_not_slow(one, named, job))
    return tuple(found)


def _always_slow(
    reading: ProbeReading, kinds: Mapping[Device, str], limits: ProbeLimits
) -> dict[Device, tuple[str, ...]]:
    """Return the kernels in which a device was slow first, and below `probe_slow` of its neighbours in each repetition.

    PROCESSOR, last, if its process hardly got a CPU in any measurement, while its neighbours did.
    """
    if not reading.looks:
        return {}
    first = [one for one in reading.looks[0] if (one.node, one.index) in kinds]
    usual = norms(first, kinds)
    slow = slow_devices(first, kinds, usual, limits)
    for device in _starved(first, frozenset(), limits):
        slow[device] = (*slow.get(device, ()), PROCESSOR)
    for look in reading.looks[1:]:
        rates = rates_by_kernel(look, kinds)
        suspects = frozenset(slow)
        starved = _starved(look, suspects, limits)
        for device, names in list(slow.items()):
            still = []
            for name in names:
                if name == PROCESSOR:
                    still += [name] if device in starved else []
                    continue
                these = rates.get((kinds[device], name), {})
                beside = [rate for other, rate in these.items() if other not in suspects]
                norm = usual[kinds[device], name]
                compared = middle(beside)[0] if beside else norm.median
                if device in these and these[device] < limits.probe_slow * compared:
                    still.append(name)
            slow[device] = tuple(still)
    return {device: names for device, names in slow.items() if names}


def _starved(look: Iterable[Computed], suspects: frozenset[Device], limits: ProbeLimits) -> frozenset[Device]:
    """Return devices whose process waited for a CPU nearly all the time, while those of healthy nodes did not."""
    measured = [one for one in look if one.rates]
    beside = [one.starved for one in measured if (one.node, one.index) not in suspects]
    if not beside:
        return frozenset()
    usual = statistics.median(beside)
    hungry = (one for one in measured if one.starved >= limits.probe_no_processor and usual < one.starved / 2)
    return frozenset((one.node, one.index) for one in hungry)


def _starved_text(reading: ProbeReading, device: Device) -> str:
    looks = []
    for look in reading.looks:
        mine = [one.starved for one in look if (one.node, one.index) == device]
        others = [one.starved for one in look if (one.node, one.index) != device and one.rates]
        if mine and others:
            looks.append(f"{mine[0]:.0%} of the time (median of the others: {statistics.median(others):.0%})")
    return "it waited for a CPU " + "; again ".join(looks)


def _slow_text(reading: ProbeReading, device: Device, name: str, kinds: Mapping[Device, str]) -> str:
    looks = []
    for look in reading.looks:
        these = rates_by_kernel(look, kinds).get((kinds[device], name), {})
        others = [rate for other, rate in these.items() if other != device]
        if device in these and others:
            looks.append(f"{amount(these[device])} (median of the others: {amount(middle(others)[0])})")
        elif device in these:
            looks.append(amount(these[device]))
    return f"{name}: " + "; again ".join(looks)


@dataclass(frozen=True)
class _Job:
    """What a device is compared with. starved: the median device's share."""

    kinds: Mapping[Device, str]
    usual: Mapping[tuple[str, str], Norm]
    rates: Mapping[tuple[str, str], Mapping[Device, float]]
    starved: float
    limits: ProbeLimits


def _not_slow(one: Computed, named: str, job: _Job) -> Finding:
    kind = job.kinds[one.node, one.index]
    parts, odd = [], []
    for name, rate in one.rates:
        norm = job.usual.get((kind, name))
        if norm is None:
            best = max(job.rates[kind, name].values())
            below = rate < job.limits.probe_slow * best
            text = f"{name} {amount(rate)}, the faster one of its kind {amount(best)}"
        else:
            below = speed(rate, norm, job.limits) is not Speed.USUAL
            text = f"{name} {amount(rate)}, median of {norm.count} is {amount(norm.median)}"
        parts.append(f"{name} {amount(rate)}")
        odd += [text] if below else []
    if one.starved >= job.limits.probe_starved and job.starved < one.starved / 2:
        text = f"it waited for a CPU {one.starved:.0%} of the time, the median process {job.starved:.0%}"
        odd.append(text)
    if odd:
        return Finding(SPEED, Verdict.MONITOR, one.node, "; ".join(odd), Remedy.WATCH, named)
    rule = "" if all((kind, name) in job.usual for name, _ in one.rates) else f" (fewer than {FEWEST} to learn from)"
    return Finding(SPEED, Verdict.PASS, one.node, ", ".join(parts) + rule, device=named)


def amount(rate: float) -> str:
    """Format FLOP/s or bytes/s: "1.23 G/s"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}/s"
    return f"{rate:.3g} /s"
