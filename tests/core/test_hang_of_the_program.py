"""A program that hangs after the same step on any node: at most one node is excluded for it."""

from dataclasses import replace

from transom_cli.core.diagnose import Diagnosis, RunFacts, diagnose
from transom_cli.core.incident import Incident


def hang(number: int, node: str, step: int = 39, since_start: bool = True) -> Incident:
    at = 100.0 * number
    return Incident(f"i{number}", 7, 0, at, step, suspect_nodes=(node,), stalled=True, since_start=since_start)


def judged(incidents: list[Incident]) -> list[Diagnosis]:
    """Judge one incident after the other, each with those before it."""
    past: list[Incident] = []
    for one in incidents:
        diagnosis = diagnose(one, RunFacts(nodes=("n1", "n2", "n3", "n4"), launched=True, incidents=tuple(past)))
        assert diagnosis is not None
        past.append(replace(one, diagnosis=diagnosis))
    return [one.diagnosis for one in past if one.diagnosis is not None]


def test_the_second_node_on_which_it_hangs_after_the_same_step_stays() -> None:
    found = judged([hang(1, "n4"), hang(2, "n4"), hang(3, "n3"), hang(4, "n3"), hang(5, "n3")])
    assert [one.isolate for one in found] == ["none", "exclude", "none", "none", "none"]
    assert "the program's own hang" in found[3].words and all(one.restart for one in found)


def test_hangs_after_other_steps_still_exclude_their_nodes() -> None:
    found = judged([hang(1, "n4"), hang(2, "n4"), hang(3, "n3", 120), hang(4, "n3", 150)])
    assert [one.isolate for one in found] == ["none", "exclude", "none", "exclude"]


def test_without_a_step_nothing_shows_that_it_is_the_program() -> None:
    found = judged([hang(1, "n4", -1), hang(2, "n4", -1), hang(3, "n3", -1), hang(4, "n3", -1)])
    assert [one.isolate for one in found] == ["none", "exclude", "none", "exclude"]
