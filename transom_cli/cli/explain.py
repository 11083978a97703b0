"""`transom explain`: what happened to a run, in an incident, on a node or around a step."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.common import bounded, run_to_read
from transom_cli.cli.options import Json, Root
from transom_cli.errors import NoSuchRun, UsageError
from transom_cli.layout import RunDir
from transom_cli.plural import some
from transom_cli.view.text import NEVER_CUT, clock_time

if TYPE_CHECKING:
    from pathlib import Path

    from transom_cli.supervise.run_record import RunRecord
    from transom_cli.view.explain import Topic

_INCIDENT = re.compile(r"i\d+|\d+\.\d+/l\d+")
_STEP = re.compile(r"\d[\d,]*")
_NAMED = 20  # names in an error


def explain(
    run: Annotated[
        str | None,
        typer.Argument(help="Run ID, name or path [default: the newest run]; or what to explain in the newest run."),
    ] = None,
    what: Annotated[str | None, typer.Argument(help="An incident (i2), a node (gpu017) or a step (18430).")] = None,
    incident: Annotated[
        str | None, typer.Option("--incident", "-i", help="Show only this incident, such as i2.")
    ] = None,
    root: Root = None,
    json_: Json = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="Show which samples the steps used, and whether each was used once.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the timeline of every incident, as for a single one.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Also show repeated incidents, and all evidence of long ones.")
    ] = False,
) -> None:
    """Explain incidents: cause, action and loss.

    \b
    transom explain               every incident of the newest run, briefly
    transom explain demo i2       one incident, with its timeline
    transom explain demo gpu017   everything about a node
    transom explain 18430         what happened around a step of the newest run
    transom explain --samples     which samples the newest run used
    """

    from transom_cli.view.terminal import width

    if what and incident and what != incident:
        raise UsageError(f"`{what}` and `--incident {incident}` were both given", hint="give one of them")
    found, what = _which(run, what or incident, root)
    if samples:
        _samples(found, json_=json_)
        return
    book = _read(found)
    room = width() or NEVER_CUT
    if what is None or _INCIDENT.fullmatch(what):
        _incidents(found, book, what, room, json_=json_, verbose=verbose, full=full)
        return
    from transom_cli.view.explain import topic_document, topic_lines

    topic = _topic(found, book, what)
    if json_:
        print(json.dumps({"schema": 2, "run_id": book.run_id, "about": what, **topic_document(topic)}))
    else:
        print("\n".join(topic_lines(topic, room)))


def _samples(run: RunDir, *, json_: bool) -> None:

    from transom_cli.supervise.attempt_files import prove_samples
    from transom_cli.view.explain import sample_document, sample_lines

    proof = prove_samples(run)
    if json_:
        print(json.dumps({"schema": 2, "run_id": run.run_id, "samples": sample_document(proof)}))
    else:
        print("\n".join(sample_lines(run.run_id, proof)))


def _which(run: str | None, what: str | None, root: Path | None) -> tuple[RunDir, str | None]:
    """Return the run and what to explain. A single argument is a run if there is one of that name."""
    where = bounded(root, run)
    if run is not None and what is not None and _INCIDENT.fullmatch(run) and not _INCIDENT.fullmatch(what):
        run, what = what, run  # in the other order
    if run is not None and what is None and (_INCIDENT.fullmatch(run) or _STEP.fullmatch(run)):
        return run_to_read(where, None), run
    try:
        return run_to_read(where, run), what
    except NoSuchRun as error:
        if run is None or what is not None or "/" in run:
            raise
        newest = run_to_read(where, None)
        from transom_cli.view.explain import run_nodes

        nodes = run_nodes(_read(newest))
        if run not in nodes:
            why = f"{error.why}\nits nodes: {some(nodes, _NAMED) or 'none so far'}"
            hint = "`transom list` shows all runs, `transom explain` the incidents of the newest"
            raise NoSuchRun(f"`{run}` is neither a run nor a node of the newest run", why, hint) from None
        return newest, run


def _read(run: RunDir) -> RunRecord:
    import gc

    from transom_cli.supervise.record_reader import read_run_record
    from transom_cli.view.read import read_run_settings
    from transom_cli.view.terminal import waiting

    gc.disable()  # a long journal is many small values, and the process ends before anything needs collecting
    with waiting(f"reading {run.run_id}"):
        return read_run_record(run, gpus=read_run_settings(run).gpus)


def _incidents(
    run: RunDir, book: RunRecord, what: str | None, width: int, *, json_: bool, verbose: bool, full: bool
) -> None:

    from transom_cli.core.fault import failed_again
    from transom_cli.supervise.attempt_files import read_reports, saves_fail
    from transom_cli.supervise.run_record import incidents
    from transom_cli.view.logs import root_of
    from transom_cli.view.outlook import how_to_continue
    from transom_cli.view.read import read_run_settings, read_view, reports_of_loss
    from transom_cli.view.timeline import (
        brief_lines,
        build_timeline,
        growths,
        held_lines,
        save_failure_lines,
        timeline_document,
        timeline_lines,
    )

    every = incidents(book)
    marks = {one.id: one.marks for one in every}
    timelines = [build_timeline(one, book, full=full) for one in every if what in (None, one.id)]
    if what is not None and not timelines:
        known = ", ".join(one.id for one in every)
        why = f"it has: {known}" if known else "it has had no incident so far"
        raise UsageError(f"Run `{book.run_id}` has no incident `{what}`", why, f"transom explain {book.run_id}")
    if timelines:
        newest = timelines[-1]
        root = root_of(run, [(m.what, m.words) for m in marks[newest.id]], newest.category)
        timelines[-1] = replace(newest, root=root.place if root is not None else "")
    again = failed_again(every) if what is None else set()
    timelines = [replace(one, result="failed again") if one.id in again else one for one in timelines]
    fails = saves_fail(run, book.state)
    if json_:
        phase, verdict = ("held", book.held) if book.held else (book.state.phase.value, book.state.verdict)
        head: dict[str, object] = {"schema": 2, "run_id": book.run_id, "phase": phase, "verdict": verdict}
        head |= {"saves_fail": asdict(fails) if fails is not None else None}
        head |= {"observed": book.state.policy.observe, "withheld": [asdict(one) for one in book.state.withheld]}
        print(json.dumps({**head, "incidents": [timeline_document(timeline) for timeline in timelines]}))
        return
    job = book.state.job
    texts, alike = [], []
    for timeline in timelines:
        if timeline.id in again and not full:
            alike.append(timeline.id)
            continue
        detailed = verbose or full
        lines = timeline_lines(timeline, width, whole=detailed) if detailed or what else brief_lines(timeline, width)
        if alike:
            which = alike[0] if len(alike) == 1 else f"{alike[0]} to {alike[-1]}"
            lines.insert(1, f"  {which}: the same failure, not shown (--full shows it)")
        texts.append("\n".join(lines))
        alike = []
    if what is None:
        texts += [f"grown at {clock_time(at)}: {words}" for at, words in growths(book)]
    if texts and timelines and what is None and not (verbose or full):
        details = f"details: `transom explain {book.run_id} {timelines[-1].id}`, or `--verbose` for all"
        texts.append(f"{details}\noutput:  `transom logs {book.run_id}`")
    if fails is not None and what is None:
        texts.insert(0, "\n".join(save_failure_lines(fails, width)))
    counted = [one.id for one in every if one.since_start and one.result == "recovered"]
    if counted and book.history.from_zero and what in (None, *counted):
        texts.append("No checkpoint is known: each restart begins at step 0, unless your script loads its own.")
    if book.held and what is None:
        texts.append("\n".join(held_lines(book, width, read_run_settings(run).cluster)))
    alone = [one for one in book.state.withheld if not one.incident and what is None]
    if alone:  # about nodes without ranks
        texts.append("\n".join(f"{clock_time(one.at)}  would have {one.words}" for one in alone))
    if what is None and job.id:
        over = read_view(run) if book.state.phase.over else None
        bad = over.reports if over is not None else reports_of_loss(read_reports(run.attempt(job.id, job.restarts)))
        texts += [f"noticed: {one}" for one in bad]
        if over is not None and over.bad_resume is not None:
            texts[-1] += "\n" * bool(further := how_to_continue(over)) + further
    if not timelines and not book.held and not alone:
        texts.append(f"{book.run_id}: no incident so far")
    print("\n\n".join(texts))


def _topic(run: RunDir, book: RunRecord, what: str) -> Topic:
    from transom_cli.supervise.record_reader import read_findings
    from transom_cli.view.explain import about_node, about_step, newest_step, run_nodes

    nodes = run_nodes(book)
    if what in nodes:
        return about_node(book, what, read_findings(run, what))
    if not _STEP.fullmatch(what):
        has = f"its nodes: {some(nodes, _NAMED) or 'none so far'}"
        raise UsageError(
            f"Run `{book.run_id}` has nothing named `{what}`",
            has,
            f"Give an incident (i2), a node or a step number; `transom explain {book.run_id}` lists the incidents.",
        )
    step, newest = int(what.replace(",", "")), newest_step(book)
    if step > newest:
        has = f"the newest step on record is {newest:,}" if newest >= 0 else "no step was seen"
        hint = f"transom explain {book.run_id}" + (f" {newest}" if newest >= 0 else "")
        raise UsageError(f"Run `{book.run_id}` has not reached step {step:,}", has, hint)
    return about_step(book, step)
