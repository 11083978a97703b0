"""`transom bundle`: a redacted archive of a run, for a support ticket."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.common import bounded, run_to_read
from transom_cli.cli.options import Root, Run, output_path
from transom_cli.errors import UsageError

_MEGA = 1 << 20


def bundle(
    run: Run = None,
    root: Root = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=output_path,
            metavar="PATH",
            help="File or folder [default: transom-<run>.tar.gz here].",
        ),
    ] = None,
    max_size: Annotated[int, typer.Option(min=1, max=1000, help="Maximum content in MB before compression.")] = 20,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Keep names of hosts and users, addresses and paths.")
    ] = False,
) -> None:
    """Write a redacted archive for a support ticket.

    It contains the journals, state, outcomes, findings, health reports, settings, versions and the end of each log.
    Secrets, tokens, URLs, home folders, and names of users and hosts are replaced. Read it before you send it.
    """
    from transom_cli.submit.rundir import path_error
    from transom_cli.supervise.bundle import collect, redactor_of, write_archive
    from transom_cli.view.terminal import waiting

    if output == Path("-"):
        raise UsageError(
            "The archive cannot be written to stdout", "stdout lists its files", "name a file with --output"
        )
    found = run_to_read(bounded(root, run), run)
    name = f"transom-{found.run_id}.tar.gz"
    target = output / name if output is not None and output.is_dir() else output or Path(name)
    with waiting("collecting and redacting files"):
        contents = collect(found, redactor_of(found, keep_names=keep_names), max_size * _MEGA)
    try:
        write_archive(target, contents.files)
    except FileExistsError:
        raise UsageError(f"{target} already exists", hint="name another file with --output") from None
    except OSError as error:
        raise path_error(error, target, doing="write", instead="name another file with --output") from error
    for name, data in contents.files:
        print(f"{len(data):>10,}  {name}")
    for line in contents.left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(f"{target}: {target.stat().st_size:,} bytes, mode 0600; read it before you send it", file=sys.stderr)
