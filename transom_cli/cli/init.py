"""`transom init`: write a settings file for a new run, from five questions or from an sbatch script."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.errors import UsageError

_JOB = {  # sbatch option: setting, and what it is
    "nodes": ("nodes", "number of nodes"),
    "gpus-per-node": ("gpus_per_node", "GPUs per node"),
    "ntasks-per-node": ("tasks_per_node", "ranks per node; without this line: one per GPU"),
    "cpus-per-task": ("cpus_per_task", "CPUs per rank"),
    "mem": ("mem", "memory per node"),
    "time": ("time", "time limit of one attempt; transom continues the run in the next one"),
    "partition": ("partition", "Slurm partition"),
    "account": ("account", "account to charge"),
    "qos": ("qos", "quality of service"),
}
_NUMBERS = ("nodes", "gpus-per-node", "ntasks-per-node", "cpus-per-task")
_END = """
# [detect]
# first_step = 1800             # seconds until a launch without a step counts as hung
# [restart]
# max_without_progress = 3      # restarts in a row without progress before transom gives up
"""


def init(
    script: Annotated[Path | None, typer.Argument(help="An sbatch script to read the options from.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the settings.")] = Path("run.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write run.toml for a new run.

    Asks five questions, or reads the #SBATCH lines of a script. The file has comments; docs/settings.md lists every
    setting.
    """
    if output.exists() and not force:
        raise UsageError(f"`{output}` exists", hint="add `--force`, or give another file with `--output`")
    found = _from_script(script) if script is not None else _asked()
    output.write_text(settings_text(found))
    print(f"wrote {output}; next: transom run -f {output} --dry-run -- python train.py", file=sys.stderr)


def settings_text(options: dict[str, str]) -> str:
    """Return a settings file. options: by the name of sbatch's option; "" is left out."""
    lines = ["# Settings of a run: transom run -f run.toml -- COMMAND. Options on the command line take precedence."]
    if options.get("job-name"):
        lines.append(f"name = {json.dumps(options['job-name'])}")
    lines += ["# steps = 10000                 # length of the training: shows the time to go", "", "[job]"]
    for option, (setting, about) in _JOB.items():
        if value := options.get(option, ""):
            shown = value if option in _NUMBERS and value.isdecimal() else json.dumps(value)
            lines.append(f"{f'{setting} = {shown}':<31} # {about}")
    return "\n".join(lines) + "\n" + _END


def _from_script(path: Path) -> dict[str, str]:
    from transom_cli.submit.directives import read_directives
    from transom_cli.submit.inputs import read_script

    given = {
        one.option.name: one.option.value or ""
        for one in read_directives(read_script(path, "transom init train.sbatch"))
    }
    kind, _, count = given.get("gres", "").partition(":")
    if kind == "gpu":
        given.setdefault("gpus-per-node", count.rpartition(":")[2] or "1")
    left = sorted(set(given) - set(_JOB) - {"job-name", "gres", "output", "error"})
    if left:
        print(f"note: not in the settings: {', '.join(f'--{name}' for name in left)}", file=sys.stderr)
    print(f"note: the script's commands are not taken over; `transom adopt {path}` keeps them", file=sys.stderr)
    return given


def _asked() -> dict[str, str]:
    if not sys.stdin.isatty():
        raise UsageError("`init` asks questions", "stdin is not a terminal", "transom init train.sbatch")
    return {
        "job-name": typer.prompt("Name of the run", default=Path.cwd().name, err=True),
        "nodes": typer.prompt("Number of nodes", default="1", value_proc=_number, err=True),
        "gpus-per-node": typer.prompt("GPUs per node (0: none)", default="0", value_proc=_number, err=True),
        "time": typer.prompt("Time limit of one attempt", default="24:00:00", err=True),
        "partition": typer.prompt("Partition (empty: the default)", default="", show_default=False, err=True),
    }


def _number(text: str) -> str:
    """Return the answer. Raises BadParameter, after which the question is asked again."""
    if not text.strip().isdecimal():
        raise typer.BadParameter(f"`{text}` is not a whole number")
    return text.strip()
