"""`transom init`: write a settings file for a new run, from five questions or from an sbatch script."""

import json
import re
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
_UNITS = re.compile(r"(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?", re.IGNORECASE)
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
    command = _command(script) if script is not None else ""
    command = command or f"python {'train.py' if Path('train.py').exists() else 'YOUR_SCRIPT.py'}"
    print(f"wrote {output}; next: transom run -f {output} --dry-run -- {command}", file=sys.stderr)


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


def _command(script: Path) -> str:
    """Return what the only srun of a script starts; "" if there are several, or if it has variables."""
    from transom_cli.submit.adopt import Kind, find_steps
    from transom_cli.submit.inputs import read_script
    from transom_cli.submit.srun_options import SRUN

    steps = [one for one in find_steps(read_script(script, "transom init train.sbatch")) if one.kind is Kind.TRAINING]
    words = SRUN.split(steps[0].text.split()[1:])[1] if len(steps) == 1 else []
    return "" if any("$" in word for word in words) else " ".join(words)


def _asked() -> dict[str, str]:
    return {
        "job-name": _ask("Name of the run", Path.cwd().name, "name"),
        "nodes": _ask("Number of nodes", "1", "job.nodes"),
        "gpus-per-node": _ask("GPUs per node (0: none)", "0", "job.gpus_per_node"),
        "time": _ask("Time limit of one attempt", "24:00:00", "job.time"),
        "partition": _ask("Partition (empty: the default)", "", "job.partition"),
    }


def _ask(question: str, default: str, setting: str) -> str:
    """Return the answer. On a terminal, a wrong one is asked for again; from a pipe, it ends the command."""
    while True:
        print(f"{question} [{default}]: " if default else f"{question}: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            print(file=sys.stderr)
            raise UsageError("`init` asks five questions", f"no answer to: {question}", "transom init train.sbatch")
        answer = _in_slurms_form(line.strip() or default) if setting == "job.time" else line.strip() or default
        wrong = _wrong(setting, answer)
        if not wrong:
            return answer
        if not sys.stdin.isatty():
            print(file=sys.stderr)
            raise UsageError(f"`{answer}` cannot be the answer to: {question}", wrong, "transom init")
        print(f"  {wrong}", file=sys.stderr)


def _in_slurms_form(text: str) -> str:
    """Return a time limit such as `2d`, `1h` or `1h 30m` as Slurm takes it, and any other text as it is."""
    found = _UNITS.fullmatch(text)
    if found is None or not any(found.groups()):
        return text
    days, hours, minutes = (int(one or 0) for one in found.groups())
    hours += 24 * days + minutes // 60
    return f"{hours:02}:{minutes % 60:02}:00"


def _wrong(setting: str, answer: str) -> str:
    """Say why the setting cannot have this value; "" if it can."""
    from transom_cli.bootstrap.slurm import partitions
    from transom_cli.config.load import load

    try:
        load(None, {setting: answer}, {}, site=None, user=None)
    except UsageError as error:
        return error.why.partition("): ")[2] or error.why
    known = partitions() if setting == "job.partition" and answer else ()
    unknown = [one for one in answer.split(",") if one.strip() not in known] if known else []
    return f"there is no partition `{unknown[0]}`; there are: {', '.join(known)}" if unknown else ""
