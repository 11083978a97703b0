"""The site's own checks: executables in a folder (`checks.d`), and LBNL's Node Health Check if it is installed.

Exit codes follow Nagios plugins, as in Meta's gcm: 0 OK, 1 warning (MONITOR), 2 critical (FAIL: the site says that the
node must not be used), 3 unknown. Any other code, a signal or a timeout is UNKNOWN: a broken check drains no node. The
first line of the output is the evidence.

A program runs only if nobody else could have put it there: file and folder belong to root or to the user who runs them,
and are not world-writable.
"""

import os
import stat
from dataclasses import dataclass

from transom_cli.health.check import About, Check, NoLimits, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.system import BackgroundCall, Ran, environment, names, run, wait_for_all
from transom_cli.heartbeat.paths import node_name

FINDINGS = ("site",)
"""Followed by the file's name: "site:10-scratch.sh"."""
NHC_FINDINGS = ("nhc",)

TIMEOUT = 20.0  # seconds for all programs, which run in parallel
MAX_PROGRAMS = 32  # more than this is probably a wrong folder name
NHC = "/usr/sbin/nhc"
NHC_TIMEOUT = 40.0  # its own watchdog ends it after 30 s
_CODES = {0: Verdict.PASS, 1: Verdict.MONITOR, 2: Verdict.FAIL, 3: Verdict.UNKNOWN}
_REMEDIES = {Verdict.FAIL: Remedy.AVOID, Verdict.MONITOR: Remedy.WATCH}


@dataclass(frozen=True)
class SiteReading:
    """folder: "" if the site has none. error: why it was not used. refused: (file name, why it was not run)."""

    folder: str = ""
    ran: tuple[Ran, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    error: str = ""


@dataclass(frozen=True)
class NhcReading:
    """ran: None if it is not installed. root: it ran with the rights that it is written for."""

    ran: Ran | None = None
    root: bool = False


def read_site(about: About, timeout: float = TIMEOUT) -> SiteReading:
    folder = about.site_checks
    if not folder:
        return SiteReading()
    found = names(folder)
    if found is None:
        return SiteReading(folder, error="the folder does not exist or cannot be read")
    if why := _why_untrusted(folder):
        return SiteReading(folder, error=why)
    paths = [os.path.join(folder, name) for name in found if _is_program(folder, name)]  # noqa: PTH118
    if len(paths) > MAX_PROGRAMS:
        return SiteReading(folder, error=f"it holds {len(paths)} executables; at most {MAX_PROGRAMS} are allowed")
    refused = {path: why for path in paths if (why := _why_untrusted(path))}
    trusted = [path for path in paths if path not in refused]
    calls = [_start(path, about, timeout) for path in trusted]
    results = wait_for_all(calls, timeout + 5.0)  # starting a program may hang on its file system too
    ran = [one or Ran(path, took=c.waited) for path, c, one in zip(trusted, calls, results, strict=True)]
    return SiteReading(folder, tuple(ran), tuple((_name(path), why) for path, why in refused.items()))


def _start(path: str, about: About, timeout: float) -> BackgroundCall[Ran]:
    env = environment(node_name(), about.tier.value)
    return BackgroundCall(lambda: run((path,), env, timeout))


def _is_program(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)  # noqa: PTH118
    hidden = name.startswith(".") or name.endswith(("~", ".bak", ".rpmsave", ".rpmnew", ".dpkg-old", ".dpkg-dist"))
    return not hidden and os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def _why_untrusted(path: str) -> str:
    """Return why the program must not run, or ""."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        return error.strerror or str(error)
    if found.st_mode & stat.S_IWOTH:
        return f"{path} is world-writable (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {found.st_uid}, not to root or the user who runs the check"
    return ""


def judge_site(node: str, reading: SiteReading, about: About, limits: NoLimits) -> tuple[Finding, ...]:
    if not reading.folder:
        return (not_applicable("site", node, "no folder of site checks is configured"),)
    if reading.error:
        return (Finding("site", Verdict.UNKNOWN, node, f"{reading.folder}: {reading.error}"),)
    found = [_judge(f"site:{_name(ran.program)}", node, ran) for ran in reading.ran]
    for name, why in reading.refused:
        found.append(Finding(f"site:{name}", Verdict.UNKNOWN, node, f"not run: {why}", Remedy.SETUP))
    return tuple(found) or (not_applicable("site", node, f"{reading.folder} holds no executable"),)


def read_nhc(about: About, program: str = NHC) -> NhcReading:
    """Run NHC without letting it mark the node offline: its result is judged like any other."""
    if not os.access(program, os.X_OK):
        return NhcReading()
    argv = (program, "-l", "-", "MARK_OFFLINE=0")
    return NhcReading(run(argv, environment(node_name(), about.tier.value), NHC_TIMEOUT), os.geteuid() == 0)


def judge_nhc(node: str, reading: NhcReading, about: About, limits: NoLimits) -> tuple[Finding, ...]:
    """Judge NHC, which exits with 1 if a check failed. Without root, many fail for lack of rights: no proof then."""
    ran = reading.ran
    if ran is None:
        return (not_applicable("nhc", node, f"{NHC} is not installed"),)
    if ran.code == 1:
        verdict = Verdict.FAIL if reading.root else Verdict.MONITOR
        return (Finding("nhc", verdict, node, ran.output or "exit code 1", _REMEDIES[verdict]),)
    if ran.code == 0:
        return (_judge("nhc", node, ran),)
    return (Finding("nhc", Verdict.UNKNOWN, node, _describe(ran)),)


def _judge(check: str, node: str, ran: Ran) -> Finding:
    verdict = _CODES.get(ran.code, Verdict.UNKNOWN) if ran.code is not None else Verdict.UNKNOWN
    text = ran.output or f"no output, exit code {ran.code}"
    if ran.code not in _CODES:
        text = _describe(ran)
    return Finding(check, verdict, node, text, _REMEDIES.get(verdict, Remedy.NONE))


def _describe(ran: Ran) -> str:
    how = f"could not run: {ran.error}" if ran.error else f"was killed after {ran.took:.0f} s"
    if ran.code is not None:
        how = f"was killed by signal {-ran.code}" if ran.code < 0 else f"exited with code {ran.code}"
    return f"{ran.program} {how}" + (f": {ran.output}" if ran.output else "")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


CHECK = Check(
    name="site",
    reader="transom_cli.health.checks.site:read_site",
    judge=judge_site,
    reading=SiteReading,
    limits=NoLimits,
    seconds=30.0,
    tier=Tier.QUICK,
    findings=FINDINGS,
    overdue="a program of the site",
)
NHC_CHECK = Check(
    name="nhc",
    reader="transom_cli.health.checks.site:read_nhc",
    judge=judge_nhc,
    reading=NhcReading,
    limits=NoLimits,
    seconds=45.0,
    tier=Tier.DEEP,
    findings=NHC_FINDINGS,
    overdue=NHC,
)
