"""How the judges of GPU readings say what they found. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.health.finding import Finding, Remedy, Verdict, not_applicable
from transom_cli.health.gpu.reading import Gpu
from transom_cli.plural import several

_RANK = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR, Verdict.UNKNOWN, Verdict.PASS)


@dataclass(frozen=True)
class Odd:
    """One GPU that a check does not pass."""

    gpu: Gpu
    verdict: Verdict
    words: str
    remedy: Remedy


def about_gpu(check: str, node: str, odd: Odd) -> Finding:
    gpu = odd.gpu
    place = f" ({gpu.bus_id})" if gpu.bus_id else ""
    said = f"GPU {gpu.index}{place}: {odd.words}"
    return Finding(check, odd.verdict, node, said, odd.remedy, gpu.device, gpu.serial)


def told(check: str, node: str, looked_at: int, odd: Iterable[Odd], fine: str, lacking: str) -> list[Finding]:
    """The odd GPUs, the worst first; one PASS with the words `fine` when there are none.

    looked_at: how many GPUs have the value at all; without any the check does not apply, since they are `lacking` it.
    """
    found = [about_gpu(check, node, x) for x in odd]
    if found:
        return worst_first(found)
    if not looked_at:
        return [not_applicable(check, node, lacking)]
    return [Finding(check, Verdict.PASS, node, f"{several(looked_at, 'GPU')}: {fine}")]


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda f: _RANK.index(f.verdict))


def worse(a: Finding, b: Finding) -> Finding:
    return a if _RANK.index(a.verdict) <= _RANK.index(b.verdict) else b


def spread(values: Iterable[int | float | None]) -> str:
    """ "3" or "31 to 44", for a PASS that is to show its numbers."""
    known = sorted({value for value in values if value is not None})
    if not known:
        return "unknown"
    ends = dict.fromkeys(f"{value:.0f}" for value in (known[0], known[-1]))
    return " to ".join(ends)
