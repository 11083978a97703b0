"""Did the probe's processes come, and answer? Pure.

A process that cannot start tells nothing of its node's hardware. One that has said hello and then falls silent, while
those of the other nodes answer, is what a training would wait for.
"""

from __future__ import annotations

from collections import Counter

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.reading import ProbeReading, Silent
from transom_cli.health.probe.shapes import Computed
from transom_cli.plural import times

HELLO, COMPUTE, LINK, VERSIONS = "probe_hello", "compute_answer", "link_answer", "probe_versions"
CHECKS = (HELLO, COMPUTE, LINK, VERSIONS)


def judge_answers(reading: ProbeReading) -> tuple[Finding, ...]:
    """One finding of each node, for each phase that it was asked in."""
    found = [*_hellos(reading), *_versions(reading)]
    silent = {(one.node, one.index): one for one in reading.silent}
    found += [_computed(one) for look in reading.looks for one in look]
    for linked in (*reading.alls, *reading.pairs):
        if linked.step and (linked.node, linked.index) not in silent:
            found.append(Finding(LINK, Verdict.PASS, linked.node, f"it answered in {linked.phase}"))
    found += [_silent(one) for one in silent.values() if one.phase != "hello"]
    return tuple(found)


def _hellos(reading: ProbeReading) -> list[Finding]:
    found = []
    waited = {one.node: one for one in reading.silent if one.phase == "hello"}
    failed = {hello.node: hello for hello in reading.hellos if hello.error}
    came = {hello.node for hello in reading.hellos} - set(failed)
    most = len(came) * 2 > len(reading.nodes)  # then the probe can be made, and whoever cannot make it is odd
    for node in reading.nodes:
        if node in failed:
            verdict, remedy = (Verdict.MONITOR, Remedy.SETUP) if most else (Verdict.UNKNOWN, Remedy.NONE)
            found.append(Finding(HELLO, verdict, node, failed[node].error, remedy))
        elif node in waited:
            said = f"no hello of its probe within {waited[node].seconds:.0f} s{_how(waited[node])}"
            verdict, remedy = (Verdict.MONITOR, Remedy.WATCH) if most else (Verdict.UNKNOWN, Remedy.NONE)
            found.append(Finding(HELLO, verdict, node, said, remedy))
        elif node in came:
            hello = next(hello for hello in reading.hellos if hello.node == node)
            found.append(Finding(HELLO, Verdict.PASS, node, hello.kind))
    return found


def _versions(reading: ProbeReading) -> list[Finding]:
    """The same libraries on all nodes; what most have is not called wrong."""
    told = {h.node: ", ".join(f"{name} {version}" for name, version in h.versions) for h in reading.hellos if h.kind}
    votes = Counter(told.values())
    found = []
    for node, mine in told.items():
        if len(votes) > 1 and votes[mine] * 2 <= len(told):
            said = f"{mine}; {votes.most_common(1)[0][1]} of {len(told)} nodes have {votes.most_common(1)[0][0]}"
            found.append(Finding(VERSIONS, Verdict.MONITOR, node, said, Remedy.SETUP))
        else:
            found.append(Finding(VERSIONS, Verdict.PASS, node, mine))
    return found


def _computed(one: Computed) -> Finding:
    if not one.error:
        return Finding(COMPUTE, Verdict.PASS, one.node, f"it computed, {times(one.repeats)}")
    if "out of memory" in one.error.lower():  # somebody else's, whose memory is looked at by itself
        return Finding(COMPUTE, Verdict.MONITOR, one.node, one.error, Remedy.WATCH, f"device {one.index}")
    return Finding(COMPUTE, Verdict.SUSPECT, one.node, one.error, Remedy.AVOID, f"device {one.index}")


def _silent(one: Silent) -> Finding:
    check = COMPUTE if one.phase.startswith("compute") else LINK
    said = f"{one.phase}: no answer within {one.seconds:.1f} s{_how(one)}"
    if one.late:
        return Finding(check, Verdict.MONITOR, one.node, f"{said}; it came later", Remedy.WATCH, f"device {one.index}")
    return Finding(check, Verdict.SUSPECT, one.node, said, Remedy.AVOID, f"device {one.index}")


def _how(one: Silent) -> str:
    return f" ({one.error})" if one.error else ""
