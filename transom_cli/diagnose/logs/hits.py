"""What a log tells by the rules: the lines that count, each with its rule, rank, node and time. Bounded per file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.reading import Found, find, opened
from transom_cli.diagnose.logs.rule import Level, Rule
from transom_cli.diagnose.logs.rulebook import Match, Rulebook

FIRST = 8  # lines that are kept of one rule and one rank; of more, they are counted
MOST = 4000  # of one file
CHAINED = "chained"  # the rule of Python's words between two exceptions of one chain
BOX_HOST = "elastic-box-host"  # in torchrun's box of failures the line above the rank's
BELOW = 400  # lines below a wrapper's words in which the exception itself is looked for


def hits_of(path: Path, book: Rulebook, name: str = "") -> tuple[Hit, ...]:
    """Of one file; `name` is what it is called in the answer. OSError where it cannot be read."""
    with opened(path) as file:
        return tuple(collected(hits_in(file, book), name or str(path)))


def hits_in(file: BinaryIO, book: Rulebook) -> Iterator[Hit]:
    for found in find(file, book):
        hit = hit_of(found, book)
        if hit is not None:
            yield hit


def hit_of(found: Found, book: Rulebook) -> Hit | None:
    told = grammar.record(grammar.cleaned(found.raw))
    matches: tuple[Match, ...] = book.matches(told)
    if not matches:
        book.remember_dull(found.raw, told)
        return None
    best = matches[0]
    return Hit(best.rule, told, best.where, lineno=found.lineno, offset=found.offset)


def collected(hits: Iterator[Hit], name: str) -> list[Hit]:
    """Named by file, rank and node, the first of each kind kept; a wrapper's words give way to what they wrap."""
    rank, node = grammar.of_file(name)
    kept: list[Hit] = []
    counts: dict[tuple[str, int | None], list[int]] = {}
    wrapper: Hit | None = None
    chain: Hit | None = None
    host: Hit | None = None
    for hit in hits:
        record = hit.record
        if (record.rank is None and rank is not None) or (not record.node and node):
            record = replace(record, rank=rank if record.rank is None else record.rank, node=record.node or node)
        hit = replace(hit, record=record, file=name)
        if wrapper is not None and hit.lineno - wrapper.lineno > BELOW:
            wrapper = None
        if wrapper is not None and _wraps(wrapper, hit):
            if kept[-1] is wrapper:
                kept[-1] = replace(hit, rule=_wrapped(wrapper.rule, hit.rule), where={**hit.where, **wrapper.where})
                wrapper = None
                continue
            wrapper = None
        if hit.rule.name == BOX_HOST:
            host = hit
            continue
        if host is not None and hit.lineno == host.lineno + 1:
            hit = replace(hit, where={**host.where, **hit.where})
        if hit.rule.name == CHAINED:
            chain = kept[-1] if kept and kept[-1].record.rank == hit.record.rank else None
            continue
        if chain is not None and _wraps(chain, hit):
            if kept[-1] is chain and hit.lineno - chain.lineno <= BELOW:
                kept[-1] = chain = max(hit, chain, key=lambda h: h.rule.weight)  # of equals, the one further out
                continue
            chain = None
        known = counts.setdefault((hit.rule.name, record.rank), [])
        if len(known) < FIRST and len(kept) < MOST:
            known.append(len(kept))
            kept.append(hit)
            if hit.rule.below:
                wrapper = hit
        elif known:
            last = known[-1]
            kept[last] = replace(kept[last], more=kept[last].more + 1)
    return kept


def _wraps(wrapper: Hit, hit: Hit) -> bool:
    return wrapper.record.rank == hit.record.rank and hit.rule.level >= Level.CAUSE and not hit.rule.below


def _wrapped(wrapper: Rule, inner: Rule) -> Rule:
    """What is wrapped tells the cause if it is special (out of memory in a loader); else the wrapper's place does."""
    return inner if inner.weight > wrapper.weight else wrapper
