"""`transom explain`: what happened to a run, in an incident, on a node or around a step."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.status import Json, Root
from transom_cli.errors import NoSuchRun, TransomError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from transom_cli.layout import RunDir
    from transom_cli.supervise.book import Book
    from transom_cli.ui.concerning import Topic

_INCIDENT = re.compile(r"i\d+|\d+\.\d+/l\d+")
_STEP = re.compile(r"\d[\d,]*")
_NAMED = 20  # names in an error


def explain(
    run: Annotated[
        str | None, typer.Argument(help="Run id, name or path [default: the newest]; or at once what to explain.")
    ] = None,
    what: Annotated[str | None, typer.Argument(help="An incident (i2), a node (gpu017) or a step (18430).")] = None,
    incident: Annotated[str | None, typer.Option("--incident", "-i", help="Only this one, as i2.")] = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """What happened: seen, thought, done and refused, how long each took, and what was lost.

    \b
    transom explain               every incident of the newest run
    transom explain demo i2       one incident
    transom explain demo gpu017   all that concerns a node
    transom explain 18430         what happened around a step of the newest run
    """
    import json
    import shutil

    from transom_cli.ui.wrapping import NEVER_CUT

    found, asked = _which(run, what or incident, root)
    book = _read(found)
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else NEVER_CUT
    if asked is None or _INCIDENT.fullmatch(asked):
        _incidents(book, asked, width, json_=json_)
        return
    from transom_cli.ui.concerning import topic_document, topic_lines

    topic = _topic(found, book, asked)
    if json_:
        print(json.dumps({"schema": 1, "run_id": book.run_id, "about": asked, **topic_document(topic)}))
    else:
        print("\n".join(topic_lines(topic, width)))


def _which(run: str | None, what: str | None, root: Path | None) -> tuple[RunDir, str | None]:
    """A single word may be either: it is a run where there is one of that name, unless it can only be the other."""
    from transom_cli.cli.unanswered import bounded
    from transom_cli.submit.rundir import find_run
    from transom_cli.wiring.settings import runs_root

    where = bounded(runs_root(root), run)
    if run is not None and what is None and (_INCIDENT.fullmatch(run) or _STEP.fullmatch(run)):
        return find_run(where), run
    try:
        return find_run(where, run), what
    except NoSuchRun as error:
        if run is None or what is not None or "/" in run:
            raise
        newest = find_run(where)
        from transom_cli.ui.concerning import nodes_of

        if run not in nodes_of(_read(newest)):
            raise NoSuchRun(
                f"`{run}` is no run, and no node of the newest run", error.why, "`transom list` shows all runs"
            ) from None
        return newest, run


def _read(run: RunDir) -> Book:
    from transom_cli.supervise.ledger import read_book
    from transom_cli.wiring.settings import read_settings

    try:
        gpus = read_settings(run).job.gpus_per_node
    except TransomError:  # its journals tell the story all the same
        gpus = 0
    return read_book(run, gpus=gpus)


def _incidents(book: Book, asked: str | None, width: int, *, json_: bool) -> None:
    import json

    from transom_cli.supervise.book import incidents
    from transom_cli.ui.story import held_lines, story_document, story_lines, story_of

    stories = [story_of(one, book) for one in incidents(book) if asked in (None, one.id)]
    if asked is not None and not stories:
        known = ", ".join(one.id for one in incidents(book)) or "none"
        raise UsageError(f"Run `{book.run_id}` has no incident `{asked}`", f"it has: {known}")
    if json_:
        phase, verdict = ("held", book.held) if book.held else (book.state.phase.value, book.state.verdict)
        told = {"schema": 1, "run_id": book.run_id, "phase": phase, "verdict": verdict}
        print(json.dumps({**told, "incidents": [story_document(story) for story in stories]}))
        return
    texts = ["\n".join(story_lines(story, width)) for story in stories]
    if book.held and asked is None:
        texts.append("\n".join(held_lines(book, width)))
    print("\n\n".join(texts) or f"{book.run_id}: no incident so far")


def _topic(run: RunDir, book: Book, asked: str) -> Topic:
    from transom_cli.supervise.ledger import read_findings
    from transom_cli.ui.concerning import about_node, about_step, newest_step, nodes_of

    nodes = nodes_of(book)
    if asked in nodes:
        return about_node(book, asked, read_findings(run, asked))
    if not _STEP.fullmatch(asked):
        names = ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")
        has = f"its nodes: {names or 'none so far'}"
        raise UsageError(
            f"Run `{book.run_id}` has nothing named `{asked}`",
            has,
            f"An incident is named as i2, a step by its number; `transom explain {book.run_id}` lists the incidents.",
        )
    step, newest = int(asked.replace(",", "")), newest_step(book)
    if step > newest:
        has = f"the newest step on record is {newest:,}" if newest >= 0 else "no step of it was seen"
        raise UsageError(f"Run `{book.run_id}` has not done step {step:,}", has)
    return about_step(book, step)
