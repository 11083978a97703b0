"""Waiting until a step is durable, or known not to become so."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.snapshot.persist import ENDED, FAILED, RUNNING
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.snapshot.rendezvous import DaemonAddress
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.local import Client

_UNHEARD = 10.0  # seconds in which nothing is heard of a write


class Durability:
    """`by`: the node whose holder sees to it. Asks this node's holder, by a line of its own. For any thread."""

    def __init__(self, at: DaemonAddress, directory: Path, token: str, by: str) -> None:
        self._at, self._directory, self._token, self._by = at, directory, token, by

    def outcome(self, step: int, record: Record | None) -> str:
        """Wait until `step` is durable. Returns "", or why it is not. `record`: as it was committed."""
        silent: float | None = None
        line: Client | None = None
        try:
            while True:
                try:
                    if line is None:
                        line = self._at.connect()
                        line.call("look", directory=str(self._directory), token=self._token)
                    answer = line.call("outcome", step=step, by=self._by, patience=1.0)[0]
                except RpcError as error:
                    line, answer = None, {"trouble": error.what}
                state, trouble = answer.get("state"), str(answer.get("trouble", ""))
                if state in ENDED:
                    return trouble if state == FAILED else ""
                now = time.monotonic()
                silent = None if state == RUNNING else silent or now
                if silent is not None and now - silent >= _UNHEARD:
                    with suppress(RpcError):
                        if line is not None:
                            line.call("unheard", step=step)
                    unknown = trouble or f"the memory holder of {self._by} knows nothing of it any more"
                    return "" if self.on_disk(step, record) else unknown
                if line is None:
                    time.sleep(0.5)
        finally:
            if line is not None:
                line.close()

    def on_disk(self, step: int, record: Record | None) -> bool:
        """Whether the very step that `record` names is published."""
        with suppress(OSError):
            return record is not None and (self._directory / step_name(step) / MANIFEST).read_bytes() == record.manifest
        return False
