"""`transom goodput`: what the time of a run was spent on."""

import json

from transom_cli.cli.common import bounded, run_to_read
from transom_cli.cli.options import Json, Root, Run
from transom_cli.view.text import NEVER_CUT


def goodput(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """Show how the run spent its time.

    Each second counts as one kind of use. Prints tables by kind, by attempt and by cause of loss.

    \b
    transom goodput                the newest run
    transom goodput demo --json    every span, in ns
    """

    from transom_cli.supervise.record_reader import read_run_record
    from transom_cli.view.goodput import account_now, goodput_document, goodput_lines
    from transom_cli.view.read import read_view
    from transom_cli.view.terminal import waiting, width

    found = run_to_read(bounded(root, run), run)
    with waiting(f"reading {found.run_id}"):
        book = read_run_record(found, patience=3.0)
        account = account_now(book, read_view(found))
    if json_:
        print(json.dumps(goodput_document(book.run_id, account)))
        return
    print("\n".join(goodput_lines(book.run_id, account, width() or NEVER_CUT)))
