"""Reads a run directory into a view: the journal played through the core, the beat tables, the lease."""

from __future__ import annotations

import time

from transom_cli.beats.table import BadTable, NodeTable, decode
from transom_cli.core.state import State
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import operator_alive
from transom_cli.ui.view import RunView, view_of


def read_tables(run: RunDir, state: State) -> dict[str, NodeTable]:
    tables = {}
    if state.job_id:
        for path in run.attempt(state.job_id, state.restarts).nodes.glob("*.beats"):
            try:
                tables[path.stem] = decode(path.read_bytes())
            except (OSError, BadTable):
                continue
    return tables


def read_view(run: RunDir, patience: float = 0.0) -> RunView:
    """`patience`: seconds to watch the lease of an operator on another host; 0 trusts nothing but what is here."""
    state = fold(run.journal).state
    alive = operator_alive(run, patience=patience) is not None
    return view_of(run.run_id, state, read_tables(run, state), time.time(), operator=alive)
