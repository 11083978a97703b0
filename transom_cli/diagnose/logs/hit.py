"""One line of a log that a rule knows, and whom it speaks against. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.rule import Blames, Level, Rule

RAISED = re.compile(r"[\w.]*(?:Error|Exception)\b")  # how an exception's line begins
_WARNS = re.compile(r"\.py:\d+: \w+Warning: ")  # Python's warnings module


@dataclass(frozen=True)
class Hit:
    """file, lineno (from 1), offset (bytes): where it stands. more: lines of the same that were only counted.
    printed: an exception's line that stands below no traceback."""

    rule: Rule
    record: Record
    where: dict[str, str] = field(default_factory=dict)
    file: str = ""
    lineno: int = 0
    offset: int = 0
    more: int = 0
    printed: bool = False

    @property
    def level(self) -> Level:
        return min(self.rule.level, Level.SIGN) if self.printed else self.rule.level

    @property
    def mild(self) -> bool:
        """A warning: it tells of a failure only beside something else that does. Not the word of who ends or knows it,
        nor a loss, which a healthy training reports in the same tone."""
        weak = self.rule.level in (Level.SIGN, Level.CAUSE) and self.rule.category is not Category.NUMERIC_DIVERGENCE
        return weak and (self.record.mild or _WARNS.search(self.record.line) is not None)

    @property
    def culprit(self) -> Culprit:
        """Nobody's where the rule says so, or nothing names one."""
        told, record = self.where, self.record
        if self.rule.blames is Blames.NOBODY:
            return Culprit()
        node, rank = told.get("node") or told.get("peer", ""), told.get("rank", "")
        if self.rule.blames is Blames.NAMED:
            return Culprit(node, int(rank) if rank.isdigit() else None, told.get("device", ""))
        device = told.get("device", "") or record.device
        return Culprit(node or record.node, int(rank) if rank.isdigit() else record.rank, device)
