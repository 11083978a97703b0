"""Helpers to read a probe's findings."""

from __future__ import annotations

from transom_cli.health.probe.drive import ProbeResult


def bad(result: ProbeResult) -> dict[str, list[str]]:
    """The checks by which each node would be kept out."""
    found: dict[str, list[str]] = {}
    for finding in result.findings:
        if finding.verdict.bad:
            found.setdefault(finding.node, []).append(finding.check)
    return found
