"""NVIDIA's Xid and SXid codes: what the driver logs of a GPU or an NVSwitch, and what each asks for. Pure.

The catalogue is data: `xid_table`. A site changes or adds rows with lines of the same form (`xid_site`); a code that is
in neither is worth watching, no more. Standard library only, since the node's agent runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.xid_table import TABLE

CHECK = "gpu_xid"
RECOVERY_CHANGED = 154

_XID = re.compile(r"\bNVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, (.*))?")
_SXID = re.compile(r"\bSXid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+), ((?:Non-fatal|Fatal)\b.*)", re.IGNORECASE)
_NVLINK5 = range(144, 151)
_FATAL = re.compile(r"(?<!\w)(?<!non-)fatal\b", re.IGNORECASE)
_NEW_ACTION = re.compile(r"\bto 0x[0-9a-fA-F]+ \(([^)]*)\)")
_UNKNOWN = "not in the catalogue"


@dataclass(frozen=True)
class Rule:
    """code: a number, or "fatal" and "non-fatal" for an SXid without a row of its own. action: in NVIDIA's words."""

    kind: str
    code: str
    name: str
    action: str
    verdict: Verdict
    remedy: Remedy
    note: str = ""


@dataclass(frozen=True)
class SiteRules:
    """Rows of the site's own, as text; trouble: why they could not be read."""

    lines: tuple[str, ...] = ()
    trouble: str = ""


NO_SITE_RULES = SiteRules()


@dataclass(frozen=True)
class Catalogue:
    """troubles: what could not be understood, line by line; those rows are left out."""

    rules: Mapping[tuple[str, str], Rule]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Xid:
    """One line. kind: "xid" or "sxid". device: the PCI address as the line has it."""

    kind: str
    code: int
    device: str
    text: str
    line: str


@lru_cache(maxsize=4)
def catalogue(site: SiteRules = NO_SITE_RULES) -> Catalogue:
    """NVIDIA's, with the site's rows over it."""
    own, theirs = parse_catalogue(tuple(TABLE.splitlines())), parse_catalogue(site.lines)
    troubles = ((site.trouble,) if site.trouble else ()) + theirs.troubles
    return Catalogue({**own.rules, **theirs.rules}, tuple(f"the site's Xid rules: {words}" for words in troubles))


def parse_catalogue(lines: Iterable[str]) -> Catalogue:
    """Lines of `kind,code,name,action,verdict,remedy,note`, the last two of which may be left out; # is a comment."""
    rules, troubles = {}, []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", "kind,")):
            continue
        try:
            kind, code, name, action, verdict, *rest = (part.strip() for part in line.split(",", 6))
            if kind not in ("xid", "sxid") or not (code.isdecimal() or (kind, code) in _GENERAL):
                raise ValueError(f"neither an Xid nor an SXid: {line[:80]!r}")
            remedy, note = (*rest, "", "")[:2]
            rules[kind, code] = Rule(kind, code, name, action, Verdict(verdict), Remedy(remedy or "none"), note)
        except ValueError as error:
            troubles.append(f"line {number}: {error}")
    return Catalogue(rules, tuple(troubles))


_GENERAL = (("sxid", "fatal"), ("sxid", "non-fatal"))


def parse_xid(line: str) -> Xid | None:
    for kind, pattern in (("xid", _XID), ("sxid", _SXID)):
        if found := pattern.search(line):
            return Xid(kind, int(found[2]), found[1], found[3] or "", line)
    return None


def rule_of(xid: Xid, known: Catalogue) -> Rule:
    rule = known.rules.get((xid.kind, str(xid.code)))
    if xid.kind == "sxid":
        severity = xid.text.partition(",")[0].strip().lower()
        return rule or known.rules["sxid", "fatal" if severity == "fatal" else "non-fatal"]
    if rule is None:
        return Rule("xid", str(xid.code), _UNKNOWN, "", Verdict.MONITOR, Remedy.WATCH)
    if xid.code == RECOVERY_CHANGED:
        return _obeyed(xid, rule)
    if xid.code in _NVLINK5 and rule.verdict is Verdict.MONITOR and _FATAL.search(xid.text):
        return Rule("xid", rule.code, rule.name, rule.action, Verdict.SUSPECT, Remedy.RESET_GPU, rule.note)
    return rule


def judge_xids(node: str, lines: Iterable[str], known: Catalogue, uuids: Mapping[str, str]) -> tuple[Finding, ...]:
    """One finding for each code on each device, in the order of their first lines. Pure.

    Of several 154 on a device the last holds. Where it says that the driver asks for nothing any more, what was logged
    of the device before it is only worth watching. uuids: of the node's GPUs, by PCI address.
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
        verdict, remedy, said = rule.verdict, rule.remedy, _words(xid, rule, len(places))
        if verdict.bad and places[-1] < cleared.get(device, -1):
            verdict, remedy, said = Verdict.MONITOR, Remedy.WATCH, f"{said}; since then the driver asks for nothing"
        found.append(Finding(CHECK, verdict, node, said, remedy, names.get(device, xid.device)))
    return tuple(found)


def address(pci: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers: "0000:0f:00" and NVML's "00000000:0F:00.0" are the same."""
    try:
        return tuple(int(part, 16) for part in pci.partition(".")[0].split(":"))
    except ValueError:
        return (-1,)


def _changed(xid: Xid) -> bool:
    return xid.kind == "xid" and xid.code == RECOVERY_CHANGED


def _obeyed(xid: Xid, rule: Rule) -> Rule:
    """154 names what the driver now asks for: "changed from 0x0 (None) to 0x1 (GPU Reset Required)"."""
    found = _NEW_ACTION.search(xid.text)
    asked = (found[1] if found else xid.text).lower()
    for words, verdict, remedy in _ASKED:
        if any(word in asked for word in words):
            return Rule("xid", rule.code, rule.name, rule.action, verdict, remedy, rule.note)
    return rule


# Drivers name the same action in several ways ("Node Reboot Required", "OS Reboot"; "GPU Reset Required", "PF FLR").
_ASKED = (
    (("p2p", "peer"), Verdict.SUSPECT, Remedy.RESET_GPU),
    (("imex",), Verdict.SUSPECT, Remedy.AVOID),
    (("reboot",), Verdict.FAIL, Remedy.REBOOT),
    (("reset", "flr"), Verdict.FAIL, Remedy.RESET_GPU),
    (("none",), Verdict.MONITOR, Remedy.NONE),
)


def _words(xid: Xid, rule: Rule, times: int) -> str:
    action = f", NVIDIA's action: {rule.action}" if rule.action else ""
    often = f", {times} times" if times > 1 else ""
    return f"{xid.line} [{rule.name}{action}{often}]"
