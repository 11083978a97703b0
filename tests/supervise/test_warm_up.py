"""Spares that are warmed: one node that trains is asked, then the spare, and all of it is in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from transom_cli.core.launcher import Launch, Nodes, Phase, State
from transom_cli.core.progress import Progress
from transom_cli.rpc.verbs import Call
from transom_cli.rpc.wire import CLIENT, LIMITS, Endpoint
from transom_cli.supervise.launcher.node_monitor import WarmUp, parts

NODES = Nodes(("n1", "n2", "n3"), 2, training=("n1", "n2"), spares=("n3",))
TRAINS = State(7, 0, NODES, 1, launch=Launch(4), progress=Progress(step=0, max_step=0))
FILES = [["/lib/a.so", 3_000_000], ["/lib/b.so", 5_000_000]]


class Told:
    """Agents that give these answers, one after the other, and what they were asked."""

    def __init__(self, *answers: Mapping[str, object]) -> None:
        self._answers, self.asked = list(answers), list[tuple[str, str, dict[str, object]]]()
        self.journal: list[dict[str, Any]] = []

    def ask(self, node: str, name: str, timeout: float, **arguments: object) -> Mapping[str, object]:
        self.asked.append((node, name, arguments))
        return self._answers.pop(0)

    def warm(self, state: State) -> bool:
        def journal(kind: str, **fields: Any) -> None:
            self.journal.append({"type": kind, **fields})

        return WarmUp(self, journal, lambda: state)("n3")


def said(words: str) -> list[dict[str, object]]:
    return [{"type": "spare", "node": "n3", "good": True, "words": words}]


def test_the_spare_reads_what_a_node_that_trains_maps() -> None:
    told = Told({"ok": True, "files": FILES}, {"ok": True, "files": 2, "bytes": 8_000_000})
    assert told.warm(TRAINS)
    paths = {"files": ["/lib/a.so", "/lib/b.so"]}
    assert told.asked == [("n1", "mapped", {"launch": 4}), ("n3", "warm", paths)]
    assert told.journal == said("warm: 2 files, 8 MB")


@pytest.mark.parametrize("state", [replace(TRAINS, progress=Progress()), replace(TRAINS, phase=Phase.ENDING)])
def test_not_before_the_training_steps(state: State) -> None:
    told = Told()
    assert not told.warm(state) and not told.asked and not told.journal


def test_nothing_for_what_is_no_spare_any_more() -> None:
    told = Told()
    assert told.warm(replace(TRAINS, nodes=replace(TRAINS.nodes, spares=()))) and not told.asked and not told.journal


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([{"error": "it cannot be reached"}], "not warm: it cannot be reached"),
        ([{"ok": True, "files": []}], "not warm: no files of launch 4 are known from n1"),
        ([{"ok": True, "files": FILES}, {"error": "not within 300 s"}], "not warm: not within 300 s"),
    ],
)
def test_what_fails_is_told_and_not_tried_again(answers: list[dict[str, object]], words: str) -> None:
    told = Told(*answers)
    assert told.warm(TRAINS)
    assert told.journal == said(words)


def test_each_message_is_within_what_a_launcher_may_send() -> None:
    files = [(f"/very/{n}/{'ä' * 100}/\udcff lib.so", 10) for n in range(4000)]
    lists = list(parts(files))
    assert [path for part in lists for path in part] == [path for path, _ in files]
    assert len(lists) > 1
    channel = Endpoint(CLIENT, bytes(32), "7.0/n3").pair(bytes(32), bytes(32))
    for part in lists:
        assert len(channel.sender.frame(Call("warm", {"files": part}).encode())) < LIMITS[CLIENT]


def test_files_that_would_be_too_much_are_left_out() -> None:
    assert list(parts([("/a", 5), ("/b", 6), ("/c", 5)], most=10)) == [["/a", "/c"]]
    assert list(parts([("/a", 5)], most=4)) == []
