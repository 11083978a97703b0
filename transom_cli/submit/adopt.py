"""Finds the training steps of a user's own script, and writes `transom launch` in place of their `srun`. Pure."""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from transom_cli.submit.shell_commands import Command, Word, shell_commands
from transom_cli.submit.srun_options import SRUN, UNSUPPORTED
from transom_cli.submit.unsupported import program_of

LAUNCH = "transom launch"
TRAP = "trap 'exit 143' TERM  # if Slurm ends the job, wait until transom launch has saved and ended the ranks\n"
_SHELL = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*(?:\S*/)?)?(?:ba|da|k|z)?sh(?:\s|$)")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?")
_TO_SRUN = re.compile(r"\S*srun")
_NO_TRAINING = re.compile(
    "hostname|echo|printf|true|false|sleep|mkdir|cp|mv|rm|ln|ls|cat|touch|rsync|scp|tar|unzip|date|df|du|free|id|whoami|"
    "pwd|env|printenv|nproc|lscpu|lspci|uname|ulimit|uptime|nvidia-smi|rocm-smi|dcgmi|ibstat|ibv_devinfo|test|top|ps|"
    "pkill|killall|module|which|find|chmod|git|pip"
)
_MOST_VARIABLES = 9  # before the command: a variable may contain itself
_OTHER_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "horovodrun", "prun", "aprun", "jsrun", "pbsdsh")


class Kind(enum.Enum):
    TRAINING = "training"  # `srun` can become `transom launch`
    LAUNCHED = "launched"  # it has it already
    HELPER = "helper"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class ScriptStep:
    """A line that starts processes on the job's nodes. text: its words. at: the place of `srun` in the script."""

    kind: Kind
    line: int
    text: str
    at: int = -1
    why: str = ""  # why it is left as it is
    spares: bool = False
    background: bool = False
    redirected: bool = False


def find_steps(script: str) -> tuple[ScriptStep, ...]:
    """Return the steps of a script in order, none for a script in another language than shell."""
    if not _SHELL.match(script):
        return ()
    assigned: dict[str, Word] = {}
    found: list[ScriptStep] = []
    for command in shell_commands(script):
        assigned.update(command.assignments)
        found += _step(script, command, assigned)
    together = [step for step in found if step.kind is Kind.TRAINING and step.background]
    if len(together) < 2:
        return tuple(found)
    why = "job steps that run at the same time are not supported"
    return tuple(replace(s, kind=Kind.UNSUPPORTED, why=why) if s in together else s for s in found)


def _step(script: str, command: Command, assigned: dict[str, Word]) -> Iterator[ScriptStep]:
    program = command.program
    if not program:
        return
    first, words = program[0], [word.text for word in program]
    at = first.start
    if (variable := _VARIABLE.fullmatch(first.text)) and variable[1] in assigned:
        value = assigned[variable[1]]
        words = [*value.text.split(), *words[1:]]
        at = script.find(words[0], value.start, value.end) if words else -1
    if not words:
        return
    name, text = PurePath(words[0]).name, " ".join(words)
    about = ScriptStep(
        Kind.TRAINING, command.line, text, at, background=command.background, redirected=command.redirected
    )
    if name == "transom" and words[1:2] == ["launch"]:
        yield replace(about, kind=Kind.LAUNCHED, spares=any(word.startswith("--spares") for word in words))
    elif name in _OTHER_LAUNCHERS:
        yield replace(about, kind=Kind.UNSUPPORTED, why=f"{name} starts the ranks by itself: start them with srun")
    elif name in ("torchrun", "accelerate", "deepspeed") or "torch.distributed.run" in words:
        yield replace(
            about, kind=Kind.UNSUPPORTED, why=f"it runs on one node, without srun: write `{LAUNCH}` in front of it"
        )
    elif name == "srun":
        yield _srun(about, words, assigned)


def _srun(about: ScriptStep, words: list[str], assigned: dict[str, Word]) -> ScriptStep:
    options, command = SRUN.split(words[1:])
    for _ in range(_MOST_VARIABLES):
        if not command or not (variable := _VARIABLE.fullmatch(command[0])):
            break
        value = assigned[variable[1]].text.split() if variable[1] in assigned else []
        more, command = SRUN.split([*value, *command[1:]])
        options += more
    bad = next((option.name for option in options if option.name in UNSUPPORTED), "")
    why = f"--{bad}: {UNSUPPORTED[bad]}" if bad else ""
    if ":" in words:
        why = "heterogeneous steps are not supported"
    name = program_of(tuple(command))
    if _NO_TRAINING.fullmatch(name):
        return replace(about, kind=Kind.HELPER, why=f"{name} is no training")
    if name in _OTHER_LAUNCHERS:
        why = f"{name} starts the ranks by itself"
    return replace(about, kind=Kind.UNSUPPORTED, why=why) if why else about


def adopt(script: str) -> str:
    """Return the script with `transom launch` in place of the word `srun` of each training step."""
    steps = find_steps(script)
    places = sorted({step.at for step in steps if step.kind is Kind.TRAINING and step.at >= 0}, reverse=True)
    for at in places:
        end = next(w.end for w in _words_at(script, at))
        script = script[:at] + LAUNCH + script[end:]
    if places and lacks_trap(script):
        at = _first_command(script)
        script = script[:at] + TRAP + script[at:]
    return script


def step_notes(script: str, name: str) -> Iterator[str]:
    """Yield what the user should know about the steps of a script that is submitted as it is."""
    steps = find_steps(script)
    for step in steps:
        if step.kind is Kind.TRAINING:
            gets = "relaunches, hang detection and a checkpoint before the time limit"
            how = f"(`transom adopt {name}` writes such a copy)"
            yield f"line {step.line}: write `{LAUNCH}` in place of `srun` to get {gets} {how}"
        elif step.kind is Kind.UNSUPPORTED:
            yield f"line {step.line} is not supervised: {step.why}"
    launched = next((step for step in steps if step.kind is Kind.LAUNCHED), None)
    if launched is not None and lacks_trap(script):
        add = "add this line before it, or scancel and preemption end the launcher at once"
        yield f"line {launched.line}: {add}: {TRAP.rstrip()}"


def lacks_trap(script: str) -> bool:
    """Return whether the shell would end at once when Slurm ends the job, and transom launch with it."""
    traps = (c for c in shell_commands(script) if c.program and c.program[0].text == "trap")
    names = {word.text.removeprefix("SIG") for trap in traps for word in trap.program[2:]}
    execs = [c for c in shell_commands(script) if c.words[0].text == "exec" and len(c.words) > 1]
    return "TERM" not in names and "15" not in names and not execs


def _words_at(script: str, at: int) -> Iterator[Word]:
    """Yield the word that begins at `at`, such as a path of srun; inside a quoted value, up to the end of `srun`."""
    for command in shell_commands(script):
        yield from (word for word in command.words if word.start == at)
    if in_value := _TO_SRUN.match(script, at):
        yield Word(at, in_value.end(), in_value[0])


def _first_command(script: str) -> int:
    """Return the start of the first line that is neither blank nor a comment."""
    at = 0
    for line in script.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            return at
        at += len(line)
    return len(script)
