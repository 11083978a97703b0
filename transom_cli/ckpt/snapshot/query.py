"""Queries of a node's snapshot daemon by a command: what there is, and whether it is intact."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt.names import MEMORY
from transom_cli.ckpt.snapshot.account import Account
from transom_cli.ckpt.snapshot.client import agents_path, living_path
from transom_cli.ckpt.snapshot.verify import CHECK, Checked
from transom_cli.core.codec import build
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.local import Client, connect, take_parcel


@dataclass
class Query:
    """A connection, for use in a `with` block. Its methods raise RpcError."""

    client: Client

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def accounts(self) -> tuple[dict[str, Account], dict[str, str]]:
        """Return each node's account, and for the other nodes why there is none."""
        answers = json.loads(take_parcel(self.client.call("states")[1]))
        silent = {node: str(answer["error"]) for node, answer in answers.items() if "error" in answer}
        return {node: build(Account, answer) for node, answer in answers.items() if node not in silent}, silent

    def check(self, step: int) -> Checked:
        """Have all nodes verify what they hold of the step."""
        return build(Checked, json.loads(take_parcel(self.client.call("check", (), 2 * CHECK, step=step)[1])))


def open_query(directory: Path, attempt: AttemptDir | None) -> Query | None:
    """Connect to the daemon on this machine that holds the training, and can query its peers.

    With an attempt that is its agent's daemon, otherwise one that ranks have started. None if there is none.
    """
    for name in dict.fromkeys((str(directory.absolute()), os.path.realpath(directory))):
        try:
            token = Path(name, MEMORY).read_text("ascii")[:64]
        except (OSError, UnicodeError):
            return None
        for path in _sockets(Path(name), token, attempt):
            try:
                client = connect(path)
            except OSError:
                continue
            try:
                client.call("look", directory=name, token=token)
                return Query(client)
            except RpcError:
                client.close()
    return None


def _sockets(directory: Path, token: str, attempt: AttemptDir | None) -> Iterator[str]:
    if attempt is not None:
        yield from map(agents_path, paths.beats_dirs(str(attempt.path)))
    elif (path := living_path(directory, token)) is not None:
        yield path
