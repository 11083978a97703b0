"""`--dir`: which sandbox a `transom sandbox` command means."""

from __future__ import annotations

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
