"""What is known of one message that failing jobs print: as data, one `[[rule]]` of a TOML file. Pure.

A rule speaks of one line. `any`: literal text of which the line must contain one; all in lower case, it stands for any
case. `match`: RE2 expressions of which one must be found in the line's text, prefixes taken away (`grammar`); groups
named node, rank, peer, device and code tell where. `unless`: expressions of lines that only look like it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from transom_cli.diagnose.clue import Action, Category


class Level(enum.IntEnum):
    """How near to the cause such a line is. A lower one is told only where no higher one explains the failure.

    SIGN: what victims print (a watchdog, a reset connection, an exit code). ENDING: somebody ended the job, whatever
    was wrong before (time limit, cancelled). CAUSE: what went wrong. AUTHORITY: who says so knows it, whatever else was
    printed earlier (Slurm's node failure, the kernel's own record of a lost GPU, an OOM kill).
    """

    BENIGN = 0
    SIGN = 1
    ENDING = 2
    CAUSE = 3
    AUTHORITY = 4


class Blames(str, enum.Enum):
    """Who such a line speaks against: the rank and node that print it, those that it names, or nobody."""

    PRINTER = "printer"
    NAMED = "named"
    NOBODY = "nobody"


class Scope(str, enum.Enum):
    """Whose matter it is: a node's (go elsewhere), the job's (start it again), or its owner's (it would repeat)."""

    NODE = "node"
    JOB = "job"
    USER = "user"


@dataclass(frozen=True)
class Rule:
    """weight: of two rules of one level that know the same line, the heavier tells (the more special one).

    explains: categories that are its consequence, also where they were printed earlier. below: its cause is told by the
    next exception below it; of a benign rule: that exception is as harmless. lasts: a healthy run may print it and go
    on; it counts when nothing shows that it went on. over: expressions of later lines that say that it is over.
    yields: its program goes on after it: a later cause of another kind tells instead.
    times: lines of it that it takes. traced: an exception's last line: without a traceback above it is only a message,
    and tells no more than a victim's words. source: the file that the rule came from.
    """

    name: str
    category: Category | None
    level: Level
    any: tuple[str, ...]
    match: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    scope: Scope = Scope.JOB
    action: Action = Action.REQUEUE
    blames: Blames = Blames.PRINTER
    weight: int = 50
    confidence: float = 0.8
    explains: tuple[Category, ...] = ()
    below: bool = False
    lasts: bool = True
    over: tuple[str, ...] = ()
    yields: bool = False
    times: int = 1
    traced: bool = False
    note: str = ""
    examples: tuple[str, ...] = ()
    look_alikes: tuple[str, ...] = ()
    source: str = ""
