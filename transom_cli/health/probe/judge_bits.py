"""Are the bits that the devices computed the right ones? Pure.

Three questions, from the strongest to the weakest evidence: is a sum right whose answer is known (`compute_exact`);
does a device give the same bits each time (`compute_repeat`); do all devices of a kind give the same bits as the others
(`compute_digest`). The last can also differ for what somebody has set up: only one that stands alone against agreeing
others is called faulty. Two chips do not break alike, so wrong bits that several nodes share are the software's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe import exact
from transom_cli.health.probe.reading import ProbeReading
from transom_cli.health.probe.shapes import Computed, Hello
from transom_cli.health.probe.speeds import FEWEST, Device

EXACT, REPEAT, DIGEST = "compute_exact", "compute_repeat", "compute_digest"


def judge_bits(reading: ProbeReading) -> tuple[Finding, ...]:
    """One finding of each device that has computed, for each of the three."""
    answers = [one for look in reading.looks for one in look if one.digests]
    found = []
    wrong = _wrong_digests(answers)
    hellos = reading.by_device()
    kinds = _kinds(hellos, reading.looks[0] if reading.looks else ())
    for one in answers:
        hello = hellos.get((one.node, one.index))
        device = hello.device if hello else ""
        found.append(_exact(one, device, wrong))
        found.append(_repeat(one, device))
    for alike in kinds.values():
        found += _digests(alike)
    return tuple(found)


def _kinds(hellos: Mapping[Device, Hello], look: Iterable[Computed]) -> dict[str, list[tuple[Hello, Computed]]]:
    """By what must agree to give equal bits: the kind of device and the versions of the libraries."""
    found: dict[str, list[tuple[Hello, Computed]]] = {}
    for one in look:
        hello = hellos.get((one.node, one.index))
        if hello is not None and one.digests:
            versions = ", ".join(f"{name} {version}" for name, version in hello.versions)
            found.setdefault(f"{hello.kind}, {versions}", []).append((hello, one))
    return found


def _wrong_digests(answers: Iterable[Computed]) -> dict[tuple[str, str], set[str]]:
    """The nodes that gave each wrong answer to an exact sum."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in answers:
        for name, digest in one.digests:
            if exact.ANSWERS.get(name, digest) != digest:
                found.setdefault((name, digest), set()).add(one.node)
    return found


def _exact(one: Computed, device: str, wrong: Mapping[tuple[str, str], set[str]]) -> Finding:
    mine = [(name, digest) for name, digest in one.digests if (name, digest) in wrong]
    sums = [name for name, _ in one.digests if name in exact.ANSWERS]
    if not mine:
        said = f"{len(sums)} sums of whole numbers are right to the bit: {', '.join(sums)}"
        return Finding(EXACT, Verdict.PASS, one.node, said, device=device)
    name, digest = mine[0]
    said = f"{name}: the result's digest is {digest}, right is {exact.ANSWERS[name]}"
    if len(wrong[mine[0]]) > 1:
        said += f"; {len(wrong[mine[0]])} nodes are wrong alike, which is the software's fault"
        return Finding(EXACT, Verdict.UNKNOWN, one.node, said, device=device)
    return Finding(EXACT, Verdict.FAIL, one.node, said, Remedy.REPAIR, device)


def _repeat(one: Computed, device: str) -> Finding:
    if one.differed:
        told = ", ".join(f"{name} in {count}" for name, count in one.differed)
        said = f"of {one.repeats} repetitions some gave other bits than the first: {told}"
        return Finding(REPEAT, Verdict.FAIL, one.node, said, Remedy.REPAIR, device)
    return Finding(REPEAT, Verdict.PASS, one.node, f"{one.repeats} repetitions gave the same bits", device=device)


def _digests(alike: list[tuple[Hello, Computed]]) -> list[Finding]:
    """Of the devices of one kind."""
    given = [dict(one.digests) for _, one in alike]
    names = [name for name in given[0] if name not in exact.ANSWERS]
    votes = {name: Counter(digests.get(name, "") for digests in given) for name in names}
    found = []
    for (hello, one), mine in zip(alike, given, strict=True):
        odd = next((name for name in names if _odd(votes[name], mine.get(name, ""))), None)
        if odd is not None:
            found.append(_differs(hello, odd, mine.get(odd, ""), votes[odd]))
            continue
        others = len(alike) - 1
        said = f"{', '.join(names)}: the bits of {others} other devices of its kind" if others else _ALONE
        found.append(Finding(DIGEST, Verdict.PASS, one.node, said, device=hello.device))
    return found


_ALONE = "no other device of its kind to compare with"


def _odd(votes: Counter[str], digest: str) -> bool:
    """It is not what most have, or nothing is."""
    first, count = votes.most_common(1)[0]
    return digest != first or count * 2 <= sum(votes.values())


def _differs(hello: Hello, name: str, digest: str, votes: Counter[str]) -> Finding:
    first, count = votes.most_common(1)[0]
    all_of_them = sum(votes.values())
    said = f"{name}: digest {digest}, which {votes[digest]} of {all_of_them} devices of its kind have"
    proven = all_of_them >= FEWEST and count == all_of_them - 1 and digest != first
    if not proven:
        said += ": nobody can tell which of them are right" if count * 2 <= all_of_them else f"; {count} have {first}"
        return Finding(DIGEST, Verdict.MONITOR, hello.node, said, Remedy.WATCH, hello.device)
    return Finding(DIGEST, Verdict.FAIL, hello.node, f"{said}; all others have {first}", Remedy.REPAIR, hello.device)
