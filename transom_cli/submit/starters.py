"""Translate the command line of a starter (torchrun, accelerate launch, deepspeed, ...) to what transom starts. Pure.

A starter under a supervisor would restart ranks on its own, choose a rendezvous on its own, and start one node only. So
Slurm starts what the starter would have started: the same program, once for each rank, with the same arguments and
environment. The starter's elastic restarts and its rendezvous are replaced by transom's.

    torchrun, python -m torch.distributed.run     python SCRIPT; with `--torchrun`, one torchrun per node
    python -m torch.distributed.launch, deepspeed python SCRIPT --local-rank=...
    fabric run, lightning run model               python SCRIPT, with the environment that Fabric's command sets
    accelerate launch                             accelerate prepares the environment of each rank from flags and files
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError
from transom_cli.plural import several
from transom_cli.submit.unsupported import direct_launcher

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


@dataclass(frozen=True)
class Started:
    """What a starter would have started. ranks, nodes: None if its command line does not tell."""

    starter: str
    kind: str  # srun or torchrun, as `launch.kind`
    command: tuple[str, ...]
    ranks: int | None = None  # per node
    nodes: int | None = None
    torchrun_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()  # flags that are not used


@dataclass(frozen=True)
class _Flags:
    """The flags of a starter, without dashes.

    ranks, nodes: they give these numbers.
    """

    ranks: str
    nodes: str
    alone: frozenset[str] = frozenset()  # they have no value
    kept: frozenset[str] = frozenset()  # the translation does what they say
    refused: Mapping[str, str] = field(default_factory=dict)  # why a command line with them cannot be translated


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_RENDEZVOUS = _set(
    "master-addr master-port node-rank rdzv-backend rdzv-endpoint rdzv-id rdzv-conf local-addr max-restarts"
)
_TORCHRUN = _Flags(
    "nproc-per-node",
    "nnodes",
    _set("standalone m module no-python run-path use-env virtual-local-rank"),
    _set("standalone m module no-python use-env"),
)
_FABRIC = _Flags("devices", "num-nodes", kept=_set("accelerator strategy precision"))
_GPUS = "it selects GPUs of named nodes; Slurm chooses the nodes"
_DEEPSPEED = _Flags(
    "num-gpus",
    "num-nodes",
    _set("module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank"),
    _set("module no-python no-local-rank"),
    {
        **dict.fromkeys(("include", "i", "exclude", "e"), _GPUS),
        "autotuning": "the autotuner starts trainings by itself",
        "elastic-training": "the number of ranks of a run is fixed",
        "venv-script": "use `job.setup`",
    },
)
_MAIN = ("main-address", "main-port")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WITH_LOCAL_RANK = 'flag=$1 script=$2; shift 2; exec "$0" -u "$script" "$flag=$LOCAL_RANK" "$@"'
_MODULE_WITH_LOCAL_RANK = _WITH_LOCAL_RANK.replace('-u "', '-u -m "')
# accelerate parses its own flags and files, and prepares the environment; where it would start ranks, the rank begins.
_ACCELERATE = (
    "import os, sys, torch.distributed.run as r, accelerate.commands.launch as a, accelerate.utils.launch as u; "
    "u.is_port_in_use = lambda *x: False; "
    "own = {k: os.environ[k] for k in ('MASTER_ADDR', 'MASTER_PORT') if k in os.environ}; "
    "go = lambda c, e: os.execvpe(c[0], c, {**e, **own}); "
    "r.run = lambda x: go([*([] if x.no_python else [sys.executable, '-u']), *(['-m'] if x.module else []), "
    "x.training_script, *x.training_script_args], os.environ); "
    "a.simple_launcher = lambda x: go(*a.prepare_simple_launcher_cmd_env(x)); "
    "a.main()"
)


def translate(words: Sequence[str], kind: str = "srun") -> Started | None:
    """Return what the starter at the beginning of a command line would have started; None for any other command.

    Args:
        kind: `launch.kind`. With torchrun, the ranks of a translated torchrun are started by one torchrun per node.

    Raises:
        UsageError: the starter's command line cannot be translated.
    """
    env: dict[str, str] = {}
    left = list(words)
    left = left[1:] if left[0] == "env" else left
    while left and (found := _ASSIGNMENT.fullmatch(left[0])):
        env[found[1]] = found[2]
        left = left[1:]
    starter = direct_launcher(left)
    if starter is None:
        return None
    name, rest = starter
    first = PurePath(left[0])
    sibling = str(first.with_name("python")) if "/" in left[0] else "python"
    python = left[0] if first.name.startswith(("python", "pypy")) else sibling
    if "torch" in name:
        started = _torchrun(name, rest, python, kind)
    elif name == "accelerate launch":
        started = _accelerate(rest, python)
    elif name == "deepspeed":
        started = _deepspeed(rest, python)
    elif name in ("fabric run", "lightning run"):
        started = _fabric(name, rest, python)
    else:
        return None
    if kind == "torchrun" and started.kind != kind:
        raise UsageError(
            f"`{name}` cannot be combined with --torchrun",
            "Slurm starts each rank of it",
            f"remove --torchrun: transom run ... -- {' '.join(words)}",
        )
    return replace(started, env={**env, **started.env})


def apply(words: tuple[str, ...], settings: Settings) -> tuple[tuple[str, ...], Settings, str]:
    """Replace a starter by what it would have started. Return command, settings, and a note for the user.

    Raises:
        UsageError: it cannot be translated, or contradicts the settings.
    """
    started = translate(words, settings.launch.kind)
    if started is None:
        return words, settings, ""
    job, launch = settings.job, settings.launch
    changes: dict[str, object] = {}
    for setting, value in (("nodes", started.nodes), ("tasks_per_node", started.ranks)):
        given = getattr(job, setting)
        if value is None or given == value:
            continue
        if setting in job.model_fields_set and given is not None:
            flag = "--tasks-per-node" if setting == "tasks_per_node" else "--nodes"
            raise UsageError(
                f"`{started.starter}` and `job.{setting}` differ",
                f"the command requests {value}, the setting {given}",
                f"give one of them: {flag} {value}",
            )
        changes[setting] = value
    if started.env:
        changes["env"] = {**started.env, **job.env}
    how = {"kind": started.kind, "torchrun_args": (*launch.torchrun_args, *started.torchrun_args)}
    settings = settings.model_copy(
        update={"job": job.model_copy(update=changes), "launch": launch.model_copy(update=how)}
    )
    many = several(settings.ranks_per_node, "rank")
    note = f"`{started.starter}` is not run itself: Slurm starts {many} on each node"
    if started.kind == "torchrun":
        note = f"`{started.starter}` is started by transom, with {many} on each node"
    if started.replaced:
        note += f"; {', '.join(started.replaced)} {'is' if len(started.replaced) == 1 else 'are'} not used"
    return started.command, settings, note


def refuse_python_within_torchrun(words: tuple[str, ...], settings: Settings) -> None:
    """Raise UsageError for `--torchrun -- python train.py`: torchrun would run the interpreter as a script."""
    if settings.launch.kind != "torchrun" or not re.fullmatch(r"python[0-9.]*", PurePath(words[0]).name):
        return
    if "--no-python" in settings.launch.torchrun_args or not words[1:]:
        return
    left = list(words[1:])
    while left and left[0] in ("-u", "-B", "-O"):
        left = left[1:]
    raise UsageError(
        "With --torchrun, the command is the script alone",
        "torchrun starts the interpreter, and would read the program `python` as a script",
        f"remove python: transom run --torchrun ... -- {' '.join(left)}",
    )


def _torchrun(name: str, words: list[str], python: str, kind: str) -> Started:
    script, flags = _split(words, _TORCHRUN, name)
    given = {flag for flag, _ in flags}
    module = bool(given & {"m", "module"})
    if kind == "torchrun":
        known = (*_RENDEZVOUS, "standalone", "use-env", "m", "module", _TORCHRUN.ranks, _TORCHRUN.nodes)
        rest = tuple(_shown(flag, value) for flag, value in flags if flag not in known)
        command = (*(["-m"] if module else []), *script)
        unused = tuple(f"--{flag}" for flag, _ in flags if flag in _RENDEZVOUS)
        return replace(_started(name, kind, command, flags, _TORCHRUN), torchrun_args=rest, replaced=unused)
    if "run-path" in given:
        raise UsageError(
            f"`{name}` cannot be translated",
            "--run-path runs the script inside torchrun's own process",
            f"use torchrun itself: transom run --torchrun ... -- {' '.join(script)}",
        )
    flag = "--local-rank" if name.endswith("launch") and not given & {"use-env", "no-python"} else ""
    command = _python(script, python, module=module, plain="no-python" in given, local_rank=flag)
    return _started(name, "srun", command, flags, _TORCHRUN)


def _fabric(name: str, words: list[str], python: str) -> Started:
    script, flags = _split(words, _FABRIC, name)
    env = {"LT_CLI_USED": "1"}
    env |= {f"LT_{flag.replace('-', '_').upper()}": value for flag, value in flags if flag not in ("node-rank", *_MAIN)}
    return replace(_started(name, "srun", _python(script, python), flags, _FABRIC), env=env)


def _deepspeed(words: list[str], python: str) -> Started:
    script, flags = _split(words, _DEEPSPEED, "deepspeed")
    given = {flag for flag, _ in flags}
    flag = "" if given & {"no-local-rank", "no-python"} else "--local_rank"
    command = _python(script, python, module="module" in given, plain="no-python" in given, local_rank=flag)
    return _started("deepspeed", "srun", command, flags, _DEEPSPEED)


def _accelerate(words: list[str], python: str) -> Started:
    values = dict(_pairs(words))
    total, nodes = _number(values.get("num-processes", "")), _number(values.get("num-machines", ""))
    if total and nodes and total % nodes:  # accelerate counts the ranks of all machines
        raise UsageError(
            "`accelerate launch` cannot be translated",
            f"{total} processes on {nodes} machines is not the same number on each",
            "make --num_processes a multiple of --num_machines",
        )
    each = total // (nodes or 1) if total else None
    one = ("--machine_rank=1", "--main_process_ip=localhost")  # defaults that it checks and that no rank uses
    return Started("accelerate launch", "srun", (python, "-c", _ACCELERATE, *one, *words), each, nodes)


def _python(
    script: list[str], python: str, *, module: bool = False, plain: bool = False, local_rank: str = ""
) -> tuple[str, ...]:
    """The command of a rank. plain: the script is a program. local_rank: the flag that gets the rank on its node."""
    if plain:
        return tuple(script)
    if local_rank:
        first, *rest = script
        shell = _MODULE_WITH_LOCAL_RANK if module else _WITH_LOCAL_RANK
        return ("sh", "-c", shell, python, local_rank, first, *rest)
    return (python, "-u", *(["-m"] if module else []), *script)


def _started(starter: str, kind: str, command: tuple[str, ...], flags: list[tuple[str, str]], known: _Flags) -> Started:
    values = dict(flags)
    nodes, ranks = values.get(known.nodes, ""), values.get(known.ranks, "")
    least, _, most = nodes.partition(":")
    if most not in ("", least):
        raise UsageError(
            f"`{starter}` cannot be translated",
            f"--{known.nodes} {nodes}: the number of nodes of a run is fixed",
            f"transom run -N {most} ..., and --spares N to keep nodes ready",
        )
    unused = tuple(_shown(flag, "") for flag, _ in flags if flag not in (known.ranks, known.nodes, *known.kept))
    return Started(starter, kind, command, _number(ranks), _number(least), replaced=unused)


def _split(words: list[str], known: _Flags, starter: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the script with its arguments, and the starter's flags with their values, without leading dashes."""
    flags: list[tuple[str, str]] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        flag, equals, value = word.lstrip("-").partition("=")
        flag = flag.replace("_", "-")
        if flag in known.refused:
            raise UsageError(f"`{starter}` cannot be translated", f"--{flag}: {known.refused[flag]}", "remove it")
        if not equals and flag not in known.alone:
            if not left:
                break
            value = left.pop(0)
        flags.append((flag, value))
    if not left:
        raise UsageError(f"`{starter}` has no script", "its command line ends with flags", "transom run -- train.py")
    return left, flags


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            yield flag.replace("_", "-"), value if equals else following


def _shown(flag: str, value: str) -> str:
    dashes = "-" if len(flag) == 1 else "--"
    return f"{dashes}{flag}" + (f"={value}" if value else "")


def _number(text: str) -> int | None:
    """None for words such as "gpu" and "auto", and for no text: then the settings say it."""
    return int(text) if text.isdecimal() and int(text) > 0 else None
