"""`transom sandbox fault`: a shared file system that hangs, is read-only or shows late, a clock that jumps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.sandbox_folder import Dir, running

Folder = Annotated[Path, typer.Argument(help="The folder, as a run directory's root; shared first where it is not.")]
Shared = Annotated[Path, typer.Argument(help="The folder that was shared.")]


def share_disk(folder: Folder, dir: Dir = None) -> None:
    """Make a folder a file system of its own, with what is in it, for the faults of disks. Undo: unshare-disk."""
    from transom_cli.sandbox import faults

    faults.share_disk(running(dir), folder)
    print(f"shared {folder}")


def unshare_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo share-disk, and with it whatever was done to that disk."""
    from transom_cli.sandbox import faults

    faults.unshare_disk(running(dir), folder)
    print(f"unshared {folder}")


def stall_disk(folder: Folder, dir: Dir = None) -> None:
    """The file system hangs: every call on it waits. Undo: cont-disk."""
    from transom_cli.sandbox import faults

    faults.stall_disk(running(dir), folder)
    print(f"stalled {folder}")


def cont_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo stall-disk."""
    from transom_cli.sandbox import faults

    faults.cont_disk(running(dir), folder)
    print(f"continued {folder}")


def readonly_disk(folder: Folder, dir: Dir = None) -> None:
    """The file system is read-only, also for files that are open already. Undo: writable-disk."""
    from transom_cli.sandbox import faults

    faults.readonly_disk(running(dir), folder)
    print(f"read-only: {folder}")


def writable_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo readonly-disk."""
    from transom_cli.sandbox import faults

    faults.writable_disk(running(dir), folder)
    print(f"writable: {folder}")


def late_files(
    folder: Annotated[Path, typer.Argument(help="The folder, as a run directory's root.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How late.", min=0.0)] = 3.0,
    nfs: Annotated[
        bool, typer.Option("--nfs", help="But for what Linux' NFS asks its server anew: what is opened and is there.")
    ] = False,
    dir: Dir = None,
) -> None:
    """Each node sees late what others change in a folder, as over NFS (as root; no job may run). Undo: fresh-files."""
    from transom_cli.sandbox import faults

    faults.late_files(running(dir), folder, seconds, nfs=nfs)
    print(f"every node sees {folder} {seconds:g} s late")


def fresh_files(folder: Annotated[Path, typer.Argument(help="The folder that shows late.")], dir: Dir = None) -> None:
    """Undo late-files."""
    from transom_cli.sandbox import faults

    faults.fresh_files(running(dir), folder)
    print(f"every node sees {folder} as it is")


def jump_clock(
    seconds: Annotated[float, typer.Argument(help="By how many seconds; below zero: back (after `--`).")],
    host: Annotated[str, typer.Option("--host", help="A node's name, or login [default: all].")] = "",
    dir: Dir = None,
) -> None:
    """The wall clock jumps, for runs started under `transom sandbox exec --clock`. Undo: reset-clock."""
    from transom_cli.sandbox import faults

    faults.jump_clock(running(dir), seconds, host)
    print(f"the clock of {host or 'every host'} jumped by {seconds:+g} s")


def reset_clock(
    host: Annotated[str, typer.Option("--host", help="A node's name, or login [default: all].")] = "",
    dir: Dir = None,
) -> None:
    """Undo jump-clock."""
    from transom_cli.sandbox import faults

    faults.reset_clock(running(dir), host)
    print(f"the clock of {host or 'every host'} is right")


COMMANDS = (
    share_disk,
    unshare_disk,
    stall_disk,
    cont_disk,
    readonly_disk,
    writable_disk,
    late_files,
    fresh_files,
    jump_clock,
    reset_clock,
)
