"""What a node's network ports tell of it. Pure.

No FAIL: what breaks a link may be the cable, the switch at its other end or the subnet manager, and nothing that the
node can read tells these apart. A link that is down, or goes down, keeps the node out of the run for a while (SUSPECT).
Counters go back to the driver's load, so that their totals may be another job's: what is new is judged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.node.fabric import CONGESTION, FAULTS, LINK_DOWNED, FabricReading, Port

FINDINGS = ("ib_state", "ib_rate", "ib_counters")
EVENTS = ("ib_link", "ib_errors")
"""Checks of `judge_fabric_changes`: what happened between two looks."""

_DISABLED = "Disabled"
_TOLD = 4  # ports or counters that one finding names
_ORDER = (Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT)


@dataclass(frozen=True)
class FabricLimits:
    """ib_flaps: times that a link went down between two looks; gpud calls a port flapping from the third time on.

    ib_errors: new errors of a link that are nothing; gcm's check-ib-counters warns at any. ib_drops_per_s: packets
    dropped or sent again; no source: a fabric under load loses some, and the network probe tells what that costs.
    """

    ib_flaps: int = 3
    ib_errors: int = 0
    ib_drops_per_s: float = 100.0


def judge_fabric(node: str, reading: FabricReading, about: About, limits: FabricLimits) -> tuple[Finding, ...]:
    if not reading.ports:
        return tuple(not_applicable(check, node, "the node has no InfiniBand, RoCE or EFA port") for check in FINDINGS)
    return (_judge_state(node, reading.ports), _judge_rate(node, reading.ports), _totals(node, reading.ports))


def judge_fabric_changes(
    node: str, former: FabricReading, reading: FabricReading, seconds: float, limits: FabricLimits
) -> tuple[Finding, ...]:
    """What happened within `seconds`: findings of `EVENTS`, none where nothing did."""
    now = {port.name: port for port in reading.ports}
    found: list[Finding] = []
    for was in former.ports:
        port = now.get(was.name)
        if port is None:
            said = f"{was.name} is gone from /sys/class/infiniband, {was.state} {seconds:.0f} s ago"
            found.append(Finding("ib_link", Verdict.SUSPECT, node, said, Remedy.AVOID, was.name))
            continue
        found += _link(node, was, port, seconds, limits)
        found += _errors(node, was, port, seconds, limits)
    return tuple(found)


def overdue(node: str, waited: float, about: About) -> Finding:
    """Reading a counter asks the adapter's firmware: a driver that waits for it holds up whoever communicates too."""
    said = f"reading /sys/class/infiniband has not ended within {waited:.0f} s: the driver waits for its adapter"
    return Finding("ib_state", Verdict.SUSPECT, node, said, Remedy.AVOID)


def _judge_state(node: str, ports: tuple[Port, ...]) -> Finding:
    down = [(_down(port, ports), port) for port in ports if not port.up]
    if not down:
        said = f"{len(ports)} ports are ACTIVE: {_listed(port.name for port in ports)}"
        return Finding("ib_state", Verdict.PASS, node, said)
    worst = max((verdict for (verdict, _), _ in down), key=_ORDER.index)
    told = [(why, port) for (verdict, why), port in down if verdict is worst]
    said = f"{_listed(f'{port.name} is {port.state}, {port.phys_state}: {why}' for why, port in told)}"
    said += f" ({len(ports) - len(down)} of {len(ports)} ports are ACTIVE)"
    remedy = Remedy.AVOID if worst is Verdict.SUSPECT else Remedy.SETUP
    return Finding("ib_state", worst, node, said, remedy, told[0][1].name)


def _down(port: Port, ports: tuple[Port, ...]) -> tuple[Verdict, str]:
    """A port that never carried anything may well have no cable: adapters have more ports than clusters use."""
    if port.phys_state == _DISABLED:
        return Verdict.MONITOR, "it is switched off"
    if port.received == 0:
        return Verdict.MONITOR, "it has received nothing since its driver was loaded, no cable may be in it"
    if port.received:
        return Verdict.SUSPECT, "it has been in use"
    if any(other.up for other in ports if _kind(other) == _kind(port)):
        return Verdict.SUSPECT, "others of its kind are ACTIVE"
    return Verdict.MONITOR, "no port of its kind is ACTIVE"


def _judge_rate(node: str, ports: tuple[Port, ...]) -> Finding:
    """Within one kind of adapter. Two ports that differ do not tell which one is right."""
    slow: list[tuple[bool, Port, float]] = []
    for kind in {_kind(port) for port in ports}:
        speeds = [port.speed for port in ports if _kind(port) == kind and port.up and port.speed]
        if len(set(speeds)) < 2:
            continue
        usual, times = max(Counter(speeds).items(), key=lambda item: (item[1], item[0]))
        slow += [(times > 1, p, usual) for p in ports if _kind(p) == kind and p.up and 0 < p.speed < usual]
    if not slow:
        rates = Counter(port.rate for port in ports if port.up)
        said = _listed(f"{times} at {rate}" for rate, times in sorted(rates.items())) or "no port is ACTIVE"
        return Finding("ib_rate", Verdict.PASS, node, said)
    sure = [(port, usual) for many, port, usual in slow if many] or [(port, usual) for _, port, usual in slow]
    said = _listed(f"{port.name} runs at {port.rate}, its siblings at {usual:g} Gb/sec" for port, usual in sure)
    verdict = Verdict.SUSPECT if any(many for many, _, _ in slow) else Verdict.MONITOR
    remedy = Remedy.AVOID if verdict is Verdict.SUSPECT else Remedy.WATCH
    return Finding("ib_rate", verdict, node, said, remedy, sure[0][0].name)


def _totals(node: str, ports: tuple[Port, ...]) -> Finding:
    said = [f"{port.name}: {name} {value}" for port in ports for name, value in port.counters if value]
    words = _listed(said) if said else "no errors and no drops are counted"
    return Finding("ib_counters", Verdict.PASS, node, f"since the driver's load, {words}")


def _link(node: str, was: Port, port: Port, seconds: float, limits: FabricLimits) -> list[Finding]:
    downs = _new(was, port, LINK_DOWNED)
    if was.up and not port.up:
        said = f"{port.name} was ACTIVE {seconds:.0f} s ago and is {port.state}, {port.phys_state}"
        return [Finding("ib_link", Verdict.SUSPECT, node, said, Remedy.AVOID, port.name)]
    if downs:
        verdict = Verdict.SUSPECT if downs >= limits.ib_flaps else Verdict.MONITOR
        said = f"{port.name} went down: link_downed +{downs} within {seconds:.0f} s ({port.count(LINK_DOWNED)} in all)"
        remedy = Remedy.AVOID if verdict is Verdict.SUSPECT else Remedy.WATCH
        return [Finding("ib_link", verdict, node, said, remedy, port.name)]
    return []


def _errors(node: str, was: Port, port: Port, seconds: float, limits: FabricLimits) -> list[Finding]:
    new = [(name, _new(was, port, name)) for name in FAULTS + CONGESTION]
    faults = [(name, count) for name, count in new if name in FAULTS and count > limits.ib_errors]
    drops = [(n, c) for n, c in new if n in CONGESTION and c > limits.ib_drops_per_s * max(seconds, 1.0)]
    if not faults + drops:
        return []
    said = f"{port.name}: {_listed(f'{name} +{count}' for name, count in faults + drops)} within {seconds:.0f} s"
    return [Finding("ib_errors", Verdict.MONITOR, node, said, Remedy.WATCH, port.name)]


def _new(was: Port, port: Port, counter: str) -> int:
    """0 too where it was reset in between, and where it is full: it does not count on then."""
    before, now = was.count(counter), port.count(counter)
    return 0 if before is None or now is None else max(0, now - before)


def _kind(port: Port) -> tuple[str, str, str]:
    return re.sub(r"\d+", "#", port.name), port.link_layer, port.board


def _listed(words: Iterable[str]) -> str:
    told = list(words)
    more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    return ", ".join(told[:_TOLD]) + more
