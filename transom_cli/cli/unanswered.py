"""A command whose file system does not answer leaves with words, where it would hang for as long as that is so."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.cli.ending import document_asked
from transom_cli.errors import Unknown

if TYPE_CHECKING:
    from transom_cli.supervise.answering import Answering


def bounded(root: Path, run: str | None = None) -> Path:
    """``root``, where runs live. From here on this process ends, with exit code 22, when the files do not answer.

    run: as a person names it; a path is asked in root's place.
    """
    leaving(root, run)
    return root


def leaving(root: Path, run: str | None) -> Answering:
    """The same, until it is stopped: for a command that goes on to wait for a run, however long that takes."""
    from transom_cli.supervise.answering import Answering

    where = Path(run) if run and "/" in run else root
    return Answering(where, lambda since: _leave(where, since)).start()


def _leave(where: Path, since: float) -> None:
    """From a thread: the main one is in the kernel, and nothing but the process's end gets it out."""
    quiet_for = time.time() - since
    error = Unknown(
        f"{where} does not answer",
        f"no word from its file system since {time.strftime('%H:%M:%S', time.localtime(since))} ({quiet_for:.0f} s)",
        "Its server may be gone, or overloaded. Operators go on by themselves when it is back.\n"
        "What Slurm has of your runs: squeue --me",
    )
    stream, text = (1, json.dumps(error.as_json())) if document_asked(sys.argv) else (2, f"error: {error}")
    os.write(stream, f"{text}\n".encode())
    os._exit(error.exit_code)
