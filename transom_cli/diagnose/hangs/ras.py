"""Read what NCCL's RAS says about the communicators of a running job: who has launched how many collectives. Pure.

RAS is part of NCCL since 2.24 and on by default. Any process of the job answers for all of them (`VERBOSE STATUS`), as
JSON since 2.28 and as text before. The text lists only the ranks that differ from most: the others have their count.

    #0-0 (9c1bcf6fe3a5c2b1) MISMATCH
      Communicator ranks have different AllReduce operation counts
      7 ranks have launched up to operation 6650
      Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 4716 on node 10.0.0.3

Counts say who waits for whom, in the terms of `flight_recorder`. Equal counts say nothing: a call may be complete or
not. Numbers in an answer are ranks of a communicator. Process IDs show which rank of the job that is.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from transom_cli.core.stacks import clean
from transom_cli.diagnose.hangs.findings import Finding, What
from transom_cli.diagnose.hangs.flight_recorder import Count, Group, follow_waits
from transom_cli.diagnose.hangs.matching import Matched
from transom_cli.diagnose.hangs.stacks import rank_names, ranks_do
from transom_cli.plural import several

MOST = 1 << 20  # ranks of a communicator
_FINE = (0, 7)  # ncclSuccess and ncclInProgress
_SIZES = re.compile(r"^ *(\d+) +\d+ +\d+ +[\d-]+ +(\d+) +\d+ +[A-Z]+ +\S+ *$")
_COMM = re.compile(r"^#(\d+)-(\d+) \((\w+)\) (?:MISMATCH|INCOMPLETE|ERROR)")
_OP = re.compile(r"^ +Communicator ranks have different (\w+) operation counts")
_MANY = re.compile(r"^ +\d+ ranks (?:have launched up to operation (\d+)|(have not launched any))")
_RANK = re.compile(
    r"^ +Rank (\d+) (?:(?:has launched up to operation (\d+)|(has not launched any) operations|(reported) .*?) )?-- "
    r"(?:GPU \d+.*? managed by process (\d+) on node (\S+))?"
)
_SILENT = re.compile(r"^ +Missing communicator data from \d+ rank")


@dataclass
class Communicator:
    """Ranks are the communicator's own. processes: by rank, host and process ID. counts: by collective and rank."""

    name: str
    size: int
    processes: dict[int, tuple[str, int]] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


def is_answer(head: str) -> bool:
    return ("NCCL version" in head[:200] and "Job summary" in head) or '"communicators_count"' in head


def parse(text: str) -> tuple[Communicator, ...]:
    """Parse an answer of RAS, or the output of `ncclras -v`. Returns () for anything else."""
    at = text.find("{")
    try:
        return tuple(_of_json(json.loads(text[at:]))) if at >= 0 else tuple(_of_text(text).values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _of_json(document: Mapping[str, Any]) -> Iterator[Communicator]:
    for said in document["communicators"]:
        comm = Communicator(clean(str(said["hash"])[:18]), min(int(said["size"]), MOST))
        for one in (*said["ranks"], *said.get("missing_ranks", ())):
            rank = int(one["rank"])
            comm.processes[rank] = str(one["host"])[:64], int(one["pid"])
            status = one["status"]
            if status.get("unresponsive") or status.get("considered_dead"):
                comm.silent.add(rank)
            if {int(status.get("async_error", 0)), int(status.get("init_state", 0))} - set(_FINE):
                comm.failed.add(rank)
            for name, count in one.get("collective_counts", {}).items():
                comm.counts.setdefault(clean(str(name)[:32]), {})[rank] = int(count)
        yield comm


def _of_text(text: str) -> dict[str, Communicator]:
    sizes: dict[str, int] = {}
    found: dict[str, Communicator] = {}
    comm, op, listed = Communicator("", 0), "", False
    rest: dict[tuple[str, str], int] = {}  # count of the ranks that a communicator does not list
    group = 0  # count of the ranks listed next
    for line in text.splitlines():
        if table := _SIZES.match(line):
            sizes[table[1]] = int(table[2])
        elif head := _COMM.match(line):
            comm = found.setdefault(head[3], Communicator(head[3], min(sizes.get(head[1], 0), MOST)))
            op, listed = "", False
        elif title := _OP.match(line):
            op = title[1]
        elif _SILENT.match(line):
            op, listed = "", True
        elif many := _MANY.match(line):
            group = int(many[1] or 0)
            rest.setdefault((comm.name, op), group)  # the most frequent count comes first
        elif one := _RANK.match(line):
            rank = int(one[1])
            if one[5]:
                comm.processes[rank] = one[6], int(one[5])
            if op:
                comm.counts.setdefault(op, {})[rank] = int(one[2] or 0) if one[2] or one[3] else group
            elif one[4]:
                comm.failed.add(rank)
            elif listed:
                comm.silent.add(rank)
    for (name, op), count in rest.items():
        comm = found.get(name, Communicator("", 0))
        for rank in set(range(comm.size)) - comm.silent:
            comm.counts.setdefault(op, {}).setdefault(rank, count)
    return found


def match(
    comms: tuple[Communicator, ...], pids: Mapping[int, int], nodes: Mapping[int, str]
) -> tuple[Matched | None, tuple[str, ...]]:
    """Return who waits for whom, None if all have launched the same, and notes.

    Args:
        pids: process IDs by rank of the job; nodes: their nodes.
    """
    groups, silent, failed, found = [], set[int](), set[int](), []
    world = max((comm.size for comm in comms), default=0)
    for comm in comms:
        ranks = job_ranks(comm, pids, nodes, world)
        silent |= {ranks[rank] for rank in comm.silent if rank in ranks}
        failed |= {ranks[rank] for rank in comm.failed if rank in ranks}
        others = dict.fromkeys(set(range(comm.size)) - comm.silent, 1)
        for op, counts in comm.counts.items() or [("collectives", others)]:
            known = {ranks[rank]: count for rank, count in counts.items() if rank in ranks}
            most, least = max(known.values(), default=1), min(known.values(), default=1)
            if op.startswith(("Send", "Recv")) or (most == least and not comm.silent):
                continue  # sends and receives differ by right
            done = min(least, most - 1)
            of = {rank: Count(count, done) for rank, count in known.items()}
            of |= {ranks[rank]: Count(done, done) for rank in comm.silent if rank in ranks}
            groups.append(Group(f"communicator {comm.name} ({several(comm.size, 'rank')})", tuple(sorted(of)), of))
            found.append((op, done, most))
    notes = []
    if failed:
        notes.append(f"NCCL RAS: {ranks_do(failed, 'report', 'reports')} an error of a communicator")
    waits = follow_waits(groups)
    if not groups:
        same = "all ranks of all communicators have launched the same collectives"
        return None, (*notes, *([f"NCCL RAS: {same}"] if comms else []))
    findings = []
    for group, (op, done, most) in zip(groups, found, strict=True):
        behind = tuple(sorted(rank for rank, count in group.counts.items() if not count.waits))
        ahead = tuple(sorted(set(group.counts) - set(behind)))
        blamed = tuple(rank for rank in behind if rank in waits.roots)
        words = f"NCCL RAS: {ranks_do(behind, 'have', 'has')} launched {done} {op} of {group.name}, "
        words += f"{rank_names(ahead)} up to {most}"
        if quiet := silent & set(behind):
            words = f"NCCL RAS: {ranks_do(quiet, 'do', 'does')} not answer; {group.name} waits"
        words += "" if blamed else ": waiting elsewhere themselves"
        findings.append(Finding(What.MISSING, group.name, done + 1, op, blamed, ahead, words))
    findings.sort(key=lambda one: (not one.ranks, len(one.ranks)))
    if not waits.roots:
        return None, (*notes, *(one.words for one in findings))
    return Matched(tuple(findings), tuple(groups), waits, (), ()), tuple(notes)


def job_ranks(comm: Communicator, pids: Mapping[int, int], nodes: Mapping[int, str], world: int) -> dict[int, int]:
    """Return the job's ranks by the communicator's own: by process IDs, on the only node that has all of a host's. A
    communicator of all ranks numbers them like the job, unless process IDs say otherwise."""
    there: dict[str, dict[int, int]] = {}
    for rank, pid in pids.items():
        there.setdefault(nodes.get(rank, ""), {})[pid] = rank
    found = {}
    for host in {host for host, _ in comm.processes.values()}:
        of = {rank: pid for rank, (on, pid) in comm.processes.items() if on == host}
        homes = [by_pid for by_pid in there.values() if set(of.values()) <= by_pid.keys()]
        if len(homes) == 1:
            found.update({rank: homes[0][pid] for rank, pid in of.items()})
    if comm.size == world == len(pids) == max(pids, default=-1) + 1 and all(rank == own for own, rank in found.items()):
        return {rank: rank for rank in range(world)}
    return found
