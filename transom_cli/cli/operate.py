"""The process that operates all runs of a user. Typer is not imported: a long-lived process need not carry it."""

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from transom_cli.cli.common import end, require_own_run
from transom_cli.errors import NotPermitted, OperatorAlive, TransomError

OPTIONS = {"--all", "--idle-exit"}


def quick(words: Collection[str]) -> None:
    """Handle the command line of `transom operate --all` if it has no other options."""
    if "--all" in words and set(words) <= OPTIONS:
        try:
            operate_all_runs(None, idle_exit="--idle-exit" in words)
        except TransomError as error:
            end(error)
        raise SystemExit(0)


def operate_all_runs(root: Path | None, *, idle_exit: bool) -> None:
    """Operate the user's runs on this host until TERM or INT.

    Args:
        root: the folder of runs whose operator may have died.
        idle_exit: end when no run remains, and take up only registered runs.
    """
    from transom_cli.bootstrap.operator import operator_process
    from transom_cli.config.sources import runs_root
    from transom_cli.supervise.operator.process import operate_all, register_live
    from transom_cli.supervise.operator.registry import Registry, operator_folder

    registry = Registry(operator_folder(os.environ))
    if not registry.make():
        raise NotPermitted(
            f"Other users can change {registry.folder}",
            "what they write there would run in your name",
            "remove write permission for group and others (chmod go-w), or set TRANSOM_STATE_DIR to a private folder",
        )
    find_lost: Callable[[], None] | None = None
    if not idle_exit:
        runs = runs_root(root, os.environ)
        register_live(registry, runs)
        find_lost = partial(register_live, registry, runs, {})
    done = operate_all(registry, lambda: operator_process(registry, require_own_run, find_lost, idle_exit=idle_exit))
    if not done and not idle_exit:  # else another one was started at the same time
        what = "Your runs on this host have an operator process"
        raise OperatorAlive(what, f"process {registry.process()}", "`transom list` shows your runs")
