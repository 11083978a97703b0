"""What a probe of a job's nodes tells of each of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from transom_cli.health.about import About, Tier
from transom_cli.health.finding import Finding, Verdict, not_applicable
from transom_cli.health.probe import judge_answers as answers
from transom_cli.health.probe import judge_bits as bits
from transom_cli.health.probe import judge_links as links
from transom_cli.health.probe import judge_speed as speed
from transom_cli.health.probe.limits import ProbeLimits
from transom_cli.health.probe.reading import Norm, ProbeReading
from transom_cli.health.probe.told import one_each, sober

CHECKS = (
    *answers.CHECKS,
    bits.EXACT,
    bits.REPEAT,
    bits.DIGEST,
    speed.SPEED,
    links.ALL,
    links.NODE,
    links.SPEED,
    links.LINK,
)
"""The names of all findings of the probe."""

_OF_TWO_DEVICES = {answers.LINK, links.ALL}
_OF_ONE_NODE = {*answers.CHECKS, bits.EXACT, bits.REPEAT, bits.DIGEST, speed.SPEED, links.ALL}


def judge_probe(
    reading: ProbeReading, about: About, limits: ProbeLimits, baseline: Iterable[Norm] = ()
) -> tuple[Finding, ...]:
    """One finding of each node for each check that it came to; UNKNOWN for those that it did not.

    A probe that could not be made at all blames nobody.
    """
    earlier = tuple(baseline)
    found = one_each(
        (
            *answers.judge_answers(reading),
            *bits.judge_bits(reading),
            *speed.judge_speed(reading, limits, earlier),
            *links.judge_links(reading, limits, about.tier is Tier.DEEP, earlier),
        )
    )
    told = {(one.node, one.check) for one in found}
    rest = [_untold(reading, node, check) for node in reading.nodes for check in CHECKS if (node, check) not in told]
    return sober((*found, *rest), len(reading.nodes), limits.probe_most)


def _untold(reading: ProbeReading, node: str, check: str) -> Finding:
    well = {hello.index for hello in reading.hellos if not hello.error}
    alone = check not in _OF_ONE_NODE or (check in _OF_TWO_DEVICES and len(well) == 1)
    if len(reading.nodes) < 2 and alone:
        return not_applicable(check, node, "there is no other to send to")
    return Finding(check, Verdict.UNKNOWN, node, _why(reading, node))


def _why(reading: ProbeReading, node: str) -> str:
    silent = next((one for one in reading.silent if one.node == node), None)
    if silent is not None:
        return f"not tried: its probe was silent ({silent.phase})"
    error = next((hello.error for hello in reading.hellos if hello.node == node and hello.error), "")
    if error:
        return f"not tried: {error}"
    return f"not tried: {reading.untried or 'nobody was left to try it with'}"
