"""A node's memory holder, asked by somebody who is no rank: what there is, and whether it is good."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt.names import MEMORY
from transom_cli.ckpt.snapshot import messages
from transom_cli.ckpt.snapshot.account import Account
from transom_cli.ckpt.snapshot.checking import CHECK, Checked
from transom_cli.ckpt.snapshot.client import Client, agents_path, connect, living_path
from transom_cli.core.codec import build
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir


@dataclass
class Visit:
    """Raises HolderGone and Refused. Use as a context."""

    line: Client

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def accounts(self) -> tuple[dict[str, Account], dict[str, str]]:
        """By node its account; by node why there is none."""
        told = json.loads(_unpacked(self.line.ask("states")[1]))
        silent = {node: str(answer["error"]) for node, answer in told.items() if "error" in answer}
        return {node: build(Account, answer) for node, answer in told.items() if node not in silent}, silent

    def check(self, step: int) -> Checked:
        """Has all nodes read what they hold of the step."""
        return build(Checked, json.loads(_unpacked(self.line.ask("check", None, 2 * CHECK, step=step)[1])))


def visit(directory: Path, attempt: AttemptDir | None) -> Visit | None:
    """The holder on this machine that has the training, whose neighbours it can ask; None where there is none. Of an
    attempt, its agent's; else that which ranks have started themselves."""
    for name in dict.fromkeys((str(directory.absolute()), os.path.realpath(directory))):
        try:
            token = Path(name, MEMORY).read_text("ascii")[:64]
        except (OSError, UnicodeError):
            return None
        for path in _sockets(Path(name), attempt):
            try:
                line = connect(path)
            except OSError:
                continue
            try:
                line.ask("look", directory=name, token=token)
                return Visit(line)
            except messages.FAILURES:
                line.close()
    return None


def _sockets(directory: Path, attempt: AttemptDir | None) -> Iterator[str]:
    if attempt is not None:
        yield from map(agents_path, paths.beats_dirs(str(attempt.path)))
    elif (path := living_path(directory)) is not None:
        yield path


def _unpacked(fds: list[int]) -> bytes:
    try:
        return messages.unpack(fds[0])
    finally:
        os.close(fds[0])
