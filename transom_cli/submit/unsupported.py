"""Refuse submissions that transom cannot supervise, and choose among several clusters. Pure.

- Nested launchers: a command that starts ranks itself (torchrun, accelerate, mpirun), in each of several tasks. Each
  task would start a separate training, and all would write the same checkpoints.
- SageMaker HyperPod's auto-resume (`srun --auto-resume=1`): srun waits for the replacement of a faulty node and
  restarts its step inside the allocation, while transom sees the same fault and requeues the job.
- Several clusters, and federations: a run has one job on one cluster.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError, printable
from transom_cli.plural import several

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_PREFIXES = ("env", "exec", "nice", "time", "nohup", "numactl", "taskset", "stdbuf", "setsid", "command")
_PREFIX_OPTIONS = ("-u", "-n", "-C", "-S", "-c", "-i", "-o", "-e")  # options of those programs that take a value
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_OTHERS = ("deepspeed", "horovodrun", "mpirun", "mpiexec", "orterun", "srun", "composer", "ray")
_ALONE = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "--multi_gpu", "--multi-gpu")
_END = re.compile(r"[;&|\n()]+")


def refuse_nested(words: tuple[str, ...], settings: Settings, given: tuple[str, ...] = ()) -> None:
    """Raise UsageError if the command would start several trainings. given: the options of `transom run`."""
    found = _launcher(list(words))
    if found is None:
        return
    name, arguments = found
    per_node = 1 if settings.launch.kind == "torchrun" else settings.ranks_per_node
    tasks = settings.job.nodes * per_node
    within = settings.launch.kind == "torchrun"
    if not within and (tasks == 1 or (per_node == 1 and _joins_nodes(name, arguments))):
        return
    if within:
        why = "--torchrun already starts one torchrun per node, and each of its ranks would start another launcher"
    else:
        why = (
            f"transom starts the command in {tasks} tasks, so {name} would start {several(tasks, 'separate training')}"
        )
        why += ", which overwrite each other's checkpoints"
    raise UsageError(f"`{name}` cannot be the command of this run", why, _instead(name, arguments, given))


def direct_launcher(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the launcher that the first word is, with its arguments; None if a shell or another program starts it."""
    if not words or PurePath(words[0]).name in (*_SHELLS, *_PREFIXES):
        return None
    return _launcher(words)


def refuse_nested_in_step(words: tuple[str, ...], nodes: int, per_node: int) -> None:
    """Raise UsageError if the command of a job step would start several trainings."""
    found = _launcher(list(words))
    if found is None or nodes * per_node == 1 or (per_node == 1 and _joins_nodes(*found)):
        return
    raise UsageError(
        f"`{found[0]}` cannot be the command of `transom launch`",
        f"it would start {several(nodes * per_node, 'separate training')}, which overwrite each other's checkpoints",
        "transom launch -- python train.py (Slurm starts every rank), or transom launch --torchrun -- train.py",
    )


def program_of(words: tuple[str, ...], depth: int = 0) -> str:
    """Return the name of the program that a command line starts, also in `env A=b PROGRAM` or `bash -c PROGRAM`."""
    left = _after_prefixes(list(words))
    name = PurePath(left[0]).name if left else ""
    if name in _SHELLS and depth < 3 and len(left) > 2 and re.fullmatch(r"-[a-z]*c", left[1]):
        return program_of(tuple(_END.split(left[2].strip(" ;\n"))[-1].split()), depth + 1)
    return name


def _after_prefixes(words: list[str]) -> list[str]:
    while words:
        name = PurePath(words[0]).name
        if _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif name in _PREFIXES and len(words) > 1:
            words = _after_options(words[1:])
        else:
            break
    return words


def _launcher(words: list[str], depth: int = 0) -> tuple[str, list[str]] | None:
    """Return the launcher that this command line starts, and its arguments."""
    words = _after_prefixes(words)
    if not words:
        return None
    name, rest = PurePath(words[0]).name, words[1:]
    if name in _SHELLS and depth < 3:
        return _in_shell(rest, depth)
    if _PYTHON.fullmatch(name):
        module, rest = _module(rest)
        if module in _TORCHRUN:
            return f"python -m {module}", rest
        return ("accelerate launch", rest) if module in _ACCELERATE else None
    if name == "accelerate":
        return ("accelerate launch", rest[1:]) if rest[:1] == ["launch"] else None
    if name in ("fabric", "lightning"):
        words = rest[2:] if rest[:2] == ["run", "model"] else rest[1:]
        return (f"{name} run", words) if rest[:1] == ["run"] else None
    if name in ("torchrun", "torchrun-script") or name in _OTHERS:
        return name, rest
    return None


def _after_options(words: list[str]) -> list[str]:
    """Return what follows the options of `env`, `nice`, `numactl`."""
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in _PREFIX_OPTIONS else words[1:]
    return words


def _in_shell(words: list[str], depth: int) -> tuple[str, list[str]] | None:
    """Return the launcher in `bash -c TEXT`, as far as the text can be parsed without a shell."""
    flags = [n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
    if not flags or len(words) <= flags[0] + 1 or any(not w.startswith("-") for w in words[: flags[0]]):
        return None
    for command in _END.split(words[flags[0] + 1]):
        try:
            split = shlex.split(command)
        except ValueError:
            split = command.split()
        found = _launcher(split, depth + 1)
        if found is not None:
            return found
    return None


def _module(words: list[str]) -> tuple[str, list[str]]:
    """Return the module of `python [flags] -m MODULE` and its arguments; "" for a script."""
    while words and words[0].startswith("-"):
        if words[0] == "-m":
            return (words[1], words[2:]) if len(words) > 1 else ("", [])
        if words[0].startswith("-m"):
            return words[0][2:], words[1:]
        words = words[2:] if words[0] in ("-X", "-W") else words[1:]
    return "", []


def _joins_nodes(name: str, arguments: list[str]) -> bool:
    """Return whether a launcher with one task per node is given the number of nodes, and so forms one training."""
    flags = ("--nnodes", "--num_machines", "--num-machines")
    if "torch" not in name and not name.startswith("accelerate"):
        return False
    for n, word in enumerate(arguments):
        flag, equals, value = word.partition("=")
        if flag in flags:
            count = value if equals else (arguments[n + 1] if n + 1 < len(arguments) else "")
            return count not in ("", "1", "1:1")
    return False


def _instead(name: str, arguments: list[str], given: tuple[str, ...]) -> str:
    """Return the command to use instead."""
    options = [word for word in given if word != "--torchrun"]
    training, ranks, _ = _training(arguments)
    shown = shlex.join(training) if training else "train.py"
    start = " ".join(["transom run", *([shlex.join(options)] if options else [])])
    if name in ("mpirun", "mpiexec", "orterun", "horovodrun", "srun", "ray"):
        return f"{start} -- {shown}\nSlurm starts one rank per task (--nodes, --tasks-per-node)"
    given_ranks = any(w.partition("=")[0] in ("--tasks-per-node", "--gpus-per-node") for w in options)
    many = f" --tasks-per-node {ranks}" if ranks.isdecimal() and not given_ranks else ""
    by_slurm = shlex.join(["python", *training]) if training else "python train.py"
    return f"{start} --torchrun{many} -- {shown}\nor, without torchrun, one rank per task: {start}{many} -- {by_slurm}"


@dataclass(frozen=True)
class TorchrunCommand:
    """A command that starts torchrun itself. options: those that transom does not set. ranks: per node, if given."""

    program: tuple[str, ...]
    options: tuple[str, ...]
    training: tuple[str, ...]
    ranks: str


def torchrun_command(words: tuple[str, ...]) -> TorchrunCommand | None:
    """Take apart what `srun torchrun train.py` starts. None for any other command."""
    found = _launcher(list(words))
    if found is None or not (found[0].startswith("torchrun") or found[0].endswith(_TORCHRUN)):
        return None
    at = len(words) - len(found[1])
    training, ranks, options = _training(found[1])
    if not training or list(words[at:]) != found[1]:
        return None
    kept = (o for o in options if not o.lstrip("-").replace("_", "-").startswith(_SET_BY_TRANSOM))
    return TorchrunCommand(words[:at], tuple(kept), tuple(training), ranks)


_SET_BY_TRANSOM = ("nnodes", "nproc-per-node", "node-rank", "rdzv-", "master-", "max-restarts", "standalone")


def _training(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the script with its arguments, after the launcher's options; the ranks per node; the other options."""
    ranks, left, options = "", list(arguments), list[str]()
    while left and left[0].startswith("-"):
        flag, equals, value = left[0].partition("=")
        if flag in ("-m", "--module"):
            return ["-m", *left[1:]], ranks, options
        if flag in _ALONE:
            options.append(flag)
            left = left[1:]
            continue
        if not equals and len(left) > 1 and not (left[1].startswith("-") or left[1].endswith(".py")):
            value, left = left[1], left[1:]
        if flag.replace("_", "-") in ("--nproc-per-node", "--num-processes", "--num-gpus"):
            ranks = value
        else:
            options.append(f"{flag}={value}" if value else flag)
        left = left[1:]
    return left, ranks, options


HYPERPOD_FOLDER = "/opt/sagemaker_cluster"  # exists on HyperPod's machines; common scripts test for it too
_ON = re.compile(r"--auto-resume(?:\s*=\s*|\s+)[\"']?(?!0\b)[\w$]")


def find_auto_resume(script: str, words: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return where auto-resume is turned on, for a message, or "".

    It may be in a line of the script (not a comment), in `words` (the command, and arguments of srun), or in a variable
    that a script may pass to srun.
    """
    for number, line in enumerate(script.split("\n"), start=1):
        if _ON.search(line) and not line.lstrip().startswith("#"):
            return f"line {number} of the script: {printable(line.strip())[:120]}"
    joined = " ".join(words)
    if _ON.search(joined):
        return f"the command line: {printable(joined)[:120]}"
    named = (name for name in sorted(environ) if _ON.search(environ[name]))
    name = next(named, "")
    return f"the variable {printable(name)}" if name else ""


def judge_auto_resume(found: str, *, hyperpod: bool) -> str:
    """Raise UsageError on HyperPod. Elsewhere return a note, since a script may contain it and not use it there."""
    if not found:
        return ""
    if hyperpod:
        raise UsageError(
            "HyperPod's auto-resume and transom would both restart this training",
            found,
            "remove `--auto-resume=1` (or set it to 0): transom restarts the training without the faulty node, and "
            "HyperPod still replaces the node",
        )
    return f"{found}: on HyperPod this would restart the training in addition to transom, and is refused there"


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def one_cluster(name: str, source: str) -> str:
    """Return the name if it names one cluster. Raises UsageError for several: sbatch would choose one of them."""
    if _NAME.fullmatch(name) and name.lower() != "all":
        return name
    raise UsageError(
        "A run uses one cluster",
        f"{source} requests `{name}`",
        "name one: `transom run --clusters NAME ...`; `sacctmgr show clusters` lists them",
    )


def cluster_of(setting: str | None, script: str | None, line: int, environ: Mapping[str, str]) -> str:
    """Return the name of the job's cluster, as sbatch would choose it, or "" for the default cluster.

    Args:
        setting: `job.cluster`.
        script: what the user's own script requests on `line`. SBATCH_CLUSTERS overrides it, and both override the
            setting.
    """
    by_script = script is not None
    found = [
        (environ.get("SBATCH_CLUSTERS") if by_script else None, "SBATCH_CLUSTERS"),
        (script, f"line {line} of the script"),
        (setting, "`job.cluster`"),
        (environ.get("SBATCH_CLUSTERS"), "SBATCH_CLUSTERS"),
        (environ.get("SLURM_CLUSTERS"), "SLURM_CLUSTERS"),
    ]
    return next((one_cluster(name, source) for name, source in found if name), "")


def refuse_federation(shown: str) -> None:
    """Raise UsageError on a cluster of a federation. shown: the output of `scontrol show federation`."""
    name = re.match(r"\s*Federation:\s*(\S+)", shown)
    if name:
        raise UsageError(
            f"This cluster is part of a federation, `{name[1]}`",
            "a job of a federation may start, or be requeued, on any of its clusters, whose nodes transom cannot see",
            "submit on a cluster outside the federation; `scontrol show federation` lists its clusters",
        )
