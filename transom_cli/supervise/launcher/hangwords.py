"""What the evidence of a launch that hung tells, in a line or two: who the others wait for. Within a few seconds.

The launch is over by then, and the next one waits for this: a file system that does not answer must cost seconds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from transom_cli.diagnose.clue import Clue
from transom_cli.diagnose.hangs.reader import clues, gather, read_hang
from transom_cli.errors import printable

SECONDS = 5.0  # for the reading: thousands of stacks, a hundred full recorders
SUSPECTS = 0.75  # from which on its node is a suspect: one that is blamed a second time is left out for a while
SURE = 0.5  # below, it is a guess that would only mislead


@dataclass(frozen=True)
class HangTold:
    """words: for a person. nodes: that the others wait for, () where that is not sure, or not one node alone."""

    words: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def hang_told(folder: Path, seconds: float = SECONDS) -> HangTold:
    """Nothing where nothing is known well enough. Whatever goes wrong is told as a line of its own; never raises."""
    found: list[HangTold] = []

    def work() -> None:
        try:
            found.append(told(clues(gather(folder, flights=False))))
            found.append(told(read_hang(folder)))
        except Exception as error:  # ours: it must not keep the next launch from starting
            found.append(HangTold((f"evidence not judged: {printable(repr(error))}",)))

    thread = threading.Thread(target=work, name="hang", daemon=True)
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        return found[-1]
    late = f"evidence not judged within {seconds:.0f} s: see {folder}"
    return HangTold((*found[-1].words, late), found[-1].nodes) if found else HangTold((late,))


def told(clues: tuple[Clue, ...]) -> HangTold:
    nodes = {culprit.node for culprit in clues[0].culprits} if clues else set()
    sure = len(nodes) == 1 and "" not in nodes and clues[0].confidence >= SUSPECTS
    return HangTold(words(clues), tuple(nodes) if sure else ())


def words(clues: tuple[Clue, ...]) -> tuple[str, ...]:
    """The first clue's two most telling sentences, if it is sure enough."""
    if not clues or clues[0].confidence < SURE:
        return ()
    first, *more = clues[0].evidence
    return f"{first} (confidence {clues[0].confidence:.2f})", *more[:1]
