"""Every event comes back from the journal as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.codec import BadRecord, build, event_from_json, event_to_json, plain
from transom_cli.core.operator.state import Policy

EVENTS = sorted(
    (c for c in vars(ev).values() if isinstance(c, type) and issubclass(c, ev.Event) and c is not ev.Event),
    key=lambda c: c.__name__,
)


@pytest.mark.parametrize("cls", EVENTS, ids=lambda c: c.__name__)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_round_trip(cls: type[ev.Event], data: st.DataObject) -> None:
    event = data.draw(st.builds(cls))
    line = json.dumps({"epoch": 3, **event_to_json(event)})
    assert "\n" not in line
    assert repr(event_from_json(json.loads(line))) == repr(event), "nan is not equal to itself"


def test_a_newer_writer_and_an_older_one() -> None:
    data = event_to_json(ev.JobSeen(1.0, 7, 0, "RUNNING"))
    del data["lost_nodes"]
    assert event_from_json({**data, "new_in_a_later_version": 1}) == ev.JobSeen(1.0, 7, 0, "RUNNING")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Nonsense", "at": 1.0},
        {"type": "Event", "at": 1.0},
        {"type": "Submitted", "at": 1.0},
        {"type": "Submitted", "at": 1.0, "key": "submit", "job_id": "7"},
        {"type": "LaunchSeen", "at": 1.0, "attempt": "7.0", "launch": 0, "nodes": 5, "world_size": 1},
        {"type": "OutcomeSeen", "at": 1.0, "attempt": "7.0", "status": "failed", "why": "", "exits": [3]},
    ],
)
def test_nonsense_is_a_bad_record(data: dict[str, object]) -> None:
    with pytest.raises(BadRecord):
        event_from_json(data)


def test_the_policy_comes_back() -> None:
    policy = Policy(cap_nodes=9, backoff=0.5, drain=False)
    assert build(Policy, json.loads(json.dumps(plain(policy)))) == policy
