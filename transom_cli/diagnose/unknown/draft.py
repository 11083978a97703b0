"""Draft a rule from a line that no rule matches. Pure; a person completes it."""

import hashlib
import json
import re

from transom_cli.core.log_lines import clean
from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.unknown.novel import New
from transom_cli.diagnose.unknown.templates import ANY, NUMBER, PATH, has_error_word, masked, words_of

LITERAL = 6  # least characters of a literal
_NUMBER = r"[-+.,:/xeE%\d]+"
_SLUG = re.compile(r"[^a-z0-9]+")


def draft(new: New) -> str:
    """Return a `[[rule]]` in TOML; "" if no part of the line could identify it (six characters without a number).

    The expressions fit the line it was learned from. Category, scope and action are left to the person who adopts it.
    """
    line = clean(new.first.text).replace("\n", " ")
    runs = [run for run in _runs(line) if len(run) >= LITERAL]
    if not runs:
        return ""
    literal = max(runs, key=lambda run: (has_error_word(run), len(run)))
    where = f"{clean(new.first.file)}:{new.first.lineno}" if new.first.file else "a log without a name"
    choices = ", ".join(c.value for c in Category if c is not Category.UNKNOWN)
    return "\n".join(
        [
            "[[rule]]",
            f"name = {_text(_name(literal, line))}",
            f"# category: choose one of {choices}",
            f"category = {_text(Category.UNKNOWN.value)}",
            f"any = [{_text(literal)}]",
            f"match = {_raw(expression(line))}",
            'scope = "job"  # or node, user',
            'action = "requeue"  # or none, stop, isolate_node_and_requeue',
            f"note = {_text(f'learned from {where}')}",
            f"examples = [{_text(line)}]",
            "",
        ]
    )


def expression(line: str) -> str:
    """Return an RE2 expression for lines of this kind, from the first literal word to the last."""
    found = list(re.finditer(r"\S+", line))
    masks = words_of(masked(line))
    literal = [i for i, word in enumerate(masks) if _is_literal(word)]
    if not literal:
        return ""
    parts: list[str] = []
    for i in range(literal[0], literal[-1] + 1):
        gap = line[found[i - 1].end() : found[i].start()] if parts else ""
        parts.append(_gap(gap) + _part(found[i][0], masks[i]))
    return "".join(parts)


def _gap(gap: str) -> str:
    """RE2's `\\s` is ASCII only; words may be separated by blanks of other scripts."""
    return r"\s+" if gap and not gap.strip(" \t") else ".{1,20}" if gap else ""


def _part(word: str, hidden: str) -> str:
    """hidden: the word with its numbers masked."""
    for mask, any_of_it in ((ANY, r"\S+"), (PATH, r"\S+"), (NUMBER, _NUMBER)):
        if mask in hidden:
            return any_of_it.join(re.escape(piece) for piece in hidden.split(mask))
    return re.escape(word)


def _is_literal(word: str) -> bool:
    return not any(mask in word for mask in (ANY, PATH, NUMBER))


def _runs(line: str) -> list[str]:
    """Return the runs of literal words, in the order of the line."""
    masks = words_of(masked(line))
    runs: list[tuple[int, int]] = []
    before = False
    for found, word in zip(re.finditer(r"\S+", line), masks, strict=False):
        literal = _is_literal(word)
        if literal:
            runs.append((runs.pop()[0], found.end()) if before else found.span())
        before = literal
    return [line[start:end] for start, end in runs]


def _name(literal: str, line: str) -> str:
    slug = "-".join(_SLUG.sub("-", literal.lower()).strip("-").split("-")[:6])[:48].strip("-")
    digest = hashlib.sha256(masked(line).encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return "-".join(x for x in ("site", slug, digest) if x)


def _text(value: str) -> str:
    """Return a TOML string: JSON's, except for unpaired surrogates and DEL."""
    readable = value.encode("utf-8", "replace").decode()
    return json.dumps(readable, ensure_ascii=False).replace("\x7f", "\\u007f")


def _raw(value: str) -> str:
    """Return a TOML literal string, the most readable form for expressions, if possible."""
    plain = value.isprintable() and "'''" not in value and not value.endswith("'")
    return f"'''{value}'''" if plain else _text(value)
