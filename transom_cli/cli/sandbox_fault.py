"""`transom sandbox fault`: one sub-command a fault, and one that undoes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli import sandbox_fault_jobs, sandbox_fault_shared
from transom_cli.cli.sandbox_folder import Dir, running

fault_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make a real fault, or undo one.")

Node = Annotated[str, typer.Argument(help="A node's name, as node2.")]
Job = Annotated[int, typer.Option("--job", help="The job's id.")]
Rank = Annotated[int, typer.Argument(help="The global rank.")]


@fault_app.command()
def kill_node(node: Node, dir: Dir = None) -> None:
    """The machine dies: slurmd and every job process on it. Undo: restore-node."""
    from transom_cli.sandbox import faults

    print(f"killed {node}: {faults.kill_node(running(dir), node)} processes")


@fault_app.command()
def restore_node(
    node: Node,
    undrain: Annotated[bool, typer.Option("--undrain", help="Take a drain off it, too.")] = False,
    dir: Dir = None,
) -> None:
    """The machine is back, and Slurm may use it again."""
    from transom_cli.sandbox import faults

    faults.restore_node(running(dir), node, undrain=undrain)
    print(f"restored {node}")


@fault_app.command()
def stop_node(node: Node, dir: Dir = None) -> None:
    """The machine hangs, its connections stay open. Undo: cont-node."""
    from transom_cli.sandbox import faults

    print(f"stopped {node}: {faults.stop_node(running(dir), node)} processes")


@fault_app.command()
def cont_node(node: Node, dir: Dir = None) -> None:
    """Undo stop-node."""
    from transom_cli.sandbox import faults

    print(f"continued {node}: {faults.cont_node(running(dir), node)} processes")


@fault_app.command()
def kill_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """One rank's process dies (SIGKILL). Nothing undoes that."""
    from transom_cli.sandbox import faults

    print(f"killed rank {rank} of job {job}: pid {faults.kill_rank(running(dir), job, rank)}")


@fault_app.command()
def stop_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """One rank hangs (SIGSTOP). Undo: cont-rank."""
    from transom_cli.sandbox import faults

    print(f"stopped rank {rank} of job {job}: pid {faults.stop_rank(running(dir), job, rank)}")


@fault_app.command()
def cont_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """Undo stop-rank."""
    from transom_cli.sandbox import faults

    print(f"continued rank {rank} of job {job}: pid {faults.cont_rank(running(dir), job, rank)}")


@fault_app.command()
def slow_rank(
    rank: Rank,
    job: Job,
    duty: Annotated[float, typer.Option(help="The share of the time that it runs.", min=0.0, max=1.0)] = 0.5,
    dir: Dir = None,
) -> None:
    """One rank gets only a share of the time. Undo: unslow-rank."""
    from transom_cli.sandbox import faults

    print(f"slowed rank {rank} of job {job}: pid {faults.slow_rank(running(dir), job, rank, duty)}")


@fault_app.command()
def unslow_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """Undo slow-rank."""
    from transom_cli.sandbox import faults

    was = faults.unslow_rank(running(dir), job, rank)
    print(f"rank {rank} of job {job} {'runs freely again' if was else 'was not slowed'}")


@fault_app.command()
def kill_controller(dir: Dir = None) -> None:
    """slurmctld dies, jobs run on. Undo: start-controller."""
    from transom_cli.sandbox import faults

    print(f"killed slurmctld: {faults.kill_controller(running(dir))} processes")


@fault_app.command()
def start_controller(dir: Dir = None) -> None:
    """Undo kill-controller."""
    from transom_cli.sandbox import faults

    faults.start_controller(running(dir))
    print("slurmctld answers")


@fault_app.command()
def stop_controller(dir: Dir = None) -> None:
    """slurmctld hangs: it takes connections and does not answer. Undo: cont-controller."""
    from transom_cli.sandbox import faults

    print(f"stopped slurmctld: {faults.stop_controller(running(dir))} processes")


@fault_app.command()
def cont_controller(dir: Dir = None) -> None:
    """Undo stop-controller."""
    from transom_cli.sandbox import faults

    print(f"continued slurmctld: {faults.cont_controller(running(dir))} processes")


@fault_app.command()
def fill_disk(
    folder: Annotated[Path, typer.Argument(help="An empty or new folder, or one on a small disk.")],
    size: Annotated[int, typer.Option(help="MiB of the small disk, where one is mounted for it.", min=1)] = 16,
    dir: Dir = None,
) -> None:
    """Fill a small disk to its last byte, mounting it first if need be (as root). Undo: free-disk."""
    from transom_cli.sandbox import faults

    print(f"filled {folder}: {faults.fill_disk(running(dir), folder, size)} bytes")


@fault_app.command()
def free_disk(
    folder: Annotated[Path, typer.Argument(help="The folder that was filled.")],
    unmount: Annotated[bool, typer.Option("--unmount", help="The small disk goes, with all that is on it.")] = False,
    dir: Dir = None,
) -> None:
    """Undo fill-disk."""
    from transom_cli.sandbox import faults

    faults.free_disk(running(dir), folder, unmount=unmount)
    print(f"freed {folder}")


for command in (*sandbox_fault_jobs.COMMANDS, *sandbox_fault_shared.COMMANDS):
    fault_app.command()(command)


@fault_app.command()
def heal(dir: Dir = None) -> None:
    """Undo every fault, end all jobs, undrain all nodes."""
    from transom_cli.sandbox import faults

    faults.heal(running(dir))
    print("healed: every daemon runs, every node is idle, no job is left")


@fault_app.command("list")
def list_(dir: Dir = None) -> None:
    """The faults that are there now, each with the command that undoes it."""
    from transom_cli.sandbox import faults

    found = faults.active(running(dir))
    for fault in found:
        print(f"{fault.what}   undo: transom sandbox fault {fault.undo}")
    if not found:
        print("no faults")
