"""`--dir`: which sandbox a `transom sandbox` command means; `--release`: whose Slurm it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from transom_cli.errors import SlurmUnreachable

if TYPE_CHECKING:
    from transom_cli.sandbox.cluster import Sandbox

Dir = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option("--dir", help="The sandbox's folder [default: $TRANSOM_SANDBOX_DIR, else ~/.transom/sandbox]."),
]
ReleaseDir = Annotated[
    Optional[Path],  # noqa: UP045 - as above
    typer.Option(
        help="Where releases are kept [default: $TRANSOM_SANDBOX_RELEASES, else ~/.cache/transom/releases, "
        "root's: /var/cache/transom/releases]."
    ),
]


def built(release: str, where: Path | None, mirror: str) -> str:
    """The folder of that release, built now if need be; empty for this machine's own Slurm."""
    from transom_cli.sandbox.release.known import NATIVE
    from transom_cli.sandbox.release.obtain import default_folder, obtain

    if release == NATIVE:
        return ""
    said = obtain(release, (where or default_folder()).absolute(), _say, mirror)
    if said.why_no_pyslurm:
        _say(f"without pyslurm: {said.why_no_pyslurm}")
    return str(said.home.path)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def folder(asked: Path | None) -> Path:
    from transom_cli.sandbox.spec import default_dir

    return asked or default_dir()


def existing(asked: Path | None) -> Sandbox:
    from transom_cli.sandbox.cluster import Sandbox

    return Sandbox.at(folder(asked))


def running(asked: Path | None) -> Sandbox:
    sandbox = existing(asked)
    if not sandbox.is_up:
        raise SlurmUnreachable(
            f"The sandbox in {sandbox.dir} is not up", hint=f"transom sandbox up --dir {sandbox.dir}"
        )
    return sandbox
