"""The verdict of a probe on each node; and whether its processes started and answered. Pure.

A process that cannot start says nothing about its node's hardware. One that answered hello and then falls silent, while
those of other nodes answer, is what a training would wait for.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable, worst
from transom_cli.health.probe import bits, matrix, speed
from transom_cli.health.probe.messages import Computed, ProbeReading, Silent
from transom_cli.health.probe.plan import ProbeLimits
from transom_cli.plural import times

HELLO, COMPUTE, LINK, VERSIONS = "probe_hello", "compute_answer", "link_answer", "probe_versions"
_COMPUTING = (bits.EXACT, bits.REPEAT, bits.DIGEST, speed.SPEED)
CHECKS = (HELLO, COMPUTE, LINK, VERSIONS, *_COMPUTING, matrix.ALL, matrix.NODE, matrix.SPEED, matrix.LINK)
"""The names of all findings of the probe."""

_NEED_TWO_DEVICES = {LINK, matrix.ALL}
_NEED_ONE_NODE = {HELLO, COMPUTE, LINK, VERSIONS, *_COMPUTING, matrix.ALL}


def judge_probe(reading: ProbeReading, about: About, limits: ProbeLimits) -> tuple[Finding, ...]:
    """Return one finding per node and check; UNKNOWN for checks that were not reached."""
    found = one_per_check(
        (
            *judge_answers(reading),
            *bits.judge_bits(reading),
            *speed.judge_speed(reading, limits),
            *matrix.judge_links(reading, limits, about.tier is Tier.DEEP),
        )
    )
    judged = {(one.node, one.check) for one in found}
    rest = [_not_tried(reading, node, c) for node in reading.nodes for c in CHECKS if (node, c) not in judged]
    return demote_common((*found, *rest), len(reading.nodes), limits.probe_most)


def one_per_check(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the worst finding of each node and check, the first of equals, in order of appearance."""
    kept: dict[tuple[str, str], Finding] = {}
    for found in findings:
        former = kept.setdefault((found.node, found.check), found)
        if worst((former, found)) is not former.verdict:
            kept[found.node, found.check] = found
    return tuple(kept.values())


def demote_common(findings: Sequence[Finding], nodes: int, most: float) -> tuple[Finding, ...]:
    """Turn a check's bad verdicts into UNKNOWN if it accuses more than the share `most` of the nodes."""
    accused: dict[str, set[str]] = {}
    for found in findings:
        if found.verdict.bad:
            accused.setdefault(found.check, set()).add(found.node)
    common = {check for check, these in accused.items() if len(these) > most * nodes}

    def demoted(found: Finding) -> Finding:
        if not found.verdict.bad or found.check not in common:
            return found
        text = f"{found.evidence} (the same on {len(accused[found.check])} of {nodes} nodes, so not the node's fault)"
        return replace(found, verdict=Verdict.UNKNOWN, remedy=Remedy.NONE, evidence=text)

    return tuple(demoted(found) for found in findings)


def _not_tried(reading: ProbeReading, node: str, check: str) -> Finding:
    devices = {hello.index for hello in reading.hellos if not hello.error}
    alone = check not in _NEED_ONE_NODE or (check in _NEED_TWO_DEVICES and len(devices) == 1)
    if len(reading.nodes) < 2 and alone:
        return not_applicable(check, node, "there is no other node or device to send to")
    return Finding(check, Verdict.UNKNOWN, node, f"not tried: {_why_not_tried(reading, node)}")


def _why_not_tried(reading: ProbeReading, node: str) -> str:
    silent = next((one for one in reading.silent if one.node == node), None)
    if silent is not None:
        return f"its probe did not answer ({silent.phase})"
    error = next((hello.error for hello in reading.hellos if hello.node == node and hello.error), "")
    return error or reading.untried or "no partner was left"


def judge_answers(reading: ProbeReading) -> tuple[Finding, ...]:
    """Return one finding per node for each phase that it took part in."""
    found = [*_judge_hellos(reading), *_judge_versions(reading)]
    silent = {(one.node, one.index): one for one in reading.silent}
    found += [_judge_computed(one) for look in reading.looks for one in look]
    for linked in (*reading.alls, *reading.pairs):
        if linked.step and (linked.node, linked.index) not in silent:
            found.append(Finding(LINK, Verdict.PASS, linked.node, f"it answered in {linked.phase}"))
    found += [_judge_silent(one) for one in silent.values() if one.phase != "hello"]
    return tuple(found)


def _judge_hellos(reading: ProbeReading) -> list[Finding]:
    found = []
    waited = {one.node: one for one in reading.silent if one.phase == "hello"}
    failed = {hello.node: hello for hello in reading.hellos if hello.error}
    came = {hello.node for hello in reading.hellos} - set(failed)
    most = len(came) * 2 > len(reading.nodes)  # then a node on which the probe does not start is unusual
    for node in reading.nodes:
        if node in failed:
            verdict, remedy = (Verdict.MONITOR, Remedy.SETUP) if most else (Verdict.UNKNOWN, Remedy.NONE)
            found.append(Finding(HELLO, verdict, node, f"the probe cannot start: {failed[node].error}", remedy))
        elif node in waited:
            text = f"the probe did not start in {waited[node].seconds:.0f} s{_how(waited[node])}"
            verdict, remedy = (Verdict.MONITOR, Remedy.WATCH) if most else (Verdict.UNKNOWN, Remedy.NONE)
            found.append(Finding(HELLO, verdict, node, text, remedy))
        elif node in came:
            hello = next(hello for hello in reading.hellos if hello.node == node)
            found.append(Finding(HELLO, Verdict.PASS, node, hello.kind))
    return found


def _judge_versions(reading: ProbeReading) -> list[Finding]:
    """Compare library versions. What at least half of the nodes have is not called wrong."""
    ready = [hello for hello in reading.hellos if hello.kind]
    versions = {hello.node: ", ".join(f"{name} {version}" for name, version in hello.versions) for hello in ready}
    votes = Counter(versions.values())
    found = []
    for node, own in versions.items():
        if len(votes) > 1 and votes[own] * 2 <= len(versions):
            usual, count = votes.most_common(1)[0]
            text = f"{own}; {count} of {len(versions)} nodes have {usual}"
            found.append(Finding(VERSIONS, Verdict.MONITOR, node, text, Remedy.SETUP))
        else:
            found.append(Finding(VERSIONS, Verdict.PASS, node, own))
    return found


def _judge_computed(one: Computed) -> Finding:
    if not one.error:
        return Finding(COMPUTE, Verdict.PASS, one.node, f"it computed {times(one.repeats)}")
    if "out of memory" in one.error.lower():  # another process's memory, which `gpu_leftover` judges
        return Finding(COMPUTE, Verdict.MONITOR, one.node, one.error, Remedy.WATCH, f"device {one.index}")
    return Finding(COMPUTE, Verdict.SUSPECT, one.node, one.error, Remedy.AVOID, f"device {one.index}")


def _judge_silent(one: Silent) -> Finding:
    check = COMPUTE if one.phase.startswith("compute") else LINK
    text = f"{one.phase}: no answer in {one.seconds:.1f} s{_how(one)}"
    if one.late:
        return Finding(check, Verdict.MONITOR, one.node, f"{text}; it came later", Remedy.WATCH, f"device {one.index}")
    return Finding(check, Verdict.SUSPECT, one.node, text, Remedy.AVOID, f"device {one.index}")


def _how(one: Silent) -> str:
    return f" ({one.error})" if one.error else ""
