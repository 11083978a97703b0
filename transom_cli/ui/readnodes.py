"""Reads what an attempt's files tell of its nodes. One listing, and no file that nothing is asked of.

A thousand nodes have thousands of small files, on a file system that may be slow to open each of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from transom_cli.beats.table import BadTable, NodeTable, decode
from transom_cli.layout import AttemptDir
from transom_cli.ui.nodestate import Found, NodeSight

TAIL = 64 << 10  # bytes of a node's findings that are looked through
_TELLING = (b'"suspect"', b'"fail"')  # without one of them nothing in there speaks against the node


def read_nodes(attempt: AttemptDir) -> tuple[dict[str, NodeSight], float | None]:
    """By node what is known of it; and when the newest table was written, by the file system's clock."""
    tables: dict[str, tuple[NodeTable, float]] = {}
    found: dict[str, tuple[Found, ...]] = {}
    folder = str(attempt.nodes)
    for name in _names(folder):
        node, _, kind = name.rpartition(".")
        if kind == "beats":
            table = _table(f"{folder}/{name}")
            if table is not None and table[0].attempt == attempt.name:
                tables[node] = table
        elif kind == "jsonl":
            found[node] = _findings(f"{folder}/{name}")
    newest = max((written for _, written in tables.values()), default=None)
    sights = {}
    for node in {*tables, *found}:
        has, against = tables.get(node), found.get(node, ())
        if has is None or newest is None:
            sights[node] = NodeSight(found=against)
        else:
            sights[node] = NodeSight(has[0], max(0.0, newest - has[1]), against)
    return sights, newest


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return []


def _table(path: str) -> tuple[NodeTable, float] | None:
    """And when it was written. None: gone meanwhile, or caught while it was replaced."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return decode(file.read()), os.fstat(file.fileno()).st_mtime
    except (OSError, BadTable):
        return None


def _findings(path: str) -> tuple[Found, ...]:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            tail = file.read()
    except OSError:
        return ()
    return tuple(_records(tail)) if any(word in tail for word in _TELLING) else ()


def _records(tail: bytes) -> Iterator[Found]:
    for text in tail.splitlines():
        try:
            told = json.loads(text)
            yield Found(str(told["kind"]), str(told["verdict"]), str(told["words"]), int(told["launch"]))
        except (ValueError, KeyError, TypeError):
            continue  # cut short, or of another version
