"""`transom sandbox fault`: one sub-command per fault, and one to undo it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.sandbox import Dir, running
from transom_cli.errors import UsageError
from transom_cli.plural import several

if TYPE_CHECKING:
    from transom_cli.sandbox.cluster import Sandbox

fault_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inject a fault, or undo one.")

Node = Annotated[str, typer.Argument(help="Name of a node, such as node2.")]
Job = Annotated[int | None, typer.Option("--job", help="Job ID [default: the only running job].")]
Rank = Annotated[int, typer.Argument(help="The global rank.")]
Folder = Annotated[Path, typer.Argument(help="A folder, such as the root of run directories; shared first if needed.")]
Shared = Annotated[Path, typer.Argument(help="The folder that was shared.")]


def _inject(name: str, dir: Dir, *target: object) -> object:
    """Call the function of `sandbox.faults` that has the command's name."""
    from transom_cli.sandbox import faults

    return getattr(faults, name.replace("-", "_"))(running(dir), *target)


def _job(sandbox: Sandbox, job: int | None) -> int:
    """Return `job`, or the only running job. Raises UsageError if none runs, or several do."""
    if job is not None:
        return job
    jobs = sandbox.slurm("squeue", "-h", "-a", "-t", "RUNNING", "-o", "%A %j").splitlines()
    if len(jobs) == 1:
        return int(jobs[0].split()[0])
    if not jobs:
        raise UsageError("No job runs in the sandbox", hint="`transom status` shows when one does")
    raise UsageError(f"{several(len(jobs), 'job')} run in the sandbox", ", ".join(jobs), "choose one with `--job`")


def _inject_job(name: str, dir: Dir, job: int | None, *target: object) -> tuple[int, object]:
    """Call the function of `sandbox.faults` with a job. Returns the job's ID and the result."""
    found = _job(running(dir), job)
    return found, _inject(name, dir, found, *target)


def _on_node(name: str, done: str, help: str) -> None:
    """Add a command. done: the line that it prints, from its target and the function's result."""

    @fault_app.command(name, help=help)
    def command(node: Node, dir: Dir = None) -> None:
        print(done.format(node, _inject(name, dir, node)))


def _on_rank(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(rank: Rank, job: Job = None, dir: Dir = None) -> None:
        print(done.format(rank, *_inject_job(name, dir, job, rank)))


def _on_agent(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(node: Node, job: Job = None, dir: Dir = None) -> None:
        found, result = _inject_job(name, dir, job, node)
        print(done.format(found, node, result))


def _on_launcher(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(job: Job = None, dir: Dir = None) -> None:
        print(done.format(*_inject_job(name, dir, job)))


def _on_controller(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(dir: Dir = None) -> None:
        print(done.format(_inject(name, dir)))


def _on_folder(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(folder: Folder, dir: Dir = None) -> None:
        _inject(name, dir, folder)
        print(done.format(folder))


def _on_shared(name: str, done: str, help: str) -> None:
    @fault_app.command(name, help=help)
    def command(folder: Shared, dir: Dir = None) -> None:
        _inject(name, dir, folder)
        print(done.format(folder))


_on_node("kill-node", "killed {}: {} processes", "Kill a node: slurmd and every job process on it. Undo: restore-node.")


@fault_app.command()
def restore_node(
    node: Node,
    undrain: Annotated[bool, typer.Option("--undrain", help="Also resume the node if it is drained.")] = False,
    dir: Dir = None,
) -> None:
    """Undo kill-node: slurmd runs again."""
    from transom_cli.sandbox import faults

    sandbox = running(dir)
    faults.restore_node(sandbox, node, undrain=undrain)
    print(f"restored {node}")
    if any(one.name == node and one.state.startswith("drain") for one in sandbox.nodes()):
        print(f"it is still drained: `transom nodes --lift {node}` puts it back into service")


_on_node("stop-node", "stopped {}: {} processes", "Stop a node: it hangs with open connections. Undo: cont-node.")
_on_node("cont-node", "continued {}: {} processes", "Undo stop-node.")
_on_rank("kill-rank", "killed rank {} of job {}: pid {}", "Kill one rank (SIGKILL). Cannot be undone.")
_on_rank("stop-rank", "stopped rank {} of job {}: pid {}", "Stop one rank (SIGSTOP). Undo: cont-rank.")
_on_rank("cont-rank", "continued rank {} of job {}: pid {}", "Undo stop-rank.")


@fault_app.command()
def slow_rank(
    rank: Rank,
    job: Job = None,
    duty: Annotated[float, typer.Option(help="The share of the time that it runs.", min=0.0, max=1.0)] = 0.5,
    dir: Dir = None,
) -> None:
    """Slow one rank down to a share of the time. Undo: unslow-rank."""
    from transom_cli.sandbox import faults

    sandbox = running(dir)
    found = _job(sandbox, job)
    print(f"slowed rank {rank} of job {found}: pid {faults.slow_rank(sandbox, found, rank, duty)}")


@fault_app.command()
def unslow_rank(rank: Rank, job: Job = None, dir: Dir = None) -> None:
    """Undo slow-rank."""
    from transom_cli.sandbox import faults

    sandbox = running(dir)
    found = _job(sandbox, job)
    was = faults.unslow_rank(sandbox, found, rank)
    print(f"rank {rank} of job {found} {'runs freely again' if was else 'was not slowed'}")


_on_controller(
    "kill-controller", "killed slurmctld: {} processes", "Kill slurmctld; jobs keep running. Undo: start-controller."
)
_on_controller("start-controller", "slurmctld answers", "Undo kill-controller.")
_on_controller(
    "stop-controller",
    "stopped slurmctld: {} processes",
    "Stop slurmctld: it accepts but never answers. Undo: cont-controller.",
)
_on_controller("cont-controller", "continued slurmctld: {} processes", "Undo stop-controller.")


@fault_app.command()
def fill_disk(
    folder: Annotated[Path, typer.Argument(help="An empty or new folder, or one on a small disk.")],
    size: Annotated[int, typer.Option(help="Size of the small disk in MiB, if one is mounted.", min=1)] = 16,
    dir: Dir = None,
) -> None:
    """Fill a small disk. Mount one first if needed (as root). Undo: free-disk."""
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


_on_agent(
    "kill-agent",
    "killed the agent of job {} on {}: pid {}",
    "Kill a node's agent; its ranks keep running. Cannot be undone.",
)
_on_agent(
    "stop-agent", "stopped the agent of job {} on {}: pid {}", "Stop the agent of a node (SIGSTOP). Undo: cont-agent."
)
_on_agent("cont-agent", "continued the agent of job {} on {}: pid {}", "Undo stop-agent.")
_on_launcher(
    "kill-launcher", "killed the launcher of job {}: pid {}", "Kill the launcher only (SIGKILL). Cannot be undone."
)
_on_launcher(
    "stop-launcher",
    "stopped the launcher of job {}: pid {}",
    "Stop the launcher; its ranks keep running. Undo: cont-launcher.",
)
_on_launcher("cont-launcher", "continued the launcher of job {}: pid {}", "Undo stop-launcher.")
_on_folder(
    "share-disk",
    "shared {}",
    "Make a folder a file system of its own. Its content stays. Undo: unshare-disk.",
)
_on_shared("unshare-disk", "unshared {}", "Undo share-disk and all faults of that disk.")
_on_folder("stall-disk", "stalled {}", "Stop a file system: every call on it waits. Undo: cont-disk.")
_on_shared("cont-disk", "continued {}", "Undo stall-disk.")
_on_folder("readonly-disk", "read-only: {}", "Make a file system read-only, even for open files. Undo: writable-disk.")
_on_shared("writable-disk", "writable: {}", "Undo readonly-disk.")


@fault_app.command()
def late_files(
    folder: Annotated[Path, typer.Argument(help="A folder, such as the root of run directories.")],
    seconds: Annotated[float, typer.Option("--seconds", help="Delay in seconds.", min=0.0)] = 3.0,
    nfs: Annotated[bool, typer.Option("--nfs", help="Behave like NFS with close-to-open consistency.")] = False,
    dir: Dir = None,
) -> None:
    """Delay what nodes see of others' changes. As root; no job may run. Undo: fresh-files."""
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
    """Make the wall clock jump. For runs started with `transom sandbox exec --clock`. Undo: reset-clock."""
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
def corrupt(
    node: Node,
    where: Annotated[
        str,
        typer.Option(
            help="activation, input_gradient, weight_gradient (results of a linear layer), gradient, reduced, moment "
            "or weight (of a parameter)."
        ),
    ] = "activation",
    name: Annotated[str, typer.Option(help="Text in the name of the layer or parameter.")] = "",
    bit: Annotated[int, typer.Option(help="The bit to flip; 30 is the highest of a float32's exponent.")] = 28,
    step: Annotated[int, typer.Option(help="The first step.", min=1)] = 1,
    steps: Annotated[int, typer.Option(help="For how many steps; 0: without end.", min=0)] = 0,
    chance: Annotated[float, typer.Option(help="Its chance in each step.", min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Which element is hit.")] = 0,
    dir: Dir = None,
) -> None:
    """Make a node compute wrong values in guarded runs. Undo: uncorrupt."""
    from transom_cli.sandbox import faults

    fault = {"where": where, "name": name, "bit": bit, "step": step, "steps": steps, "chance": chance, "seed": seed}
    faults.corrupt(running(dir), node, fault)
    print(f"{node} computes wrong: bit {bit} of {where} {name}".rstrip())


@fault_app.command()
def uncorrupt(
    node: Annotated[str, typer.Argument(help="A node [default: all].")] = "",
    dir: Dir = None,
) -> None:
    """Undo corrupt."""
    from transom_cli.sandbox import faults

    faults.uncorrupt(running(dir), node)
    print(f"{node or 'every node'} computes right")


@fault_app.command()
def heal(dir: Dir = None) -> None:
    """Undo all faults, cancel jobs, resume nodes."""
    from transom_cli.sandbox import faults

    faults.heal(running(dir))
    print("all faults are undone: every daemon runs, every node is idle, no job remains")


@fault_app.command("list")
def list_(dir: Dir = None) -> None:
    """List active faults and how to undo each."""
    from transom_cli.sandbox import faults

    found = faults.active(running(dir))
    for fault in found:
        print(f"{fault.what}   undo: transom sandbox fault {fault.undo}")
    if not found:
        print("no faults")
