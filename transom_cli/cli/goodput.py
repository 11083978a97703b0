"""`transom goodput`: what the time of a run was spent on."""

from __future__ import annotations

import sys

from transom_cli.cli.status import Json, Root, Run


def goodput(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """What was the run's time spent on? Each second counts to one kind; by attempt, and by cause of loss.

    \b
    transom goodput                the newest run
    transom goodput demo --json    every span, in ns
    """
    import json
    import shutil

    from transom_cli.cli.unanswered import bounded
    from transom_cli.submit.rundir import find_run
    from transom_cli.supervise.ledger import read_book
    from transom_cli.ui.goodput import document, lines
    from transom_cli.ui.wrapping import NEVER_CUT
    from transom_cli.wiring.settings import runs_root

    book = read_book(find_run(bounded(runs_root(root), run), run), patience=3.0)
    if json_:
        print(json.dumps(document(book.run_id, book.account)))
        return
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else NEVER_CUT
    print("\n".join(lines(book.run_id, book.account, width)))
