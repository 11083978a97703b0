"""A document as one HTML page, for which nothing is fetched.

The template alone makes elements. Every value passes `printable` and jinja's escaping; the page forbids by its
Content-Security-Policy all that it does not hold itself: scripts, images, frames, and any style but its own.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from transom_cli.errors import printable
from transom_cli.report.shapes import Document

FOLDER = Path(__file__).parent
MARKER = '<meta name="generator" content="transom report">'


def page(document: Document) -> str:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    return environment.get_template("template.html").render(
        document=document, style=Markup(style), marker=Markup(MARKER), policy=_policy(style)
    )


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _clean(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
