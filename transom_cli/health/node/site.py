"""The site's own checks: the executables of a folder (`checks.d`), and LBNL's Node Health Check where it is installed.

Exit codes are those of Nagios plugins, as Meta's gcm has them too: 0 ok, 1 warning (MONITOR), 2 critical (FAIL: the
site's own word that the node must not be used), 3 unknown. Any other code, a signal or a missed deadline is UNKNOWN:
a check that breaks drains nobody. The first line that it prints is the evidence.

A program is run only if nobody else could have put it there: file and folder belong to root or to whoever runs them,
and not everyone may write to them.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from transom_cli.beats.places import node_name
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.node.asked import Asked, answers
from transom_cli.health.node.programs import Ran, environment, run
from transom_cli.health.node.sysfiles import names

FINDINGS = ("site",)
"""Followed by the file's name: "site:10-scratch.sh"."""
NHC_FINDINGS = ("nhc",)

SECONDS = 20.0  # for all programs, which run beside one another
MOST = 32  # programs; more is taken for a mistake in the folder's name
NHC = "/usr/sbin/nhc"
NHC_SECONDS = 40.0  # its own watchdog ends it after 30 s
_CODES = {0: Verdict.PASS, 1: Verdict.MONITOR, 2: Verdict.FAIL, 3: Verdict.UNKNOWN}
_REMEDIES = {Verdict.FAIL: Remedy.AVOID, Verdict.MONITOR: Remedy.WATCH}


@dataclass(frozen=True)
class SiteReading:
    """folder: "" when the site has none. error: why it was not looked at. refused, by name: why a file was not run."""

    folder: str = ""
    ran: tuple[Ran, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class SiteLimits:
    """The thresholds are in the programs."""


@dataclass(frozen=True)
class NhcReading:
    """ran: None where it is not installed. root: it ran with the rights that it is written for."""

    ran: Ran | None = None
    root: bool = False


def read_site(about: About) -> SiteReading:
    folder = about.site_checks
    if not folder:
        return SiteReading()
    found = names(folder)
    if found is None:
        return SiteReading(folder, error="there is no such folder, or it cannot be read")
    if why := _distrusted(folder):
        return SiteReading(folder, error=why)
    paths = [os.path.join(folder, name) for name in found if _is_program(folder, name)]  # noqa: PTH118
    if len(paths) > MOST:
        return SiteReading(folder, error=f"it holds {len(paths)} executables, more than {MOST}")
    refused = {path: why for path in paths if (why := _distrusted(path))}
    run_here = [path for path in paths if path not in refused]
    asked = [_start(path, about) for path in run_here]
    got = answers(asked, SECONDS + 5.0)  # a start too may hang, on the file system that the program lies on
    ran = [one or Ran(path, took=q.waited) for path, q, one in zip(run_here, asked, got, strict=True)]
    return SiteReading(folder, tuple(ran), tuple((_name(path), why) for path, why in refused.items()))


def judge_site(node: str, reading: SiteReading, about: About, limits: SiteLimits) -> tuple[Finding, ...]:
    if not reading.folder:
        return (not_applicable("site", node, "the site has no checks of its own here"),)
    if reading.error:
        return (Finding("site", Verdict.UNKNOWN, node, f"{reading.folder}: {reading.error}"),)
    found = [_judge(f"site:{_name(ran.program)}", node, ran) for ran in reading.ran]
    for name, why in reading.refused:
        found.append(Finding(f"site:{name}", Verdict.UNKNOWN, node, f"not run: {why}", Remedy.SETUP))
    return tuple(found) or (not_applicable("site", node, f"{reading.folder} holds no executable"),)


def overdue_site(node: str, waited: float, about: About) -> Finding:
    return Finding("site", Verdict.UNKNOWN, node, f"{about.site_checks} has not been run through in {waited:.0f} s")


def read_nhc(about: About) -> NhcReading:
    """It is told not to mark the node offline itself: its word goes into the same ladder as everybody's."""
    if not os.access(NHC, os.X_OK):
        return NhcReading()
    argv = (NHC, "-l", "-", "MARK_OFFLINE=0")
    return NhcReading(run(argv, environment(node_name(), about.tier.value), NHC_SECONDS), os.geteuid() == 0)


def judge_nhc(node: str, reading: NhcReading, about: About, limits: SiteLimits) -> tuple[Finding, ...]:
    """It exits with 1 when a check failed. Without root many of them fail for lack of rights: no proof then."""
    ran = reading.ran
    if ran is None:
        return (not_applicable("nhc", node, f"there is no {NHC}"),)
    if ran.code == 1:
        verdict = Verdict.FAIL if reading.root else Verdict.MONITOR
        return (Finding("nhc", verdict, node, ran.said or "it exited with 1", _REMEDIES[verdict]),)
    if ran.code == 0:
        return (_judge("nhc", node, ran),)
    return (Finding("nhc", Verdict.UNKNOWN, node, _ended(ran)),)


def overdue_nhc(node: str, waited: float, about: About) -> Finding:
    return Finding("nhc", Verdict.UNKNOWN, node, f"{NHC} has not ended within {waited:.0f} s")


def _judge(check: str, node: str, ran: Ran) -> Finding:
    verdict = _CODES.get(ran.code, Verdict.UNKNOWN) if ran.code is not None else Verdict.UNKNOWN
    said = ran.said or f"it printed nothing and exited with {ran.code}"
    if ran.code not in _CODES:
        said = _ended(ran)
    return Finding(check, verdict, node, said, _REMEDIES.get(verdict, Remedy.NONE))


def _ended(ran: Ran) -> str:
    how = f"could not be run: {ran.error}" if ran.error else f"was ended after {ran.took:.0f} s"
    if ran.code is not None:
        how = f"was ended by signal {-ran.code}" if ran.code < 0 else f"exited with {ran.code}"
    return f"{ran.program} {how}" + (f": {ran.said}" if ran.said else "")


def _start(path: str, about: About) -> Asked[Ran]:
    env = environment(node_name(), about.tier.value)
    return Asked(lambda: run((path,), env, SECONDS))


def _is_program(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)  # noqa: PTH118
    hidden = name.startswith(".") or name.endswith(("~", ".bak", ".rpmsave", ".rpmnew", ".dpkg-old", ".dpkg-dist"))
    return not hidden and os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def _distrusted(path: str) -> str:
    """Why nobody should run what is there; "" when there is no reason."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        return error.strerror or str(error)
    if found.st_mode & stat.S_IWOTH:
        return f"everyone may write to {path} (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {found.st_uid}, neither to root nor to whoever runs it"
    return ""


def _name(path: str) -> str:
    return path.rpartition("/")[2]
