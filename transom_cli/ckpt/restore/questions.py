"""What a restore asks its node's memory holder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.underway import Part
from transom_cli.core.codec import plain
from transom_cli.rpc import local
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.local import Client

_FETCH = 3600.0  # seconds for a share to come from wherever it is; what does not move is given up far sooner


class Questions:
    """`line`: to the holder, as it is now. All raise Unreachable."""

    def __init__(self, line: Callable[[], Client]) -> None:
        self._line = line

    def survey(self) -> dict[str, dict[str, object]]:
        """What every node's holder has, or by which error that is not known."""
        _, fds = self._line().call("survey")
        found: dict[str, dict[str, object]] = json.loads(_unpacked(fds))
        return found

    def record(self, node: str, step: int, manifest: int, metadata: int) -> Record:
        """Of a step that `survey` has told of, with these sizes. Raises Refused."""
        _, fds = self._line().call("record", node=node, step=step, manifest=manifest, metadata=metadata)
        data = _unpacked(fds)
        return Record(data[:manifest], data[manifest:])

    def fetch(self, step: int, entry: FileEntry, *, check: bool) -> tuple[int, int, list[tuple[int, int]], str, bool]:
        """A share: a descriptor (the caller's to close), bytes of the memory, segments, where it was, and whether its
        checksum was made: without `check` it need not be.

        Good until `rewind`. Raises Refused.
        """
        about: dict[str, Any] = {"file": entry.name, "size": entry.size, "sum": entry.xxh3_128, "check": check}
        told, fds = self._line().call("fetch", timeout=_FETCH, step=step, **about)
        segments = [(int(a), int(b)) for a, b in told["segments"]]
        return fds[0], int(told["size"]), segments, str(told["where"]), told["checked"] is True

    def restoring(self, part: Part) -> None:
        """Tell how far this rank is. Nothing of a restore hangs on it."""
        with suppress(RpcError):  # also of a holder of before there was this
            self._line().call("restoring", **plain(part))


def _unpacked(fds: list[int]) -> bytes:
    try:
        return local.unpack(fds[0])
    finally:
        os.close(fds[0])
