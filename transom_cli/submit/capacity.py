"""Refuse a job that not enough nodes of the cluster fit: it would wait forever, or Slurm would hold it. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.errors import TransomError, UsageError
from transom_cli.plural import several
from transom_cli.slurm.parse import fold_nodes, parse_nodes
from transom_cli.slurm.port import Node

_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:,()=]+)?[:=](\d+)")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_NAMING = ("exclude", "nodelist")  # options with names of nodes
_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True)
class _Need:
    """What each node must have. have: Slurm's value of each node; None: unknown, which fits."""

    shown: str
    amount: float
    have: tuple[int | None, ...]
    flag: str  # with {} for the most that fits
    per: int = 1  # the flag's value is multiplied by this

    @property
    def fits(self) -> tuple[bool, ...]:
        return tuple(value is None or value >= self.amount for value in self.have)

    def remedy(self, wanted: int) -> str:
        values = sorted((self.amount if value is None else value for value in self.have), reverse=True)
        most = int(values[wanted - 1]) // self.per
        return f"`{self.flag.format(most)}` fits" if most else "leave it out"


def refuse_too_large(options: Mapping[str, str | None], wanted: int, spares: int, nodes: Sequence[Node]) -> None:
    """Raise UsageError if the cluster, or the named partition, has fewer than `wanted` nodes that fit the job.

    Args:
        options: sbatch's options by their long names.
        wanted: the job's nodes, spares included.
    """
    if not nodes:
        return  # the site shows them to nobody
    _refuse_unknown(options, nodes)
    named = {one for one in map(str.strip, (options.get("partition") or "").split(",")) if one}
    inside = [node for node in nodes if named.intersection(node.partitions)]
    where = f"Partition `{options['partition']}`" if inside else "The cluster"
    nodes = inside or nodes
    asked = f"the job asks for {wanted}{f', {spares} of them spares' if spares else ''}"
    if len(nodes) < wanted:
        hint = "use fewer nodes (`--nodes`), or `--force`"
        raise UsageError(f"{where} does not have enough nodes", f"it has {len(nodes)}; {asked}", hint)
    needs = _needs(options, nodes)
    for need in needs:
        if sum(need.fits) < wanted:
            why = f"{sum(need.fits)} of {len(nodes)} nodes have {need.shown} or more; {asked}"
            instead = f"{need.remedy(wanted)}, or `--force`"
            raise UsageError(f"{where} does not have enough nodes with {need.shown}", why, instead)
    found = sum(map(all, zip(*(need.fits for need in needs), strict=True))) if needs else wanted
    if found < wanted:
        together = " and ".join(need.shown for need in needs)
        why = f"{found} of {len(nodes)} nodes have all of it; {asked}"
        raise UsageError(f"{where} does not have enough nodes with {together}", why, "use less of it, or `--force`")


def with_hidden(nodes: Sequence[Node], partitions: Mapping[str, Sequence[str]]) -> tuple[Node, ...]:
    """Add the nodes that only their partitions name: Slurm does not list cloud nodes that are powered down.

    What such a node has is unknown.
    """
    known, hidden = {node.name for node in nodes}, dict[str, tuple[str, ...]]()
    for partition, names in partitions.items():
        for name in names:
            if name not in known:
                hidden[name] = (*hidden.get(name, ()), partition)
    return (*nodes, *(Node(name, "unknown", partitions=inside) for name, inside in hidden.items()))


def needs_nodes(options: Mapping[str, str | None], wanted: int) -> bool:
    """Return whether the job asks for anything that `refuse_too_large` compares."""
    return wanted > 1 or any(options.get(one) for one in _NAMING) or bool(_needs(options, ()))


def refuse_unknown(named: Iterable[str], nodes: Sequence[Node], option: str, instead: str) -> None:
    """Raise UsageError if the cluster has no node of one of these names. instead: what else helps."""
    known = {node.name for node in nodes}
    if unknown := [name for name in named if name not in known]:
        raise UsageError(f"There is no node `{unknown[0]}`", f"the nodes are: {fold_nodes(known)}",
                         f"correct `--{option}`, or {instead}")  # fmt: skip


def _refuse_unknown(options: Mapping[str, str | None], nodes: Sequence[Node]) -> None:
    for option in _NAMING:
        try:
            named = parse_nodes(options.get(option) or "")
        except TransomError:
            continue  # a file with names, for example: sbatch reads it
        refuse_unknown(named, nodes, option, "`--force`")


def _needs(options: Mapping[str, str | None], nodes: Sequence[Node]) -> list[_Need]:
    found = []
    if gpus := _gpus(options):
        counts = tuple(node.gpus for node in nodes)
        found.append(_Need(several(gpus, "GPU"), gpus, counts, "--gpus-per-node {}"))
    memory = _MEMORY.fullmatch(options.get("mem") or "")
    if memory is not None and int(memory[1]):
        amount = int(memory[1]) * _MIB[memory[2].upper()]
        found.append(_Need(f"{options['mem']} of memory", amount, tuple(n.memory for n in nodes), "--mem {}M"))
    tasks, each = (_count(options.get(name)) for name in ("ntasks-per-node", "cpus-per-task"))
    if (cpus := tasks * each) > 1 and "overcommit" not in options:
        shown = several(cpus, "CPU") + (f" ({several(tasks, 'task')} of {each})" if tasks > 1 and each > 1 else "")
        flag, per = ("--cpus-per-task {}", tasks) if each > 1 else ("--tasks-per-node {}", 1)
        found.append(_Need(shown, cpus, tuple(node.cpus for node in nodes), flag, per))
    return found


def _gpus(options: Mapping[str, str | None]) -> int:
    per_node = (options.get("gpus-per-node") or "").rpartition(":")[2]
    return int(per_node) if per_node.isdecimal() else sum(map(int, _GPUS.findall(options.get("gres") or "")))


def _count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 1
