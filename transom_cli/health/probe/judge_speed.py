"""Do the devices compute as fast as those of their kind do in this job? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.reading import Norm, ProbeReading
from transom_cli.health.probe.shapes import Computed
from transom_cli.health.probe.speeds import FEWEST, Device, Speed, middle, norms, rates_by_kernel, slow_devices, speed

SPEED = "compute_speed"
PROCESSOR = "processor"  # beside the kernels' names: its process was kept from computing
LOOKS = 3  # the first, of all, and two more, of those that were slow in it and of some beside them


def kinds_of(reading: ProbeReading) -> dict[Device, str]:
    return {device: hello.kind for device, hello in reading.by_device().items()}


def again(reading: ProbeReading, limits: ProbeLimits, baseline: Iterable[Norm] = ()) -> tuple[str, ...]:
    """The nodes to measure once more: those that were slow in every look so far, and as many, but two at least, that
    were not, to be measured beside them. () when nobody is slow, or when all looks were had."""
    if not reading.looks or len(reading.looks) >= LOOKS:
        return ()
    kinds = kinds_of(reading)
    slow = _always_slow(reading, kinds, limits, tuple(baseline))
    suspects = tuple(dict.fromkeys(node for node, _ in slow))
    if not suspects:
        return ()
    well = [node for node in reading.nodes if node not in suspects and any(n == node for n, _ in kinds)]
    return (*suspects, *well[: max(len(suspects), 2)])


def judge_speed(reading: ProbeReading, limits: ProbeLimits, baseline: Iterable[Norm] = ()) -> tuple[Finding, ...]:
    """One finding of each device that was measured. SUSPECT after all looks; after fewer, MONITOR."""
    if not reading.looks:
        return ()
    kinds, hellos, earlier = kinds_of(reading), reading.by_device(), tuple(baseline)
    first = [one for one in reading.looks[0] if (one.node, one.index) in kinds and one.rates]
    usual = norms(first, kinds, earlier)
    slow = _always_slow(reading, kinds, limits, earlier)
    starved = statistics.median(one.starved for one in first) if first else 0.0
    job = _Job(kinds, usual, rates_by_kernel(first, kinds), starved, limits)
    found = []
    for one in first:
        device = (one.node, one.index)
        named = hellos[device].device
        if device in slow:
            sure = len(reading.looks) >= LOOKS
            name = slow[device][0]
            said = _told_starved(reading, device) if name == PROCESSOR else _told_slow(reading, device, name, kinds)
            verdict, remedy = (Verdict.SUSPECT, Remedy.AVOID) if sure else (Verdict.MONITOR, Remedy.WATCH)
            found.append(Finding(SPEED, verdict, one.node, said, remedy, named))
        else:
            found.append(_not_slow(one, named, job))
    return tuple(found)


def _always_slow(
    reading: ProbeReading, kinds: Mapping[Device, str], limits: ProbeLimits, baseline: Sequence[Norm]
) -> dict[Device, tuple[str, ...]]:
    """The kernels in which a device was slow in the first look, and below `probe_slow` of those beside it since.

    PROCESSOR, last, for one whose process hardly came to compute in any of them, while those beside it did.
    """
    if not reading.looks:
        return {}
    first = [one for one in reading.looks[0] if (one.node, one.index) in kinds]
    usual = norms(first, kinds, baseline)
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
    """Whose process waited for a processor nearly all the time, while those who are no suspects did not."""
    measured = [one for one in look if one.rates]
    beside = [one.starved for one in measured if (one.node, one.index) not in suspects]
    if not beside:
        return frozenset()
    usual = statistics.median(beside)
    hungry = (one for one in measured if one.starved >= limits.probe_no_processor and usual < one.starved / 2)
    return frozenset((one.node, one.index) for one in hungry)


def _told_starved(reading: ProbeReading, device: Device) -> str:
    looks = []
    for look in reading.looks:
        mine = [one.starved for one in look if (one.node, one.index) == device]
        others = [one.starved for one in look if (one.node, one.index) != device and one.rates]
        if mine and others:
            looks.append(f"{mine[0]:.0%} of the time where the others' median was {statistics.median(others):.0%}")
    return "it waited for a processor for " + "; again ".join(looks)


def _told_slow(reading: ProbeReading, device: Device, name: str, kinds: Mapping[Device, str]) -> str:
    looks = []
    for look in reading.looks:
        these = rates_by_kernel(look, kinds).get((kinds[device], name), {})
        others = [rate for other, rate in these.items() if other != device]
        if device in these and others:
            looks.append(f"{amount(these[device])} where the others' median was {amount(middle(others)[0])}")
        elif device in these:
            looks.append(amount(these[device]))
    return f"{name}: " + "; again ".join(looks)


@dataclass(frozen=True)
class _Job:
    """What one device is compared with. starved: of the median device."""

    kinds: Mapping[Device, str]
    usual: Mapping[tuple[str, str], Norm]
    rates: Mapping[tuple[str, str], Mapping[Device, float]]
    starved: float
    limits: ProbeLimits


def _not_slow(one: Computed, named: str, job: _Job) -> Finding:
    kind = job.kinds[one.node, one.index]
    told, odd = [], []
    for name, rate in one.rates:
        norm = job.usual.get((kind, name))
        if norm is None:
            best = max(job.rates[kind, name].values())
            below = rate < job.limits.probe_slow * best
            said = f"{name} {amount(rate)}, the faster of two of its kind {amount(best)}"
        else:
            below = speed(rate, norm, job.limits) is not Speed.USUAL
            said = f"{name} {amount(rate)}, median of {norm.count} is {amount(norm.median)}"
        told.append(f"{name} {amount(rate)}")
        odd += [said] if below else []
    if one.starved >= job.limits.probe_starved and job.starved < one.starved / 2:
        said = f"it waited for a processor for {one.starved:.0%} of the time, the median process for {job.starved:.0%}"
        odd.append(said)
    if odd:
        return Finding(SPEED, Verdict.MONITOR, one.node, "; ".join(odd), Remedy.WATCH, named)
    rule = "" if all((kind, name) in job.usual for name, _ in one.rates) else f" (fewer than {FEWEST} to learn from)"
    return Finding(SPEED, Verdict.PASS, one.node, ", ".join(told) + rule, device=named)


def amount(rate: float) -> str:
    """FLOP/s or bytes/s, as a person reads it."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}/s"
    return f"{rate:.3g} /s"
