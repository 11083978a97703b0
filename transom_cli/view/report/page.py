"""Writes a document as one self-contained HTML page.

Only the template makes elements. Every value passes `printable` and jinja's escaping, and the Content-Security-Policy
of the page forbids scripts, images, frames, and any style but its own.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from transom_cli.errors import TransomError, UsageError, printable
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import path_error
from transom_cli.view.report.model import Document

FOLDER = Path(__file__).parent
MARKER = '<meta name="generator" content="transom report">'
_HEAD = 4096  # characters that contain a report's marker


def page(document: Document, refresh: int = 0) -> str:
    """Render the page. refresh: seconds after which a browser loads it again; 0: never."""
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
        document=document, style=Markup(style), marker=Markup(MARKER), policy=_policy(style), refresh=refresh
    )


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _clean(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def target(run: RunDir, out: Path | None, *, force: bool) -> Path:
    """Return the file to write; in a folder, it is named after the run.

    Raises:
        UsageError: The file exists and is not a report, and `force` is not set.
    """
    path = Path(f"{run.run_id}.html") if out is None else out / f"{run.run_id}.html" if out.is_dir() else out
    if path.exists() and not force and not _is_report(path):
        raise UsageError(
            f"{path} exists and is not a transom report", hint="replace it with --force, or name another file: -o FILE"
        )
    return path


def write(path: Path, text: str) -> None:
    """Write the file atomically, readable as the umask allows, never writable by others."""
    try:
        publish_text(path, text, mode=0o644)
    except OSError as error:
        raise _explained(error, path) from error


def _explained(error: OSError, path: Path) -> TransomError:
    return path_error(error, path, doing="write the report", instead="name another file: -o FILE")


def _is_report(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return MARKER in file.read(_HEAD)
    except OSError as error:
        raise _explained(error, path) from error
