"""Tables of the contract suite's results, from pytest's --junitxml. Pure.

The worlds' fixtures record of each case whose Slurm it met, spoken to how, and the case without its world
(tests/slurm/conftest.py). A test that records none is not part of the
contract; it is identified by the release that it ran on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

_NAMED = 4  # up to this many cases are named individually


class End(enum.Enum):
    KEPT = "kept"
    SKIPPED = "not applicable"
    FAILED = "FAILED"


@dataclass(frozen=True, order=True)
class World:
    """``slurm``: its version, empty for the fake. ``by``: fake, commands or pyslurm; empty beside the contract."""

    slurm: str
    by: str

    def __str__(self) -> str:
        return f"{self.slurm} {self.by}".strip()


@dataclass(frozen=True)
class Tried:
    """``why``: the reason for a skip or a failure."""

    world: World
    case: str
    end: End
    why: str = ""


def read_results(xml: str, release: str = "") -> list[Tried]:
    """Return the results of one pytest run. `release`: the one of tests that name no world."""
    return [_tried(case, release) for case in ElementTree.fromstring(xml).iter("testcase")]


def _tried(case: ElementTree.Element, release: str) -> Tried:
    props = {str(prop.get("name")): str(prop.get("value")) for prop in case.iter("property")}
    world = World(props["slurm"], props["by"]) if "by" in props else World(release, "")
    name = props.get("case", str(case.get("name")))
    broken = case.find("failure") if case.find("failure") is not None else case.find("error")
    if broken is not None:
        return Tried(world, name, End.FAILED, str(broken.get("message")))
    skipped = case.find("skipped")
    return Tried(world, name, End.KEPT) if skipped is None else Tried(world, name, End.SKIPPED, _reason(skipped))


def _reason(skipped: ElementTree.Element) -> str:
    return str(skipped.get("message")).removeprefix("Skipped: ")


def contract(tried: Iterable[Tried]) -> list[Tried]:
    """Return the cases of the contract, without other tests, each once: every release also runs the fake."""
    ours = sorted((one for one in tried if one.world.by), key=lambda one: one.end is End.FAILED)
    return list({(one.world, one.case): one for one in ours}.values())


def cases_table(tried: Sequence[Tried]) -> str:
    """Return a table of cases by world, with the reasons for cases that do not apply below it."""
    worlds = sorted({one.world for one in tried})
    cases = sorted({one.case for one in tried})  # workers run them in any order
    found = {(one.case, one.world): one for one in tried}
    notes: list[str] = []

    def cell(case: str, world: World) -> str:
        one = found.get((case, world), Tried(world, case, End.SKIPPED, "it was not run"))
        if one.end is not End.SKIPPED:
            return one.end.value
        if one.why not in notes:
            notes.append(one.why)
        return f"– ({notes.index(one.why) + 1})"

    rows = [[_words(case), *(cell(case, world) for world in worlds)] for case in cases]
    table = _markdown(["case", *map(str, worlds)], rows)
    return "\n".join([table, *([""] if notes else []), *(f"({n}) {why}" for n, why in enumerate(notes, 1))])


def worlds_table(tried: Sequence[Tried]) -> str:
    """Return how many cases passed in each world, and which do not apply, with the reason."""
    rows = []
    for world in sorted({one.world for one in tried}):
        here = [one for one in tried if one.world == world]
        counts = [sum(one.end is end for one in here) for end in End]
        whys = dict.fromkeys(one.why for one in here if one.end is End.SKIPPED)
        reasons = [f"{_named([one.case for one in here if one.why == why])}: {why}" for why in whys]
        rows.append([str(world), *map(str, counts), "; ".join(reasons)])
    return _markdown(["world", *(end.value for end in End), "which, and why"], rows)


def _named(cases: Sequence[str]) -> str:
    return ", ".join(map(_words, cases)) if len(cases) <= _NAMED else f"{len(cases)} cases"


def _words(case: str) -> str:
    """Return "a b [c]" for test_a_b[c]."""
    name, bracket, rest = case.removeprefix("test_").partition("[")
    return name.replace("_", " ") + (f" [{rest}" if bracket else "")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
