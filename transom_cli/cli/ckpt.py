"""`transom ckpt`: what could be restored, whether its bytes are good, and one file for elsewhere.

`ls` and `verify` need no torch. A checkpoint is named by its run, or by a path: a checkpoints directory or a run
directory.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.errors import NoCheckpoint, TransomError, UsageError

if TYPE_CHECKING:
    from transom_cli.ckpt.inventory import Candidate, Verdict

_Run = Annotated[str | None, typer.Argument(metavar="[RUN|PATH]", help="A run, or a directory of checkpoints.")]
_Root = Annotated[Path | None, typer.Option("--root", help="Where run directories live.")]
_Step = Annotated[int | None, typer.Option("--step", help="This step only, not the newest good one.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


ckpt_app = typer.Typer(no_args_is_help=True, help="List, verify and export checkpoints.")


@ckpt_app.command("ls")
def ls(run: _Run = None, root: _Root = None, as_json: _Json = False) -> None:
    """List the checkpoints of a run, newest first. Sizes and the manifest are checked, bytes are not read."""
    from transom_cli.ckpt.inventory import survey

    directory = _checkpoints(run, root)
    _show(directory, [survey(candidate) for candidate in _candidates(directory)], as_json, good="complete")


@ckpt_app.command("verify")
def verify(run: _Run = None, root: _Root = None, step: _Step = None, as_json: _Json = False) -> None:
    """Read every byte of every checkpoint and compare checksums. Exits with 15 when none is good."""
    from transom_cli.ckpt.inventory import verify as verify_one

    directory = _checkpoints(run, root)
    verdicts = [verify_one(candidate) for candidate in _chosen(directory, step)]
    _show(directory, verdicts, as_json, good="good")
    if not any(verdict.good for verdict in verdicts):
        raise _none_good(directory, verdicts)


@ckpt_app.command("export")
def export(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")],
    run: _Run = None,
    root: _Root = None,
    step: _Step = None,
) -> None:
    """Write the newest good checkpoint (or that of --step) as one torch file, with PyTorch's own converter.

    It is verified first. All of it passes through memory.
    """
    from transom_cli.ckpt.inventory import verify as verify_one

    if out.exists():
        raise UsageError(f"{out} exists already", hint="give another file, or remove this one")
    directory = _checkpoints(run, root)
    verdicts: list[Verdict] = []
    for candidate in _chosen(directory, step):
        verdicts.append(verify_one(candidate))
        if verdicts[-1].good:
            break
        typer.echo(f"passed over {candidate.path.name}: {verdicts[-1].reason}", err=True)
    else:
        raise _none_good(directory, verdicts)
    _convert(verdicts[-1].candidate.path, out)
    typer.echo(f"{verdicts[-1].candidate.path} -> {out}", err=True)


def _checkpoints(run: str | None, root: Path | None) -> Path:
    """A folder; else a run's id or name; nothing typed: the newest run. A run may keep its checkpoints elsewhere."""
    folder = Path(run) if run is not None and Path(run).is_dir() else None
    if folder is not None and (folder / "run.toml").is_file():
        run, folder = str(folder.absolute()), None
    found = folder or _of_run(run, root)
    inside = found / "checkpoints"
    directory = inside if inside.is_dir() else found
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="give a checkpoints directory or a run directory")
    return directory


def _of_run(wanted: str | None, root: Path | None) -> Path:
    from transom_cli.submit.rundir import find_run
    from transom_cli.wiring import checkpoints_of, read_settings, runs_root

    run = find_run(runs_root(root), wanted)
    return checkpoints_of(run, read_settings(run))


def _candidates(directory: Path) -> list[Candidate]:
    from transom_cli.ckpt.inventory import candidates

    return candidates(directory)


def _chosen(directory: Path, step: int | None) -> list[Candidate]:
    found = _candidates(directory)
    chosen = [candidate for candidate in found if step is None or candidate.step == step]
    if not chosen:
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        there = ", ".join(str(candidate.step) for candidate in found)
        raise NoCheckpoint(
            f"There is {which} in {directory}",
            f"steps that are there: {there}" if there else "",
            f"transom ckpt ls {directory}",
        )
    return chosen


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
        told = (_size(manifest.size), str(manifest.world_size), manifest.attempt, manifest.created) if manifest else ()
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


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _convert(checkpoint: Path, out: Path) -> None:
    """DCP's own converter into a temporary file, which gets its name when it is complete."""
    try:
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    except ImportError as error:
        raise TransomError(
            "Exporting needs PyTorch, which is not installed here",
            str(error),
            "in the clone of transom: pip install '.[train]'",
        ) from None
    partial = out.with_name(f".{out.name}.partial")
    try:
        dcp_to_torch_save(checkpoint, partial)
        partial.rename(out)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            from transom_cli.submit.rundir import explain

            raise explain(error, out.absolute(), doing="write", instead="give another file") from error
        raise TransomError(f"Cannot write {out}", str(error), f"df -h {out.absolute().parent}") from None
