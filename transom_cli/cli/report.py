"""`transom report`: a run as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.looking import LEASE_PATIENCE
from transom_cli.cli.status import Root, Run


def report(
    run: Run = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File or folder; - is the standard output. [default: <run id>.html, here]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no report.")] = False,
    root: Root = None,
) -> None:
    """A run as one HTML file, to read, print and pass on: timeline, goodput, curves, incidents, nodes, settings.

    It needs no network and no script. An older report is replaced, any other file only with --force.
    """
    import gc

    from transom_cli.cli.unanswered import bounded
    from transom_cli.report.document import document
    from transom_cli.report.gather import gather
    from transom_cli.report.page import page
    from transom_cli.report.write import target, write
    from transom_cli.submit.rundir import find_run
    from transom_cli.wiring.settings import runs_root

    gc.disable()  # a month's journal is a million small values, and all are kept to the end
    found = find_run(bounded(runs_root(root), run), run)
    path = None if str(out) == "-" else target(found, out, force=force)
    text = page(document(gather(found, patience=LEASE_PATIENCE)))
    if path is None:
        sys.stdout.write(text)
        return
    write(path, text)
    print(f"{path}: {len(text.encode()) / 1024:,.0f} KiB", file=sys.stderr)
