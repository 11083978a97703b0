"""A user's own sbatch script: what it asks for, and the few options that a run must add to it. Pure.

The script itself is never changed. Options on sbatch's command line override #SBATCH lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transom_cli.errors import UsageError
from transom_cli.submit.directives import read_directives

_SUBMITS_NOTHING = "sbatch submits nothing then"
_NOT_FOR_A_RUN = {
    "test-only": f"{_SUBMITS_NOTHING}: `transom run --dry-run` shows what would be submitted",
    "help": _SUBMITS_NOTHING,
    "usage": _SUBMITS_NOTHING,
    "version": _SUBMITS_NOTHING,
    "wait": "sbatch answers only at the job's end then; transom watches the job itself, and ends as it did",
}
_COUNT = re.compile(r"(\d+)([kKmM]?)")


@dataclass(frozen=True)
class ScriptFacts:
    """What the script's #SBATCH lines say; None where they say nothing. ``lines`` tells the line of each option."""

    nodes: int | None = None  # the least that it takes
    nodes_max: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    job_name: str | None = None
    comment: str | None = None
    output: str | None = None
    error: str | None = None
    open_mode: str | None = None
    requeue: bool | None = None
    signal: str | None = None
    exclude: str | None = None
    chdir: str | None = None
    export: str | None = None
    partition: str | None = None
    clusters: str | None = None
    array: str | None = None
    lines: Mapping[str, int] = field(default_factory=dict)


def inspect_script(text: str) -> ScriptFacts:
    """The facts of a script. UsageError for what sbatch would refuse, for PBS's arrays and for heterogeneous jobs."""
    _refuse_no_script(text)
    values: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    requeue: bool | None = None
    for directive in read_directives(text):
        name = directive.option.name
        if name == "array" and directive.pbs:
            raise UsageError(
                "job arrays of PBS are not supported",
                why=f"line {directive.line} of the script asks for one: {_line(text, directive.line)}",
                hint="write it as sbatch does, `#SBATCH --array=0-7`: each element becomes a run",
            )
        values[name], lines[name] = directive.option.value, directive.line  # the last one counts, as in sbatch
        if name in ("requeue", "no-requeue"):
            requeue = name == "requeue"
    nodes, nodes_max = _node_count(values.get("nodes"))
    return ScriptFacts(
        nodes=nodes,
        nodes_max=nodes_max,
        ntasks=_count(values.get("ntasks")),
        ntasks_per_node=_count(values.get("ntasks-per-node")),
        job_name=values.get("job-name"),
        comment=values.get("comment"),
        output=values.get("output"),
        error=values.get("error"),
        open_mode=values.get("open-mode"),
        requeue=requeue,
        signal=values.get("signal"),
        exclude=values.get("exclude"),
        chdir=values.get("chdir", values.get("workdir")),
        export=values.get("export"),
        partition=values.get("partition"),
        clusters=values.get("clusters"),
        array=values.get("array"),
        lines=lines,
    )


def refuse_no_job(facts: ScriptFacts) -> None:
    """UsageError for options with which sbatch submits no job, or does not answer with its number at once."""
    found = [(facts.lines[name], name, why) for name, why in _NOT_FOR_A_RUN.items() if name in facts.lines]
    if found:
        raise UsageError(
            "the script asks sbatch for what a run cannot live with",
            why="\n".join(f"line {line}: --{name}: {why}" for line, name, why in sorted(found)),
            hint="take it out of the script",
        )


def completing_options(
    facts: ScriptFacts, *, job_name: str, exported: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The sbatch options that a run adds: what a requeue needs, and what the user left open.

    ``job_name`` is given where the user named none, since Slurm would take the name of our copy of the script.
    ``exported`` names the variables that must reach the job. ``environ`` is the caller's: sbatch reads SBATCH_* there.
    """
    environ = environ or {}
    options = ["--requeue"]  # also where the script is silent: a site's default may be not to
    if not (facts.open_mode or environ.get("SBATCH_OPEN_MODE")):
        options.append("--open-mode=append")
    if not (facts.job_name or environ.get("SBATCH_JOB_NAME")):
        options.append(f"--job-name={job_name}")
    return (*options, *export_options(facts, exported, environ))


def export_options(facts: ScriptFacts, names: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Lets ``names`` through where the user limits what the job inherits; nothing where all of it is (the default).

    By name, so that no value needs quoting: sbatch takes the values from its own environment.
    """
    limit = environ.get("SBATCH_EXPORT") or facts.export
    if not names or limit is None or limit.upper() == "ALL" or limit.upper().startswith("ALL,"):
        return ()
    kept = [] if limit.upper() in ("NONE", "NIL") else limit.split(",")
    return ("--export=" + ",".join([*kept, *(name for name in names if name not in kept)]),)


def completing_notes(facts: ScriptFacts) -> tuple[str, ...]:
    """What a person should know about the script: where a run overrides it, and where it makes a run poorer."""
    notes = []
    if facts.requeue is False:
        notes.append(f"line {facts.lines['no-requeue']}: --no-requeue is overridden, a run lives on being requeued")
    if facts.comment is not None:
        notes.append(f"line {facts.lines['comment']}: --comment is replaced by transom's tag")
    if (facts.open_mode or "").startswith("t"):
        notes.append(f"line {facts.lines['open-mode']}: --open-mode=truncate loses an attempt's output at a requeue")
    return tuple(notes)


def _refuse_no_script(text: str) -> None:
    if not text:
        raise UsageError("the script is empty", hint="write `#!/bin/bash` and the commands of the job into it")
    if not text.strip():
        raise UsageError(
            "the script holds nothing but blanks", hint="write `#!/bin/bash` and the job's commands into it"
        )
    if "\0" in text:
        raise UsageError(
            "the script is not text",
            why="it holds NUL characters, which Slurm does not take",
            hint="give the sbatch script itself",
        )
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        raise UsageError(
            "the script has Windows line endings",
            why=f"line {line} ends in \\r\\n; sbatch takes lines that end in \\n only",
            hint="sed -i 's/\\r$//' SCRIPT",
        )
    if not text.startswith("#!"):
        raise UsageError(
            "the script names no interpreter",
            why=f"its first line must start with #!, but is: {_line(text, 1)!r}",
            hint="write `#!/bin/bash` at the very start of the first line",
        )


def _line(text: str, number: int) -> str:
    return text.split("\n")[number - 1][:200]


def _node_count(value: str | None) -> tuple[int | None, int | None]:
    """`4`, `2-4`, `1k`; what sbatch alone can judge (a list of sizes, a typing error) is None."""
    least, dash, most = (value or "").partition("-")
    low = _count(least)
    return low, (_count(most) if dash else low)


def _count(value: str | None) -> int | None:
    match = _COUNT.fullmatch((value or "").strip())
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()] if match else None
