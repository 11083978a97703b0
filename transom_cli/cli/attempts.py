"""`transom attempts`: each start of a run's jobs, as the run and as Slurm's accounting have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transom_cli.cli.status import Json, NoColor, Root, Run

if TYPE_CHECKING:
    from transom_cli.layout import RunDir
    from transom_cli.ui.attempts import Accounts

PATIENCE = 10.0  # seconds for accounting to answer whoever looks on: it may have years to look through


def attempts(run: Run = None, root: Root = None, json_: Json = False, no_color: NoColor = False) -> None:
    """Each start of the run's jobs: when, how long, on which nodes, how often its ranks were launched, how it ended.

    By the run's own records; and, where there is accounting, beside them Slurm's own word (sacct -D), with what the two
    say differently.

    \b
    transom attempts               those of the newest run
    transom attempts demo --json   with every launch, and in UTC
    """
    import json
    import os

    from transom_cli.slurm.ending import user_name
    from transom_cli.submit.rundir import find_run
    from transom_cli.supervise.attempts import attempts_told, job_ids
    from transom_cli.supervise.ledger import read_book
    from transom_cli.ui.attempts import attempt_rows, document, lines
    from transom_cli.ui.colour import show
    from transom_cli.ui.terminal import under_watch, width
    from transom_cli.wiring.settings import runs_root

    found = find_run(runs_root(root), run)
    book = read_book(found)
    accounts = _ask(found, job_ids(book))
    since = book.events[0].at if book.events else book.now
    rows = attempt_rows(book.run_id, attempts_told(book), accounts, since, book.now)
    if json_:
        print(json.dumps(document(book.run_id, rows, accounts, user_name)))
        return
    room = width(os.environ, watched=under_watch())
    show(lines(book.run_id, rows, accounts, book.now, room, user_name), colours=not no_color)


def _ask(run: RunDir, jobs: tuple[int, ...]) -> Accounts:
    """All of its jobs in one call."""
    from transom_cli.errors import TransomError
    from transom_cli.ui.attempts import Accounts
    from transom_cli.wiring.slurm import slurm_of

    if not jobs:
        return Accounts(())
    try:
        return Accounts(tuple(slurm_of(run, PATIENCE).history(*jobs)))
    except TransomError as error:
        told = error.why or error.what
        return Accounts(None, " ".join(told.removeprefix("Slurm said: ").split()))
