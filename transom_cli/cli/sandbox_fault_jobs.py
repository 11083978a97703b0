"""`transom sandbox fault`: faults of transom's own processes inside a job."""

from __future__ import annotations

from typing import Annotated

import typer

from transom_cli.cli.sandbox_folder import Dir, running

Node = Annotated[str, typer.Argument(help="A node's name, as node2.")]
Job = Annotated[int, typer.Option("--job", help="The job's id.")]


def kill_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """A node's agent dies (SIGKILL), its ranks live on. Nothing undoes that."""
    from transom_cli.sandbox import faults

    print(f"killed the agent of job {job} on {node}: pid {faults.kill_agent(running(dir), job, node)}")


def stop_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """A node's agent hangs (SIGSTOP). Undo: cont-agent."""
    from transom_cli.sandbox import faults

    print(f"stopped the agent of job {job} on {node}: pid {faults.stop_agent(running(dir), job, node)}")


def cont_agent(node: Node, job: Job, dir: Dir = None) -> None:
    """Undo stop-agent."""
    from transom_cli.sandbox import faults

    print(f"continued the agent of job {job} on {node}: pid {faults.cont_agent(running(dir), job, node)}")


def kill_launcher(job: Job, dir: Dir = None) -> None:
    """The launcher dies (SIGKILL), alone. Nothing undoes that."""
    from transom_cli.sandbox import faults

    print(f"killed the launcher of job {job}: pid {faults.kill_launcher(running(dir), job)}")


def stop_launcher(job: Job, dir: Dir = None) -> None:
    """The launcher hangs (SIGSTOP), its ranks go on. Undo: cont-launcher."""
    from transom_cli.sandbox import faults

    print(f"stopped the launcher of job {job}: pid {faults.stop_launcher(running(dir), job)}")


def cont_launcher(job: Job, dir: Dir = None) -> None:
    """Undo stop-launcher."""
    from transom_cli.sandbox import faults

    print(f"continued the launcher of job {job}: pid {faults.cont_launcher(running(dir), job)}")


COMMANDS = (kill_agent, stop_agent, cont_agent, kill_launcher, stop_launcher, cont_launcher)
