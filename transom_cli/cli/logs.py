"""`transom logs`: what the ranks of a run have printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.common import run_to_read
from transom_cli.cli.options import Root, Run
from transom_cli.cli.units import duration
from transom_cli.errors import TransomError, UsageError, printable
from transom_cli.plural import several, some

if TYPE_CHECKING:
    from transom_cli.view.model import RunView

AGAIN, LOOK = 0.5, 2.0  # seconds between two reads, and without a new line before a newer launch is looked for


def logs(
    run: Run = None,
    root: Root = None,
    rank: Annotated[list[int] | None, typer.Option("--rank", "-r", help="Only this rank; may be repeated.")] = None,
    node: Annotated[list[str] | None, typer.Option("--node", help="Only the ranks on this node.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")] = False,
    launch: Annotated[str, typer.Option("--launch", help="Only this launch, such as 7.0.1.")] = "",
    since: Annotated[str | None, typer.Option("--since", help="Only lines of the last 10m, 2h, ...")] = None,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Only the last N lines.", show_default=False)] = 0,
) -> None:
    """Print the merged output of a run's ranks.

    Shows the newest launch that has printed something, the last 256 KiB of each rank. `>>` marks the line that the
    diagnosis blames.
    """

    from transom_cli.view.logs import MOST, Follower, drawn, find_root, launch_name, launches, log_files
    from transom_cli.view.read import read_view
    from transom_cli.view.terminal import show

    found = run_to_read(root, run)
    after = time.time() - duration(since, "--since") if since else 0.0
    view, ranks, nodes = read_view(found), rank or [], node or []
    output, root_line = Follower(found, view, ranks, nodes, launch), find_root(found, view)
    if launch and launch not in (known := launches(found)):
        has = f"it has {', '.join(list(known)[:MOST])}" if known else "no rank has printed anything"
        raise UsageError(f"Run `{found.run_id}` has no launch `{launch}`", has, f"transom logs {found.run_id}")
    others = (ranks or nodes) and any(one.rank is not None for one in log_files(found, view))
    if not output.files and (others or ((ranks or nodes) and view.over)):
        asked = [*(f"rank {one}" for one in ranks), *(f"node `{one}`" for one in nodes)]
        raise UsageError(
            f"Run `{found.run_id}` has no output of {', '.join(asked)}", hint=f"transom logs {found.run_id}"
        )
    if len(output.files) > MOST:
        kept = [one for one in output.files if root_line is not None and one.rank == root_line.rank]
        kept += [one for one in output.files if one not in kept][: MOST - len(kept)]
        what = f"note: {several(len(output.files), 'rank')}; these are the lines of {MOST}. Use `--rank` or `--node`"
        typer.echo(what, err=True)
        output.files = sorted(kept, key=lambda one: one.rank or 0)
    width = len(str(max((one.rank or 0 for one in output.files), default=0)))

    def print_new(begin: float = 0.0, most: int = 0) -> bool:
        lines = output.more(begin)[-most:]  # 0: all
        if lines:
            show([drawn(one, root_line, width) for one in lines])
        return bool(lines)

    if not print_new(after, tail) and not after:
        _explain_nothing(view, follow=follow)
    shown = launch_name(output.files[0].path) if output.files and output.files[0].rank is not None else ""
    if root_line is not None:
        about = f" (output: `transom logs {view.run_id} --launch {root_line.launch}`)" * (root_line.launch != shown)
        if root_line.hung is not None:
            about = f" (rank {root_line.hung} hung there: `transom explain {view.run_id}`)"
        typer.echo(f"root cause: {root_line.place}{about}", err=True)
    if others_of := [name for name in launches(found) if shown not in ("", name)]:
        typer.echo(f"this is launch {shown}; `--launch` shows another: {some(others_of)}", err=True)
    quiet = time.monotonic()
    while follow and not (view.over and time.monotonic() - quiet > LOOK):
        time.sleep(AGAIN)
        if print_new():
            quiet = time.monotonic()
        elif not view.over and time.monotonic() - quiet > LOOK:
            view, quiet = read_view(found), time.monotonic()
            output.look_again(view)


def _explain_nothing(view: RunView, *, follow: bool) -> None:
    """Say why there is no output. Raises TransomError if there may be some later, and the caller does not wait."""
    if view.over:
        why = f"; it {view.status}: {view.verdict}" if view.verdict and view.status == "failed" else ""
        typer.echo(printable(f"the ranks of run {view.run_id} printed nothing{why}"), err=True)
        return
    why = f"its state is {view.status}" + (f": {view.condition}" if view.condition else "")
    if not follow:
        raise TransomError(f"Run `{view.run_id}` has no output yet", why, f"transom logs -f {view.run_id} waits for it")
    typer.echo(f"waiting for the output of run {view.run_id}: {why}", err=True)
