"""Notification as messages: templates, what is cut, what is cleaned, many as one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notify_made import ABOUT, news

from transom_cli.notify.messages import (
    FIELDS,
    LISTED,
    SLACK,
    SUBJECT,
    TEXT,
    WEBHOOK,
    Target,
    body,
    message,
    slack,
    unknown_fields,
)

TARGET = Target("t", SLACK)


def test_a_message_says_what_where_and_how_to_know_more() -> None:
    found = message((news("i1/incident", at=1.8e9, headline="n3 lost", details=("a", "b")),), ABOUT, TARGET)
    assert found.subject == "demo: n3 lost"
    assert found.text == (
        "a\nb\n\n2027-01-15T08:00:00Z, run demo-20261122-054110-96a8\n"
        "details: transom explain demo-20261122-054110-96a8, transom status demo-20261122-054110-96a8"
    )


def test_templates_name_fields_and_what_a_message_lacks_is_empty() -> None:
    target = Target("t", WEBHOOK, subject="[{event}] {name} {step}{exit_code}", text="{nodes}: {headline} {}{0}{ {{x}")
    found = message((news("k", headline="lost", facts=(("step", 4), ("nodes", ("n1", "n2")))),), ABOUT, target)
    assert (found.subject, found.text) == ("[incident] demo 4", "n1, n2: lost {}{0}{ {")
    assert unknown_fields("{run} {run.id} {foo} {Step} {step!r}") == ("foo", "Step")


def test_values_are_not_read_as_templates() -> None:
    found = message((news("k", headline="{run} {words}", details=("{name}",)),), ABOUT, TARGET)
    assert found.subject == "demo: {run} {words}" and found.text.startswith("{name}\n")


def test_many_are_one_message_with_a_line_each() -> None:
    several = tuple(news(f"i{i}/incident", at=1.8e9 + i, headline=f"fault {i}") for i in range(1, 30))
    found = message(several, ABOUT, TARGET)
    assert found.subject == "demo: fault 29 (and 28 more)" and found.keys == tuple(n.key for n in several)
    lines = found.text.splitlines()
    assert lines[-LISTED - 2 :] == [
        "and 28 more:",
        "and 18 earlier",
        *(f"2027-01-15T08:00:{i:02d}Z  fault {i}" for i in range(19, 29)),
    ]
    assert found.document["more_count"] == 28 and len(found.document["more"]) == LISTED


def test_slack_calls_nobody_and_reads_no_markup() -> None:
    found = message((news("k", headline="<!channel> <@U1> a&b @here @Channel @everyone"),), ABOUT, TARGET)
    text = slack(found)["text"]
    assert "&lt;!channel&gt; &lt;@U1&gt; a&amp;b" in text
    assert not any(ping in text.lower() for ping in ("@here", "@channel", "@everyone", "<"))


@given(
    st.lists(st.tuples(st.text(max_size=600), st.lists(st.text(max_size=9000), max_size=3)), min_size=1, max_size=20),
    st.sampled_from(("", "{words}", "{headline}\n{time} {nodes}")),
    st.text(max_size=300),
)
def test_whatever_is_reported_is_short_and_clean(found: list[tuple[str, list[str]]], template: str, node: str) -> None:
    several = tuple(
        news(f"k{i}", headline=head, details=tuple(words), facts=(("nodes", (node,)), ("cause", node)))
        for i, (head, words) in enumerate(found)
    )
    target = Target("t", WEBHOOK, subject=template, text=template)
    one = message(several, ABOUT, target)
    assert len(one.subject) <= SUBJECT and "\n" not in one.subject and one.subject.isprintable()
    assert len(one.text) <= TEXT and all(line.isprintable() for line in one.text.split("\n"))
    data = body(one, target)
    assert len(data) < 64 << 10 and json.loads(data) == one.document


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_may_stand_in_a_template(field: str) -> None:
    assert unknown_fields(f"{{{field}}}") == ()
