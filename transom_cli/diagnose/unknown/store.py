"""Templates on disk: one plain JSON file a run, readable by its owner only, of bounded size. Nothing is unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from transom_cli.diagnose.unknown.miner import TEMPLATES
from transom_cli.diagnose.unknown.templates import Template, Templates
from transom_cli.diagnose.unknown.tokens import WORDS
from transom_cli.errors import TransomError
from transom_cli.files import publish_text

SCHEMA = 1
BYTES = 16 * 1024 * 1024  # of a file; larger ones are not read
_WORD = 200  # characters of a word that are kept


def save(path: Path, templates: Templates) -> None:
    """Replace what is there at once. OSError where it cannot be written. The rarest templates are left out for size."""
    kept: list[dict[str, Any]] = []
    room = BYTES // 2
    for template in templates.templates[:TEMPLATES]:
        told = {"count": template.count, "words": [word[:_WORD] for word in template.words]}
        room -= len(json.dumps(told)) + 2
        if room < 0:
            break
        kept.append(told)
    document = {"schema": SCHEMA, "lines": templates.lines, "templates": kept}
    publish_text(path, json.dumps(document) + "\n")


def load(path: Path) -> Templates:
    """The templates of a run; none where there is no such file.

    TransomError where it is not what `save` writes, whoever wrote it; OSError where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > BYTES:
                raise _bad(path, f"it has {size} bytes, and {BYTES} at most are read")
            data = file.read(BYTES)
    except FileNotFoundError:
        return Templates()
    try:
        return _templates(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(path, f"{type(error).__name__}: {error}") from error


def _templates(document: dict[str, Any]) -> Templates:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA}")
    found = []
    for told in document["templates"][:TEMPLATES]:
        count, words = told["count"], told["words"]
        if type(count) is not int or count < 0 or not words or not all(type(word) is str for word in words):
            raise ValueError(f"not a template: {str(told)[:100]}")
        found.append(Template(tuple(words[:WORDS]), count))
    if type(document["lines"]) is not int:
        raise ValueError("its number of lines is none")
    return Templates(tuple(found), document["lines"])


def _bad(path: Path, why: str) -> TransomError:
    return TransomError(
        f"`{path}` holds no templates of a run", why, f"remove it; it is only for comparison: rm {path}"
    )
