"""The status screen as lines. Pure: the same view and width give the same lines, none wider than requested.

Width None is for a pipe: laid out for 100 columns, and nothing is cut or wrapped.
"""

from collections.abc import Iterable

from transom_cli.core.operator.state import SavesFail
from transom_cli.plural import several, some
from transom_cli.view.model import STALE, IncidentView, RunView
from transom_cli.view.node_table import map_rows, node_table
from transom_cli.view.outlook import next_commands, planned_saves_line
from transom_cli.view.slurm_reasons import asks_in_passing, pending_reason, reason_message
from transom_cli.view.text import (
    LABEL,
    Line,
    age,
    cells,
    command_rows,
    count,
    cut,
    day_time,
    fit,
    line,
    plain,
    row,
    rows,
    span,
    table,
    zone,
)

PIPED = 100
INCIDENTS = 3  # on the screen
_TONES = {
    "training": "good", "done": "good", "finishing": "good", "held": "bad", "failed": "bad", "unknown": "bad",
    "recovering": "warn", "stopping": "warn", "stopped": "warn", "crash loop": "bad", "starved": "bad",
    "failing": "bad",
}  # fmt: skip
_CONDITIONS = {"crash loop", "starved", "leaving"}  # explained in a row of their own
_BAR = (12, 40)  # smallest and largest width of the progress bar
_OUTCOMES = {"recovered": "good", "nothing": "dim", "unproven": "dim", "ignored": "dim", "done": "dim",
             "stopped": "bad", "failed again": "bad"}  # fmt: skip


def status_lines(view: RunView, width: int = 80, *, everything: bool = False) -> list[str]:
    """Return the screen as text."""
    return [plain(one) for one in screen(view, width, everything=everything)]


def screen(view: RunView, width: int | None, *, everything: bool = False, map_lines: int = 0) -> list[Line]:
    """Return the screen; with `everything`, list every node and every incident. map_lines: as in `map_rows`."""
    pairs = next_commands(view)
    first = pairs[: 1 if view.no_operator and not view.owner else 0]  # starts an operator
    commands = [one for label, command in pairs[len(first) :] for one in command_rows(label, command, width)]
    warnings, unknown = _warnings(view, width), view.status == "unknown"
    lines = [
        _headline(view, width),
        *(rows("NO OPERATOR", _alone(view), width, tone="bad") if view.no_operator else []),
        *(one for label, command in first for one in command_rows(label, command, width)),
        *((*warnings, *commands) if unknown else ()),  # why, and what to do, before what was known once
        *(rows("why", view.condition, width, tone=_TONES.get(view.status, "")) if _CONDITIONS & {view.status} else []),
        *(rows("observed", _observed(view), width) if view.observed else []),
        *(rows("owner", f"{view.owner} (read only for you)", width) if view.owner else []),
        *(rows("reason", view.verdict, width, tone=_TONES.get(view.status, "")) if view.verdict else []),
        *_job(view),
        *_progress(view, width),
        *_trainer(view),
        *(rows("DISK FULL", full_disk(view), width, tone="bad") if view.disk_full else []),
        *(_failing_saves(view.saves_fail, width, over=view.over) if view.saves_fail is not None else []),
        *(one for report in view.reports for one in rows("noticed", report, width, tone="warn")),
        *(rows("noticed", f"{view.older}: transom ckpt verify {view.run_id}", width) if view.older else []),
        *(one for words in view.nccl for one in rows("NCCL", words, width, tone="warn")),
        *_operations(view, width),
        *_checkpoints(view, width),
        *(rows("goodput", view.goodput_summary, width, most=2) if view.goodput_summary else []),
        *(rows("shrunk", view.shrunk, width, tone="warn") if view.shrunk else []),
        *map_rows(view, width or PIPED, map_lines),
        *(rows("standbys", f"ready: {view.standbys.words}", width, most=2) if view.standbys is not None else []),
        *_excluded(view, width),
        *_requests(view, width),
        *_sources(view, width),
        *_next_steps(view, width),
        *(() if unknown else (*commands, *warnings)),
    ]
    for part in (node_table(view, everything=everything), incident_rows(view, width, everything=everything)):
        lines += [(), *part] if part else []
    return lines if width is None else [cut(one, width) for one in lines]


def step_breakdown_lines(view: RunView, width: int | None = 80) -> list[str]:
    """Return how each rank spends a step, or why that is unknown."""
    none = "no step breakdown: no rank of this attempt has reported one in the last minute (see docs/slowness.md)"
    lines = [line(text) for text in view.step_breakdown_lines] or [line(none)]
    return [plain(one if width is None else cut(one, width)) for one in lines]


def _headline(view: RunView, width: int | None) -> Line:
    status = view.status
    concern, tone = view.concern, "warn" if view.concern else _TONES.get(status, "note")
    word = view.headline
    room = len(view.run_id) if width is None else max(1, width - cells(word) - 5)  # the state is the answer
    name = fit(view.run_id, room)
    head = [(name, "strong"), ("  ", ""), (word, tone)]
    start = f"job {view.job_id}" if view.job_id else "no job yet"
    start += f" (was {view.former_job})" if view.former_job else ""
    start += f", restart {view.starts}" if view.starts else ""
    if status == "unknown":
        written = _last_written(view)
        return line(*head, f"  last update {span(view.now - written)} ago ({start})" if written else f"  ({start})")
    if view.over and view.since:
        took = f", after {span(view.since - view.submitted)}" if view.submitted is not None else ""
        return line(*head, f" {span(view.now - view.since)} ago{took}")
    began = view.since if (status, view.phase) != ("starting", "pending") else None  # unknown: Slurm was just asked
    if status == "preflight" and view.preflight is not None:
        began = view.preflight.since
        start = view.condition
    if status == "recovering" and view.incidents and view.incidents[0].duration is None:
        began = view.incidents[0].began  # preflight and restarts are parts of it
    if status == "leaving" and view.leaving is not None:
        began = view.leaving.since
        until = view.leaving.until
        start = f"{span(until - view.now)} left, {start}" if until is not None and until > view.now else start
    if view.no_step_for is not None and not concern:
        start = f"no step for {span(view.no_step_for)}, {start}"
    since = f" {span(view.now - began)}" if began else ""
    return line(*head, since, f"  {start.replace(', ', '  ')}" if view.job_id else "")


def full_disk(view: RunView) -> str:
    return f"free space where {view.path} is: logs, heartbeats and saves fail until then"


def _failing_saves(fails: SavesFail, width: int | None, *, over: bool) -> list[Line]:
    advice = [] if over else rows("", fails.advice, width)
    return [*rows("SAVES FAIL", fails.words, width, tone="bad"), *advice]


def _alone(view: RunView) -> str:
    what = "observes the run" if view.observed else "restarts the run or isolates bad nodes"
    job = f"; job {view.operator_job} will become the operator" if view.operator_pending else ""
    return f"nobody {what}{job}"


def _observed(view: RunView) -> str:
    last = f"; last: would have {view.withheld[-1].words}" if view.withheld else ""
    return f"transom changes nothing; {several(len(view.withheld), 'action')} withheld{last}"


def _job(view: RunView) -> list[Line]:
    """The headline names the job of a live run."""
    if not view.over or not view.job_id:
        return []
    again = f", {several(view.starts, 'restart')}" if view.starts else ""
    return [row("job", f"{view.job_id}{again}")]


def _last_written(view: RunView) -> float | None:
    return max((at for at in (view.operator_at, view.nodes_at) if at is not None), default=None)


def _progress(view: RunView, width: int | None) -> list[Line]:
    if view.step < 0:
        return []
    stepping = view.step_time and view.confirmed in ("training", "finishing")
    pace = f"  {_per_step(view.step_time)}" if view.step_time and stepping else ""
    pace = f"  no step for {span(view.no_step_for)}" if view.no_step_for is not None else pace
    loss = f"  loss {view.loss:.4f}" if view.loss is not None else ""
    tone = "bad" if view.loss is not None and view.loss != view.loss else ""
    if not view.steps or view.steps_since_start:
        counted = view.counted + (f", in `transom launch` {view.job_step}" if view.job_step else "")
        return [row("step", f"{count(view.step)}{counted}", (loss, tone), (pace, ""))]
    done = min(1.0, view.step / view.steps)
    to_go = (view.steps - view.step) * view.step_time if view.step_time else 0.0
    shown = pace and view.phase == "training" and view.no_step_for is None
    left = f", {span(to_go)} to go" if to_go > 0 and shown else ""
    numbers = f"{count(view.step)} of {count(view.steps)}  "
    tail = f" {done:4.0%}{pace}{left}"
    room = (width or PIPED) - LABEL - len(numbers) - len(tail) - 2
    bar = "#" * round(done * min(room, _BAR[1])) if room >= _BAR[0] else ""
    drawn = f"[{bar:-<{min(room, _BAR[1])}}]" if room >= _BAR[0] else ""
    one = row("step", numbers, (drawn, "good"), tail)
    return [one, row("", loss.strip() if not tone else (loss.strip(), tone))] if loss else [one]


def _trainer(view: RunView) -> list[Line]:
    """What the trainer's log shows besides step and loss."""
    found = [
        view.framework,
        f"epoch {view.epoch:.4g}" if view.epoch is not None else "",
        f"learning rate {view.learning_rate:.3g}" if view.learning_rate is not None else "",
        view.speed if view.confirmed == "training" else "",
    ]
    return [row("trainer", ", ".join(filter(None, found)))] if any(found) else []


def _per_step(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms/step" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms/step"
    return f"{seconds:.2f} s/step" if seconds < 100 else f"{span(seconds)}/step"


def _checkpoints(view: RunView, width: int | None) -> list[Line]:
    """The newest checkpoints in memory and on disk, the next saves, and the schedule."""
    found = []
    if view.memory >= max(0, view.durable):  # else its report lags behind the save to disk
        old = f"{age(view.memory_age)} ago, " if view.memory_age is not None else ""
        found.append(f"memory {count(view.memory)} ({old}{view.memory_protection})")
    if view.durable >= 0:
        old = f"{age(view.durable_age)} ago" if view.durable_age is not None else ""
        alone = view.memory < 0 and view.step > view.durable  # a fault would lose the steps since then
        alone = alone and not view.steps_since_start
        behind = f"{several(view.step - view.durable, 'step')} behind" if alone and not view.over else ""
        about = ", ".join(x for x in (old, behind) if x)
        found.append(f"disk {count(view.durable)}" + (f" ({about})" if about else ""))
    if (own := view.own_checkpoint) is not None:
        ago = f"{age(max(0.0, view.now - own.changed))} ago, " if not view.over else ""
        found.append(f"{own.path} (step {count(own.step)}, {ago}{'sealed' if own.sealed else 'not sealed'})")
    none = not found and view.step >= 0 and view.confirmed != "unknown"
    words = "none yet" if not view.over else "none"
    if view.incidents and not view.over:
        words = "none known: a restart begins at step 0, or at your own checkpoint"
    if view.framework:  # recognised by its log
        words = "none found; the trainer may keep its own elsewhere"
    lines = [row("checkpoint", (words, "warn"))] if none else []
    saves = planned_saves_line(view.next_save, view.next_durable, view.now) if view.confirmed == "training" else ""
    for text in _packed([*found, *([saves] if saves else [])], width):
        lines += rows("" if lines else "checkpoint", text, width)
    return [*lines, *(rows("saves", view.save_schedule, width) if view.save_schedule else [])]


def _packed(parts: list[str], width: int | None) -> list[str]:
    """Join parts to lines, as many per line as fit."""
    found: list[str] = []
    for part in parts:
        longer = f"{found[-1]}; {part}" if found else part
        if found and (width is None or cells(longer) <= width - LABEL):
            found[-1] = longer
        else:
            found.append(part)
    return found


def _operations(view: RunView, width: int | None) -> list[Line]:
    shown = [one for one in view.operations if view.nodes_fresh or view.status != "unknown"]
    return [line for i, one in enumerate(shown) for line in rows("" if i else "now", one.message, width)]


def _requests(view: RunView, width: int | None) -> list[Line]:
    """Who requested what, the newest first."""
    found: list[Line] = []
    for one in reversed(view.requests):
        words = f"{one.what} by {one.who}, {span(view.now - one.at)} ago" + (f": {one.result}" if one.result else "")
        found += rows("" if found else "requests", words, width)
    return found


def _excluded(view: RunView, width: int | None) -> list[Line]:
    until = dict(view.excluded_until)
    lines: list[Line] = []
    for node, how, reason in view.excluded:
        ends = until.get(node)
        left = ""
        if ends is not None:
            left = f", {span(ends - view.now)} left" if ends > view.now else ", lifted or over: used at the next start"
            left += " if the run is resumed" if view.over and ends > view.now else ""
        lines += rows("excluded", f"{node} ({how}{left}): {reason}", width, most=2)
    return lines


def _sources(view: RunView, width: int | None) -> list[Line]:
    """Slurm's answer, and when operator and nodes last wrote: the age of everything above."""
    if view.over:
        return []
    lines = []
    if view.slurm_state:
        pending = "" if view.starved else pending_reason(view)
        reason = f": {pending}" if pending else ""
        nodes = f" on {_nodes_of_job(view)}" if view.slurm_state == "RUNNING" and view.nodes else ""
        lines += rows("slurm", f"job {view.job_id} {view.slurm_state}{reason}{nodes}, {_slurm_source(view)}", width)
    if view.slurm_start is not None:
        when = f"{day_time(view.slurm_start, view.now)}, in {span(view.slurm_start - view.now)}"
        lines.append(row("", f"Slurm expects to start it at {when}"))
    if view.operator_pending:
        reason = f": {reason_message(view.operator_reason)}" if view.operator_reason else ""
        lines += rows("operator", f"job {view.operator_job} {view.operator_state}{reason}, checked just now", width)
    by = []
    if view.operator_at is not None:
        host = f" on {view.operator_host}" if view.operator_host else ""
        by.append(f"operator{host} {span(view.now - view.operator_at)} ago")
    if view.nodes_at is not None:
        by.append(f"nodes {span(view.now - view.nodes_at)} ago")
    return [*lines, *(rows("updated", ", ".join(by), width) if by else [])]


def _nodes_of_job(view: RunView) -> str:
    """Together they are the nodes that Slurm counts."""
    out = sum(one.role == "out" for one in view.node_views)
    left = min(out, view.lacking)
    more = [several(len(view.spares), "spare")] if view.spares else []
    more += [f"{out - left} replaced"] if out > left else []
    more += [f"{left} left out"] if left else []
    more += [f"{some(view.top_up_nodes)} of a top-up job"] if view.top_up_nodes else []
    return " + ".join((several(len(view.nodes) - len(view.top_up_nodes), "node"), *more))


def _slurm_source(view: RunView) -> str:
    ago = view.now - view.slurm_queried_at if view.slurm_queried_at is not None else 0.0
    when = f"{span(ago)} ago" if ago >= 1.0 else "just now"
    if view.slurm_queried_at is not None and not view.slurm_error:
        return f"checked {when}"
    if view.slurm_error and not view.slurm_silent and asks_in_passing(view):
        return "as last seen by the operator; no answer from Slurm now"
    if view.slurm_error and not view.slurm_silent:
        return f"as last seen by the operator; query failed {when}: {view.slurm_error}"
    lost = view.slurm_lost or view.slurm_error
    return "as seen by the operator" if view.operator and not lost else "as last seen by the operator"


def _next_steps(view: RunView, width: int | None) -> list[Line]:
    lines: list[Line] = []
    for one in view.next_steps:
        when = ""
        if one.at is not None and one.at > view.now:
            when = f" at {day_time(one.at, view.now)} (in {span(one.at - view.now)})"
        then = f": {one.then}" if one.then else ""
        lines += rows("" if lines else "next", one.message + when + then, width, most=2)
    if view.restarts_without_progress and not view.over:
        used = f"{view.restarts_without_progress} of {view.max_without_progress} restarts without progress used"
        lines.append(row("" if lines else "next", (used, "warn")))
    return lines


def _warnings(view: RunView, width: int | None) -> list[Line]:
    if view.over:
        return []
    found = []
    if view.slurm_state == "SUSPENDED":
        found.append("Slurm has suspended the job: no rank runs until Slurm resumes it, and silent ranks are no fault")
    if view.slurm_silent:
        error = " ".join((view.slurm_lost or view.slurm_error).split())
        alone = "; the training does not need it" if view.confirmed == "training" and view.nodes_fresh else ""
        found.append(f"Slurm has not answered for {span(view.slurm_silent)}{alone}: {error}")
    if view.lacks_files:
        found.append(view.lacks_files)
    if not view.operator and (view.operator_pending or not view.young) and not view.no_operator:
        found.append(f"no live operator: {_alone(view)}")
    if view.blind and view.phase in ("training", "starting"):
        found.append(f"no heartbeats, so a hang is not detected, from {view.blind}")
    written = _last_written(view)
    if written is not None and view.now - written > STALE and (not view.fresh or view.phase == "training"):
        found.append(f"no update for {span(view.now - written)}; the state shown is at least that old")
    elif view.phase == "training" and view.nodes_at is not None and not view.nodes_fresh:
        found.append(f"no update from the nodes for {span(view.now - view.nodes_at)}; their states are that old")
    return [line for message in found for line in _warning(message, width)]


def _warning(message: str, width: int | None) -> list[Line]:
    first, *further = rows("warning:", message, width, tone="warn")
    return [(("warning: ", "warn"), *first[1:]), *further]


# --- incidents ---


def incident_rows(view: RunView, width: int | None, *, everything: bool) -> list[Line]:
    """List incidents, newest first: one line each, or two if the outcome does not fit."""
    if not view.incidents:
        return []
    found = folded(view.incidents)
    shown = found if everything else found[:INCIDENTS]
    names = [
        (_ids(group), day_time(group[0].began, view.now), _nodes(group[0]), group[0].fault.title) for group in shown
    ]
    outcomes = [(group[0].outcome(view.now), outcome_tone(group[0])) for group in shown]
    lines = table(("",) * 5, [(*one, outcome) for one, outcome in zip(names, outcomes, strict=True)], frozenset())[1:]
    if width is not None and max(cells(plain(one)) for one in lines) > width:
        above = table(("",) * 4, names, frozenset())[1:]
        indent = cells(plain(table(("",) * 3, [one[:3] for one in names], frozenset())[1])) + 2
        below = [line(" " * indent, outcome) for outcome in outcomes]
        lines = [one for pair in zip(above, below, strict=True) for one in pair]
    lines = [line(("incidents", "strong"), (f"   times in {zone(view.now)}", "dim")), *lines]
    more = sum(len(group) for group in found[len(shown) :])
    if more:
        lines.append(line((f"{count(more)} earlier: see `transom explain {view.run_id}`", "dim")))
    return lines


def folded(incidents: Iterable[IncidentView]) -> list[list[IncidentView]]:
    """Group incidents that follow each other with the same failure and the same result."""
    found: list[list[IncidentView]] = []
    for one in incidents:
        last = found[-1][-1] if found else None
        same = last is not None and one.fingerprint and one.fingerprint == last.fingerprint
        if same and last is not None and (one.result, one.nodes) == (last.result, last.nodes):
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _ids(group: list[IncidentView]) -> str:
    return group[0].id if len(group) == 1 else f"{group[-1].id} to {group[0].id}"


def _nodes(incident: IncidentView) -> str:
    more = f" +{len(incident.nodes) - 1}" if len(incident.nodes) > 1 else ""
    return f"{incident.nodes[0]}{more}" if incident.nodes else "-"


def outcome_tone(incident: IncidentView) -> str:
    return "warn" if incident.duration is None else _OUTCOMES.get(incident.result, "")
