"""`transom report`: a run as one HTML file."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.common import bounded, run_to_read
from transom_cli.cli.options import Root, Run, output_path
from transom_cli.cli.show import LEASE_PATIENCE
from transom_cli.errors import UsageError

EVERY, SHARE = 30.0, 20.0  # seconds between two reports, and at least 20 times what one takes


def report(
    run: Run = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=output_path,
            metavar="PATH",
            help="File or folder; - for standard output [default: <run ID>.html in this folder].",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file even if it is not a report.")] = False,
    root: Root = None,
    follow: Annotated[bool, typer.Option("--follow", help="Rewrite it every 30 s, until the run has ended.")] = False,
) -> None:
    """Write a run as one HTML file.

    It shows the timeline, goodput, curves, incidents, nodes and settings. The file needs no network and no scripts. An
    older report is replaced; any other file only with --force. With --follow, the page in a browser refreshes itself.
    """
    import gc

    from transom_cli.view.read_history import read_report
    from transom_cli.view.report.page import page, target, write
    from transom_cli.view.report.sections import document
    from transom_cli.view.terminal import waiting

    gc.disable()  # a month's journal is a million small values, all kept to the end
    found = run_to_read(bounded(root, run), run)
    path = None if str(out) == "-" else target(found, out, force=force)
    if path is None and follow:
        raise UsageError("`--follow` rewrites a file", hint="omit `-o -`")
    while True:
        began = time.monotonic()
        with waiting(f"reading {found.run_id}"):
            data = read_report(found, patience=LEASE_PATIENCE)
        again = max(EVERY, SHARE * (time.monotonic() - began))
        live = follow and not data.view.over
        text = page(document(data), refresh=round(again) if live else 0)
        if path is None:
            sys.stdout.write(text)
            return
        write(path, text)
        print(f"{path}: {len(text.encode()) / 1024:,.0f} KiB", file=sys.stderr)
        if not live:
            return
        del data
        gc.collect()
        time.sleep(again)
