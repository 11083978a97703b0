"""`transom attempts`: each start of a run's jobs, from the run's records and Slurm's accounting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from transom_cli.cli.common import run_to_read
from transom_cli.cli.options import Json, Root, Run
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.view.attempts import Accounting

PATIENCE = 10.0  # seconds for accounting, which may have years to search


def attempts(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """List each start of the run's jobs and its end.

    Shows the run's own records and, if the cluster has accounting, those of `sacct -D`, with the differences.

    \b
    transom attempts               attempts of the newest run
    transom attempts demo --json   with every launch, and in UTC
    """

    from transom_cli.ownership import user_name
    from transom_cli.supervise.record_reader import read_run_record
    from transom_cli.supervise.run_record import attempt_summaries, job_ids
    from transom_cli.view.attempts import attempt_lines, attempt_rows, attempts_document
    from transom_cli.view.terminal import show, width

    found = run_to_read(root, run)
    book = read_run_record(found)
    accounting = _ask(found, job_ids(book))
    since = book.events[0].at if book.events else book.now
    rows = attempt_rows(book.run_id, attempt_summaries(book), accounting, since, book.now)
    if json_:
        print(json.dumps(attempts_document(book.run_id, rows, accounting, user_name)))
        return
    show(attempt_lines(book.run_id, rows, accounting, book.now, width(), user_name))


def _ask(run: RunDir, jobs: tuple[int, ...]) -> Accounting:
    """Ask for all jobs in one call."""
    from transom_cli.bootstrap.slurm import run_slurm
    from transom_cli.view.attempts import Accounting

    if not jobs:
        return Accounting(())
    try:
        return Accounting(tuple(run_slurm(run, PATIENCE).history(*jobs)))
    except TransomError as error:
        why = error.why or error.what
        return Accounting(None, why.removeprefix("Slurm said: ").strip().rpartition("\n")[2])
