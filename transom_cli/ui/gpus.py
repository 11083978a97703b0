"""A node's GPUs on the screens: how many answer, the worst in words, and all of it when the node is opened. Pure.

Ages are taken by the node's own clock and the file system's, never between the two. Not exercised on hardware.
"""

from __future__ import annotations

from collections.abc import Iterable

from transom_cli.health.gpu.shown import GpuShown, NodeGpus, gpus_of
from transom_cli.ui.lines import Line, Span, row
from transom_cli.ui.view import NodeView
from transom_cli.ui.words import age, brief, count, span

_TONES = {"fault": "bad", "throttled": "warn", "heavy": "warn", "moderate": "note"}
_GIB = 2**30


def answering(one: NodeView) -> Span:
    """`8/8`; nothing where the node shows none."""
    told = one.gpus
    if told is None:
        return "", ""
    known = "?" if told.answering is None else str(told.answering)
    return f"{known}/{told.expected}", "bad" if (told.answering or 0) < told.expected else ""


def worst(one: NodeView) -> Span:
    """`gpu3 88 C, heavy`; how old that is, where it is old; nothing where all is well."""
    told = one.gpus
    if told is None:
        return "", ""
    if not told.old(one.gpus_age):
        return told.worst, _TONES.get(told.level, "")
    return ", ".join(x for x in (told.worst, f"{brief(one.gpus_age)} old") if x), "dim"


def gpu_rows(one: NodeView) -> list[Line]:
    """What its GPUs tell, for who has opened the node: all together, then each that is odd. What is not known is left
    out.
    """
    told = one.gpus
    if told is None:
        return []
    gpus = gpus_of(told)
    number, tone = answering(one)
    old = " (old)" if told.old(one.gpus_age) else ""
    what = (f"  {told.worst}", _TONES.get(told.level, "")) if told.worst else ""
    lines = [row("gpus", (f"{number} answer", tone), f", read {age(one.gpus_age)} ago{old}", what)]
    if any(gpu.busy is not None for gpu in gpus):
        lines.append(row("", "util " + " ".join("-" if x.busy is None else str(x.busy) for x in gpus) + " %"))
    common = "   ".join(x for x in (_heat(gpus), _power(gpus), _memory(gpus)) if x)
    lines += [row("", common)] if common else []
    lines.append(row("", "   ".join(x for x in (_ecc(gpus), _xid(told, one.gpus_age)) if x)))
    since = told.wall + one.gpus_age
    return lines + [
        row(f"gpu{gpu.index}", words, (f"  {gpu.uuid}" if gpu.uuid else "", "dim"))
        for gpu in gpus
        if (words := _odd(gpu, since))
    ]


def _heat(gpus: Iterable[GpuShown]) -> str:
    found, limits = _spread(gpu.heat for gpu in gpus), _spread(gpu.slowdown for gpu in gpus)
    return f"temp {found} C" + (f", slowdown at {limits}" if limits else "") if found else ""


def _power(gpus: Iterable[GpuShown]) -> str:
    found, limits = _spread(gpu.power for gpu in gpus), _spread(gpu.power_limit for gpu in gpus)
    return f"power {found}{f' of {limits}' if limits else ''} W" if found else ""


def _memory(gpus: Iterable[GpuShown]) -> str:
    used = _spread(gpu.memory_used / _GIB for gpu in gpus if gpu.memory_used is not None)
    whole = _spread(gpu.memory_total / _GIB for gpu in gpus if gpu.memory_total is not None)
    return f"memory {used}{f' of {whole}' if whole else ''} GiB" if used else ""


def _ecc(gpus: Iterable[GpuShown]) -> str:
    """Uncorrected errors of all together, and corrected ones where there are any."""
    hard = [gpu.ecc_uncorrected for gpu in gpus if gpu.ecc_uncorrected is not None]
    soft = sum(gpu.ecc_corrected or 0 for gpu in gpus)
    return f"ECC {count(sum(hard))}{f', {count(soft)} corrected' if soft else ''}" if hard else ""


def _xid(told: NodeGpus, old: float) -> str:
    if told.xid is not None and told.xid_at is not None:
        where = f" on gpu{told.xid_gpu}" if told.xid_gpu is not None else ""
        return f"Xid {told.xid}{where} {age(told.wall + old - told.xid_at)} ago"
    return f"Xid none in {span(told.wall - told.xids_since)}" if told.xids_since is not None else "Xids are not heard"


def _odd(gpu: GpuShown, now: float) -> str:
    """What is to be said of this one. now: by the node's clock."""
    found = [
        f"no answer: {gpu.trouble}" if gpu.trouble else "",
        f"{gpu.heat} C, {gpu.warmth}" if gpu.warmth in ("moderate", "heavy") else "",
        f"throttled: {', '.join(gpu.throttle)}" if gpu.throttle else "",
        f"{count(gpu.ecc_uncorrected)} uncorrected ECC errors" if gpu.ecc_uncorrected else "",
        "row remapping has failed" if gpu.rows_failed else "row remapping is pending" if gpu.rows_pending else "",
        "page retirement is pending" if gpu.pages_pending else "",
        f"Xid {gpu.xid} {age(now - gpu.xid_at)} ago" if gpu.xid is not None and gpu.xid_at is not None else "",
    ]
    return "; ".join(x for x in found if x)


def _spread(values: Iterable[float | None]) -> str:
    """`41-44`, or the one value that all have; "" where none is told."""
    known = [round(value) for value in values if value is not None]
    if not known:
        return ""
    return str(known[0]) if min(known) == max(known) else f"{min(known)}-{max(known)}"
