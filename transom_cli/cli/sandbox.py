"""`transom sandbox`: a real small Slurm on this machine, and real faults in it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Annotated

import typer

from transom_cli.cli.examples import examples
from transom_cli.cli.sandbox_fault import fault_app
from transom_cli.cli.sandbox_folder import Dir, ReleaseDir, built, existing, folder, running
from transom_cli.errors import SlurmUnreachable, UsageError

Clock = Annotated[bool, typer.Option("--clock", help="With a wall clock that `fault jump-clock` can set.")]

sandbox_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A real small Slurm on this machine, and real faults in it.",
    epilog=examples("sandbox"),
)
sandbox_app.add_typer(fault_app, name="fault")


@sandbox_app.command()
def up(
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that Slurm counts on each node.")] = 2,
    switches: Annotated[int, typer.Option(help="Leaf switches that Slurm knows of (topology/tree) [0: none].")] = 0,
    accounting: Annotated[bool, typer.Option("--accounting", help="Add slurmdbd on a MariaDB (sacct).")] = False,
    release: Annotated[str, typer.Option(help="Whose Slurm: native, or of Debian trixie or forky.")] = "native",
    release_dir: ReleaseDir = None,
    mirror: Annotated[str, typer.Option(help="Debian mirror to fetch a release from [default: apt's own].")] = "",
    dir: Dir = None,
) -> None:
    """Start the cluster and wait until every node is idle.

    Another release's Slurm is fetched with apt into a folder, once, and run from there beside this machine's own.
    """
    from transom_cli.sandbox.cluster import Sandbox
    from transom_cli.sandbox.spec import SandboxSpec

    home = built(release, release_dir, mirror)
    sandbox = Sandbox.up(SandboxSpec(folder(dir), nodes, gpus_per_node, accounting, home=home, switches=switches))
    print(f"up: {sandbox.spec} in {sandbox.dir}")
    where = "" if dir is None else f" --dir {sandbox.dir}"
    print(f"hint: transom sandbox exec{where} -- sinfo", file=sys.stderr)


@sandbox_app.command()
def down(dir: Dir = None) -> None:
    """End every process of the cluster, jobs included."""
    sandbox = existing(dir)
    sandbox.down()
    print(f"down: {sandbox.dir}")


@sandbox_app.command()
def status(json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False, dir: Dir = None) -> None:
    """Which daemons run, and what Slurm says of the nodes. Exit code 12 when it is not up, 2 when there is none."""
    from dataclasses import asdict

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
        raise typer.Exit(SlurmUnreachable.exit_code)


@sandbox_app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[list[str], typer.Argument(help="The command and its words.")],
    clock: Clock = False,
    dir: Dir = None,
) -> None:
    """Run a command with this cluster as its Slurm; its exit code is passed through."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
    try:
        os.execvpe(command[0], command, {**env, **_variables(dir, clock)})
    except FileNotFoundError as error:
        raise UsageError(f"There is no command {command[0]!r}", str(error)) from error
    except PermissionError as error:
        raise UsageError(f"Cannot run {command[0]!r}", str(error)) from error


@sandbox_app.command()
def env(clock: Clock = False, dir: Dir = None) -> None:
    """Print what to `eval` in a shell to use this cluster."""
    for name, value in _variables(dir, clock).items():
        print(f"export {name}={shlex.quote(value)}")


def _variables(dir: Dir, clock: bool) -> dict[str, str]:
    from transom_cli.sandbox import faults

    sandbox = running(dir)
    return {**sandbox.env(), **(faults.clock_env(sandbox) if clock else {})}
