"""How many probes condemn a node, and how many leave it alone. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.state import Look

SECOND_LOOK = 1.0  # seconds between the two failing probes that condemn a node
UNKNOWN_LOOKS = 3  # probes that could not tell, before the node is left alone


def looked(look: Look, verdict: str, evidence: str) -> Look:
    """What a further probe of the node adds."""
    if verdict == "FAIL":
        return replace(look, fails=look.fails + 1, evidence=evidence)
    if verdict == "UNKNOWN":
        return replace(look, unknowns=look.unknowns + 1, fails=0, evidence=look.evidence or evidence)
    return replace(look, passes=look.passes + 1, fails=0, evidence=evidence)


def look_again(look: Look, verdict: str) -> bool:
    return (verdict == "FAIL" and look.fails < 2) or (verdict == "UNKNOWN" and look.unknowns < UNKNOWN_LOOKS)
