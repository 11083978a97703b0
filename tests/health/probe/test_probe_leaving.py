"""Freeing a group does not wait for its library: the answer is due at the deadline."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from transom_cli.health.probe import links  # noqa: E402 - it needs torch


class Backend:
    """Freed as gloo's is, which joins threads that are in the midst of something; `abort` as NCCL's may hang."""

    def __init__(self, freed: threading.Event) -> None:
        self._freed = freed

    def __del__(self) -> None:
        time.sleep(3.0)
        self._freed.set()

    def abort(self) -> None:
        time.sleep(60.0)


def meeting(device: str, freed: threading.Event) -> links._Meeting:
    made = object.__new__(links._Meeting)
    made._me = type("Me", (), {"device": torch.device(device)})()
    made._backend = Backend(freed)
    made._store = made._me  # our own: it stays
    return made


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_library_takes_to_end_does_not_hold_up_the_answer(device: str) -> None:
    freed = threading.Event()
    left = meeting(device, freed)
    left.leave()
    assert not freed.is_set() and (device == "cuda" or freed.wait(10.0)), "and it is freed in the end"
    left.leave()
