"""Where the launcher finds its nodes, also while Slurm does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from transom_cli.slurm.port import Node, SlurmUnknown
from transom_cli.supervise.launcher import agents


class Slurm:
    """Tells the nodes' addresses after `silent` questions without an answer."""

    def __init__(self, silent: int) -> None:
        self.silent, self.asked = silent, 0

    def nodes(self, names: Iterable[str]) -> list[Node]:
        self.asked += 1
        if self.asked <= self.silent:
            raise SlurmUnknown("no answer", "Unable to contact slurm controller")
        return [Node(name, "idle", address="127.0.0.1") for name in names]


def told(monkeypatch: pytest.MonkeyPatch, silent: int) -> Slurm:
    slurm = Slurm(silent)
    monkeypatch.setattr(agents.time, "sleep", lambda _: None)
    return slurm


def test_names_that_resolve_need_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = told(monkeypatch, 0)
    assert agents.addresses(("localhost",), lambda _: slurm, lambda: False) == {"localhost": "localhost"}
    assert slurm.asked == 0


def test_slurm_is_asked_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = told(monkeypatch, 3)
    assert agents.addresses(("nowhere.invalid",), lambda _: slurm, lambda: False) == {"nowhere.invalid": "127.0.0.1"}
    assert slurm.asked == 4


def test_not_when_the_attempt_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = told(monkeypatch, 10**6)
    assert agents.addresses(("nowhere.invalid",), lambda _: slurm, lambda: True) == {
        "nowhere.invalid": "nowhere.invalid"
    }
    assert slurm.asked == 1


def test_a_slow_name_server_is_asked_for_many_names_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = told(monkeypatch, 0)
    both = threading.Barrier(2)

    def getaddrinfo(name: str, *_: object) -> list[object]:
        both.wait(20.0)  # the first name is answered once the second one is asked for
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(agents.socket, "getaddrinfo", getaddrinfo)
    assert agents.addresses(("n1", "n2"), lambda _: slurm, lambda: False) == {"n1": "n1", "n2": "n2"}
