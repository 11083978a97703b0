"""`transom logs`: the output of a run's ranks, merged."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from transom_cli.cli.status import NoColor, Root, Run
from transom_cli.errors import TransomError, UsageError


def logs(
    run: Run = None,
    root: Root = None,
    rank: Annotated[list[int] | None, typer.Option("--rank", help="Only this rank; repeat for several.")] = None,
    node: Annotated[str | None, typer.Option("--node", help="Only the ranks of this node.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until the run ends.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Only lines since then, such as 10m.")] = None,
    no_color: NoColor = False,
) -> None:
    """Show the output of the ranks, merged.

    Covers all launches of the newest attempt. `>` marks the line that explains the failure. Lines that carry a time are
    sorted by it; the others stay behind the line before them.
    """
    import time

    from transom_cli.cli.common import bounded, run_to_read
    from transom_cli.cli.units import duration
    from transom_cli.config.sources import runs_root
    from transom_cli.supervise.journal import fold
    from transom_cli.view import rank_logs
    from transom_cli.view.condition import root_line
    from transom_cli.view.terminal import show

    after = time.time() - duration(since, "--since") if since is not None else None
    found = run_to_read(bounded(runs_root(root, os.environ), run), run)
    attempt = rank_logs.newest_with_logs(found.attempts)
    state = fold(found.journal).state
    if attempt is None:
        job_log = found.job_log(state.job.id) if state.job.id else found.operator_log
        raise TransomError(f"Run `{found.run_id}` has no output of a rank yet", hint=f"less {job_log}")
    wanted = set(rank) if rank else None
    if node is not None:
        there = rank_logs.ranks_of(attempt, node)
        if not there:
            raise UsageError(f"No rank of attempt {attempt.name} is known to have run on `{node}`")
        wanted = there if wanted is None else there & wanted
    newest = state.incident or (state.incidents[-1] if state.incidents else None)
    cause = root_line(newest) if newest is not None and newest.attempt == attempt.name else ""
    merged = rank_logs.RankLogs(attempt, rank_logs.Selection(wanted, after))

    def print_lines(lines: list[rank_logs.LogLine]) -> None:
        show(rank_logs.drawn(lines, cause, wide=len(str(max(merged.ranks)))), colours=not no_color)
        sys.stdout.flush()

    if follow:
        rank_logs.follow(merged, lambda: fold(found.journal).state.phase.over, print_lines)
    else:
        lines = merged.read()
        if not merged.ranks:
            raise UsageError(f"Attempt {attempt.name} has no log of rank {', '.join(map(str, sorted(wanted or ())))}")
        if lines:
            print_lines(lines)
    if merged.cut:
        whole = f"all of it is in {attempt.path / 'logs'}"
        print(f"note: {merged.cut / 2**20:,.1f} MiB of older lines are left out; {whole}", file=sys.stderr)
