"""The work of `transom status`, `transom list` and `transom diagnose`. These functions return the exit code.

They are called by typer (`cli.status`, `cli.diagnose`), and usually without it (`cli.quick`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transom_cli.diagnose.unknown.templates import Templates
    from transom_cli.layout import RunDir
    from transom_cli.slurm.port import Slurm
    from transom_cli.view.model import RunView

_EXIT_CODES = {
    "healthy": 0,
    "degraded": 20,
    "held": 21,
    "starved": 21,
    "unknown": 22,
    "crash loop": 23,
    "done": 0,
    "failed": 1,
    "stopped": 1,
}
LEASE_PATIENCE = 3.0  # seconds to wait for an operator on another host to renew its lease


def show_status(
    run: str | None = None,
    root: Path | None = None,
    json_: bool = False,
    everything: bool = False,
    phases: bool = False,
    exit_code: bool = False,
    watch: bool = False,
    as_lines: bool = False,
) -> int:
    from transom_cli.cli.common import bounded, run_to_read
    from transom_cli.config.sources import runs_root
    from transom_cli.view.read import read_view, with_goodput

    where = runs_root(root, os.environ)
    watch = watch or as_lines
    found = run_to_read(where if watch else bounded(where, run), run)
    if watch:
        from transom_cli.view.live import watch_status

        return watch_status(found, query_slurm, json_=json_, as_lines=as_lines)
    view = with_goodput(found, query_slurm(read_view(found, patience=LEASE_PATIENCE)))
    if json_:
        from transom_cli.view.document import to_json

        print(to_json(view))
    else:
        _show(view, everything=everything, phases=phases)
    return code_of(view) if exit_code else 0


def query_slurm(view: RunView) -> RunView:
    from transom_cli.view.slurm_query import with_slurm

    return with_slurm(view, _connect)


def _connect(run: RunDir, timeout: float) -> Slurm:
    from transom_cli.bootstrap.slurm import run_slurm  # only if Slurm must be queried

    return run_slurm(run, timeout)


def _show(view: RunView, *, everything: bool, phases: bool) -> None:
    from transom_cli.view.status import screen, step_breakdown_lines
    from transom_cli.view.terminal import NOTE, show, under_watch, width
    from transom_cli.view.text import line

    room = width()
    more = [(), *(line(text) for text in step_breakdown_lines(view, room))] if phases else []
    show([*screen(view, room, everything=everything), *more])
    if under_watch():
        print(NOTE.format(run=view.run_id), file=sys.stderr)


def code_of(view: RunView) -> int:
    """Return the exit code: a finished run has its own, unless its last state was not saved."""
    if view.over and not view.exit_code and view.health == "degraded":
        return _EXIT_CODES["degraded"]
    ends = view.over or view.failing
    return view.exit_code if ends and view.exit_code is not None else _EXIT_CODES[view.health]


def show_overview() -> int:
    """Show the active runs and what to do next. The exit code is 0."""
    from transom_cli.config.sources import runs_root
    from transom_cli.layout import RunDir
    from transom_cli.view.list_reader import Wanted, read_list
    from transom_cli.view.outlook import continue_command
    from transom_cli.view.read import missing_files, read_view
    from transom_cli.view.runs import list_lines
    from transom_cli.view.terminal import show, width
    from transom_cli.view.text import line, row

    where = runs_root(None, os.environ)
    runs = read_list(where, Wanted(), lambda message: print(f"warning: {message}", file=sys.stderr)).views
    active, ended = [one for one in runs if not one.over], [one for one in runs if one.over]
    if active:
        found = [*list_lines(active, width()), ()]
        found += [row("watch", f"transom top {active[0].run_id}"), row("output", f"transom logs {active[0].run_id}")]
    else:
        found = [line("No run is active." if ended else f"There are no runs in {where} yet."), ()]
        found += [row("start", "transom run -N 2 -- python train.py")]
        stopped = (one.run_id for one in ended if one.phase in ("failed", "stopped"))
        resume = next((one for one in stopped if not missing_files(RunDir(where / one))), "")
        command = continue_command(read_view(RunDir(where / resume))) if resume else ""
        found += [row("continue", command)] if command else []
        found += [] if ended else [row("check", "transom doctor"), row("try", "transom sandbox up")]
    show([*found, row("commands", "transom --help")])
    return 0


def show_list(
    root: Path | None = None,
    everything: bool = False,
    state: str | None = None,
    since: str | None = None,
    json_: bool = False,
) -> int:
    import json
    import time

    from transom_cli.cli.common import bounded
    from transom_cli.cli.units import duration, states
    from transom_cli.config.sources import runs_root
    from transom_cli.plural import several, was
    from transom_cli.view.list_reader import Wanted, read_list
    from transom_cli.view.runs import list_lines, list_row
    from transom_cli.view.terminal import show, width

    after = time.time() - duration(since, "--since") if since is not None else None
    wanted = Wanted(everything, states(state), after)
    where = bounded(runs_root(root, os.environ))
    found = read_list(where, wanted, lambda message: print(f"warning: {message}", file=sys.stderr))
    if found.unreadable:
        what = f"{several(found.unreadable, 'run')} in {where} cannot be read"
        print(
            f"warning: {what} and {was(found.unreadable, 'is', 'are')} not listed: Permission denied", file=sys.stderr
        )
    if json_:
        print(json.dumps({"schema": 2, "earlier": found.earlier, "runs": [list_row(view) for view in found.views]}))
    elif found.views:
        show(list_lines(found.views, width()))
    elif not wanted.newest:
        print(f"no matching runs in {where}; `transom list` shows the newest", file=sys.stderr)
    elif not found.unreadable:
        gone = "" if where.exists() else " (no such directory)"
        print(f"no runs in {where}{gone}; start one with `transom run -- COMMAND`", file=sys.stderr)
    if found.earlier and not json_:
        print(f"{several(found.earlier, 'earlier run')} not shown; `transom list --all` shows all", file=sys.stderr)
    return 0


def show_diagnosis(
    paths: Sequence[Path],
    rules: Sequence[Path] | None = None,
    healthy: Sequence[Path] | None = None,
    exit_code: bool = False,
    json_: bool = False,
) -> int:
    """Print the diagnosis of logs. Raises UsageError if no log could be read."""
    import json

    from transom_cli.diagnose.files import diagnose
    from transom_cli.diagnose.logs import rule_files
    from transom_cli.diagnose.logs.rulebook import Rulebook
    from transom_cli.errors import UsageError, printable
    from transom_cli.supervise.past_runs import run_of
    from transom_cli.view.diagnosis import diagnosis_lines
    from transom_cli.view.terminal import waiting

    paths = [Path("/dev/stdin") if str(path) == "-" else path for path in paths]
    require_files((*paths, *(healthy or ())))
    run, book = next(filter(None, map(run_of, paths)), None), Rulebook(rule_files.load(rules or ()))
    with waiting("reading logs"):
        found = diagnose(paths, book, lambda: known_lines(paths, healthy or ()), supervised=run is not None)
    odd = [] if found["incidents"] else [(one, why) for one in paths if (why := _no_log(one))]
    if found["files"] <= len(odd):
        odd += [(Path(one["file"]), one["why"]) for one in found["unread"]]
        why = "\n".join(f"{path}: {reason}" for path, reason in odd) or "there are no text files"
        raise UsageError("No log could be read", why, "name log files, or a folder of them")
    if json_:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(printable(line) for line in diagnosis_lines(found)))
        for one in found["unread"]:
            print(f"not read: {printable(one['file'])}: {one['why']}", file=sys.stderr)
        for path, reason in odd:
            print(f"note: {printable(str(path))}: {reason}", file=sys.stderr)
        if run is not None:
            more = "shows what transom saw and did in each incident of this run"
            print(f"note: `transom explain {printable(run.run_id)}` {more}", file=sys.stderr)
    return 1 if found["incidents"] and exit_code else 0


def _no_log(path: Path) -> str:
    """Say why a named file is no log; "" if it may be one."""
    from transom_cli.diagnose.logs.diagnosis import is_text

    if not path.is_file() or path.suffix == ".gz":
        return ""
    if path.suffix in (".py", ".sbatch"):
        return "a program, not a log"
    if not path.stat().st_size:
        return "the file is empty"
    with path.open("rb") as file:
        head = file.read(4096).decode(errors="replace")
    return "" if is_text(path) and head.count("\ufffd") * 4 < len(head) else "a binary file"


def require_files(paths: Iterable[Path]) -> None:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        from transom_cli.config.sources import runs_root
        from transom_cli.errors import TransomError, UsageError
        from transom_cli.submit.rundir import find_run

        hint = "name log files, or a folder of them"
        try:
            run = find_run(runs_root(None, os.environ), missing[0])
            hint = f"it is a run: transom explain {run.run_id}"
        except TransomError as error:
            hint = f"{error.why}: transom explain RUN" if error.why.startswith("job ") else hint
        raise UsageError(f"No such file: {', '.join(missing)}", hint=hint)


def known_lines(paths: Sequence[Path], healthy: Sequence[Path]) -> Templates:
    """Return the lines of healthy runs: from the named logs, and from earlier runs of transom."""
    from transom_cli.diagnose.logs.diagnosis import logs_in
    from transom_cli.diagnose.unknown.store import mine_logs
    from transom_cli.supervise.past_runs import of_past_runs, run_of

    known = mine_logs(logs_in(healthy))
    run = run_of(paths[0]) if paths else None
    return known.merge(of_past_runs(run)) if run is not None else known
