"""One line of a log that a rule knows, and whom it speaks against. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.rule import Blames, Rule


@dataclass(frozen=True)
class Hit:
    """file, lineno (from 1), offset (bytes): where it stands. more: lines of the same that were only counted."""

    rule: Rule
    record: Record
    where: dict[str, str] = field(default_factory=dict)
    file: str = ""
    lineno: int = 0
    offset: int = 0
    more: int = 0

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
