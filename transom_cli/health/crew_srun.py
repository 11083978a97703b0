"""A crew of one Slurm step inside a job of ours: an examiner a node, talked with over srun's own stdin and stdout.

srun sends its stdin to every task, so a message for some nodes only says so itself. Nothing listens on a port, and who
may talk is Slurm's business (munge).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from transom_cli.beats.places import ROLE
from transom_cli.health.crew import Message
from transom_cli.health.crew_pipes import EXAMINER, Pipes, interpreter, line_of

# srun's words for a task that did not end well: "srun: error: node3: task 2: Killed".
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: ", re.IGNORECASE)
_FAILED_ON = re.compile(r"(?:failed on node|Node failure on|on node) (\S+?):", re.IGNORECASE)


class SrunCrew(Pipes):
    """With the devices that the job has on each node; beside whatever else runs in it (`--overlap`)."""

    def __init__(self, job_id: int, nodes: Sequence[str], more: Sequence[str] = ()) -> None:
        super().__init__()
        self._nodes = tuple(nodes)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PMI")}
        self._ask = self.add(step_argv(job_id, self._nodes, more), {**env, ROLE: "check"})

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        told = {**message, "to": list(to)} if to and tuple(to) != self._nodes else message
        self._ask.put(line_of(told))

    def gone(self) -> tuple[str, ...]:
        """Nodes of which srun says that their examiner has ended. One that ends by itself it does not tell of."""
        named = {match for line in tuple(self.words) for match in _TASK_ENDED.findall(line)}
        return tuple(n for n in self._nodes if n in named)

    def not_started(self) -> tuple[str, ...]:
        """Nodes on which srun says that it could not start its task: it starts none at all then."""
        named = {match for line in tuple(self.words) for match in _FAILED_ON.findall(line)}
        return tuple(n for n in self._nodes if n in named)


def step_argv(job_id: int, nodes: tuple[str, ...], more: Sequence[str] = ()) -> list[str]:
    """srun's command line. One task a node, without binding: the probe processes are children of it."""
    return [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--mem=0",
        "--cpu-bind=none",
        "--job-name=transom-check",
        *more,
        *interpreter(),
        "-m",
        EXAMINER,
    ]
