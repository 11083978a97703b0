"""How many probes condemn a node, and how many leave it alone. Pure."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.incident import Look

SECOND_LOOK = 1.0  # seconds between the two failing probes that condemn a node
UNKNOWN_LOOKS = 3  # probes that could not tell, before the node is left alone


def looked(look: Look, verdict: str, evidence: str) -> Look:
    """What a further probe of the node adds."""
    if verdict == "FAIL":
        return replace(look, fails=look.fails + 1, suspects=look.suspects + 1, evidence=evidence)
    if verdict == "SUSPECT":
        return replace(look, fails=0, suspects=look.suspects + 1, evidence=evidence)
    if verdict == "UNKNOWN":
        return replace(look, unknowns=look.unknowns + 1, fails=0, suspects=0, evidence=look.evidence or evidence)
    return replace(look, passes=look.passes + 1, fails=0, suspects=0, evidence=evidence)


def look_again(look: Look, verdict: str) -> bool:
    """A node that only this host does not reach is asked twice, one that a second opinion calls gone until it is sure.

    The restart waits for no more than that.
    """
    if verdict == "FAIL":
        return look.fails < 2
    if verdict == "SUSPECT":
        return look.suspects < 2
    return verdict == "UNKNOWN" and look.unknowns < UNKNOWN_LOOKS
