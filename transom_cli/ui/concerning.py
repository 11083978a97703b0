"""All that a run's journals hold of one node, or of the time around one step, in the order of time. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.codec import BadRecord, build
from transom_cli.core.goodput import NS
from transom_cli.core.goodput.shapes import Attempt, Launch
from transom_cli.supervise.book import Book, Launcher, heals, incidents
from transom_cli.ui.story import Story, clock, headline, said, story_of, when
from transom_cli.ui.words import count, fit, span, utc
from transom_cli.ui.wrapping import NEVER_CUT, wrapped

NEAR = 50  # steps to both sides in which a report concerns a step
Finding = tuple[float, str, str]  # seconds, attempt, words


@dataclass(frozen=True)
class Fact:
    """where: an attempt or an incident."""

    at: float
    where: str
    words: str


@dataclass(frozen=True)
class Topic:
    """stories: the incidents that it is about, oldest first; each is told in full by itself."""

    run_id: str
    title: str
    facts: tuple[Fact, ...]
    stories: tuple[Story, ...]


def topic_lines(topic: Topic, width: int = NEVER_CUT) -> list[str]:
    found = wrapped("", topic.title, width)
    places = max((len(fact.where) for fact in topic.facts), default=0)
    times = clock([fact.at for fact in topic.facts])
    for time, fact in zip(times, topic.facts, strict=True):
        found += wrapped(f"  {time}  {fact.where:<{places}}  ", fact.words, width)
    found += [line for story in topic.stories for line in wrapped("  ", headline(story), width)]
    if topic.stories:
        found += wrapped("", f"in full: `transom explain {topic.run_id} {topic.stories[0].id}`", width)
    return [fit(line, width) for line in found]


def topic_document(topic: Topic) -> dict[str, Any]:
    facts = [{"at": utc(f.at), "where": f.where, "words": f.words} for f in topic.facts]
    return {"title": topic.title, "facts": facts, "incidents": [story.id for story in topic.stories]}


def nodes_of(book: Book) -> tuple[str, ...]:
    """Every node that the run was given, in the order in which it was."""
    found: dict[str, None] = {}
    for event in book.events:
        if isinstance(event, ev.JobSeen):
            found.update(dict.fromkeys(event.nodes))
        elif isinstance(event, ev.LaunchSeen):
            found.update(dict.fromkeys((*event.nodes, *event.idle)))
    for launcher in book.launchers:
        for record in launcher.records:
            if record.get("type") in ("attempt", "launch") and isinstance(record.get("nodes"), list):
                found.update(dict.fromkeys(str(n) for n in (*record["nodes"], *record.get("idle", ()))))
    return tuple(found)


# --- a node ---


def about_node(book: Book, node: str, findings: Iterable[Finding] = ()) -> Topic:
    named = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w-])")
    told = incidents(book)
    facts = [Fact(at, attempt, words) for at, attempt, words in findings]
    facts += _launches(book, node)
    stories = [story for i in told if node in (story := story_of(i, book)).nodes]
    blamed = {story.id for story in stories}
    marks = [(i, m) for i in told for m in i.marks if named.search(m.words)]
    own = [(i, m) for i, m in marks if m.what != "requeued" or i.id in blamed]  # every later restart is without it too
    facts += [Fact(m.at, i.id, said(m.what, m.words)) for i, m in own]
    known = {m.words for _, m in marks}
    facts += [fact for fact in _events(book, node) if fact.words not in known]
    kept = next((x for x in book.state.exclusions if x.node == node), None)
    stands = "the run may use it"
    if kept is not None:
        until = f"until {when(kept.until)}" if kept.until is not None else f"until `transom nodes --lift {node}`"
        stands = f"{kept.how} {when(kept.since)}, {until}: {kept.reason}"
    return Topic(book.run_id, f"{node}  {stands}", _once(facts), tuple(stories))


def _once(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """In the order of time; what is told more than once in the same place has its first time, and how often."""
    told: dict[tuple[str, str], list[Fact]] = {}
    for fact in sorted(facts, key=lambda fact: fact.at):
        told.setdefault((fact.where, fact.words), []).append(fact)
    return tuple(
        same[0] if len(same) == 1 else Fact(same[0].at, where, f"{words} ({len(same)} times)")
        for (where, words), same in told.items()
    )


def _launches(book: Book, node: str) -> Iterator[Fact]:
    """Where it carried ranks, or stood by; and what launchers did with it besides."""
    for launcher in book.launchers:
        for record in launcher.records:
            at, kind = record.get("wall"), record.get("type")
            if isinstance(at, (int, float)) and kind in ("agent", "spare", "leftovers") and record.get("node") == node:
                told = [str(record[key]) for key in ("what", "words") if record.get(key)]
                if kind == "spare":
                    told = ["ready" if record.get("good") is True else "not ready", *told]
                yield Fact(at, launcher.attempt, f"{kind}: {': '.join(told)}")
        for seen in heals(launcher.records, launcher.attempt):
            if not seen.incident and node in seen.nodes:
                yield Fact(seen.at, launcher.attempt, seen.words)
        yield from _ranks(_launched(launcher), node)
    if not book.launchers:
        yield from _ranks([event for event in book.events if isinstance(event, ev.LaunchSeen)], node)


def _launched(launcher: Launcher) -> Iterator[ev.LaunchSeen]:
    for record in launcher.records:
        if record.get("type") == "launch":
            try:
                yield build(ev.LaunchSeen, {"idle": [], **record, "at": record["wall"], "attempt": launcher.attempt})
            except (BadRecord, KeyError):
                continue


def _ranks(launches: Iterable[ev.LaunchSeen], node: str) -> Iterator[Fact]:
    """One line for launches of an attempt that follow each other alike."""
    for (attempt, words), group in groupby(launches, key=lambda one: (one.attempt, _part(one, node))):
        same = list(group)
        if words:
            last = f" to {same[-1].launch}" if len(same) > 1 else ""
            yield Fact(same[0].at, attempt, f"{words} (launch {same[0].launch}{last})")


def _part(launch: ev.LaunchSeen, node: str) -> str:
    if node in launch.nodes:
        return f"carries ranks, as one of {len(launch.nodes)}"
    return "carries no rank" if node in launch.idle else ""


def _place(key: str) -> str:
    """The incident of an action's key; of one about a node without ranks (idle/7.0/n2/1), the attempt."""
    first, *rest = key.split("/")
    return rest[0] if first == "idle" and rest else first


def _events(book: Book, node: str) -> Iterator[Fact]:
    """What the operator saw of it outside of incidents, and what people asked."""
    for event in book.events:
        if isinstance(event, ev.NodeSilent) and event.node == node:
            yield Fact(event.at, event.attempt, f"{node} silent for {event.silent_for:.1f} s")
        elif isinstance(event, ev.NodeBack) and event.node == node:
            yield Fact(event.at, event.attempt, "is heard again")
        elif isinstance(event, ev.Probed) and event.node == node:
            yield Fact(event.at, _place(event.key), f"{node}: {event.verdict.lower()}, {event.evidence}")
        elif isinstance(event, ev.Isolated) and event.node == node:
            detail = f" ({event.detail})" if event.detail else ""
            yield Fact(event.at, _place(event.key), f"{node} {event.how}{detail}")
        elif isinstance(event, ev.LiftAsked) and node in event.nodes:
            yield Fact(event.at, "", f"{event.who} lets the run use it again")


# --- a step ---


def newest_step(book: Book) -> int:
    """-1: none was seen."""
    return max((s.step for a in book.history.attempts for one in a.launches for s in one.samples), default=-1)


def about_step(book: Book, step: int) -> Topic:
    did = [fact for a in book.history.attempts for one in a.launches if (fact := _done(a, one, step)) is not None]
    facts = [*did, *_checkpoints(book, step), *_reports(book, step)]
    undone = {c.key for c in book.account.causes if c.lost > 0 and c.step - c.lost < step <= c.step}
    told = incidents(book)
    chosen = [i for i in told if i.id in undone]
    if did:  # and what came before it and after it
        first = min(fact.at for fact in did)
        before = [i for i in told if i.began <= first]
        after = [i for i in told if i.began > first]
        chosen = [i for i in told if i in (*before[-1:], *chosen, *after[:1])]
    again = f", done {len(did)} times" if len(did) > 1 else ""
    facts += [Fact(i.began, i.id, "it was lost here, and had to be done again") for i in chosen if i.id in undone]
    title = f"step {count(step)} of {book.run_id}{again}"
    return Topic(book.run_id, title, tuple(sorted(facts, key=lambda f: f.at)), tuple(story_of(i, book) for i in chosen))


def _done(attempt: Attempt, launch: Launch, step: int) -> Fact | None:
    """Between two steps whose times are known it is told from them, as if all had taken as long."""
    where = f"in launch {launch.number}"
    for one, other in zip(launch.samples, launch.samples[1:], strict=False):
        if one.step < step < other.step:
            at = one.at + (other.at - one.at) * (step - one.step) // (other.step - one.step)
            about = f"{where}, about then: step {count(other.step)} was done {span((other.at - at) / NS)} later"
            return Fact(at / NS, attempt.name, f"done {about}")
    found = next((s for s in launch.samples if s.step == step), None)
    return Fact(found.at / NS, attempt.name, f"done {where}") if found is not None else None


def _checkpoints(book: Book, step: int) -> Iterator[Fact]:
    """The newest one that does not hold it, and the first one that does."""
    seen = [e for e in book.events if isinstance(e, ev.CheckpointSeen)]
    before = max((e for e in seen if e.step < step), key=lambda e: e.step, default=None)
    after = min((e for e in seen if e.step >= step), key=lambda e: e.step, default=None)
    if before is not None:
        yield Fact(before.at, "disk", f"checkpoint {count(before.step)}, the last before it, is durable")
    if after is not None:
        yield Fact(after.at, "disk", f"checkpoint {count(after.step)}, the first with it, is durable")


def _reports(book: Book, step: int) -> Iterator[Fact]:
    for launcher in book.launchers:
        for record in launcher.records:
            at, about = record.get("wall"), record.get("step")
            if record.get("type") != "report" or not isinstance(at, (int, float)) or not isinstance(about, int):
                continue
            if abs(about - step) <= NEAR:
                over = "over: " if record.get("over") else ""
                yield Fact(at, launcher.attempt, f"step {count(about)}: {over}{record.get('words', '')}")
        for told in heals(launcher.records, launcher.attempt):
            if told.what == "leaving" and re.search(rf"\bstep {step}\b", told.words):
                yield Fact(told.at, launcher.attempt, told.words)
