"""A run's view as lines. Pure: the same view and width give the same lines, and no line is wider than asked.

Width None is for a pipe: laid out for 100 columns, and nothing is cut or broken.
"""

from __future__ import annotations

from transom_cli.plural import several
from transom_cli.ui.incidents import incident_rows
from transom_cli.ui.lines import LABEL, Line, command_rows, cut, line, plain, row, rows
from transom_cli.ui.nodemap import map_rows, node_table
from transom_cli.ui.saving import next_words
from transom_cli.ui.slurmwords import reason_words
from transom_cli.ui.todo import todo
from transom_cli.ui.view import STALE, IncidentView, RunView
from transom_cli.ui.words import age, cells, clock_time, count, day_time, fit, span

PIPED = 100
_TONES = {
    "training": "good", "done": "good", "finishing": "good", "held": "bad", "failed": "bad", "unknown": "bad",
    "recovering": "warn", "stopping": "warn", "stopped": "warn",
}  # fmt: skip
_BAR = (12, 40)  # columns of the progress bar


def status_lines(view: RunView, width: int = 80, *, everything: bool = False) -> list[str]:
    """As text, cut to `width`."""
    return [plain(one) for one in screen(view, width, everything=everything)]


def screen(view: RunView, width: int | None, *, everything: bool = False) -> list[Line]:
    """everything: every node and every incident is listed."""
    lines = [
        _headline(view),
        *(rows("because", view.verdict, width, tone=_TONES.get(view.word, "")) if view.verdict else []),
        *_job(view),
        *_progress(view, width),
        *(one for words in view.reports for one in rows("noticed", words, width, tone="warn")),
        *_under_way(view, width),
        *_checkpoints(view, width),
        *(rows("goodput", view.goodput_words, width, most=2) if view.goodput_words else []),
        *map_rows(view, width or PIPED),
        *_kept_off(view, width),
        *_sources(view, width),
        *_ahead(view, width),
        *(one for label, command in todo(view) for one in command_rows(label, command, width)),
        *_warnings(view, width),
    ]
    for part in (node_table(view, everything=everything), incident_rows(view, width, everything=everything)):
        lines += [(), *part] if part else []
    return lines if width is None else [cut(one, width) for one in lines]


def phase_lines(view: RunView, width: int | None = 80) -> list[str]:
    """What a step is spent on, by rank; or why that is not known."""
    none = "No rank of this attempt has told for a minute what its steps are spent on: see docs/slowness.md"
    lines = [line(text) for text in view.phase_lines] or [line(none)]
    return [plain(one if width is None else cut(one, width)) for one in lines]


def _headline(view: RunView) -> Line:
    word = view.word
    head = [(view.run_id, "strong"), ("  ", ""), (word.upper(), _TONES.get(word, "note"))]
    start = f"job {view.job_id}" if view.job_id else "no job yet"
    start += f", restart {view.starts}" if view.starts else ""
    if word == "unknown":
        written = _last_written(view)
        return line(*head, f"  last written {span(view.now - written)} ago ({start})" if written else f"  ({start})")
    if view.over and view.since:
        took = f", after {span(view.since - view.submitted)}" if view.submitted is not None else ""
        return line(*head, f" {span(view.now - view.since)} ago{took}")
    since = f" {span(view.now - view.since)}" if view.since else ""
    return line(*head, since, f"  {start.replace(', ', '  ')}" if view.job_id else "")


def _job(view: RunView) -> list[Line]:
    """Of a run that is over: else the first line has it."""
    if not view.over or not view.job_id:
        return []
    again = f", {several(view.starts, 'restart')}" if view.starts else ""
    return [row("job", f"{view.job_id}{again}")]


def _last_written(view: RunView) -> float | None:
    return max((at for at in (view.operator_at, view.nodes_at) if at is not None), default=None)


def _progress(view: RunView, width: int | None) -> list[Line]:
    if view.step < 0:
        return []
    stepping = view.step_time and view.word in ("training", "finishing")
    pace = f"  {_per_step(view.step_time)}" if view.step_time and stepping else ""
    loss = f"  loss {view.loss:.4f}" if view.loss is not None else ""
    tone = "bad" if view.loss is not None and view.loss != view.loss else ""
    if not view.steps:
        return [row("step", count(view.step), (loss, tone), (pace, ""))]
    done = min(1.0, view.step / view.steps)
    to_go = (view.steps - view.step) * view.step_time if view.step_time else 0.0
    left = f", {span(to_go)} to go" if to_go > 0 and view.phase == "training" and pace else ""
    numbers = f"{count(view.step)} of {count(view.steps)}  "
    tail = f" {done:4.0%}{pace}{left}"
    room = (width or PIPED) - LABEL - len(numbers) - len(tail) - 2
    bar = "#" * round(done * min(room, _BAR[1])) if room >= _BAR[0] else ""
    drawn = f"[{bar:-<{min(room, _BAR[1])}}]" if room >= _BAR[0] else ""
    one = row("step", numbers, (drawn, "good"), tail)
    return [one, row("", loss.strip() if not tone else (loss.strip(), tone))] if loss else [one]


def _per_step(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms/step" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms/step"
    return f"{seconds:.2f} s/step" if seconds < 100 else f"{span(seconds)}/step"


def _checkpoints(view: RunView, width: int | None) -> list[Line]:
    """The newest in memory, and the newest on disk, with their ages; which come next; when it saves, and why."""
    found = []
    if view.memory >= 0:
        old = f"{age(view.memory_age)} ago, " if view.memory_age is not None else ""
        found.append(f"memory {count(view.memory)} ({old}{view.memory_protection})")
    if view.durable >= 0:
        old = f"{age(view.durable_age)} ago" if view.durable_age is not None else ""
        alone = view.memory < 0 and view.step > view.durable  # else it is not what is lost at a fault
        behind = f"{several(view.step - view.durable, 'step')} behind" if alone and not view.over else ""
        about = ", ".join(x for x in (old, behind) if x)
        found.append(f"disk {count(view.durable)}" + (f" ({about})" if about else ""))
    none = not found and view.step >= 0 and view.word != "unknown"
    lines = [row("checkpoint", ("none yet" if not view.over else "none", "warn"))] if none else []
    if ahead := next_words(view.next_save, view.next_durable, view.now) if view.word == "training" else "":
        found.append(ahead)
    for text in _packed(found, width):
        lines += rows("" if lines else "checkpoint", text, width)
    return [*lines, *(rows("saves", view.rhythm, width) if view.rhythm else [])]


def _packed(parts: list[str], width: int | None) -> list[str]:
    """As many of them in a line as there is room for."""
    found: list[str] = []
    for part in parts:
        longer = f"{found[-1]}; {part}" if found else part
        if found and (width is None or cells(longer) <= width - LABEL):
            found[-1] = longer
        else:
            found.append(part)
    return found


def _under_way(view: RunView, width: int | None) -> list[Line]:
    """What is saved and restored now, and how far that is."""
    told = [one for one in view.under_way if view.nodes_known or view.word != "unknown"]
    return [one for i, thing in enumerate(told) for one in rows("" if i else "now", thing.words, width)]


def _kept_off(view: RunView, width: int | None) -> list[Line]:
    until = dict(view.until)
    told: list[Line] = []
    for node, how, reason in view.excluded:
        ends = until.get(node)
        left = f", {span(ends - view.now)} more" if ends is not None and ends > view.now else ""
        told += rows("kept off", f"{node} ({how}{left}): {reason}", width, most=2)
    return told


def _sources(view: RunView, width: int | None) -> list[Line]:
    """What Slurm says, and who has written when: how old is what stands here?"""
    if view.over:
        return []
    lines = []
    if view.slurm_state:
        kept = tuple(node for node, *_ in view.excluded)
        waits = view.slurm_state == "PENDING" and view.slurm_reason
        reason = f": {reason_words(view.slurm_reason, view.wants, kept)}" if waits else ""
        nodes = f" on {several(len(view.nodes), 'node')}" if view.slurm_state == "RUNNING" and view.nodes else ""
        lines += rows("slurm", f"job {view.job_id} {view.slurm_state}{reason}{nodes}, {_asked(view)}", width)
    if view.slurm_start is not None:
        when = f"{day_time(view.slurm_start, view.now)}, in {span(view.slurm_start - view.now)}"
        lines.append(row("", f"Slurm expects to start it at {when}"))
    if view.operator_comes:
        waits = f": {reason_words(view.operator_reason)}" if view.operator_reason else ""
        lines += rows("operator", f"job {view.operator_job} {view.operator_state}{waits}, asked just now", width)
    by = []
    if view.operator_at is not None:
        who = f" on {view.operator_host}" if view.operator_host else ""
        by.append(f"by its operator{who} {span(view.now - view.operator_at)} ago")
    if view.nodes_at is not None:
        by.append(f"by its nodes {span(view.now - view.nodes_at)} ago")
    return [*lines, *(rows("written", ", ".join(by), width) if by else [])]


def _asked(view: RunView) -> str:
    if view.slurm_asked is not None and not view.slurm_error:
        return "asked just now"
    if view.slurm_error:
        ago = view.now - view.slurm_asked if view.slurm_asked is not None else 0.0
        when = f"{span(ago)} ago" if ago >= 1.0 else "just now"
        return f"as its operator last saw it; asked {when}: {view.slurm_error}"
    return "as its operator sees it" if view.operator and not view.slurm_lost else "as its operator last saw it"


def _ahead(view: RunView, width: int | None) -> list[Line]:
    told: list[Line] = []
    for one in view.ahead:
        when = ""
        if one.at is not None and one.at > view.now:
            when = f" at {day_time(one.at, view.now)} (in {span(one.at - view.now)})"
        then = f": {one.then}" if one.then else ""
        told += rows("" if told else "next", one.words + when + then, width, most=2)
    if view.no_progress and not view.over:
        allowed = f"{view.no_progress} of {view.max_without_progress} restarts without progress are used"
        told.append(row("" if told else "next", (allowed, "warn")))
    return told


def _warnings(view: RunView, width: int | None) -> list[Line]:
    if view.over:
        return []
    said = []
    if view.slurm_lost:
        said.append(f"Slurm does not answer, the job's state is not known: {view.slurm_lost}")
    if not view.operator:
        job = f"; its job {view.operator_job} is to be one" if view.operator_comes else ""
        said.append(f"no operator is alive to restart the run or to keep bad nodes off{job}")
    written = _last_written(view)
    if written is not None and view.now - written > STALE and (not view.known or view.phase == "training"):
        said.append(f"nothing was written for {span(view.now - written)}; all above is that old")
    elif view.phase == "training" and view.nodes_at is not None and not view.nodes_known:
        said.append(f"no node has written for {span(view.now - view.nodes_at)}; what is said of them is that old")
    return [one for words in said for one in _warning(words, width)]


def _warning(words: str, width: int | None) -> list[Line]:
    told = rows("warning:", words, width, tone="warn")
    first = (("warning: ", "warn"), *told[0][1:])
    return [first, *told[1:]]


def incident_line(incident: IncidentView) -> str:
    after = f" in {span(incident.lasted)}" if incident.lasted is not None else ""
    return plain(line(f"{incident.id:<4}{clock_time(incident.began)}  {incident.result}{after}  {incident.words}"))


def incident_lines(incident: IncidentView, width: int = 100) -> list[str]:
    """The story of one incident: when, what, how long after its first sign."""
    lines = [incident_line(incident)]
    for at, what, words in incident.marks:
        lines.append(f"    {clock_time(at)}  +{at - incident.began:6.2f} s  {what:<10} {words}")
    return [fit(one, width) for one in lines]
