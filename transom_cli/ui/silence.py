"""Many looks at runs, and a Slurm that does not answer: one look in ten seconds asks it, the others read its note.

Each `transom status` is a process of its own, and people put it in loops. The note is the user's, in their state
folder, and is there only while Slurm is silent. It is a help and no lock: looks that begin together all ask.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

from transom_cli.files import replace_text

QUIET = 10.0  # seconds for which a silence that another look met counts for this one too


class Silence:
    """Of one Slurm: that of `environ`, or the cluster of that name. Times are seconds of the wall clock."""

    def __init__(self, folder: Path, environ: Mapping[str, str], cluster: str = "") -> None:
        which = zlib.crc32(f"{environ.get('SLURM_CONF', '')}\0{cluster}".encode("utf-8", "surrogateescape"))
        self._note = folder / f"slurm-silent-{which:08x}"

    def met(self) -> tuple[str, float] | None:
        """Slurm's words to another look, and when; None where this one is to ask.

        Of several that come after a silence the first one renews the note before it asks, so that the rest wait for it.
        """
        try:
            at, words = self._note.stat().st_mtime, self._note.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        if 0 <= time.time() - at < QUIET:
            return words, at
        with contextlib.suppress(OSError):
            os.utime(self._note)
        return None

    def note(self, words: str) -> None:
        """Slurm gave no answer. Where no note can be left, each look asks by itself."""
        with contextlib.suppress(OSError):
            self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self._note, words)

    def over(self) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink(missing_ok=True)
