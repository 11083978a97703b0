"""Everything that a run's journals hold about one node, or about the time around one step, in order of time. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from transom_cli.core import events as ev
from transom_cli.core.codec import BadRecord, build
from transom_cli.core.goodput import NS, Attempt, Launch
from transom_cli.core.samples import Proof, Steps
from transom_cli.plural import several
from transom_cli.supervise.run_record import Launcher, RunRecord, incidents, recoveries
from transom_cli.view.text import NEVER_CUT, count, fit, span, utc, wrapped
from transom_cli.view.timeline import Timeline, build_timeline, clock, headline, mark_message, when

NEAR = 50  # steps before and after a step in which a report concerns it
Finding = tuple[float, str, str]  # Unix time, attempt, message


@dataclass(frozen=True)
class Fact:
    at: float
    where: str  # an attempt or an incident
    message: str


@dataclass(frozen=True)
class Topic:
    """What is known about a node or a step. incidents: oldest first."""

    run_id: str
    title: str
    facts: tuple[Fact, ...]
    incidents: tuple[Timeline, ...]


def topic_lines(topic: Topic, width: int = NEVER_CUT) -> list[str]:
    found = wrapped("", topic.title, width)
    places = max((len(fact.where) for fact in topic.facts), default=0)
    times = clock([fact.at for fact in topic.facts])
    for time, fact in zip(times, topic.facts, strict=True):
        found += wrapped(f"  {time}  {fact.where:<{places}}  ", fact.message, width)
    found += [line for incident in topic.incidents for line in wrapped("  ", headline(incident), width)]
    if topic.incidents:
        found += wrapped("", f"details: `transom explain {topic.run_id} {topic.incidents[0].id}`", width)
    return [fit(line, width) for line in found]


def topic_document(topic: Topic) -> dict[str, Any]:
    facts = [{"at": utc(f.at), "where": f.where, "message": f.message} for f in topic.facts]
    return {"title": topic.title, "facts": facts, "incidents": [one.id for one in topic.incidents]}


def run_nodes(book: RunRecord) -> tuple[str, ...]:
    """Return every node that the run was given, in that order."""
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


def about_node(book: RunRecord, node: str, findings: Iterable[Finding] = ()) -> Topic:
    named = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w-])")
    every = incidents(book)
    blaming = [one for i in every if node in (one := build_timeline(i, book)).nodes]
    blaming_ids = {one.id for one in blaming}
    marks = [(i, m) for i in every for m in i.marks if named.search(m.words)]
    own = [(i, m) for i, m in marks if m.what != "requeued" or i.id in blaming_ids]  # later requeues name it as well
    known = {m.words for _, m in marks}
    facts = [Fact(at, attempt, message) for at, attempt, message in findings]
    facts += _launches(book, node)
    facts += [Fact(m.at, i.id, mark_message(m.what, m.words)) for i, m in own]
    facts += [fact for fact in _events(book, node) if fact.message not in known]
    return Topic(book.run_id, f"{node}  {_node_state(book, node)}", _merged(facts), tuple(blaming))


def _node_state(book: RunRecord, node: str) -> str:
    excluded = next((x for x in book.state.isolation.exclusions if x.node == node), None)
    if excluded is None:
        return "available to the run"
    until = f"until `transom nodes --lift {node}`"
    if excluded.until is not None:
        until = f"until {when(excluded.until)}"
    if book.state.phase.over:
        until = "until the end of the run (`transom nodes` shows its present state)"
    return f"{excluded.how} {when(excluded.since)}, {until}: {excluded.reason}"


def _merged(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Sort facts by time; merge equal ones of the same place, with their number."""
    groups: dict[tuple[str, str], list[Fact]] = {}
    for fact in sorted(facts, key=lambda fact: fact.at):
        groups.setdefault((fact.where, fact.message), []).append(fact)
    return tuple(
        same[0] if len(same) == 1 else Fact(same[0].at, where, f"{message} ({len(same)} times)")
        for (where, message), same in groups.items()
    )


def _launches(book: RunRecord, node: str) -> Iterator[Fact]:
    """Yield where the node had ranks or was a spare, and what else launchers did with it."""
    for launcher in book.launchers:
        for record in launcher.records:
            at, kind = record.get("wall"), record.get("type")
            here = record.get("node") == node or (kind == "standby" and node in record.get("nodes", ()))
            if isinstance(at, (int, float)) and kind in ("agent", "spare", "standby", "leftovers") and here:
                parts = [str(record[key]) for key in ("what", "words") if record.get(key)]
                if kind == "spare":
                    parts = ["ready" if record.get("good") is True else "not ready", *parts]
                yield Fact(at, launcher.attempt, f"{kind}: {': '.join(parts)}")
        for seen in recoveries(launcher.records, launcher.attempt):
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
    """Yield one fact for consecutive launches in which the node had the same role."""
    for (attempt, message), group in groupby(launches, key=lambda one: (one.attempt, _role(one, node))):
        same = list(group)
        if message:
            last = f" to {same[-1].launch}" if len(same) > 1 else ""
            yield Fact(same[0].at, attempt, f"{message} (launch {same[0].launch}{last})")


def _role(launch: ev.LaunchSeen, node: str) -> str:
    if node in launch.nodes:
        return f"runs ranks, as one of {len(launch.nodes)} nodes"
    return "runs no rank" if node in launch.idle else ""


def _place(key: str) -> str:
    """Return the incident of an action's key, or the attempt for a node without ranks (idle/7.0/n2/1)."""
    first, *rest = key.split("/")
    return rest[0] if first == "idle" and rest else first


def _events(book: RunRecord, node: str) -> Iterator[Fact]:
    """Yield what the operator saw of the node outside of incidents, and users' requests."""
    for one in book.state.withheld:
        if node in one.nodes:
            yield Fact(one.at, _place(one.key), f"would have {one.words}")
    for event in book.events:
        if isinstance(event, ev.NodeSilent) and event.node == node:
            yield Fact(event.at, event.attempt, f"{node} silent for {event.silent_for:.1f} s")
        elif isinstance(event, ev.NodeBack) and event.node == node:
            yield Fact(event.at, event.attempt, "reports again")
        elif isinstance(event, ev.Probed) and event.node == node:
            yield Fact(event.at, _place(event.key), f"{node}: {event.verdict.lower()}, {event.evidence}")
        elif isinstance(event, ev.Isolated) and event.node == node:
            detail = f" ({event.detail})" if event.detail else ""
            yield Fact(event.at, _place(event.key), f"{node} {event.how}{detail}")
        elif isinstance(event, ev.LiftRequested) and node in event.nodes:
            yield Fact(event.at, "", f"{event.who} lifted the exclusion")


# --- a step ---


def newest_step(book: RunRecord) -> int:
    """Return the newest step seen; -1 if none."""
    return max((s.step for a in book.history.attempts for one in a.launches for s in one.samples), default=-1)


def about_step(book: RunRecord, step: int) -> Topic:
    launches = [(a, one) for a in book.history.attempts for one in a.launches]
    done = [fact for a, one in launches if (fact := _done(a, one, step)) is not None]
    counted = any(one.since_start for _, one in launches)  # each launch then counts its own steps
    facts = [*done, *_checkpoints(book, step), *_reports(book, step)]
    lost_in = {c.key for c in book.account.causes if c.lost > 0 and c.step - c.lost < step <= c.step}
    every = incidents(book)
    chosen = [i for i in every if i.id in lost_in]
    if done:  # also the incidents before and after it
        first = min(fact.at for fact in done)
        before = [i for i in every if i.began <= first]
        after = [i for i in every if i.began > first]
        chosen = [i for i in every if i in (*before[-1:], *chosen, *after[:1])]
    again = f", done {len(done)} times" if len(done) > 1 and not counted else ""
    facts += [Fact(i.began, i.id, "lost, and repeated later") for i in chosen if i.id in lost_in]
    title = f"step {count(step)} of {book.run_id}{again}"
    timelines = tuple(build_timeline(i, book) for i in chosen)
    return Topic(book.run_id, title, tuple(sorted(facts, key=lambda f: f.at)), timelines)


def _done(attempt: Attempt, launch: Launch, step: int) -> Fact | None:
    """Tell when the step finished, interpolated between two samples."""
    where = f"in launch {launch.number}" + (", counted from its start" if launch.since_start else "")
    for one, other in zip(launch.samples, launch.samples[1:], strict=False):
        if one.step < step < other.step:
            at = one.at + (other.at - one.at) * (step - one.step) // (other.step - one.step)
            about = f"{where}, estimated: step {count(other.step)} was done {span((other.at - at) / NS)} later"
            return Fact(at / NS, attempt.name, f"done {about}")
    found = next((s for s in launch.samples if s.step == step), None)
    return Fact(found.at / NS, attempt.name, f"done {where}") if found is not None else None


def _checkpoints(book: RunRecord, step: int) -> Iterator[Fact]:
    """Yield the last checkpoint before the step, and the first that contains it."""
    seen = [e for e in book.events if isinstance(e, ev.CheckpointSeen)]
    before = max((e for e in seen if e.step < step), key=lambda e: e.step, default=None)
    after = min((e for e in seen if e.step >= step), key=lambda e: e.step, default=None)
    if before is not None:
        yield Fact(before.at, "disk", f"checkpoint {count(before.step)} is on disk, the last before this step")
    if after is not None:
        yield Fact(after.at, "disk", f"checkpoint {count(after.step)} is on disk, the first with this step")


def _reports(book: RunRecord, step: int) -> Iterator[Fact]:
    for launcher in book.launchers:
        for record in launcher.records:
            at, about = record.get("wall"), record.get("step")
            if record.get("type") != "report" or not isinstance(at, (int, float)) or not isinstance(about, int):
                continue
            if abs(about - step) <= NEAR:
                over = "over: " if record.get("over") else ""
                yield Fact(at, launcher.attempt, f"step {count(about)}: {over}{record.get('words', '')}")
        for seen in recoveries(launcher.records, launcher.attempt):
            if seen.what == "leaving" and re.search(rf"\bstep {step}\b", seen.words):
                yield Fact(seen.at, launcher.attempt, seen.words)


# --- samples: which ones each step used, and the proof that each was used once ---


def sample_lines(run_id: str, proof: Proof) -> list[str]:
    if not proof.kept:
        why = "it needs `GlobalBatches` in the state of a `Checkpointer` (docs/elastic.md)"
        return [f"{run_id}: no record of samples: {why}"]
    last = proof.kept[-1]
    words = f"{run_id}: {several(proof.used, 'sample')} in {several(last.last, 'step')}, {_epochs(proof)}"
    verdict = "each sample once per epoch, in one order" if proof.exact else "not proven exact"
    lines = [f"{words}: {verdict}"]
    for (launch, world), group in groupby(proof.kept, key=lambda one: (one.launch, one.world)):
        some = list(group)
        lines.append(f"  {_steps(some[0], some[-1])} on {several(world, 'rank')}, launch {_launch(launch)}")
    for one in proof.undone:
        count = several(one.end - one.start, "sample")
        lines.append(f"  undone: steps {one.first:,} to {one.last:,} of launch {_launch(one.launch)} ({count})")
    lines += [f"  repeated: samples {first:,} to {end - 1:,}" for first, end in proof.repeated]
    lines += [f"  left out: samples {first:,} to {end - 1:,}" for first, end in proof.omitted]
    return [*lines, f"  {proof.broken}"] if proof.broken else lines


def sample_document(proof: Proof) -> dict[str, Any]:
    return {**asdict(proof), "used": proof.used, "exact": proof.exact}


def _epochs(proof: Proof) -> str:
    whole, part = divmod(proof.kept[-1].end, proof.size)
    return f"{several(whole, 'whole epoch')}" + (f" and {part:,} of {proof.size:,} samples" if part else "")


def _steps(first: Steps, last: Steps) -> str:
    return f"steps {first.first:,} to {last.last:,}: samples {first.start:,} to {last.end - 1:,}"


def _launch(name: str) -> str:
    attempt, _, launch = name.rpartition(".")
    return f"{launch} of attempt {attempt}"
