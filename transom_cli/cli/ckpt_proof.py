"""`transom ckpt diff`, and the deep part of `transom ckpt verify`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.options import Json
from transom_cli.errors import NoCheckpoint, TransomError
from transom_cli.plural import several

if TYPE_CHECKING:
    from transom_cli.ckpt.proof_files import DeepVerdict

_Checkpoint = typer.Argument(metavar="PATH", exists=True, file_okay=False)
DIFFERENT = 1  # exit code of `diff`, as of diff(1)


def diff(
    a: Annotated[Path, _Checkpoint],
    b: Annotated[Path, _Checkpoint],
    as_json: Json = False,
) -> None:
    """Show which values differ in two checkpoints.

    A PATH is a checkpoint, also one that torch's DCP has written, or a directory of checkpoints: its newest. The
    layouts may differ. Compares bit for bit. Exit code 1: they differ.
    """
    from transom_cli.ckpt.proof_files import diff as compare
    from transom_cli.ckpt.proof_files import find
    from transom_cli.view.terminal import waiting

    first, second = find(a), find(b)
    with waiting("comparing checkpoints") as shown:
        changes = list(compare(first, second, shown.add))
    if as_json:
        document = {"schema": 1, "a": str(first), "b": str(second), "differences": [asdict(one) for one in changes]}
        typer.echo(json.dumps(document, indent=1))
    else:
        width = max((len(one.name) for one in changes), default=0)
        for one in changes:
            kind = "" if one.kind in ("elements", "value") else f"{one.kind}: "
            typer.echo(f"{one.name.ljust(width)}  {kind}{one.detail}")
        same = "the same state" if not changes else f"{several(len(changes), 'value')} differ"
        typer.echo(f"{same}: A {first}, B {second}", err=True)
    if changes:
        raise typer.Exit(DIFFERENT)


def deep(paths: list[Path], as_json: bool) -> None:
    """Compare checkpoints with their digests, and print a line each. Raises NoCheckpoint if none is as it was saved."""
    from transom_cli.ckpt.proof_files import verify_deep
    from transom_cli.view.terminal import waiting

    found: list[tuple[Path, DeepVerdict | str]] = []
    for path in paths:
        with waiting(f"comparing {path.name} with its digests", of_bytes=True) as shown:
            try:
                found.append((path, verify_deep(path, shown.add)))
            except TransomError as error:
                found.append((path, f"bad: {error.what}"))
    if as_json:
        typer.echo(json.dumps({"schema": 1, "deep": [_as_json(path, one) for path, one in found]}, indent=1))
    else:
        for path, one in found:
            typer.echo(f"{path.name}  {one if isinstance(one, str) else one.text}")
    if all(isinstance(one, str) or one.wrong for _, one in found):
        why = "\n".join(f"{path.name}: {_why(one)}" for path, one in found)
        raise NoCheckpoint("No checkpoint matches its recorded digests", why)


def _why(one: DeepVerdict | str) -> str:
    return one if isinstance(one, str) else "; ".join(one.wrong[:10])


def _as_json(path: Path, one: DeepVerdict | str) -> dict[str, Any]:
    if isinstance(one, str):
        return {"path": str(path), "wrong": [one], "compared": 0, "total": None}
    return {"path": str(path), "wrong": list(one.wrong), "compared": one.compared, "total": one.total}
