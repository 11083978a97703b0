"""Do the devices compute the right bits? Exact sums with known answers, and the verdicts. Pure.

Three checks, from the strongest evidence to the weakest. `compute_exact`: is a sum with a known answer right? All its
products and sums are integers that the type represents exactly, so neither the order of additions nor the kernel
matters: any other bit is wrong. `compute_repeat`: does a device compute the same bits each time? `compute_digest`: do
all devices of a kind compute the same bits? A setting may cause a difference, so only a single device against agreeing
others is called faulty. Two chips do not break in the same way: wrong bits that several nodes share are the software's.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.probe.messages import Computed, Device, Hello, ProbeReading
from transom_cli.health.probe.speed import FEWEST


@dataclass(frozen=True)
class Exact:
    """A product of two square matrices of odd numbers from -`most` to `most`.

    A bfloat16 represents sums of 2048 products of ±1 exactly only up to 256; the chosen numbers stay below.
    """

    dtype: str
    size: int
    most: int

    @property
    def name(self) -> str:
        return f"exact {self.dtype} {self.size}"


CPU = (Exact("float32", 256, 15), Exact("int8", 256, 15))
CUDA = (
    Exact("bfloat16", 2048, 1),
    Exact("float16", 2048, 1),
    Exact("float32", 2048, 15),
    Exact("int8", 2048, 15),
)
# Digests of the product as float64, from 64-bit integer arithmetic (the tests recompute the small one).
_ANSWERS = {
    (256, 15): "469989d34ef2a0f1",
    (2048, 1): "7598c816889604c2",
    (2048, 15): "7ed85c72bbf98267",
}
ANSWERS = {exact.name: _ANSWERS[exact.size, exact.most] for exact in (*CPU, *CUDA)}


def digest(data: bytes) -> str:
    """Hash a result's bytes. From the standard library: a trainer's container may have nothing else of ours."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


EXACT, REPEAT, DIGEST = "compute_exact", "compute_repeat", "compute_digest"


def judge_bits(reading: ProbeReading) -> tuple[Finding, ...]:
    """Return one finding per check for each device that has computed."""
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
    """Group by what must agree for equal bits: the kind of device and the library versions."""
    found: dict[str, list[tuple[Hello, Computed]]] = {}
    for one in look:
        hello = hellos.get((one.node, one.index))
        if hello is not None and one.digests:
            versions = ", ".join(f"{name} {version}" for name, version in hello.versions)
            found.setdefault(f"{hello.kind}, {versions}", []).append((hello, one))
    return found


def _wrong_digests(answers: Iterable[Computed]) -> dict[tuple[str, str], set[str]]:
    """Return the nodes that gave each wrong answer to an exact sum."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in answers:
        for name, digest in one.digests:
            if ANSWERS.get(name, digest) != digest:
                found.setdefault((name, digest), set()).add(one.node)
    return found


def _exact(one: Computed, device: str, wrong: Mapping[tuple[str, str], set[str]]) -> Finding:
    mine = [(name, digest) for name, digest in one.digests if (name, digest) in wrong]
    sums = [name for name, _ in one.digests if name in ANSWERS]
    if not mine:
        text = f"{len(sums)} exact sums are right to the bit: {', '.join(sums)}"
        return Finding(EXACT, Verdict.PASS, one.node, text, device=device)
    name, digest = mine[0]
    text = f"{name}: the result's digest is {digest}, right is {ANSWERS[name]}"
    if len(wrong[mine[0]]) > 1:
        text += f"; {len(wrong[mine[0]])} nodes have the same wrong result, so the software is at fault"
        return Finding(EXACT, Verdict.UNKNOWN, one.node, text, device=device)
    return Finding(EXACT, Verdict.FAIL, one.node, text, Remedy.REPAIR, device)


def _repeat(one: Computed, device: str) -> Finding:
    if one.differed:
        counts = ", ".join(f"{name} in {count}" for name, count in one.differed)
        text = f"some of {one.repeats} repetitions gave other bits than the first: {counts}"
        return Finding(REPEAT, Verdict.FAIL, one.node, text, Remedy.REPAIR, device)
    return Finding(REPEAT, Verdict.PASS, one.node, f"{one.repeats} repetitions gave the same bits", device=device)


def _digests(alike: list[tuple[Hello, Computed]]) -> list[Finding]:
    """Compare the devices of one kind."""
    given = [dict(one.digests) for _, one in alike]
    names = [name for name in given[0] if name not in ANSWERS]
    votes = {name: Counter(digests.get(name, "") for digests in given) for name in names}
    found = []
    for (hello, one), mine in zip(alike, given, strict=True):
        odd = next((name for name in names if _odd(votes[name], mine.get(name, ""))), None)
        if odd is not None:
            found.append(_differs(hello, odd, mine.get(odd, ""), votes[odd]))
            continue
        others = len(alike) - 1
        text = f"{', '.join(names)}: same bits as {others} other devices of its kind" if others else _ALONE
        found.append(Finding(DIGEST, Verdict.PASS, one.node, text, device=hello.device))
    return found


_ALONE = "no other device of its kind"


def _odd(votes: Counter[str], digest: str) -> bool:
    """Return whether it is not the majority's digest, or there is no majority."""
    first, count = votes.most_common(1)[0]
    return digest != first or count * 2 <= sum(votes.values())


def _differs(hello: Hello, name: str, digest: str, votes: Counter[str]) -> Finding:
    first, count = votes.most_common(1)[0]
    all_of_them = sum(votes.values())
    text = f"{name}: digest {digest}, as on {votes[digest]} of {all_of_them} devices of its kind"
    proven = all_of_them >= FEWEST and count == all_of_them - 1 and digest != first
    if not proven:
        text += "; which one is right is unknown" if count * 2 <= all_of_them else f"; {count} have {first}"
        return Finding(DIGEST, Verdict.MONITOR, hello.node, text, Remedy.WATCH, hello.device)
    return Finding(DIGEST, Verdict.FAIL, hello.node, f"{text}; all others have {first}", Remedy.REPAIR, hello.device)
