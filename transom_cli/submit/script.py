"""A user's own sbatch script: what it requests, the few options that a run adds, and its job array. Pure.

The script itself is never changed. Options on sbatch's command line override #SBATCH lines.

Each element of a job array becomes a run. Its job is submitted as an array of one element (`--array=7`), so that the
script finds its SLURM_ARRAY_TASK_ID, and a requeue, an exclusion or a cancellation affects only that element.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transom_cli.errors import UsageError
from transom_cli.submit.directives import read_directives

_SUBMITS_NOTHING = "with it, sbatch submits nothing"
_UNSUPPORTED = {
    "test-only": f"{_SUBMITS_NOTHING}: `transom run --dry-run` shows what would be submitted",
    "help": _SUBMITS_NOTHING,
    "usage": _SUBMITS_NOTHING,
    "version": _SUBMITS_NOTHING,
    "wait": "with it, sbatch returns only when the job ends; transom watches the job itself and exits with its result",
}
_COUNT = re.compile(r"(\d+)([kKmM]?)")


@dataclass(frozen=True)
class ScriptFacts:
    """What the script's #SBATCH lines request; None if they do not say. lines: the line number of each option."""

    nodes: int | None = None  # the minimum
    ntasks_per_node: int | None = None
    job_name: str | None = None
    comment: str | None = None
    output: str | None = None
    error: str | None = None
    open_mode: str | None = None
    requeue: bool | None = None
    exclude: str | None = None
    chdir: str | None = None
    export: str | None = None
    clusters: str | None = None
    array: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)


def inspect_script(text: str, name: str = "the script") -> ScriptFacts:
    """Read a script. Raises UsageError for what sbatch would reject, for PBS job arrays and heterogeneous jobs."""
    _refuse_no_script(text, name)
    values: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    requeue: bool | None = None
    for directive in read_directives(text):
        name = directive.option.name
        if name == "array" and directive.pbs:
            raise UsageError(
                "PBS job arrays are not supported",
                why=f"line {directive.line} of the script requests one: {_line(text, directive.line)}",
                hint="use sbatch's form, `#SBATCH --array=0-7`: each element becomes a run",
            )
        values[name], lines[name] = directive.option.value, directive.line  # the last one counts, as in sbatch
        if name in ("requeue", "no-requeue"):
            requeue = name == "requeue"
    return ScriptFacts(
        nodes=_count((values.get("nodes") or "").partition("-")[0]),
        ntasks_per_node=_count(values.get("ntasks-per-node")),
        job_name=values.get("job-name"),
        comment=values.get("comment"),
        output=values.get("output"),
        error=values.get("error"),
        open_mode=values.get("open-mode"),
        requeue=requeue,
        exclude=values.get("exclude"),
        chdir=values.get("chdir", values.get("workdir")),
        export=values.get("export"),
        clusters=values.get("clusters"),
        array=values.get("array"),
        lines=lines,
    )


def refuse_no_job(facts: ScriptFacts) -> None:
    """Raise UsageError for options with which sbatch submits no job or does not return its ID at once."""
    found = [(facts.lines[name], name, why) for name, why in _UNSUPPORTED.items() if name in facts.lines]
    if found:
        raise UsageError(
            "the script contains an unsupported sbatch option",
            why="\n".join(f"line {line}: --{name}: {why}" for line, name, why in sorted(found)),
            hint="remove it from the script",
        )


def added_options(
    facts: ScriptFacts, *, job_name: str, exported: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the sbatch options that a run adds: what a requeue needs, and defaults for what the user left open.

    Args:
        job_name: used if the user gave no name; Slurm would use the name of our copy of the script.
        exported: names of variables that must reach the job.
        environ: the caller's environment, from which sbatch reads SBATCH_* variables.
    """
    environ = environ or {}
    options = ["--requeue"]  # always: the site's default may be not to requeue
    if not (facts.open_mode or environ.get("SBATCH_OPEN_MODE")):
        options.append("--open-mode=append")
    if not (facts.job_name or environ.get("SBATCH_JOB_NAME")):
        options.append(f"--job-name={job_name}")
    return (*options, *export_options(facts, exported, environ))


def export_options(facts: ScriptFacts, names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the --export option that adds `names` if the user limits what the job inherits, else nothing.

    Only names are given, so that no value needs quoting: sbatch takes the values from its own environment.
    """
    limit = environ.get("SBATCH_EXPORT") or facts.export
    if not names or limit is None or limit.upper() == "ALL" or limit.upper().startswith("ALL,"):
        return ()
    kept = [] if limit.upper() in ("NONE", "NIL") else limit.split(",")
    return ("--export=" + ",".join([*kept, *(name for name in names if name not in kept)]),)


def script_notes(facts: ScriptFacts) -> tuple[str, ...]:
    """Return notes for the user: options that a run overrides, and options that have drawbacks for a run."""
    notes = []
    if facts.requeue is False:
        notes.append(f"line {facts.lines['no-requeue']}: --no-requeue is overridden, since transom requeues the job")
    if facts.comment is not None:
        notes.append(f"line {facts.lines['comment']}: --comment is replaced by transom's tag")
    if (facts.open_mode or "").startswith("t"):
        notes.append(
            f"line {facts.lines['open-mode']}: --open-mode=truncate loses the output of earlier attempts at a requeue"
        )
    return tuple(notes)


def _refuse_no_script(text: str, name: str) -> None:
    if not text:
        raise UsageError(f"{name} is empty", hint="it needs `#!/bin/bash` and the commands of the job")
    if not text.strip():
        raise UsageError(f"{name} contains only blanks", hint="it needs `#!/bin/bash` and the commands of the job")
    if "\0" in text:
        raise UsageError(
            f"{name} is not text",
            why="it contains NUL characters, which Slurm does not accept",
            hint="name the sbatch script itself",
        )
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        raise UsageError(
            f"{name} has Windows line endings",
            why=f"line {line} ends in \\r\\n; sbatch accepts only lines that end in \\n",
            hint=f"sed -i 's/\\r$//' {'SCRIPT' if name == 'the script' else name}",
        )
    if not text.startswith("#!"):
        raise UsageError(
            f"{name} names no interpreter",
            why=f"its first line must start with #!, but it is: {_line(text, 1)!r}",
            hint="write `#!/bin/bash` at the very start of the first line",
        )


def _line(text: str, number: int) -> str:
    return text.split("\n")[number - 1][:200]


def _count(value: str | None) -> int | None:
    """Parse `4`, `1k`. What only sbatch can judge (a list of sizes, a typo) is None."""
    match = _COUNT.fullmatch((value or "").strip())
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()] if match else None


MAX_ELEMENTS = 16  # each has its own operator, a process of about 50 MB on the login node
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
# In a run they describe an array of one element, where the script means the whole array.
_WHOLE_ARRAY = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
_INSTEAD = "remove the line and start a run for each: for i in 0 1 2; do transom run --detach SCRIPT $i; done"


def elements(spec: str, where: str) -> tuple[int, ...]:
    """Expand `0-6:3,9` to 0, 3, 6, 9.

    Raises:
        UsageError: sbatch would reject the text, it has a limit (`%2`), since runs do not wait for each other, or more
            than MAX_ELEMENTS elements. The message quotes `where`.
    """
    body, percent, _ = spec.strip().partition("%")
    if percent:
        raise UsageError(
            "A job array with a limit is not supported",
            f"{where} limits how many elements run at a time, and runs do not wait for each other",
            "remove the %: each element is its own run; or use a QOS of the site that has such a limit",
        )
    found: dict[int, None] = {}
    for part in body.split(","):
        read = _PART.fullmatch(part.strip())
        first, last = (int(read[1]), int(read[2] or read[1])) if read else (1, 0)
        step = int(read[3] or 1) if read else 1
        if last < first or step == 0:
            raise UsageError(
                "The elements of the job array cannot be parsed",
                where,
                "use a form such as --array=0-7 or --array=1,3,5-9:2",
            )
        if (last - first) // step >= MAX_ELEMENTS:
            raise _too_many(where)
        found.update(dict.fromkeys(range(first, last + 1, step)))
    if len(found) > MAX_ELEMENTS:
        raise _too_many(where)
    return tuple(found)


def refuse_whole(text: str) -> None:
    """Raise UsageError for a script that reads the size of the array: in each run that would be one."""
    name = next((name for name in _WHOLE_ARRAY if name in text), None)
    if name is not None:
        raise UsageError(
            "The script of this job array depends on the whole array",
            f"it reads {name}; transom submits each element as its own array of one element",
            "write the number into the script instead",
        )


def _too_many(where: str) -> UsageError:
    return UsageError(
        f"A job array of more than {MAX_ELEMENTS} elements is not supported",
        f"{where}; each element is its own run, with an operator on this machine",
        _INSTEAD,
    )
