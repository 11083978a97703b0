"""srun's command line as `transom launch` accepts it: the word `srun` in a script is all that has to change. Pure.

The table is that of srun 22.05 to 25.11.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transom_cli.errors import UsageError
from transom_cli.plural import several
from transom_cli.submit.directives import SBATCH_TABLE, Option, OptionTable

_SRUN = """
accel-bind= bcast? bcast-exclude= compress? cpu-bind= X|disable-status epilog= exact external I|immediate? interactive
jobid= K|kill-on-bad-exit? l|label mpi= msg-timeout= multi-prog no-bcast overlap E|preserve-env preserve-slurmctld
prolog= pty? quit-on-interrupt r|relative= send-libs? slurmd-debug= task-epilog= task-prolog= T|threads= treewidth=
u|unbuffered W|wait= Z|no-allocate het-group= ntasks-per-tres= cpu-freq= whole
"""
_LAUNCH = """
name= spares= torchrun torchrun-arg= srun-arg= checkpoints= once auto-beat no-auto-beat root= h|help
"""
SRUN = OptionTable(SBATCH_TABLE, _SRUN)
LAUNCH = OptionTable(SBATCH_TABLE, _SRUN, _LAUNCH)
_OWN = {*OptionTable(_LAUNCH).takes, "nodes", "ntasks", "ntasks-per-node", "job-name"}

_LOGS = "transom keeps a log per rank in the run directory"
_ENDS = "transom ends the ranks when one of them fails"
IGNORED = {
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "label": _LOGS,
    "kill-on-bad-exit": _ENDS,
    "wait": _ENDS,
    "no-kill": _ENDS,
    "quit-on-interrupt": _ENDS,
    "immediate": "the job has its nodes",
}
"""srun's options that make no difference here. A note says so."""
_CHOICE = "transom chooses the nodes of the ranks, so that it can replace one"
UNSUPPORTED = {
    "multi-prog": "all ranks run the same command",
    "pty": "the ranks have no terminal",
    "het-group": "heterogeneous jobs are not supported",
    "jobid": "it runs in the job of the batch script",
    "input": "the ranks read no input",
    "nodelist": _CHOICE,
    "exclude": _CHOICE,
    "relative": _CHOICE,
    "nodefile": _CHOICE,
    "external": "it starts no ranks",
    "no-allocate": "it runs in the job of the batch script",
}


def as_launch_words(words: Sequence[str]) -> list[str]:
    """Rewrite srun's options among those of `transom launch` as its `--srun-arg`, up to the command."""
    options, command = LAUNCH.split(words)
    srun = {option.name for option in options if option.name in SRUN.takes} - _OWN
    found = (Option("srun-arg", option.word) if option.name in srun else option for option in options)
    return [*(option.word for option in found), *(["--", *command] if command else [])]


def kept_srun_args(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options to pass to srun, and notes on ignored ones. Raises UsageError for unsupported ones."""
    options = list(SRUN.read(words))
    bad = next((option for option in options if option.name in UNSUPPORTED), None)
    if bad is not None:
        raise UsageError(
            f"`transom launch` does not support srun's --{bad.name}",
            UNSUPPORTED[bad.name],
            "remove it, or start this step with `srun`",
        )
    notes = tuple(f"{o.word} is not used: {IGNORED[o.name]}" for o in options if o.name in IGNORED)
    return tuple(option.word for option in options if option.name not in IGNORED), notes


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a job step run. nodes: that carry ranks."""

    nodes: int
    ranks_per_node: int


_UNIFORM = re.compile(r"(\d+)(?:\(x\d+\))?")


def step_layout(
    environ: Mapping[str, str],
    job_nodes: int,
    *,
    nodes: str | None = None,
    ntasks: int | None = None,
    per_node: int | None = None,
    spares: int = 0,
) -> Layout:
    """Return the layout that srun would choose, in a job with `job_nodes` nodes. Raises UsageError.

    Args:
        environ: of the batch script, from which srun takes its defaults.
        nodes, ntasks, per_node: as given.
        spares: nodes without ranks.
    """
    low, _, high = (nodes or "").partition("-")
    if nodes is not None and not (low.isdecimal() and int(low) and high in ("", low)):
        raise UsageError(f"`--nodes {nodes}` is not a number of nodes", hint="for example `--nodes 4`")
    wanted = int(low) if nodes is not None else job_nodes - spares
    if ntasks is not None and nodes is None and per_node is None and ntasks < wanted:
        wanted = ntasks
    if not 0 < wanted <= job_nodes - spares:
        given = f"{several(wanted, 'node')} with ranks" + (f" and {several(spares, 'spare')}" if spares else "")
        raise UsageError(
            f"This job has {several(job_nodes, 'node')}, too few for {given}",
            hint="request more with `#SBATCH --nodes`, or use fewer with --nodes and --spares",
        )
    if per_node is None and ntasks is not None:
        per_node, rest = divmod(ntasks, wanted)
        if rest:
            raise UsageError(
                f"{several(ntasks, 'task')} cannot be spread evenly over {several(wanted, 'node')}",
                "transom starts the same number of ranks on each node",
                "choose a multiple of the number of nodes, or --ntasks-per-node",
            )
    if per_node is None:
        text = environ.get("SLURM_NTASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
        match = _UNIFORM.fullmatch(text)
        if match is None:
            raise UsageError(
                "The job has different numbers of tasks on its nodes",
                f"SLURM_TASKS_PER_NODE={text}; transom starts the same number of ranks on each node",
                "give it: --ntasks-per-node N",
            )
        per_node = int(match[1])
    return Layout(wanted, per_node)
