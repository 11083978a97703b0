"""What a check says about a node. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """PASS: seen to be well. MONITOR: odd, worth watching. SUSPECT: likely at fault, not proven. FAIL: proven.

    UNKNOWN: the check itself did not work; it says nothing about the node and never isolates it.
    """

    PASS = "pass"
    MONITOR = "monitor"
    SUSPECT = "suspect"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """check: the check's name ("reach"). evidence: what was seen, in the tool's own words, for a person."""

    check: str
    verdict: Verdict
    node: str
    evidence: str
