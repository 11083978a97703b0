"""`transom sandbox fault`: one sub-command per fault, and one to undo it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.sandbox import Dir, running

fault_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inject a fault, or undo one.")

Node = Annotated[str, typer.Argument(help="Name of a node, such as node2.")]
Job = Annotated[int, typer.Option("--job", help="Job ID.")]
Rank = Annotated[int, typer.Argument(help="The global rank.")]


@fault_app.command()
def kill_node(node: Node, dir: Dir = None) -> None:
    """Kill a node: slurmd and every job process on it. Undo: restore-node."""
    from transom_cli.sandbox import faults

    print(f"killed {node}: {faults.kill_node(running(dir), node)} processes")


@fault_app.command()
def restore_node(
    node: Node,
    undrain: Annotated[bool, typer.Option("--undrain", help="Also resume the node if it is drained.")] = False,
    dir: Dir = None,
) -> None:
    """Undo kill-node: slurmd runs again."""
    from transom_cli.sandbox import faults

    faults.restore_node(running(dir), node, undrain=undrain)
    print(f"restored {node}")


@fault_app.command()
def stop_node(node: Node, dir: Dir = None) -> None:
    """Stop a node: it hangs and its connections stay open. Undo: cont-node."""
    from transom_cli.sandbox import faults

    print(f"stopped {node}: {faults.stop_node(running(dir), node)} processes")


@fault_app.command()
def cont_node(node: Node, dir: Dir = None) -> None:
    """Undo stop-node."""
    from transom_cli.sandbox import faults

    print(f"continued {node}: {faults.cont_node(running(dir), node)} processes")


@fault_app.command()
def kill_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """Kill one rank (SIGKILL). Cannot be undone."""
    from transom_cli.sandbox import faults

    print(f"killed rank {rank} of job {job}: pid {faults.kill_rank(running(dir), job, rank)}")


@fault_app.command()
def stop_rank(rank: Rank, job: Job, dir: Dir = None) -> None:
    """Stop one rank (SIGSTOP). Undo: cont-rank."""
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
    """Slow one rank down to a share of the time. Undo: unslow-rank."""
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
    """Kill slurmctld; jobs keep running. Undo: start-controller."""
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
    """Stop slurmctld: it accepts connections and does not answer. Undo: cont-controller."""
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
    size: Annotated[int, typer.Option(help="Size of the small disk in MiB, if one is mounted.", min=1)] = 16,
    dir: Dir = None,
) -> None:
    """Fill a small disk completely; mount one first if needed (as root). Undo: free-disk."""
    from transom_cli.sandbox import faults

    print(f"filled {folder}: {faults.fill_disk(running(dir), folder, size)} bytes")


@fault_app.command()
def free_disk(
    folder: Annotated[Path, typer.Argument(help="The folder that was filled.")],
    unmount: Annotated[bool, typer.Option("--unmount", help="Also unmount the disk; its content is lost.")] = False,
    dir: Dir = None,
) -> None:
    """Undo fill-disk."""
    from transom_cli.sandbox import faults

    faults.free_disk(running(dir), folder, unmount=unmount)
    print(f"freed {folder}")


@fault_app.command()
def kill_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """Kill the agent of a node (SIGKILL); its ranks keep running. Cannot be undone."""
    from transom_cli.sandbox import faults

    print(f"killed the agent of job {job} on {node}: pid {faults.kill_agent(running(dir), job, node)}")


@fault_app.command()
def stop_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """Stop the agent of a node (SIGSTOP). Undo: cont-agent."""
    from transom_cli.sandbox import faults

    print(f"stopped the agent of job {job} on {node}: pid {faults.stop_agent(running(dir), job, node)}")


@fault_app.command()
def cont_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """Undo stop-agent."""
    from transom_cli.sandbox import faults

    print(f"continued the agent of job {job} on {node}: pid {faults.cont_agent(running(dir), job, node)}")


@fault_app.command()
def kill_launcher(job: Job, dir: Dir = None) -> None:
    """Kill the launcher only (SIGKILL). Cannot be undone."""
    from transom_cli.sandbox import faults

    print(f"killed the launcher of job {job}: pid {faults.kill_launcher(running(dir), job)}")


@fault_app.command()
def stop_launcher(job: Job, dir: Dir = None) -> None:
    """Stop the launcher (SIGSTOP); its ranks keep running. Undo: cont-launcher."""
    from transom_cli.sandbox import faults

    print(f"stopped the launcher of job {job}: pid {faults.stop_launcher(running(dir), job)}")


@fault_app.command()
def cont_launcher(job: Job, dir: Dir = None) -> None:
    """Undo stop-launcher."""
    from transom_cli.sandbox import faults

    print(f"continued the launcher of job {job}: pid {faults.cont_launcher(running(dir), job)}")


Folder = Annotated[Path, typer.Argument(help="A folder, such as the root of run directories; shared first if needed.")]
Shared = Annotated[Path, typer.Argument(help="The folder that was shared.")]


@fault_app.command()
def share_disk(folder: Folder, dir: Dir = None) -> None:
    """Turn a folder into a file system of its own, for disk faults. Its content stays. Undo: unshare-disk."""
    from transom_cli.sandbox import faults

    faults.share_disk(running(dir), folder)
    print(f"shared {folder}")


@fault_app.command()
def unshare_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo share-disk and all faults of that disk."""
    from transom_cli.sandbox import faults

    faults.unshare_disk(running(dir), folder)
    print(f"unshared {folder}")


@fault_app.command()
def stall_disk(folder: Folder, dir: Dir = None) -> None:
    """Stop a file system: every call on it waits. Undo: cont-disk."""
    from transom_cli.sandbox import faults

    faults.stall_disk(running(dir), folder)
    print(f"stalled {folder}")


@fault_app.command()
def cont_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo stall-disk."""
    from transom_cli.sandbox import faults

    faults.cont_disk(running(dir), folder)
    print(f"continued {folder}")


@fault_app.command()
def readonly_disk(folder: Folder, dir: Dir = None) -> None:
    """Make a file system read-only, even for open files. Undo: writable-disk."""
    from transom_cli.sandbox import faults

    faults.readonly_disk(running(dir), folder)
    print(f"read-only: {folder}")


@fault_app.command()
def writable_disk(folder: Shared, dir: Dir = None) -> None:
    """Undo readonly-disk."""
    from transom_cli.sandbox import faults

    faults.writable_disk(running(dir), folder)
    print(f"writable: {folder}")


@fault_app.command()
def late_files(
    folder: Annotated[Path, typer.Argument(help="A folder, such as the root of run directories.")],
    seconds: Annotated[float, typer.Option("--seconds", help="Delay in seconds.", min=0.0)] = 3.0,
    nfs: Annotated[bool, typer.Option("--nfs", help="Behave like NFS with close-to-open consistency.")] = False,
    dir: Dir = None,
) -> None:
    """Delay what nodes see of each other's changes in a folder (as root; no job may run). Undo: fresh-files."""
    from transom_cli.sandbox import faults

    faults.late_files(running(dir), folder, seconds, nfs=nfs)
    print(f"every node sees {folder} {seconds:g} s late")


@fault_app.command()
def fresh_files(folder: Annotated[Path, typer.Argument(help="The folder with the delay.")], dir: Dir = None) -> None:
    """Undo late-files."""
    from transom_cli.sandbox import faults

    faults.fresh_files(running(dir), folder)
    print(f"every node sees {folder} as it is")


@fault_app.command()
def jump_clock(
    seconds: Annotated[float, typer.Argument(help="Seconds to jump; negative jumps back (write it after `--`).")],
    host: Annotated[str, typer.Option("--host", help="A node, or login [default: all hosts].")] = "",
    dir: Dir = None,
) -> None:
    """Make the wall clock jump for runs started with `transom sandbox exec --clock`. Undo: reset-clock."""
    from transom_cli.sandbox import faults

    faults.jump_clock(running(dir), seconds, host)
    print(f"the clock of {host or 'every host'} jumped by {seconds:+g} s")


@fault_app.command()
def reset_clock(
    host: Annotated[str, typer.Option("--host", help="A node, or login [default: all hosts].")] = "",
    dir: Dir = None,
) -> None:
    """Undo jump-clock."""
    from transom_cli.sandbox import faults

    faults.reset_clock(running(dir), host)
    print(f"the clock of {host or 'every host'} is right")


@fault_app.command()
def heal(dir: Dir = None) -> None:
    """Undo every fault, cancel all jobs, resume all nodes."""
    from transom_cli.sandbox import faults

    faults.heal(running(dir))
    print("healed: every daemon runs, every node is idle, no job is left")


@fault_app.command("list")
def list_(dir: Dir = None) -> None:
    """List the active faults, each with the command that undoes it."""
    from transom_cli.sandbox import faults

    found = faults.active(running(dir))
    for fault in found:
        print(f"{fault.what}   undo: transom sandbox fault {fault.undo}")
    if not found:
        print("no faults")
