"""From a node's findings to what each caller of ours understands: an exit code, one line, a command. Pure.

What Slurm does with a code (slurm.conf(5)): a Prolog that exits with anything but 0 drains the node and requeues the
job, held; an Epilog drains the node. The exit code of a HealthCheckProgram drains nothing, "any action to be taken must
be explicitly performed by the program"; but newer versions start it again and again after slurmd's own start, and keep
the node away, until it exits with 0: so 0 it is, and the drain does the rest. It is killed after 60 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom_cli.health.edges import worst
from transom_cli.health.finding import Finding, Verdict
from transom_cli.slurm.tags import one_line

_WORDS = {
    Verdict.PASS: (0, "OK"),
    Verdict.MONITOR: (1, "WARNING"),
    Verdict.SUSPECT: (1, "WARNING"),
    Verdict.FAIL: (2, "CRITICAL"),
    Verdict.UNKNOWN: (3, "UNKNOWN"),
}


@dataclass(frozen=True)
class Answer:
    """line: for standard output, where somebody reads it. argv: what is to be run, () for nothing."""

    code: int
    line: str
    argv: tuple[str, ...] = ()


def prolog(findings: Sequence[Finding]) -> Answer:
    """Only proof drains: a suspicion would requeue the job, held, for what a neighbour may have done."""
    return Answer(1 if worst(findings) is Verdict.FAIL else 0, summary(findings))


def epilog(findings: Sequence[Finding]) -> Answer:
    return prolog(findings)


def health_check_program(node: str, findings: Sequence[Finding], run: str = "") -> Answer:
    """The caller runs `argv` unless the node is drained already: a reason that is there is somebody's, and stays."""
    failed = _of(findings, Verdict.FAIL)
    if not failed:
        return Answer(0, summary(findings))
    reason = drain_reason(failed[0], run)
    return Answer(0, summary(findings), ("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"))


def nagios(findings: Sequence[Finding]) -> Answer:
    """SUSPECT is a warning: the site's monitoring is to look, not to act. UNKNOWN only where nothing worked."""
    return Answer(_WORDS[worst(findings)][0], summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """ "TRANSOM CRITICAL - ecc: 3 uncorrected errors (and 2 more)": the worst, in the form of a Nagios plugin."""
    verdict = worst(findings)
    told = _of(findings, verdict)
    name = _WORDS[verdict][1]
    if verdict is Verdict.PASS or not told:
        return f"TRANSOM {name} - {len(told)} of {len(findings)} checks passed"
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"TRANSOM {name} - {told[0].check}: {told[0].evidence}{more}".replace("|", "/")  # behind | comes data


def drain_reason(found: Finding, run: str = "") -> str:
    """Names check, reading and run; in the form that the supervisor's own reasons have."""
    return one_line(f"transom: {found.check}: {found.evidence}" + (f" ({run})" if run else ""))


def _of(findings: Iterable[Finding], verdict: Verdict) -> list[Finding]:
    return [found for found in findings if found.verdict is verdict]
