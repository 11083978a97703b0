"""`transom ckpt export` and `import`: a checkpoint as one file for elsewhere, and one file as a checkpoint."""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.ckpt_places import Run, candidates_in, checkpoints_of_words, chosen
from transom_cli.cli.options import Json, Root, run_ids
from transom_cli.errors import NoCheckpoint, TransomError, UsageError
from transom_cli.plural import several
from transom_cli.view.text import size

if TYPE_CHECKING:
    from transom_cli.ckpt.convert.exporter import Exported
    from transom_cli.ckpt.inventory import Candidate

_NAMES = 5  # keys that are named on a terminal before "and n more"


class Format(str, enum.Enum):
    torch = "torch"
    safetensors = "safetensors"


class Source(str, enum.Enum):
    torch = "torch"
    safetensors = "safetensors"
    dcp = "dcp"


_SUFFIXES = {
    ".pt": Format.torch, ".pth": Format.torch, ".bin": Format.torch, ".ckpt": Format.torch,
    ".safetensors": Format.safetensors,
}  # fmt: skip
_Format = Annotated[Format | None, typer.Option("--format", help="File format [default: by the suffix of FILE].")]
_Only = Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this entry (repeatable).")]


def export(
    out: Annotated[Path, typer.Option("-o", "--output", "--out", metavar="FILE", help="The file to write.")],
    run: Run = None,
    root: Root = None,
    step: Annotated[int | None, typer.Option("--step", help="Step of the checkpoint [default: the newest].")] = None,
    form: _Format = None,
    only: _Only = None,
    everything: Annotated[bool, typer.Option("--all", help="Also per-rank state (random numbers, ...).")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run code that values of the checkpoint name; only if you trust it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as torch or safetensors file.

    A safetensors file holds tensors only, and is written tensor by tensor; a torch file takes memory for all that is
    exported. Verifies every byte first and refuses a damaged checkpoint. Also refuses a value that needs code to load
    (an object of the trainer's own class, or a planted program): --only selects other parts, --allow-code loads it.
    """
    from transom_cli.ckpt.convert.outfile import refuse_taken
    from transom_cli.view.terminal import waiting

    form = _format(out, form)
    if only and everything:
        raise UsageError("`--only` and `--all` cannot be combined", hint="per-rank state alone: --only ranks")
    if everything and form is Format.safetensors:
        raise UsageError("Per-rank state is not tensors alone: safetensors does not hold it", hint="--format torch")
    refuse_taken(out, force=force)
    directory = checkpoints_of_words(run, root)
    candidate = chosen(directory, step)[0]
    if candidate.path.resolve() in out.resolve().parents:
        raise UsageError(f"{out} is inside the checkpoint", hint="give another file")
    with _needs(form):
        from transom_cli.ckpt.convert.exporter import export as write
    _verified(directory, candidate)
    with _told(out), waiting(f"writing {out.name}", of_bytes=True) as shown:
        done = write(
            candidate, out, form.value, only=only or (), everything=everything, force=force, allow_code=allow_code,
            expect=shown.expect, on_bytes=shown.add,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(_exported(candidate, out, form, done), indent=1))
        return
    _say(f"{candidate.path} -> {out} ({size(done.size)}, {several(len(done.tensors), 'tensor')})")
    if done.left_out_ranks:
        _say("left out: per-rank state (random numbers, data positions); --all includes it")
    if done.not_tensors:
        _say(f"left out, for they are no tensors: {_first(done.not_tensors)}")
    if done.code:
        _say(f"loads with weights_only=False alone, because of {_first(done.code)}")


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A torch or safetensors file, or a directory of PyTorch's DCP."),
    ],
    run: Annotated[
        str, typer.Argument(metavar="RUN|PATH", help="A run, or a directory of checkpoints.", autocompletion=run_ids)
    ],
    step: Annotated[int, typer.Option("--step", min=0, help="Number of finished training steps.")],
    root: Root = None,
    form: Annotated[
        Source | None, typer.Option("--format", help="Format of FILE [default: by its suffix; dcp for a directory].")
    ] = None,
    under: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Import the whole file as this entry, such as `model`.")
    ] = None,
    only: _Only = None,
    afresh: Annotated[
        list[str] | None,
        typer.Option("--afresh", metavar="NAME", help="An entry that FILE lacks and that starts fresh (repeatable)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a file or DCP folder to a checkpoint.

    Reads only data from FILE, and refuses a file that needs code to load. Random number state and data positions start
    fresh unless FILE has per-rank state (`export --all`). Name other entries that FILE lacks with --afresh.
    """
    from transom_cli.view.terminal import waiting

    if form is None:
        form = Source.dcp if file.is_dir() else Source(_format(file, None).value)
    folder = Path(run)
    with _needs(Format.safetensors if form is Source.safetensors else Format.torch):
        from transom_cli.ckpt.convert.importer import import_file
    with _made(folder if "/" in run else None):
        directory = checkpoints_of_words(run, root, make=True)
        with _told(directory), waiting(f"importing {file.name}", of_bytes=True) as shown:
            done = import_file(
                file, form.value, directory, step, under=under, only=only or (), afresh=tuple(afresh or ()),
                expect=shown.expect, on_bytes=shown.add,
            )  # fmt: skip
    newer = [candidate.step for candidate in candidates_in(directory) if candidate.step > step]
    if as_json:
        document = {
            "file": str(file),
            "format": form.value,
            "checkpoint": str(done.path),
            "step": step,
            "size": done.size,
            "tensors": done.tensors,
            "values": done.values,
            "entries": list(done.entries),
            "afresh": list(afresh or ()),
            "ranks": done.ranks,
            "newer": newer,
            **({"verified": done.verified} if done.verified else {}),
        }
        typer.echo(json.dumps({"schema": 1, "imported": document}, indent=1))
        return
    _say(f"{file} -> {done.path} ({size(done.size)}; {', '.join(done.entries)})")
    if done.verified:
        _say(f"{file} is {done.verified}")
    if not done.ranks:
        _say("it has no per-rank state: random numbers and data positions start afresh")
    if newer:
        _say(f"a restore chooses the newest checkpoint, and there are newer ones: {_first(tuple(map(str, newer)))}")


def _format(file: Path, form: Format | None) -> Format:
    found = form or _SUFFIXES.get(file.suffix.lower())
    if found is None:
        raise UsageError(
            f"The format cannot be read from the name {file.name}",
            f"known suffixes: {' '.join(_SUFFIXES)}",
            "--format torch, or --format safetensors",
        )
    return found


def _verified(directory: Path, candidate: Candidate) -> None:
    """Raise NoCheckpoint for a damaged checkpoint, and name an older one that is good."""
    from transom_cli.ckpt.inventory import survey, verify
    from transom_cli.view.terminal import waiting

    manifest = survey(candidate).manifest
    with waiting(f"reading {candidate.name}", manifest.size if manifest else None, of_bytes=True) as shown:
        verdict = verify(candidate, shown.add)
    if verdict.good:
        return
    older = (c for c in candidates_in(directory) if c.step < candidate.step)
    other = next((c.step for c in older if survey(c).good), None)
    raise NoCheckpoint(
        f"{candidate.path} is damaged",
        "\n".join(verdict.reasons),
        f"transom ckpt verify {directory}" + (f"\nthe newest before it: --step {other}" if other is not None else ""),
    )


@contextlib.contextmanager
def _made(folder: Path | None) -> Iterator[None]:
    """Make the folder if it is missing; remove what was made if the import fails."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()] if folder else []
    if folder and missing:
        with _told(folder):
            folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


@contextlib.contextmanager
def _needs(form: Format) -> Iterator[None]:
    """Imports of what need not be installed where transom is."""
    from transom_cli.view.terminal import waiting

    try:
        if form is Format.safetensors:
            import safetensors  # noqa: F401
        with waiting("loading PyTorch"):
            yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", "numpy", "safetensors"):
            raise
        extra = "safetensors" if package == "safetensors" else "train"
        words = {"torch": "PyTorch", "numpy": "numpy", "safetensors": "the safetensors library"}[package]
        raise TransomError(
            f"This needs {words}, which is not installed here",
            str(error),
            f"in the clone of transom: pip install '.[{extra}]'",
        ) from None


@contextlib.contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        from transom_cli.submit.rundir import path_error

        raise path_error(error, place.absolute(), doing="write", instead="give another place") from error
    except (MemoryError, RuntimeError) as error:  # torch's own, for address space too
        why = str(error).strip().partition("\n")[0]
        raise TransomError(f"cannot write {place.absolute()}", why, f"df -h {place.absolute().parent}") from error


def _exported(candidate: Candidate, out: Path, form: Format, done: Exported) -> dict[str, Any]:
    document = {
        "checkpoint": str(candidate.path),
        "step": candidate.step,
        "file": str(out),
        "format": form.value,
        "size": done.size,
        "tensors": len(done.tensors),
        "values": len(done.values),
        "weights_only": not done.code,
        "needs_code": list(done.code),
        "left_out": {"per_rank": done.left_out_ranks, "not_tensors": list(done.not_tensors)},
    }
    return {"schema": 1, "exported": document}


def _first(keys: tuple[str, ...]) -> str:
    more = len(keys) - _NAMES
    return ", ".join(keys[:_NAMES]) + (f", and {more} more" if more > 0 else "")


def _say(line: str) -> None:
    typer.echo(line, err=True)
