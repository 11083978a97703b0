"""Transcripts of incidents: an event a line, and indented below it what the core made of it.

    # what the story is about
    run num_nodes=3 cap_nodes=2
    0 Started epoch=1
        order Submit submit
    30 NodeSilent attempt=7.0 node=n2 silent_for=11
        stage i1 examining
        i1 seen: n2 silent for 11.0 s
        order Probe i1/probe/n2/1 node=n2 job_id=7

Lists are separated by commas; an exit is `rank@node=code` or `rank@node=sigN`, with `:step` where one was reached. A
fault is `node|check|verdict|evidence|remedy|device|serial`, the last three where there are any.
"""

from __future__ import annotations

import shlex
import typing
from dataclasses import fields

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, Request, State

INDENT = "    "


def play(text: str) -> str:
    """The same text, with all indented lines rewritten."""
    out: list[str] = []
    state: State | None = None
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        out.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        word, *rest = shlex.split(line)
        if state is None:
            state = _run(word, rest)
            continue
        before = state
        state, actions = decide(before, _event(float(word), *rest))
        out += [INDENT + found for found in _told(before, state, actions)]
    return "\n".join(out) + "\n"


def _run(word: str, rest: list[str]) -> State:
    assert word == "run", f"a transcript begins with `run`, not {word!r}"
    given = _pairs(rest)
    num_nodes, spares = int(given.pop("num_nodes", "3")), int(given.pop("spares", "0"))
    hints = typing.get_type_hints(Policy)
    policy = Policy(**{k: _value(hints[k], v) for k, v in given.items()})
    return State(policy=policy, request=Request(num_nodes=num_nodes, spares=spares))


def _event(at: float, name: str, *rest: str) -> ev.Event:
    cls = getattr(ev, name)
    given = _pairs(list(rest))
    hints = typing.get_type_hints(cls)
    if cls is ev.Stalled:
        attempt, hints = given.pop("attempt"), typing.get_type_hints(ev.Stall)
        return cls(at, attempt, ev.Stall(**{k: _value(hints[k], v) for k, v in given.items()}))
    return cls(at=at, **{k: _value(hints[k], v) for k, v in given.items()})


def _pairs(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (w.partition("=") for w in words)}


def _value(hint: object, text: str) -> object:
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(_one(inner, x) for x in text.split(",") if x)
    if hint is bool:
        return {"yes": True, "no": False}[text]
    if hint in (int, int | None):
        return int(text)
    return float(text) if hint is float else text


def _one(hint: object, text: str) -> object:
    if hint is ev.NodeFault:
        return ev.NodeFault(*text.split("|"))
    return _exit(text) if hint is ev.RankExit else _value(hint, text)


def _exit(text: str) -> ev.RankExit:
    who, _, how = text.partition("=")
    rank, _, node = who.partition("@")
    how, _, step = how.partition(":")
    signal = int(how[3:]) if how.startswith("sig") else None
    return ev.RankExit(int(rank), node, None if signal else int(how), signal, wall=0.0, step=int(step or -1))


def _told(before: State, after: State, actions: tuple[Action, ...]) -> list[str]:
    lines: list[str] = []
    if after.phase is not before.phase:
        lines.append(f"phase {before.phase.value} -> {after.phase.value}")
    known = {i.id: i for i in (*before.incidents, before.incident) if i is not None}
    for incident in (*after.incidents, after.incident):
        if incident is None:
            continue
        old = known.get(incident.id)
        if old is None or old.stage is not incident.stage:
            result = f" ({incident.result})" if incident.result else ""
            lines.append(f"stage {incident.id} {incident.stage.value}{result}")
        shown = len(old.marks) if old and incident.marks[: len(old.marks)] == old.marks else 0  # else replaced
        lines += [f"{incident.id} {m.what}: {m.words}" for m in incident.marks[shown:]]
    if after.isolation.exclusions != before.isolation.exclusions:
        kept = (
            f"{x.node} ({x.how}{'' if x.until is None else f' until {x.until:g}'})" for x in after.isolation.exclusions
        )
        lines.append(f"kept away: {', '.join(kept) or 'none'}")
    lines += [f"order {_order(a)}" for a in actions]
    if after.verdict != before.verdict:
        lines.append(f"verdict: {after.verdict or 'none'}")
    if after.phase.over and not before.phase.over:
        lines.append(f"exit {after.exit_code}")
    return lines


def _order(action: Action) -> str:
    said = []
    for field in fields(action):
        value = getattr(action, field.name)
        if field.name == "key" or value in ((), "", 0.0, None):
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        said.append(f"{field.name}={shlex.quote(text) if ' ' in text else text}")
    return " ".join((type(action).__name__, action.key, *said))
