"""Xids: NVIDIA's error codes of GPUs (Xid) and NVSwitches (SXid), from the kernel log and from NVML's events. Pure.

The catalogue is data: `xid_table`. A site overrides or adds rows with lines of the same form ($TRANSOM_XID_RULES, read
by `checks.kernel`). An unknown code is MONITOR. Standard library only: the node's agent runs this.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.presence import ACTIONS
from transom_cli.health.gpu.xid_table import TABLE

CHECK = "gpu_xid"
RECOVERY_CHANGED = 154

# Patterns match only at the start of the kernel's message: later text may quote names that users choose. A program's
# name at the start has 15 bytes at most, too few to imitate the driver up to the code.
_ADDRESS = r"\((?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]+(?::[0-9a-fA-F.]+)?)(?: GPU-I:\w+)?\)"
_XID = re.compile(rf"NVRM: Xid {_ADDRESS}: (\d+)(?:, (.*)|$)")
_SXID = re.compile(rf"nvidia-nvswitch\d*: SXid {_ADDRESS}: (\d+), ((?:Non-fatal|Fatal)\b.*)", re.IGNORECASE)
FIREWALL = re.compile(r"IN=\S* OUT=\S* (?:MAC=\S* )?SRC=\S+ DST=")  # the rule's prefix, any text, comes before it
_NO_PROCESS = "pid='<unknown>', name=<unknown>, "
_NVLINK5 = range(144, 151)
_FATAL = re.compile(r"(?<!\w)(?<!non-)fatal\b", re.IGNORECASE)
_NEW_ACTION = re.compile(r"\bto 0x[0-9a-fA-F]+ \(([^)]*)\)")
_UNKNOWN = "not in the catalogue"


@dataclass(frozen=True)
class Rule:
    """code: a number, or "fatal" and "non-fatal" for an SXid without its own row. action: NVIDIA's term."""

    kind: str
    code: str
    name: str
    action: str
    verdict: Verdict
    remedy: Remedy
    note: str = ""


@dataclass(frozen=True)
class SiteRules:
    """The site's own rows as text; trouble: why they could not be read."""

    lines: tuple[str, ...] = ()
    trouble: str = ""


NO_SITE_RULES = SiteRules()


@dataclass(frozen=True)
class Catalogue:
    """troubles: one message per line that could not be parsed; those rows are missing."""

    rules: Mapping[tuple[str, str], Rule]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Xid:
    """One log line. kind: "xid" or "sxid". device: the PCI address as logged."""

    kind: str
    code: int
    device: str
    text: str
    line: str


@lru_cache(maxsize=4)
def catalogue(site: SiteRules = NO_SITE_RULES) -> Catalogue:
    """Return NVIDIA's catalogue, overridden by the site's rows."""
    nvidia, own = parse_catalogue(tuple(TABLE.splitlines())), parse_catalogue(site.lines)
    troubles = ((site.trouble,) if site.trouble else ()) + own.troubles
    return Catalogue({**nvidia.rules, **own.rules}, tuple(f"the site's Xid rules: {text}" for text in troubles))


def parse_catalogue(lines: Iterable[str]) -> Catalogue:
    """Parse lines of `kind,code,name,action,verdict[,remedy[,note]]`; # starts a comment."""
    rules, troubles = {}, []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", "kind,")):
            continue
        try:
            kind, code, name, action, verdict, *rest = (part.strip() for part in line.split(",", 6))
            if kind not in ("xid", "sxid") or not (code.isdecimal() or (kind, code) in _GENERAL):
                raise ValueError(f"not an Xid or SXid: {line[:80]!r}")
            remedy, note = (*rest, "", "")[:2]
            rules[kind, code] = Rule(kind, code, name, action, Verdict(verdict), Remedy(remedy or "none"), note)
        except ValueError as error:
            troubles.append(f"line {number}: {error}")
    return Catalogue(rules, tuple(troubles))


_GENERAL = (("sxid", "fatal"), ("sxid", "non-fatal"))


def parse_xid(line: str) -> Xid | None:
    """Parse a line of the driver, a kernel message without its time.

    If the line names a process, the text is empty: after a name that a user chose, nothing is certain to be the
    driver's.
    """
    for kind, pattern in (("xid", _XID), ("sxid", _SXID)):
        if (found := pattern.match(line)) and not FIREWALL.search(line):
            text = (found[3] or "").removeprefix(_NO_PROCESS)
            return Xid(kind, int(found[2]), found[1], "" if text.startswith("pid=") else text, line)
    return None


def rule_of(xid: Xid, known: Catalogue) -> Rule:
    rule = known.rules.get((xid.kind, str(xid.code)))
    if xid.kind == "sxid":
        severity = xid.text.partition(",")[0].strip().lower()
        return rule or known.rules["sxid", "fatal" if severity == "fatal" else "non-fatal"]
    if rule is None:
        return Rule("xid", str(xid.code), _UNKNOWN, "", Verdict.MONITOR, Remedy.WATCH)
    if xid.code == RECOVERY_CHANGED:
        return _requested_action(xid, rule)
    if xid.code in _NVLINK5 and rule.verdict is Verdict.MONITOR and _FATAL.search(xid.text):
        return Rule("xid", rule.code, rule.name, rule.action, Verdict.SUSPECT, Remedy.RESET_GPU, rule.note)
    return rule


def judge_xids(node: str, lines: Iterable[str], known: Catalogue, uuids: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return one finding per code and device, in the order of their first lines.

    The last 154 of a device counts. If it says that the driver no longer requests an action, earlier faults of the
    device are only MONITOR.

    Args:
        uuids: of the node's GPUs, by PCI address.
    """
    seen = [xid for xid in map(parse_xid, lines) if xid is not None]
    last = {address(xid.device): place for place, xid in enumerate(seen) if _changed(xid)}
    cleared = {device: place for device, place in last.items() if rule_of(seen[place], known).remedy is Remedy.NONE}
    groups: dict[tuple[str, int, tuple[int, ...]], list[int]] = {}
    for place, xid in enumerate(seen):
        device = address(xid.device)
        if not _changed(xid) or last[device] == place:
            groups.setdefault((xid.kind, xid.code, device), []).append(place)
    names = {address(pci): uuid for pci, uuid in uuids.items()}
    found = []
    for (_, _, device), places in groups.items():
        xid, rule = seen[places[-1]], rule_of(seen[places[-1]], known)
        verdict, remedy, text = rule.verdict, rule.remedy, _describe(xid, rule, len(places))
        if verdict.bad and places[-1] < cleared.get(device, -1):
            verdict, remedy, text = Verdict.MONITOR, Remedy.WATCH, f"{text}; the driver no longer requests any action"
        found.append(Finding(CHECK, verdict, node, text, remedy, names.get(device, xid.device)))
    return tuple(found)


def address(pci: str) -> tuple[int, ...]:
    """Return domain, bus and device as numbers: "0000:0f:00" and NVML's "00000000:0F:00.0" are the same."""
    try:
        return tuple(int(part, 16) for part in pci.partition(".")[0].split(":"))
    except ValueError:
        return (-1,)


def _changed(xid: Xid) -> bool:
    return xid.kind == "xid" and xid.code == RECOVERY_CHANGED


def _requested_action(xid: Xid, rule: Rule) -> Rule:
    """Judge a 154 by the action that it names: "changed from 0x0 (None) to 0x1 (GPU Reset Required)"."""
    found = _NEW_ACTION.search(xid.text)
    action = (found[1] if found else xid.text).lower()
    for words, verdict, remedy in _ACTION_WORDS:
        if any(word in action for word in words):
            return Rule("xid", rule.code, rule.name, rule.action, verdict, remedy, rule.note)
    return rule


# Drivers have several names for one action ("Node Reboot Required", "OS Reboot"; "GPU Reset Required", "PF FLR").
_ACTION_WORDS = (
    (("p2p", "peer"), Verdict.SUSPECT, Remedy.RESET_GPU),
    (("imex",), Verdict.SUSPECT, Remedy.AVOID),
    (("reboot",), Verdict.FAIL, Remedy.REBOOT),
    (("reset", "flr"), Verdict.FAIL, Remedy.RESET_GPU),
    (("none",), Verdict.MONITOR, Remedy.NONE),
)


def _describe(xid: Xid, rule: Rule, count: int) -> str:
    action = f", NVIDIA's action: {rule.action}" if rule.action else ""
    times = f", {count} times" if count > 1 else ""
    return f"{xid.line} [{rule.name}{action}{times}]"


# nvmlEventType*, by the names that `watch` prints. Single-bit errors, clocks and power sources are left out.
EVENT_TYPES = {
    0x2: "double_bit_ecc",
    0x8: "xid",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_OTHER_EVENTS = {
    "double_bit_ecc": ("gpu_ecc", Verdict.FAIL, Remedy.RESET_GPU, "a double-bit ECC error"),
    "dram_retirement": ("gpu_rows", Verdict.MONITOR, Remedy.WATCH, "memory is being retired or remapped"),
    "dram_retirement_failure": ("gpu_rows", Verdict.FAIL, Remedy.REPAIR, "retiring or remapping memory failed"),
    "non_fatal_poison": ("gpu_ecc", Verdict.MONITOR, Remedy.RESTART_APP, "a contained memory error (poison)"),
    "fatal_poison": ("gpu_ecc", Verdict.FAIL, Remedy.RESET_GPU, "an uncontained memory error (poison)"),
    "gpu_unavailable": ("gpu_lost", Verdict.FAIL, Remedy.REBOOT, "the GPU is unavailable"),
}
EVENT_LASTS = 3600.0  # seconds for which an event counts, as Xids in the kernel log do


@dataclass(frozen=True)
class GpuEvent:
    """event: one of EVENT_TYPES. xid: the code of an Xid. recovery: the recovery action that the driver requested right
    after the event. site: the site's Xid rules."""

    event: str
    device: str = ""
    serial: str = ""
    xid: int = 0
    recovery: int | None = None
    wall: float = 0.0
    site: SiteRules = NO_SITE_RULES


def judge_event(node: str, event: GpuEvent) -> Finding:
    request = ACTIONS.get(event.recovery or 0)
    suffix = f"; the driver requests recovery action {event.recovery} ({request[0]})" if request else ""
    if event.event == "recovery_action" or (event.event == "xid" and event.xid == RECOVERY_CHANGED):
        action, verdict, remedy = request or ("none", Verdict.MONITOR, Remedy.NONE)
        text = f"NVML event: the driver's recovery action changed to {event.recovery} ({action})"
        return Finding("gpu_recovery", verdict, node, text, remedy, event.device, event.serial)
    if event.event == "xid":
        rule = rule_of(Xid("xid", event.xid, event.device, "", ""), catalogue(event.site))
        action = f", NVIDIA's action: {rule.action}" if rule.action else ""
        text = f"NVML event: Xid {event.xid}, {rule.name}{action}{suffix}"
        return Finding(CHECK, rule.verdict, node, text, rule.remedy, event.device, event.serial)
    other = _OTHER_EVENTS.get(event.event, (CHECK, Verdict.MONITOR, Remedy.WATCH, event.event))
    check, verdict, remedy, what = other
    return Finding(check, verdict, node, f"NVML event: {what}{suffix}", remedy, event.device, event.serial)


class EventHistory:
    """Each GPU's last Xid, and the events that still accuse a GPU.

    Args:
        former: by UUID, the last Xid that an earlier agent saw, and when.

    Attributes:
        xids: the same, updated; device "" if NVML did not name the GPU.
        since: start of gapless listening to all GPUs; None if there is none now.
    """

    def __init__(self, former: Mapping[str, tuple[int, float]] | None = None) -> None:
        self.xids = dict(former or {})
        self.since: float | None = None
        self._bad: dict[tuple[str, str], tuple[Finding, GpuEvent]] = {}

    @property
    def fatal(self) -> dict[str, int]:
        """The Xid that accuses each device; a harmless one may have come later."""
        return {event.device: event.xid for _, event in self._bad.values() if event.xid}

    def set_listening(self, listening: bool, at: float) -> None:
        self.since = (at if self.since is None else self.since) if listening else None

    def add(self, event: GpuEvent, found: Finding, *, counts: bool = True) -> None:
        """Add an event and its finding. A driver that no longer requests an action clears the GPU's earlier events.

        Args:
            counts: whether the finding's check is enabled.
        """
        if event.xid:
            self.xids[event.device] = event.xid, event.wall
        if found.verdict.bad and counts:
            self._bad[found.check, event.device] = found, event
        elif found.check == "gpu_recovery":
            self._bad = {key: value for key, value in self._bad.items() if key[1] != event.device}

    def findings(self, now: float) -> tuple[Finding, ...]:
        """Return the findings of events that are recent enough to count."""
        self._bad = {key: one for key, one in self._bad.items() if now - one[1].wall <= EVENT_LASTS}
        return tuple(found for found, _ in self._bad.values())
