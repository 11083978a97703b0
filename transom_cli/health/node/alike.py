"""Do the nodes of a job have the same hardware and software: `judge_alike`. Pure; `facts` reads what they say.

A node that differs is seldom broken, but it may fail in ways that no other does, and collectives run at the pace of the
slowest: so the odd one is named (MONITOR), and what to do with it is a person's decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from transom_cli.health.finding import Finding, Remedy, Verdict

CHECK = "alike"
_TOLD = 4


def judge_alike(facts: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """A finding for each node. facts: by node, what it says of itself ("driver": "570.86.15").

    Judged fact by fact, among the nodes that tell it: those without the value that more than half of them have are the
    odd ones. With no such value nobody can say who is odd: all that tell it hear so.
    """
    odd: dict[str, list[str]] = {node: [] for node in facts}
    for name in sorted({name for told in facts.values() for name in told}):
        values = {node: told[name] for node, told in facts.items() if name in told}
        usual, times = max(Counter(values.values()).items(), key=lambda item: (item[1], item[0]))
        if times == len(values):
            continue
        if times * 2 > len(values):
            for node, value in values.items():
                if value != usual:
                    odd[node].append(f"{name} is {value}, on {times} of {len(values)} nodes {usual}")
        else:
            kinds = ", ".join(f"{value} ({count})" for value, count in Counter(values.values()).most_common(_TOLD))
            for node in values:
                odd[node].append(f"{name} differs over the nodes: {kinds}")
    return tuple(_finding(node, said, len(facts), len(facts[node])) for node, said in odd.items())


def _finding(node: str, odd: list[str], nodes: int, told: int) -> Finding:
    if not odd:
        return Finding(CHECK, Verdict.PASS, node, f"in {told} facts as the other nodes ({nodes} in all)")
    more = f" and {len(odd) - _TOLD} more" if len(odd) > _TOLD else ""
    return Finding(CHECK, Verdict.MONITOR, node, "; ".join(odd[:_TOLD]) + more, Remedy.SETUP)
