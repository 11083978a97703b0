"""`transom sandbox`: a real small Slurm on this machine."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from transom_cli.cli.options import Json, examples
from transom_cli.errors import SlurmUnreachable, UsageError

if TYPE_CHECKING:
    from transom_cli.sandbox.cluster import Sandbox

Dir = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option("--dir", help="Folder of the sandbox [default: $TRANSOM_SANDBOX_DIR, else ~/.transom/sandbox]."),
]
ReleaseDir = Annotated[
    Optional[Path],  # noqa: UP045 - as above
    typer.Option(
        help="Folder of fetched releases [default: $TRANSOM_SANDBOX_RELEASES, else ~/.cache/transom/releases, "
        "root's: /var/cache/transom/releases]."
    ),
]


def built(release: str, where: Path | None, mirror: str) -> str:
    """Return the folder of the release, built if needed, or "" for this machine's own Slurm."""
    from transom_cli.sandbox.release.known import NATIVE
    from transom_cli.sandbox.release.obtain import default_folder, obtain

    if release == NATIVE:
        return ""
    result = obtain(release, (where or default_folder()).absolute(), _say, mirror)
    if result.why_no_pyslurm:
        _say(f"without pyslurm: {result.why_no_pyslurm}")
    return str(result.home.path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def folder(given: Path | None) -> Path:
    from transom_cli.sandbox.state import default_dir

    return given or default_dir()


def existing(given: Path | None) -> Sandbox:
    from transom_cli.sandbox.cluster import Sandbox

    return Sandbox.at(folder(given))


def running(given: Path | None) -> Sandbox:
    sandbox = existing(given)
    if not sandbox.is_up:
        raise SlurmUnreachable(
            f"The sandbox in {sandbox.dir} is not up", hint=f"transom sandbox up --dir {sandbox.dir}"
        )
    return sandbox


Clock = Annotated[bool, typer.Option("--clock", help="Use a wall clock that `fault jump-clock` can set.")]

sandbox_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A small real Slurm on this machine.",
    epilog=examples("sandbox"),
)


@sandbox_app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that Slurm counts on each node.")] = 2,
    switches: Annotated[int, typer.Option(help="Leaf switches in Slurm's topology (topology/tree); 0 for none.")] = 0,
    accounting: Annotated[bool, typer.Option("--accounting", help="Add accounting: slurmdbd on MariaDB.")] = False,
    site: Annotated[
        str,
        typer.Option(help="Site profiles, joined with commas (`transom sandbox sites` lists them)."),
    ] = "",
    release: Annotated[str, typer.Option(help="Slurm release: native, or that of Debian trixie or forky.")] = "native",
    release_dir: ReleaseDir = None,
    mirror: Annotated[str, typer.Option(help="Debian mirror to fetch a release from [default: apt's].")] = "",
    dir: Dir = None,
) -> None:
    """Start the cluster and wait for idle nodes.

    With --release, apt fetches another Slurm release into a folder once; it runs beside this machine's own Slurm.
    """
    from transom_cli.sandbox.cluster import Sandbox
    from transom_cli.sandbox.state import SandboxSpec
    from transom_cli.view.terminal import waiting

    home = built(release, release_dir, mirror)
    names = tuple(filter(None, site.split(",")))
    spec = SandboxSpec(folder(dir), nodes, gpus_per_node, accounting, home=home, switches=switches, site=names)
    with waiting(f"starting {nodes} nodes"):
        sandbox = Sandbox.up(spec)
    print(f"up: {sandbox.spec} in {sandbox.dir}")
    for key, user in sandbox.users().items():
        print(f"  {key}: user {user.name!r}, {user.admin_level.lower() or 'ordinary'}")
    where = "" if dir is None else f" --dir {sandbox.dir}"
    print(f'hint: eval "$(transom sandbox env{where})"   # this shell then uses it', file=sys.stderr)


@sandbox_app.command()
def sites() -> None:
    """List site profiles and what they need here."""
    from transom_cli.sandbox.sites import SITES

    width = max(map(len, SITES))
    for name, site in SITES.items():
        missing = site.why_not()
        print(f"{name:<{width}}  {site.about}{f' (not on this machine: {missing})' if missing else ''}")


@sandbox_app.command()
def down(dir: Dir = None) -> None:
    """Stop the cluster and all its jobs."""
    from transom_cli.view.terminal import waiting

    sandbox = existing(dir)
    with waiting("stopping jobs and nodes"):
        sandbox.down()
    print(f"down: {sandbox.dir}")


@sandbox_app.command()
def status(json_: Json = False, dir: Dir = None) -> None:
    """Show the daemons and the nodes. Exit code 12: the cluster is not up; 2: there is none."""

    seen = existing(dir).status()
    if json_:
        print(json.dumps({"schema": 1, **asdict(seen)}, default=str))
    else:
        print(f"{'up' if seen.up else 'down'}: {seen.dir}" + (f"  ({seen.why})" if seen.why else ""))
        for daemon in seen.daemons:
            print(f"  {daemon.name:<10} {daemon.state:<8} pid {daemon.pid}")
        for node in seen.nodes:
            print(f"  {node.name:<10} {node.state:<8} {node.reason}".rstrip())
    if not seen.up:
        print(f"hint: transom sandbox up --dir {seen.dir}", file=sys.stderr)
        raise typer.Exit(SlurmUnreachable.exit_code)


@sandbox_app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.")],
    clock: Clock = False,
    user: Annotated[str, typer.Option(help="Run it as a user of the site profiles: alice, bob, carol, dave.")] = "",
    dir: Dir = None,
) -> None:
    """Run a command that uses this cluster."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
    env |= _variables(dir, clock)
    if user:
        users = running(dir).users()
        if user not in users:
            names = ", ".join(users) or "none: root creates them with a sandbox with --site"
            raise UsageError(f"No such user of the sandbox: {user!r}", f"there are {names}")
        env |= users[user].env()
        os.setgroups([])
        os.setgid(users[user].gid)
        os.setuid(users[user].uid)
        os.chdir(users[user].home)
    try:
        os.execvpe(command[0], command, env)
    except FileNotFoundError as error:
        raise UsageError(f"No such command: {command[0]!r}", str(error)) from error
    except PermissionError as error:
        raise UsageError(f"Cannot run {command[0]!r}", str(error)) from error


@sandbox_app.command()
def env(clock: Clock = False, dir: Dir = None) -> None:
    """Print shell code that selects this cluster."""
    for name, value in _variables(dir, clock).items():
        print(f"export {name}={shlex.quote(value)}")


def _variables(dir: Dir, clock: bool) -> dict[str, str]:
    from transom_cli.sandbox import faults

    sandbox = running(dir)
    return {**sandbox.env(), **(faults.clock_env(sandbox) if clock else {})}
