"""What the evidence of a launch that hung tells, in a line or two: who the others wait for. Within a few seconds.

The launch is over by then, and the next one waits for this: a file system that does not answer must cost seconds.
"""

from __future__ import annotations

import threading
from pathlib import Path

from transom_cli.diagnose.clue import Clue
from transom_cli.diagnose.hangs.reading import clues, gather, read_hang
from transom_cli.errors import printable

SECONDS = 5.0  # for the reading: thousands of stacks, a hundred full recorders
SURE = 0.5  # below, it is a guess that would only mislead


def hang_words(folder: Path, seconds: float = SECONDS) -> tuple[str, ...]:
    """() where nothing is known well enough. Whatever goes wrong is told as a line of its own; never raises."""
    found: list[tuple[str, ...]] = []

    def work() -> None:
        try:
            found.append(words(clues(gather(folder, flights=False))))
            found.append(words(read_hang(folder)))
        except Exception as error:  # ours: it must not keep the next launch from starting
            found.append((f"evidence not judged: {printable(repr(error))}",))

    thread = threading.Thread(target=work, name="hang", daemon=True)
    thread.start()
    thread.join(seconds)
    late = (f"evidence not judged within {seconds:.0f} s: see {folder}",)
    return found[-1] if not thread.is_alive() else (*found[-1], *late) if found else late


def words(clues: tuple[Clue, ...]) -> tuple[str, ...]:
    """The first clue's two most telling sentences, if it is sure enough."""
    if not clues or clues[0].confidence < SURE:
        return ()
    first, *more = clues[0].evidence
    return f"{first} (confidence {clues[0].confidence:.2f})", *more[:1]
