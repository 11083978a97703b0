"""Is the run directory the same one from every node? `About.token` is a file there and the words that are in it.

The asker writes the file, every node reads it (`read_run_dir`) and puts one of its own beside it, for which the asker
looks (`read_seen`): that way a node is found too that reads what others write, while nobody reads what it writes. Both
sides look again for some seconds, since NFS may go by what it knew of a folder for a while (acregmin: 3 s, acdirmax:
60 s; a name that is asked for newly, as these are, is mostly looked up).
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from transom_cli.beats.places import node_name
from transom_cli.core.rootline import clean
from transom_cli.files import replace_text
from transom_cli.health.about import About
from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.node.asked import Asked

CHECK = "run_dir"
FINDINGS = (CHECK,)
PATIENCE = 5.0  # seconds until another node's file is to be seen
HANGS = 10.0  # seconds for all calls together
_AGAIN = 0.25
_MOST = 4096  # bytes of a token


@dataclass(frozen=True)
class RunDirReading:
    """found: the words that were read, at most 300 characters of them. error: what reading or writing ended with.

    took: seconds until the words were there, or until nobody waited any more. hangs: the file system owes an answer.
    """

    path: str = ""
    found: str = ""
    same: bool = False
    wrote: bool = False
    error: str = ""
    took: float = 0.0
    hangs: bool = False


@dataclass(frozen=True)
class RunDirLimits:
    """run_dir_slow: seconds until a file of another node is seen; no source: beats and orders go the same way."""

    run_dir_slow: float = 2.0


def token(path: str, words: str) -> str:
    """As `About.token` has it. The file is to hold exactly the words."""
    return f"{path}\n{words}"


def own_file(path: str, node: str) -> str:
    return f"{path}.{node}"


def read_run_dir(about: About) -> RunDirReading:
    path, _, words = about.token.partition("\n")
    if not path:
        return RunDirReading()
    asked = Asked(lambda: _look(path, words))
    return asked.answer(HANGS) or RunDirReading(path, took=asked.waited, hangs=True)


def judge_run_dir(node: str, reading: RunDirReading, about: About, limits: RunDirLimits) -> tuple[Finding, ...]:
    return (_judge(node, reading, limits),)


def read_seen(about: About, nodes: tuple[str, ...], patience: float = PATIENCE) -> tuple[str, ...]:
    """The asker's side, once the nodes have answered: those whose own file is not seen here with the same words."""
    path, _, words = about.token.partition("\n")
    missing = list(nodes if path else ())
    until = time.monotonic() + patience
    while True:
        missing = [node for node in missing if _read(own_file(path, node))[0] != words]
        if not missing or time.monotonic() >= until:
            return tuple(missing)
        time.sleep(_AGAIN)


def judge_seen(missing: tuple[str, ...], about: About, nodes: int) -> tuple[Finding, ...]:
    """A finding for each node of which the asker does not see what it wrote. nodes: that were looked for.

    Most of them, and it is the asker that sees too little.
    """
    path = about.token.partition("\n")[0]
    if len(missing) * 2 > nodes:
        said = f"what {len(missing)} of {nodes} nodes wrote beside {path} is not seen by whoever examines them"
        return tuple(Finding(CHECK, Verdict.MONITOR, n, said, Remedy.SETUP) for n in missing)
    return tuple(
        Finding(CHECK, Verdict.SUSPECT, n, f"what it wrote to {own_file(path, n)} is not seen elsewhere", Remedy.AVOID)
        for n in missing
    )


def forget(about: About, nodes: tuple[str, ...]) -> None:
    """Remove the nodes' files and the asker's."""
    path = about.token.partition("\n")[0]
    for name in (*(own_file(path, node) for node in nodes), path) if path else ():
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108


def overdue(node: str, waited: float, about: About) -> Finding:
    return Finding(CHECK, Verdict.UNKNOWN, node, f"reading the run directory has not ended within {waited:.0f} s")


def _judge(node: str, reading: RunDirReading, limits: RunDirLimits) -> Finding:
    if not reading.path:
        return not_applicable(CHECK, node, "there is no run directory to compare")
    if reading.hangs:
        said = f"{reading.path} has been neither read nor written for {reading.took:.0f} s"
    elif not reading.same:
        other = f"it reads {reading.found!r} there" if reading.found else reading.error or "it is empty there"
        said = f"{reading.path} is not what was written on another node {reading.took:.1f} s ago: {other}"
    elif not reading.wrote:
        said = f"nothing can be written beside {reading.path}: {reading.error}"
    else:
        said = f"{reading.path} was read as it was written, {reading.took:.1f} s later"
        slow = reading.took >= limits.run_dir_slow
        return Finding(CHECK, Verdict.MONITOR if slow else Verdict.PASS, node, said)
    return Finding(CHECK, Verdict.SUSPECT, node, said, Remedy.AVOID)


def _look(path: str, words: str) -> RunDirReading:
    began = time.monotonic()
    found, error = _read(path)
    while found != words and time.monotonic() < began + PATIENCE:
        time.sleep(_AGAIN)
        found, error = _read(path)
    took = time.monotonic() - began
    wrote = True
    try:
        replace_text(Path(own_file(path, node_name())), words)
    except OSError as failed:
        wrote, error = False, error or failed.strerror or str(failed)
    return RunDirReading(path, clean(found), found == words, wrote, error, took)


def _read(path: str) -> tuple[str, str]:
    """The file's words, or the system's when it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the path is text from elsewhere, and used as such
            return file.read(_MOST).decode("utf-8", "replace"), ""
    except OSError as error:
        return "", error.strerror or str(error)
