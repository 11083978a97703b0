"""Random cases of the checkpoint fuzzer: what is saved, how it is laid out, what goes wrong, and what may come back.

A case is data only. `draw` makes it from a seed and a number, and a line of JSON holds it, so that a case that once
failed stays the same when `draw` changes (tests/ckpt/ckpt_fuzz_regressions.jsonl).
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from typing import Any

FAMILIES = ("plain", "tied", "norms", "experts", "frozen")
OPTIMIZERS = ("sgd", "momentum", "adam", "groups", "amsgrad", "rmsprop", "adagrad")
DTYPES = ("float32", "bfloat16", "float16", "float64")
EXTRAS = ("loader", "scheduler", "values", "generator", "numpy_generator", "subclass")
WORLDS = {
    "single": (1,),
    "ddp": (1, 2, 4),
    "fsdp1": (2,),
    "fsdp2": (1, 2, 4),
    "tp": (2, 4),
    "hsdp": (4,),
    "fsdp_tp": (4,),
    "pipeline": (2, 4),
}
KILL_WITHIN = 0.08  # seconds after a save begins
KILLS = ("kill ranks", "kill daemon", "kill all")
DAMAGE = ("truncated", "flipped", "missing", "no manifest", "no directory")
LOST = "memory lost"
LOST_NAMED = ("NoCheckpointRestores", "Nothing that was saved")  # the error that names it, and a part of its text


@dataclass(frozen=True)
class Layout:
    """kind: a key of WORLDS. compiled: "", "whole" or "blocks". recompute: activation checkpointing of the blocks."""

    kind: str
    ranks: int
    compiled: str = ""
    recompute: bool = False

    @property
    def text(self) -> str:
        more = (f"+compile {self.compiled}" if self.compiled else "") + ("+recompute" if self.recompute else "")
        return f"{self.kind}:{self.ranks}{more}"


@dataclass(frozen=True)
class Case:
    """saves: number of steps that are saved. source: where the state is restored from, "memory", "disk" or "dcp" (a
    directory that torch.distributed.checkpoint wrote). at: place or moment of the fault, from 0 to 1. stepped: whether
    the restoring optimizer has made a step before.
    """

    seed: str
    family: str
    blocks: int
    width: int
    dtypes: tuple[str, ...]
    optimizer: str
    extras: tuple[str, ...]
    save: Layout
    restore: Layout
    saves: int = 1
    source: str = "disk"
    fault: str = ""
    at: float = 0.5
    reshard: bool = True
    stepped: bool = False

    @property
    def text(self) -> str:
        about = [self.family, "/".join(self.dtypes), self.optimizer, *self.extras, f"from {self.source}"]
        return f"{self.save.text} -> {self.restore.text} ({', '.join(filter(None, [*about, self.fault]))})"


def encode(case: Case) -> str:
    return json.dumps(asdict(case), sort_keys=True)


def decode(line: str) -> Case:
    data: dict[str, Any] = json.loads(line)
    for name in ("dtypes", "extras"):
        data[name] = tuple(data[name])
    for name in ("save", "restore"):
        data[name] = Layout(**data[name])
    return Case(**data)


def draw(seed: int, number: int) -> Case:
    """Return case `number` of the sequence that `seed` names."""
    chance = random.Random(f"{seed}/{number}")
    save = _layout(chance)
    restore = _layout(chance) if chance.random() < 0.8 else replace(save, compiled=chance.choice(("", "blocks")))
    if save.kind == "fsdp1" and chance.random() < 0.7:  # refused at once, so few are enough
        save = Layout("fsdp2", 2)
    source = chance.choices(("disk", "memory", "dcp"), (10, 6, 1))[0]
    fault = ""
    if source != "dcp" and chance.random() < 0.4:
        fault = chance.choice(KILLS if source == "memory" else (*KILLS, *DAMAGE, *DAMAGE, LOST))
    extras = tuple(
        one for one in EXTRAS if chance.random() < (0.4 if one in ("loader", "scheduler", "values") else 0.06)
    )
    if source == "dcp":
        extras = ()
    case = Case(
        seed=f"{seed}/{number}",
        family=chance.choice(FAMILIES),
        blocks=chance.randint(1, 4),
        width=chance.choice((3, 4, 5, 8, 16, 33)),
        dtypes=tuple(chance.sample(DTYPES, chance.choice((1, 1, 2)))),
        optimizer=chance.choice(OPTIMIZERS),
        extras=extras,
        save=save,
        restore=restore,
        saves=chance.randint(1, 3),
        source=source,
        fault=fault,
        at=round(chance.random(), 3),
        reshard=chance.random() < 0.9,
        stepped=chance.random() < 0.5,
    )
    return _possible(case)


def _layout(chance: random.Random) -> Layout:
    kinds = [kind for kind in WORLDS for _ in range(1 if kind in ("fsdp1", "pipeline") else 3)]
    kind = chance.choice(kinds)
    compiled = chance.choices(("", "whole", "blocks"), (8, 1, 1))[0]
    return Layout(kind, chance.choice(WORLDS[kind]), compiled, chance.random() < 0.1)


def _possible(case: Case) -> Case:
    """Replace what torch itself cannot build."""
    kinds = {case.save.kind, case.restore.kind}
    if "pipeline" in kinds:  # a tensor's type must not depend on the stages, and each stage has a block
        family = "plain" if case.family == "tied" else case.family
        case = replace(case, family=family, dtypes=case.dtypes[:1], blocks=max(4, case.blocks))
    if kinds & {"tp", "fsdp_tp"} and case.family in ("experts", "norms"):
        case = replace(case, family="plain")
    if case.fault == LOST and case.source != "disk":
        case = replace(case, fault="")
    return case


@dataclass(frozen=True)
class Expected:
    """What may come back. refused: names of the errors that may refuse it, with a text that the message must hold."""

    steps: frozenset[int]
    refused: tuple[tuple[str, str], ...] = ()
    must_refuse: bool = False


def one_more(case: Case) -> bool:
    """Whether the trainer saves once more after the fault.

    A new daemon knows the trainer's memory when the trainer speaks to it. If the trainer ends before that, it is two
    faults in a row, and no copy is left.
    """
    return case.fault == "kill daemon" and case.source == "memory"


def expected(case: Case, safe: int) -> Expected:
    """Say what may come back. safe: the newest step that the training had reported as safe; 0: none."""
    steps = range(1, case.saves + (2 if one_more(case) else 1))
    named: list[tuple[str, str]] = []
    if "fsdp1" in (case.save.kind, case.restore.kind):
        refused = (("UsageError", "`model` uses FullyShardedDataParallel"), ("RuntimeError", "FSDP needs a non-CPU"))
        named += refused  # torch itself refuses FSDP1 without an accelerator
    if "subclass" in case.extras:
        named.append(("UsageError", "`packed`"))
    if "generator" in case.extras or "numpy_generator" in case.extras:
        named.append(("UsageError", "generator"))
    if "fsdp1" in (case.save.kind, case.restore.kind):
        return Expected(frozenset(), tuple(named), must_refuse=True)
    if case.source == "dcp":
        if case.save.kind == "pipeline":  # DCP stores a group once, with the parameters of one stage
            named.append(("NoCheckpointRestores", "A parameter group is not that of the checkpoint: they differ in"))
        return Expected(frozenset({1}), tuple(named))
    unclear = case.save.ranks != case.restore.ranks and not case.reshard and "loader" in case.extras
    if unclear and case.fault not in (LOST, *DAMAGE):
        named.append(("WorldSizeChanged", f"this training has {case.restore.ranks}"))
        if case.fault == "kill all" and case.source == "memory":
            named.append(LOST_NAMED)
        return Expected(frozenset({0} if not safe else ()), tuple(named), must_refuse=bool(safe))
    if case.fault == LOST:
        return Expected(frozenset(), (*named, LOST_NAMED), must_refuse=True)
    if case.fault in DAMAGE:
        named.append(("NoCheckpointRestores", f"step-{case.saves}" if case.fault != "no directory" else "Nothing that"))
        if unclear:
            named.append(("WorldSizeChanged", f"this training has {case.restore.ranks}"))
        return Expected(frozenset({case.saves - 1} if case.saves > 1 else ()), tuple(named), case.saves == 1)
    if case.fault == "kill all" and case.source == "memory":
        return Expected(frozenset({0} if case.saves == 1 else ()), (*named, LOST_NAMED), must_refuse=case.saves > 1)
    if case.fault in KILLS:
        allowed = frozenset(step for step in steps if step >= safe) | (frozenset() if safe else frozenset({0}))
        if not safe:  # the marker remains though the memory is lost
            named.append(LOST_NAMED)
        return Expected(allowed, tuple(named))
    return Expected(frozenset({case.saves}), tuple(named))
