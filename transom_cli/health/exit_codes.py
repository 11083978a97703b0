"""Turn a node's findings into what each kind of caller understands: an exit code, one line, a command. Pure.

slurm.conf(5): a Prolog that fails drains the node and requeues the job held; an Epilog that fails drains the node. The
exit code of a HealthCheckProgram drains nothing ("any action to be taken must be explicitly performed by the program"),
but after slurmd's start newer versions repeat it until it exits with 0 and keep the node away until then. So it always
exits with 0, and runs `scontrol` itself. Slurm kills it after 60 s.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Verdict, worst
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
    """line: for standard output. argv: the command to run, () for none."""

    code: int
    line: str
    argv: tuple[str, ...] = ()


def prolog(findings: Sequence[Finding]) -> Answer:
    """Fail on a FAIL only: for a suspicion, Slurm would requeue the job held for what a neighbour may have done."""
    return Answer(1 if worst(findings) is Verdict.FAIL else 0, summary(findings))


def epilog(findings: Sequence[Finding]) -> Answer:
    return prolog(findings)


def health_check_program(node: str, findings: Sequence[Finding], run: str = "") -> Answer:
    """The caller runs `argv` unless the node is drained already: an existing reason is never overwritten."""
    failed = _of(findings, Verdict.FAIL)
    if not failed:
        return Answer(0, summary(findings))
    reason = drain_reason(failed[0], run)
    return Answer(0, summary(findings), ("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"))


def nagios(findings: Sequence[Finding]) -> Answer:
    """Report SUSPECT as a warning, so that monitoring looks and does not act; UNKNOWN only if no check worked."""
    return Answer(_WORDS[worst(findings)][0], summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """Return the worst finding as a Nagios plugin line: "TRANSOM CRITICAL - ecc: 3 uncorrected errors (and 2 more)"."""
    verdict = worst(findings)
    named = _of(findings, verdict)
    name = _WORDS[verdict][1]
    if verdict is Verdict.PASS or not named:
        return f"TRANSOM {name} - {len(named)} of {len(findings)} checks passed"
    more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    line = f"TRANSOM {name} - {named[0].check}: {named[0].evidence}{more}"
    return line.replace("|", "/")  # Nagios reads what follows | as performance data


def drain_reason(found: Finding, run: str = "") -> str:
    """Return a drain reason that names the check, the evidence and the run, in the operator's own format."""
    return one_line(f"transom: {found.check}: {found.evidence}" + (f" ({run})" if run else ""))


def _of(findings: Iterable[Finding], verdict: Verdict) -> list[Finding]:
    return [found for found in findings if found.verdict is verdict]
