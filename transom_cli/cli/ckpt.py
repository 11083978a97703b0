"""`transom ckpt`: what could be restored, and whether its bytes are good. Neither needs torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.ckpt_files import export, import_
from transom_cli.cli.ckpt_memory import Seen, as_json, checked, notes, rows, seen
from transom_cli.cli.ckpt_places import Run, candidates_in, checkpoints_of_words, chosen, run_of_words
from transom_cli.cli.ckpt_plan import plan
from transom_cli.cli.ckpt_proof import deep as compare
from transom_cli.cli.ckpt_proof import diff
from transom_cli.cli.options import Json, Root, examples
from transom_cli.errors import NoCheckpoint, TransomError, UsageError
from transom_cli.view.text import day_time, size, span, zone

if TYPE_CHECKING:
    from transom_cli.ckpt.inventory import Verdict
    from transom_cli.ckpt.tiers.record import MirrorState
    from transom_cli.core.bad_loss import BadLoss
    from transom_cli.layout import RunDir

_Step = Annotated[int | None, typer.Option("--step", help="Only this step.")]

ckpt_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, verify, compare and move checkpoints.",
    epilog=examples("ckpt"),
)
ckpt_app.command("export")(export)
ckpt_app.command("import")(import_)
ckpt_app.command("plan")(plan)
ckpt_app.command("diff")(diff)


@ckpt_app.command("ls")
def ls(run: Run = None, root: Root = None, json_: Json = False) -> None:
    """List checkpoints and snapshots, newest first.

    Checks sizes and manifests without reading the data.
    """
    from transom_cli.ckpt.inventory import survey
    from transom_cli.ckpt.tiers.record import read as read_mirrors
    from transom_cli.view.terminal import waiting

    directory = checkpoints_of_words(run, root, listed=True)
    with waiting("looking at checkpoints"):
        mirrors = read_mirrors(directory)
        memory = seen(run_of_words(run, root), directory)
        found = [survey(candidate) for candidate in candidates_in(directory)]
        loss = _bad_loss(run_of_words(run, root), directory)
    _show(directory, found, memory, json_, good="complete", mirrors=mirrors, loss=loss)


def _bad_loss(run: RunDir | None, directory: Path) -> BadLoss | None:
    """Return since when the loss of the run is bad, if these are the checkpoints that it writes."""
    from transom_cli.supervise.attempt_files import bad_loss_of
    from transom_cli.view.read import read_run_settings

    if run is None or read_run_settings(run).checkpoints.absolute() != directory.absolute():
        return None
    return bad_loss_of(run)


@ckpt_app.command("keep")
def keep(
    run: Run = None,
    step: Annotated[int, typer.Option("--step", help="The checkpoint's step.")] = ...,  # type: ignore[assignment]
    undo: Annotated[bool, typer.Option("--undo", help="Allow its deletion again.")] = False,
    root: Root = None,
) -> None:
    """Protect a checkpoint from deletion.

    `transom prune --last-checkpoints` still deletes it, with its run directory.
    """
    from transom_cli.ckpt.tiers import marks
    from transom_cli.submit.rundir import path_error

    for candidate in chosen(checkpoints_of_words(run, root, make=run is not None), step):
        try:
            marks.keep(candidate.path, kept=not undo)
        except OSError as error:
            raise path_error(error, candidate.path, doing="write", instead="check its owner") from error


@ckpt_app.command("seal")
def seal(
    checkpoint: Annotated[Path, typer.Argument(exists=True, help="A folder or a file.")],
    step: Annotated[int | None, typer.Option("--step", help="Its step [default: from the name].")] = None,
) -> None:
    """Seal a framework's checkpoint.

    A run resumes from a sealed checkpoint. Seal it by hand if you know that it is complete.
    """
    from transom_cli.ckpt.names import step_of
    from transom_cli.ckpt.seal import seal as seal_one
    from transom_cli.submit.rundir import path_error

    step = step_of(checkpoint.name) if step is None else step
    if step is None:
        raise UsageError(f"The step cannot be read from the name {checkpoint.name}", hint="give it: --step N")
    try:
        made = seal_one(checkpoint, step)
    except OSError as error:
        raise path_error(error, checkpoint, doing="seal", instead="look at its files") from error
    print(f"sealed {checkpoint}: step {step}, {len(made.files)} files, {size(sum(e.size for e in made.files))}")


@ckpt_app.command("verify")
def verify(
    run: Run = None,
    root: Root = None,
    step: _Step = None,
    deep: Annotated[bool, typer.Option("--deep", help="Compare every value with its digest; also plain DCP.")] = False,
    json_: Json = False,
) -> None:
    """Read every checkpoint and compare checksums.

    Exit code 15: none is good. Good means that the bytes are those that were saved. It does not mean that you can trust
    who saved them: the manifest carries no signature.

    --deep reads the values of the checkpoints on disk (this needs torch), and compares them with the digests of the
    state that was saved, instead of the files with their checksums. A checkpoint without digests, such as one of
    torch's DCP, is read in full and reported as not proven.

    Snapshots in memory are read on their nodes, if a node of the run can be reached from here.
    """
    from transom_cli.ckpt.inventory import survey
    from transom_cli.ckpt.inventory import verify as verify_one
    from transom_cli.ckpt.names import DCP_METADATA
    from transom_cli.view.terminal import waiting

    directory = checkpoints_of_words(run, root)
    if deep:
        alone = [directory] if (directory / DCP_METADATA).is_file() else []
        compare(alone or [candidate.path for candidate in chosen(directory, step)], json_)
        return
    with waiting("reading snapshots on their nodes"):
        memory = checked(run_of_words(run, root), directory, step)
    there = candidates_in(directory) if memory.steps else chosen(directory, step)
    matching = [candidate for candidate in there if step in (None, candidate.step)]
    verdicts = []
    sizes = [found.manifest.size for found in map(survey, matching) if found.manifest is not None]
    with waiting("reading checkpoints", sum(sizes), of_bytes=True) as shown:
        for candidate in matching:
            shown.add(0, f"reading {candidate.name}")
            verdicts.append(verify_one(candidate, shown.add))
    _show(directory, verdicts, memory, json_, good="good")
    if not memory.good and not any(verdict.good for verdict in verdicts):
        raise _none_good(directory, verdicts, memory)


def _none_good(directory: Path, verdicts: list[Verdict], memory: Seen) -> TransomError:
    lines = [f"step {step} {cells[-1]}" for step, cells in rows(memory)]
    why = "\n".join([*lines, *(f"{verdict.candidate.path.name}: {verdict.reason}" for verdict in verdicts)])
    return NoCheckpoint(f"No checkpoint verifies in {directory}", why, f"transom ckpt ls {directory}")


def _show(
    directory: Path, verdicts: list[Verdict], memory: Seen, json_: bool, good: str,
    mirrors: Mapping[str, MirrorState] | None = None, loss: BadLoss | None = None,
) -> None:  # fmt: skip
    mirrors = mirrors or {}
    if json_:
        document = {"schema": 1, "directory": str(directory), "checkpoints": [_as_json(v, loss) for v in verdicts]}
        copies = {"copies": {url: asdict(state) for url, state in mirrors.items()}} if mirrors else {}
        typer.echo(json.dumps({**document, **copies, **as_json(memory)}, indent=1))
        return
    for url, state in mirrors.items():
        if state.trouble:
            typer.echo(f"the last upload to {url} failed: {state.trouble}", err=True)
    for line in notes(memory):
        typer.echo(line, err=True)
    found = sorted(
        [*rows(memory), *(_row(verdict, good, loss) for verdict in verdicts), *_copies(mirrors)],
        key=lambda row: row[0],
        reverse=True,
    )
    if not found:
        typer.echo(f"no checkpoints in {directory}", err=True)
        return
    now = time.time()
    head = ("STEP", "SIZE", "RANKS", "ATTEMPT", f"CREATED ({zone(now)})", "STATE")
    table = [head, *((*cells[:4], _local(cells[4], now), cells[5]) for _, cells in found)]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    for row in table:
        typer.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]))


def _local(created: str, now: float) -> str:
    """Return a manifest's time as every screen shows times."""
    try:
        return day_time(datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp(), now)
    except ValueError:
        return created


def _row(verdict: Verdict, good: str, loss: BadLoss | None = None) -> tuple[int, tuple[str, ...]]:
    from transom_cli.ckpt.tiers.marks import BAD_LOSS, is_automatic, is_kept, read_metrics

    step, manifest = verdict.candidate.step, verdict.manifest
    state = good if verdict.good else f"bad: {verdict.reason}"
    if is_kept(verdict.candidate.path):
        state += ", kept by transom" if is_automatic(verdict.candidate.path) else ", kept"
    if loss is not None and (mark := loss.mark(step)):
        state += f", {mark}"
    if metrics := read_metrics(verdict.candidate.path):
        shown = (f"{n} {v:.6g}" if n != BAD_LOSS else "loss NaN or infinite" for n, v in metrics.items())
        state += f"; {', '.join(shown)}"
    if manifest is None:
        return step, (str(step), "-", "-", "-", "-", state)
    about = size(manifest.size), str(manifest.world_size)
    return step, (str(step), *about, manifest.attempt, manifest.created, state)


def _copies(mirrors: Mapping[str, MirrorState]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Rows of the copies in object storage, as they were after the last upload to each place."""
    for url, state in mirrors.items():
        for one in state.there:
            step = int(one["step"])
            about = size(int(one["size"])), str(one["world_size"]), str(one["attempt"]), str(one["created"])
            yield step, (str(step), *about, f"in {url}, {span(max(0.0, time.time() - state.wall))} ago")


def _as_json(verdict: Verdict, loss: BadLoss | None = None) -> dict[str, Any]:
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
        "bad_loss": loss.mark(verdict.candidate.step) if loss is not None else "",
    }
