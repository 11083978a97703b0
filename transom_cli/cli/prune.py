"""`transom prune`: remove old run directories and checkpoints. Shown first; removed only with --yes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.options import Json, Root
from transom_cli.errors import TransomError, Unknown, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transom_cli.core.prune import Limits, Removal, StoredRun
    from transom_cli.layout import RunDir

_PRUNED = ".{}.pruned"  # the name of a run directory while it is being removed


def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Remove runs that ended longer ago than this, such as 30d.")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Never remove the newest N runs.")] = None,
    max_size: Annotated[
        str | None,
        typer.Option("--max-size", help="Remove the oldest runs until the rest fit into this size, such as 2T."),
    ] = None,
    last_checkpoints: Annotated[
        bool, typer.Option("--last-checkpoints", help="Also remove the last checkpoint of these runs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them; without it, prune only shows them.")] = False,
    root: Root = None,
    json_: Json = False,
) -> None:
    """Show or remove old runs and checkpoints.

    Nothing is removed without --yes.

    A run that has checkpoints keeps its directory and its last checkpoint, unless you give --last-checkpoints. Runs
    that are not over, runs of other users, and checkpoints outside the run directories are never touched.
    """

    from transom_cli.cli.common import bounded
    from transom_cli.cli.units import duration, size
    from transom_cli.core.prune import Limits, choose
    from transom_cli.view.terminal import waiting

    if older_than is None and keep is None and max_size is None:
        raise UsageError(
            "no limit was given", "without one, all runs would be removed", "give --older-than, --keep or --max-size"
        )
    limits = Limits(
        ended_before=time.time() - duration(older_than, "--older-than") if older_than is not None else None,
        newest=keep,
        size=size(max_size, "--max-size") if max_size is not None else None,
        last_checkpoints=last_checkpoints,
    )
    where = bounded(root)
    failed: list[str] = []
    with waiting("removing" if yes else "measuring runs"):
        stored, other, kept = _stored(where, limits)
        removals: Sequence[Removal] = choose(stored, limits, other)
        if yes:
            removals, failed = _remove(where, removals)
    if json_:
        runs = [{"run_id": r.run_id, "whole": r.whole, "steps": r.steps, "bytes": r.freed} for r in removals]
        print(json.dumps({"schema": 1, "removed": yes, "runs": runs, "kept": kept, "failed": failed}))
    else:
        _show(stored, removals, kept, where, yes=yes, failed=bool(failed))
    for message in failed:
        print(f"error: {message}", file=sys.stderr)
    if failed:
        raise typer.Exit(TransomError.exit_code)


def _show(
    stored: Sequence[StoredRun],
    removals: Sequence[Removal],
    kept: dict[str, int],
    root: Path,
    *,
    yes: bool,
    failed: bool,
) -> None:

    from transom_cli.plural import several
    from transom_cli.view.text import brief, count, plain, size, table

    ended, rows = {run.run_id: run.ended for run in stored}, []
    for one in removals:
        what = "everything" if one.whole else several(len(one.steps), "checkpoint")
        if one.last is not None:
            what += f", also its last checkpoint {count(one.last)}" if one.whole else f"; stays: {count(one.last)}"
        rows.append((one.run_id, brief(time.time() - ended[one.run_id]), size(one.freed), what))
    if rows:
        head = ("RUN", "ENDED", "SIZE", "REMOVED" if yes else "WOULD BE REMOVED")
        lines = table(head, rows, frozenset({"ENDED", "SIZE"}))
        print("\n".join(plain(line).rstrip() for line in lines))
    for why, number in kept.items():
        print(f"kept {several(number, 'run')}: {why}", file=sys.stderr)
    total = size(sum(one.freed for one in removals))
    if not removals:
        gone = "" if root.exists() else " (no such directory)"
        print("nothing was removed" if failed else f"nothing to remove in {root}{gone}", file=sys.stderr)
    elif not yes:
        print(f"{total} in {several(len(removals), 'run')}; nothing was removed, --yes removes it", file=sys.stderr)
    else:
        print(f"{total} in {several(len(removals), 'run')}", file=sys.stderr)


# --- what is there ---


def _stored(root: Path, limits: Limits) -> tuple[list[StoredRun], int, dict[str, int]]:
    """Return our runs that are over, the bytes of our other runs, and why runs are kept, with their number."""
    from transom_cli.core.prune import StoredRun
    from transom_cli.submit.rundir import list_runs
    from transom_cli.view.read import read_run_settings

    runs = list_runs(root)
    used = set()  # names of run directories whose checkpoints another run uses
    for run in runs:
        for folder in read_run_settings(run).checkpoints.resolve().parents:
            if folder.parent == root.resolve() and folder.name != run.run_id:
                used.add(folder.name)
    found, other, kept = [], 0, dict[str, int]()
    for run in runs:
        ended, why = _ended(run)
        if not why and run.run_id in used:
            why = "its checkpoints are used by another run"
        if why:
            kept[why] = kept.get(why, 0) + 1
            other += 0 if limits.size is None or why == _FOREIGN else _bytes(run.path)
            continue
        found.append((ended, run))
    found.sort(key=lambda one: (one[0], one[1].run_id), reverse=True)
    stored = []
    for number, (ended, run) in enumerate(found):
        spared = number < (limits.newest or 0) or (limits.ended_before is not None and ended >= limits.ended_before)
        if spared:  # its size counts only against a limit on the size
            stored.append(StoredRun(run.run_id, ended, _bytes(run.path) if limits.size is not None else 0))
            continue
        checkpoints, complete = _checkpoints(run)
        if not complete:
            why = "no complete checkpoint (`transom ckpt ls RUN`)"
            kept[why] = kept.get(why, 0) + 1
        stored.append(StoredRun(run.run_id, ended, _bytes(run.path), checkpoints, removable=complete))
    return stored, other, kept


_FOREIGN = "owned by another user"


def _ended(run: RunDir, patience: float = 0.0) -> tuple[float, str]:
    """Return when a run ended; or why it is kept. patience: seconds to wait for an operator on another host."""

    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive

    status = run.path.lstat()
    if run.path.is_symlink() or status.st_uid != os.geteuid():
        return 0.0, _FOREIGN
    try:
        state = fold(run.journal).state
    except TransomError:
        return 0.0, "its journal cannot be read"
    if not state.phase.over:
        return 0.0, "not over (`transom stop RUN` ends a run)"
    if state.exit_code == Unknown.exit_code:
        return 0.0, "its job may still be running"
    return (
        (0.0, "its operator is still alive")
        if operator_alive(run, patience=patience) is not None
        else (state.since, "")
    )


def _checkpoints(run: RunDir) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return (step, bytes) of the checkpoints up to the newest complete one; and whether one is, or there is none.

    Older ones that a person has marked (`transom ckpt keep`) are left out: they stay.
    """
    from transom_cli.ckpt.inventory import candidates, survey
    from transom_cli.ckpt.tiers.marks import is_kept

    if run.checkpoints.is_symlink():
        return (), True
    newest_first = candidates(run.checkpoints)
    good = next((n for n, one in enumerate(newest_first) if survey(one).good), None)
    if good is None:
        return (), not newest_first
    there = [one for n, one in enumerate(newest_first[good:]) if n == 0 or not is_kept(one.path)]
    return tuple((one.step, _bytes(one.path)) for one in reversed(there)), True


def _bytes(folder: Path) -> int:
    """Return the space that a directory takes on disk. Links are not followed."""

    total, folders = 0, [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue  # being removed
    return total


# --- removing ---


def _remove(root: Path, removals: Sequence[Removal]) -> tuple[list[Removal], list[str]]:
    """Remove what was chosen. Return what was removed, and a message for each run that was not completely removed."""

    from transom_cli.ckpt.names import step_name
    from transom_cli.layout import RUN_ID, RunDir
    from transom_cli.supervise.lease import STALE

    for path in root.glob(_PRUNED.format("*")):  # of a command that was interrupted
        if RUN_ID.fullmatch(path.name[1 : -len(".pruned")]) and path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    removed, failed = [], []
    for one in removals:
        run = RunDir(root.absolute() / one.run_id)
        try:
            if _ended(run, STALE)[1]:
                continue  # it changed while it was shown
            if one.whole:
                hidden = run.path.with_name(_PRUNED.format(run.run_id))
                run.path.rename(hidden)  # it disappears from every list at once
                shutil.rmtree(hidden)
            else:
                for step in one.steps:
                    hidden = run.checkpoints / _PRUNED.format(step_name(step))
                    (run.checkpoints / step_name(step)).rename(hidden)
                    shutil.rmtree(hidden)
            removed.append(one)
        except OSError as error:
            failed.append(f"cannot remove all of {one.run_id}: {error.filename or run.path}: {error.strerror or error}")
    return removed, failed
