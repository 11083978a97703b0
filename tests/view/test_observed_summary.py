"""The summary of observed runs: each withheld action beside what happened instead."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.state import State, WouldHave
from transom_cli.slurm.port import Node
from transom_cli.view.observed import Compared, Summary, compare, summary_document, summary_lines

AT = datetime(2026, 11, 3, 10, 0, 0).timestamp()


def closed(number: int, result: str, after: float | None) -> Incident:
    ended = AT + after if after is not None else None
    stage = Stage.CLOSED if result else Stage.WITHHELD
    return Incident(f"i{number}", 7, 0, AT, 4, stage, result=result, ended_at=ended)


def requeue(number: int) -> WouldHave:
    return WouldHave(AT, f"i{number}/restart", "requeue", "requeued the job")


def fates(state: State, *actions: WouldHave, nodes: dict[str, Node] | None = None) -> list[tuple[str, float | None]]:
    return [(one.fate, one.after) for one in compare("llama", state, actions, nodes or {})]


def test_a_requeue_is_paired_with_how_its_incident_ended() -> None:
    results = (("requeued by hand", 2460.0), ("requeued by Slurm", 90.0), ("recovered", 30.0), ("interrupted", 60.0))
    state = State(incidents=tuple(closed(n, *one) for n, one in enumerate((*results, ("failed", 300.0)), 1)))
    state = replace(state, incident=closed(6, "", None))
    assert fates(state, *(requeue(n) for n in range(1, 7))) == [
        ("requeued by hand", 2460.0),
        ("requeued by Slurm", 90.0),
        ("recovered without it", 30.0),
        ("cancelled by hand", 60.0),
        ("not restarted", 300.0),
        ("still open", None),
    ]


def test_the_end_of_the_observation_is_no_cancel() -> None:
    state = State(incidents=(closed(1, "interrupted", 60.0),), stop_requested=True)
    assert fates(state, requeue(1)) == [("the observation was ended", 60.0)]


def test_a_drain_is_paired_with_what_slurm_says_of_the_node() -> None:
    drain = WouldHave(AT, "i1/isolate/n7", "drain", "drained n7: xid: Xid 79", ("n7",))
    later = Node("n7", "idle", drain=True, reason="bad GPU", reason_user="root", reason_at="2026-11-03T12:00:00")
    assert fates(State(), drain, nodes={"n7": later}) == [("drained by root: bad GPU", 7200.0)]
    before = replace(later, reason_at="2026-11-03T09:00:00")
    assert fates(State(), drain, nodes={"n7": before}) == [("was drained before by root: bad GPU", None)]
    assert fates(State(), drain, nodes={"n7": Node("n7", "idle")}) == [("nobody drained it, or it is back", None)]
    assert fates(State(), drain) == [("unknown", None)]


def test_the_summary_counts_and_averages() -> None:
    def one(incident: str, fate: str, after: float | None) -> Compared:
        return Compared("llama-1", incident, AT, "requeue", "requeued the job", (), fate, after)

    drain = Compared("llama-1", "i4", AT, "drain", "drained n7: xid: Xid 79", ("n7",), "drained by root: bad", 7200.0)
    some = (one("i1", "requeued by hand", 2400.0), one("i2", "requeued by hand", 2520.0), one("i3", "still open", None))
    found = Summary(AT, AT + 30 * 86400, 12, (*some, drain))
    assert summary_lines(found) == [
        "observed in 30d 0h: 12 runs",
        "would have requeued 3 times",
        "  2 requeued by hand, after 41m 00s on average  (llama-1 i1, llama-1 i2)",
        "  1 still open  (llama-1 i3)",
        "would have drained n7: xid: Xid 79",
        "  drained by root: bad, 2h 00m later",
    ]
    document = summary_document(found)
    assert document["schema"] == 1 and [x["fate"] for x in document["withheld"]][-1] == "drained by root: bad"
    assert summary_lines(replace(found, compared=()))[-1] == "transom would have done nothing"
