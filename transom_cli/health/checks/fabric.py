"""Network ports for RDMA (InfiniBand, RoCE, EFA): link state, rate and error counters.

Source: /sys/class/infiniband (kernel Documentation/ABI/stable/sysfs-class-infiniband). No finding here is a FAIL: a
broken link may be the cable, the switch port or the subnet manager, and nothing on the node distinguishes these. A link
that is down, or goes down, is a SUSPECT. Counters include other jobs since the driver was loaded, so only new counts
are judged.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.health.check import About, Check, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.system import names, read_number, read_text, sysfs
from transom_cli.plural import some

FINDINGS = ("ib_state", "ib_rate", "ib_counters")
EVENTS = ("ib_link", "ib_errors")
"""Findings of `judge_fabric_changes`: what happened between two readings."""

ACTIVE, LINK_UP, DISABLED = "ACTIVE", "LinkUp", "Disabled"
LINK_DOWNED = "link_downed"
FAULTS = (
    "symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)  # fmt: skip
"""Error counters of cables, plugs and transceivers."""

CONGESTION = (
    "port_xmit_discards", "VL15_dropped", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
    "rnr_nak_retry_err", "roce_adp_retrans",
)  # fmt: skip
"""Counters of dropped and retransmitted packets, for any cause."""

_LISTED = 4  # ports or counters that one finding names
_ORDER = (Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT)


@dataclass(frozen=True)
class Port:
    """One port, named like "mlx5_0/1".

    state, phys_state: the kernel's words ("ACTIVE", "LinkUp"). rate: as the kernel writes it. board: the adapter model,
    "" if unknown. received: the data counter, in units of 4 bytes; None if absent. counters: those that exist, since
    the driver was loaded or the counter was reset.
    """

    name: str
    state: str
    phys_state: str
    rate: str
    link_layer: str
    board: str = ""
    received: int | None = None
    counters: tuple[tuple[str, int], ...] = ()

    @property
    def up(self) -> bool:
        return self.state == ACTIVE

    @property
    def speed(self) -> float:
        """Gb/s; 0.0 if unknown."""
        first = self.rate.partition(" ")[0]
        return float(first) if first.replace(".", "", 1).isdecimal() else 0.0

    @property
    def model(self) -> tuple[str, str, str]:
        """What ports of the same kind have in common."""
        return re.sub(r"\d+", "#", self.name), self.link_layer, self.board

    def count(self, counter: str) -> int | None:
        return dict(self.counters).get(counter)


@dataclass(frozen=True)
class FabricReading:
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True)
class FabricLimits:
    """Thresholds per pair of readings.

    ib_flaps: link-down events; gpud calls a port flapping from the third one. ib_errors: new link errors that are
    tolerated; gcm's check-ib-counters warns at any. ib_drops_per_s: dropped or retransmitted packets per second; no
    source: a fabric under load loses some, and the network probe measures what that costs.
    """

    ib_flaps: int = 3
    ib_errors: int = 0
    ib_drops_per_s: float = 100.0


def read_fabric(about: About) -> FabricReading:
    root = sysfs("class/infiniband")
    ports = []
    for device in names(root) or ():
        board = read_text(root / device / "board_id")
        for number in names(root / device / "ports") or ():
            ports.append(_read_port(f"{device}/{number}", root / device / "ports" / number, board))
    return FabricReading(tuple(ports))


def _read_port(name: str, folder: Path, board: str) -> Port:
    counters = []
    for group, wanted in (("counters", (LINK_DOWNED, *FAULTS, *CONGESTION)), ("hw_counters", CONGESTION)):
        present = set(names(folder / group) or ())
        for counter in wanted:
            value = read_number(folder / group / counter) if counter in present else None
            if value is not None:
                counters.append((counter, value))
    return Port(
        name=name,
        state=_state_word(folder / "state"),
        phys_state=_state_word(folder / "phys_state"),
        rate=read_text(folder / "rate"),
        link_layer=read_text(folder / "link_layer"),
        board=board,
        received=read_number(folder / "counters" / "port_rcv_data"),
        counters=tuple(counters),
    )


def _state_word(path: Path) -> str:
    """Return "ACTIVE" for a file that says "4: ACTIVE"."""
    return read_text(path).rpartition(": ")[2]


def judge_fabric(node: str, reading: FabricReading, about: About, limits: FabricLimits) -> tuple[Finding, ...]:
    """Judge link state and rate. The counters' totals are reported as PASS: they may be another job's."""
    if not reading.ports:
        return tuple(not_applicable(check, node, "the node has no InfiniBand, RoCE or EFA port") for check in FINDINGS)
    return (_judge_state(node, reading.ports), _judge_rate(node, reading.ports), _report_totals(node, reading.ports))


def judge_fabric_changes(
    node: str, former: FabricReading, reading: FabricReading, seconds: float, about: About, limits: FabricLimits
) -> tuple[Finding, ...]:
    """Return findings of `EVENTS` for what happened in the `seconds` between two readings; none if nothing did."""
    now = {port.name: port for port in reading.ports}
    found: list[Finding] = []
    for before in former.ports:
        port = now.get(before.name)
        if port is None:
            text = f"{before.name} disappeared from /sys/class/infiniband; it was {before.state} {seconds:.0f} s ago"
            found.append(Finding("ib_link", Verdict.SUSPECT, node, text, Remedy.AVOID, before.name))
            continue
        found += _judge_link(node, before, port, seconds, limits)
        found += _judge_errors(node, before, port, seconds, limits)
    return tuple(found)


def overdue(node: str, waited: float, about: About) -> Finding:
    """Suspect the node: reading a counter asks the adapter's firmware, and communication waits for it as well."""
    text = f"reading /sys/class/infiniband did not finish in {waited:.0f} s: the driver is waiting for its adapter"
    return Finding("ib_state", Verdict.SUSPECT, node, text, Remedy.AVOID)


def _judge_state(node: str, ports: tuple[Port, ...]) -> Finding:
    down = [(_judge_down(port, ports), port) for port in ports if not port.up]
    if not down:
        text = f"{len(ports)} ports are ACTIVE: {_join(port.name for port in ports)}"
        return Finding("ib_state", Verdict.PASS, node, text)
    worst = max((verdict for (verdict, _), _ in down), key=_ORDER.index)
    named = [(why, port) for (verdict, why), port in down if verdict is worst]
    text = f"{_join(f'{port.name} is {port.state}, {port.phys_state}: {why}' for why, port in named)}"
    text += f" ({len(ports) - len(down)} of {len(ports)} ports are ACTIVE)"
    remedy = Remedy.AVOID if worst is Verdict.SUSPECT else Remedy.SETUP
    return Finding("ib_state", worst, node, text, remedy, named[0][1].name)


def _judge_down(port: Port, ports: tuple[Port, ...]) -> tuple[Verdict, str]:
    """A port that never received anything may have no cable: adapters have more ports than clusters use."""
    if port.phys_state == DISABLED:
        return Verdict.MONITOR, "it is switched off"
    if port.received == 0:
        return Verdict.MONITOR, "it has received nothing since its driver was loaded; it may have no cable"
    if port.received:
        return Verdict.SUSPECT, "it has been in use"
    if any(other.up for other in ports if other.model == port.model):
        return Verdict.SUSPECT, "other ports of the same model are ACTIVE"
    return Verdict.MONITOR, "no port of the same model is ACTIVE"


def _judge_rate(node: str, ports: tuple[Port, ...]) -> Finding:
    """Compare ports of one model. If two ports differ, neither is known to be right."""
    slow: list[tuple[bool, Port, float]] = []
    for model in {port.model for port in ports}:
        speeds = [port.speed for port in ports if port.model == model and port.up and port.speed]
        if len(set(speeds)) < 2:
            continue
        usual, times = max(Counter(speeds).items(), key=lambda item: (item[1], item[0]))
        slow += [(times > 1, p, usual) for p in ports if p.model == model and p.up and 0 < p.speed < usual]
    if not slow:
        rates = Counter(port.rate for port in ports if port.up)
        text = _join(f"{times} at {rate}" for rate, times in sorted(rates.items())) or "no port is ACTIVE"
        return Finding("ib_rate", Verdict.PASS, node, text)
    named = [(port, usual) for many, port, usual in slow if many] or [(port, usual) for _, port, usual in slow]
    text = _join(f"{port.name} runs at {port.rate}, the others at {usual:g} Gb/sec" for port, usual in named)
    verdict = Verdict.SUSPECT if any(many for many, _, _ in slow) else Verdict.MONITOR
    remedy = Remedy.AVOID if verdict is Verdict.SUSPECT else Remedy.WATCH
    return Finding("ib_rate", verdict, node, text, remedy, named[0][0].name)


def _report_totals(node: str, ports: tuple[Port, ...]) -> Finding:
    counts = [f"{port.name}: {name} {value}" for port in ports for name, value in port.counters if value]
    text = _join(counts) if counts else "no errors and no drops"
    return Finding("ib_counters", Verdict.PASS, node, f"since the driver was loaded: {text}")


def _judge_link(node: str, before: Port, port: Port, seconds: float, limits: FabricLimits) -> list[Finding]:
    downs = _new_counts(before, port, LINK_DOWNED)
    if before.up and not port.up:
        text = f"{port.name} was ACTIVE {seconds:.0f} s ago and is now {port.state}, {port.phys_state}"
        return [Finding("ib_link", Verdict.SUSPECT, node, text, Remedy.AVOID, port.name)]
    if downs:
        verdict = Verdict.SUSPECT if downs >= limits.ib_flaps else Verdict.MONITOR
        text = f"{port.name} went down: link_downed +{downs} in {seconds:.0f} s ({port.count(LINK_DOWNED)} in total)"
        remedy = Remedy.AVOID if verdict is Verdict.SUSPECT else Remedy.WATCH
        return [Finding("ib_link", verdict, node, text, remedy, port.name)]
    return []


def _judge_errors(node: str, before: Port, port: Port, seconds: float, limits: FabricLimits) -> list[Finding]:
    new = [(name, _new_counts(before, port, name)) for name in FAULTS + CONGESTION]
    faults = [(name, count) for name, count in new if name in FAULTS and count > limits.ib_errors]
    drops = [(n, c) for n, c in new if n in CONGESTION and c > limits.ib_drops_per_s * max(seconds, 1.0)]
    if not faults + drops:
        return []
    text = f"{port.name}: {_join(f'{name} +{count}' for name, count in faults + drops)} in {seconds:.0f} s"
    return [Finding("ib_errors", Verdict.MONITOR, node, text, Remedy.WATCH, port.name)]


def _new_counts(before: Port, port: Port, counter: str) -> int:
    """Return 0 if the counter was reset in between, or is full and no longer counts."""
    then, now = before.count(counter), port.count(counter)
    return 0 if then is None or now is None else max(0, now - then)


def _join(words: Iterable[str]) -> str:
    return some(words, _LISTED)


CHECK = Check(
    name="fabric",
    reader="transom_cli.health.checks.fabric:read_fabric",
    judge=judge_fabric,
    reading=FabricReading,
    limits=FabricLimits,
    seconds=10.0,
    tier=Tier.WATCH,
    findings=FINDINGS,
    overdue=overdue,
    changes=judge_fabric_changes,
)
