"""What the doctor found, as lines. Pure."""

from __future__ import annotations

import textwrap

from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.errors import printable

ABOUT = 17  # characters


def symptom_lines(one: Symptom, width: int = 100) -> list[str]:
    """The grade's word first; the hint below it, where there is something to be done."""
    head = f"{one.grade.value:<5} {printable(one.about):<{ABOUT}} "
    room = max(20, width - len(head))
    lines = textwrap.wrap(printable(one.words), room, break_on_hyphens=False)
    if one.hint and one.grade is not Grade.OK:
        hint = textwrap.wrap(printable(" ".join(one.hint.splitlines())), room - 2, break_on_hyphens=False)
        lines += [f"{'> ' if n == 0 else '  '}{line}" for n, line in enumerate(hint)]
    return [(head if n == 0 else " " * len(head)) + line for n, line in enumerate(lines or [""])]
