"""`transom launch` in a script of the user's own, and `transom adopt`, which writes it there."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from transom_cli.cli.options import AutoBeat, Root
from transom_cli.errors import UsageError, printable


class SrunLike(TyperCommand):
    """Accepts srun's options too, and the form that scripts of older runs contain (`--run-dir`)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from transom_cli.submit.srun_options import as_launch_words

        return super().parse_args(ctx, as_launch_words(args))


def launch(
    command: Annotated[list[str], typer.Argument(help="The training command, as for srun.")],
    name: Annotated[
        str | None, typer.Option("--name", "--job-name", "-J", help="Name of this job step [default: its number].")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", "-N", metavar="N", help="Nodes with ranks; the others are spares.")
    ] = None,
    spares: Annotated[int, typer.Option(min=0, help="Nodes of the job to keep as hot spares.")] = 0,
    ntasks: Annotated[int | None, typer.Option("--ntasks", "-n", min=1, help="Ranks in all.")] = None,
    per_node: Annotated[int | None, typer.Option("--ntasks-per-node", min=1, help="Ranks on each node.")] = None,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="Start the ranks with one torchrun per node.")] = False,
    torchrun_arg: Annotated[list[str] | None, typer.Option(help="A flag for torchrun; repeatable.")] = None,
    srun_arg: Annotated[list[str] | None, typer.Option(help="A flag for srun; repeatable. Or give it as is.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="This step's checkpoint folder [default: TRANSOM_CHECKPOINT_DIR, or the run's].")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Skip this job step if an earlier attempt has completed it.")
    ] = False,
    auto_beat: AutoBeat = None,
    root: Root = None,
) -> None:
    """Start a training in place of `srun`.

    For your own batch script: transom supervises the training.

    srun's options can be given unchanged. Exits with the training's exit code.
    """

    from transom_cli.bootstrap.launcher import LaunchForm
    from transom_cli.bootstrap.slurm import slurm_client
    from transom_cli.cli.processes import start_launcher
    from transom_cli.submit.job_run import run_of_job
    from transom_cli.submit.srun_options import kept_srun_args, step_layout
    from transom_cli.submit.unsupported import refuse_nested_in_step, torchrun_command
    from transom_cli.supervise.launcher.allocation import allocation_from, end_time, gpus_on_node
    from transom_cli.supervise.launcher.job_steps import done_in, earlier_steps

    slurm = slurm_client()
    run, made = run_of_job(os.environ, slurm, root)
    allocation = allocation_from(os.environ)
    srun_args, notes = kept_srun_args(srun_arg or ())
    for note in notes:
        _say(f"note: {note}")
    earlier = earlier_steps(run.attempt(allocation.job_id, allocation.restart))
    name = name or str(len(earlier.steps) + 1)
    if made:
        _say(f"run {run.run_id} in {run.path}; no operator: `transom attach {run.run_id}` on a login node starts one")
    if once and (before := done_in(run, name)):
        _say(f"job step {name} was done in attempt {before}, and is not run again (--once)")
        return
    found = torchrun_command(tuple(command))
    program: tuple[str, ...] = ()
    if found is not None:
        torchrun, command, program = True, list(found.training), found.program
        torchrun_arg = [*(torchrun_arg or ()), *found.options]
        per_node = int(found.ranks) if found.ranks.isdecimal() else None
    elif torchrun and shutil.which("torchrun"):
        program = ("torchrun",)
    if torchrun and per_node is None:
        per_node = gpus_on_node(os.environ) or 1
    layout = step_layout(
        os.environ, len(allocation.nodes), nodes=nodes, ntasks=ntasks, per_node=per_node, spares=spares
    )
    if found is None:
        refuse_nested_in_step(tuple(command), layout.nodes, layout.ranks_per_node)
    folder = checkpoints or (Path(given) if (given := os.environ.get("TRANSOM_CHECKPOINT_DIR")) else None)
    form = LaunchForm(
        tuple(command),
        "torchrun" if torchrun else "srun",
        tasks_per_node=layout.ranks_per_node,
        nodes=layout.nodes,
        srun_args=srun_args,
        torchrun_args=tuple(torchrun_arg or ()),
        torchrun=program,
        auto_beat=auto_beat,
        job_step=name,
        checkpoints=folder.absolute() if folder is not None else None,
    )
    if "SLURM_JOB_END_TIME" not in os.environ:
        os.environ["SLURM_JOB_END_TIME"] = end_time(allocation.job_id)
    raise typer.Exit(start_launcher(run, form))


def _say(words: str) -> None:
    print(f"transom: {words}", flush=True)


def adopt(
    script: Annotated[Path, typer.Argument(help="Your sbatch script.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write [default: train.transom.sbatch beside it].")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Put `transom launch` into a copy of your script. Prints the changes."""
    from difflib import unified_diff

    from transom_cli.submit.adopt import LAUNCH, Kind, find_steps
    from transom_cli.submit.adopt import adopt as adopted
    from transom_cli.submit.inputs import read_script

    text = read_script(script, "transom adopt train.sbatch")
    steps, changed = find_steps(text), adopted(text)
    for step in steps:
        if step.kind in (Kind.HELPER, Kind.UNSUPPORTED):
            print(printable(f"line {step.line} is left as it is: {step.why}: {step.text}"), file=sys.stderr)
        elif step.redirected:
            words = "sends its output elsewhere: the output of the ranks will be in the run directory instead"
            print(f"line {step.line} {words}", file=sys.stderr)
    if changed == text:
        known = any(step.kind is Kind.LAUNCHED for step in steps)
        raise UsageError(
            f"Nothing to change in {script}",
            f"it uses `{LAUNCH}` already" if known else "no line starts a training with srun",
            f"write `{LAUNCH}` in front of the training command yourself (docs/templates.md)" if not known else "",
        )
    target = output or script.with_suffix(f".transom{script.suffix}")
    try:
        with target.open("w" if force else "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(changed)
    except FileExistsError:
        raise UsageError(
            f"{target} already exists", hint="--force replaces it, or choose another name with -o"
        ) from None
    target.chmod(script.stat().st_mode & 0o777)
    before, after = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    for line in unified_diff(before, after, str(script), str(target)):
        print(printable(line.rstrip("\n").expandtabs(4)))
    print(f"\nstart it with: transom run {target}", file=sys.stderr)
