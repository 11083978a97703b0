"""`transom ckpt`: what could be restored, and whether its bytes are good. Neither needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.ckpt_files import export, import_
from transom_cli.cli.ckpt_places import Json, Root, Run, candidates_in, checkpoints_of_words, chosen, size_words
from transom_cli.errors import NoCheckpoint, TransomError

if TYPE_CHECKING:
    from transom_cli.ckpt.inventory import Verdict

_Step = Annotated[int | None, typer.Option("--step", help="This step only.")]

ckpt_app = typer.Typer(no_args_is_help=True, help="List, verify, export and import checkpoints.")
ckpt_app.command("export")(export)
ckpt_app.command("import")(import_)


@ckpt_app.command("ls")
def ls(run: Run = None, root: Root = None, as_json: Json = False) -> None:
    """List the checkpoints of a run, newest first. Sizes and the manifest are checked, bytes are not read."""
    from transom_cli.ckpt.inventory import survey

    directory = checkpoints_of_words(run, root)
    _show(directory, [survey(candidate) for candidate in candidates_in(directory)], as_json, good="complete")


@ckpt_app.command("verify")
def verify(run: Run = None, root: Root = None, step: _Step = None, as_json: Json = False) -> None:
    """Read every byte of every checkpoint and compare checksums. Exits with 15 when none is good."""
    from transom_cli.ckpt.inventory import verify as verify_one

    directory = checkpoints_of_words(run, root)
    verdicts = [verify_one(candidate) for candidate in chosen(directory, step)]
    _show(directory, verdicts, as_json, good="good")
    if not any(verdict.good for verdict in verdicts):
        raise _none_good(directory, verdicts)


def _none_good(directory: Path, verdicts: list[Verdict]) -> TransomError:
    why = "\n".join(f"{verdict.candidate.path.name}: {verdict.reason}" for verdict in verdicts)
    return NoCheckpoint(f"No checkpoint verifies in {directory}", why, f"transom ckpt ls {directory}")


def _show(directory: Path, verdicts: list[Verdict], as_json: bool, good: str) -> None:
    if as_json:
        document = {"schema": 1, "directory": str(directory), "checkpoints": [_as_json(v) for v in verdicts]}
        typer.echo(json.dumps(document, indent=1))
        return
    if not verdicts:
        typer.echo(f"no checkpoints in {directory}", err=True)
        return
    rows = [("STEP", "SIZE", "RANKS", "ATTEMPT", "CREATED", "STATE")]
    for verdict in verdicts:
        step, manifest = str(verdict.candidate.step), verdict.manifest
        told = (
            (size_words(manifest.size), str(manifest.world_size), manifest.attempt, manifest.created)
            if manifest
            else ()
        )
        rows.append((step, *(told or ("-",) * 4), good if verdict.good else f"bad: {verdict.reason}"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        typer.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]))


def _as_json(verdict: Verdict) -> dict[str, Any]:
    manifest = verdict.manifest
    return {
        "step": verdict.candidate.step,
        "path": str(verdict.candidate.path),
        "good": verdict.good,
        "reasons": list(verdict.reasons),
        "size": manifest.size if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "attempt": manifest.attempt if manifest else None,
        "created": manifest.created if manifest else None,
    }
