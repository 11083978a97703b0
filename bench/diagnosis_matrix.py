"""Inject real faults into real jobs and score the diagnosis: random kinds, ranks and log layouts; also healthy runs.

    python bench/diagnosis_matrix.py [--rounds 3] [--healthy 20] [--supervised 1] [--seed 0] [--only KIND,...] [--json]

Each row is one Slurm job on the sandbox's four nodes: four ranks of `diagnosis_trainer`, one of which gets the fault at
a random step. Half of the jobs write one log per rank; the others write one log with srun's labels. The logs are
diagnosed when the job has ended. The output has a confusion table (cause), the culprit (top-1), the seconds from fault
to diagnosis (for hangs, with the trainer's own timeout of 5 s instead of the usual ten minutes), and false alarms on
healthy runs.

The same faults are injected into runs that transom supervises (diagnosis_supervised). There the launcher or the
operator diagnoses them during the job, from logs, heartbeats, exits, stacks and probes. Half of the healthy runs are
supervised.

Published figures are shown for comparison. They come from production clusters, these from injected faults in a small
job.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import diagnosis_supervised as supervision
from diagnosis_trainer import FAULTS
from harness import Bench, progress, run_bench, surroundings, wait_for

from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.errors import UsageError
from transom_cli.slurm.port import JobState, Submission

RANKS = 4
HERE = Path(__file__).resolve().parent
PUBLISHED = """\
published, elsewhere: L4 (428 production failures): F1 87.3 % of the failure's log, node in the top 5 80 %.
Minder (metrics, production): P 90.4 % R 88.3 %. GREYHOUND (slowness): 498 of 499. Mycroft: 90 % detected in 15 s.
Those are faults as they came on thousands of GPUs; these are injected, one at a time, on 4 ranks of gloo."""


@dataclass(frozen=True)
class Kind:
    """cause: categories that are right. who: "rank", "node" or "" (nobody's). by: what is done from outside.

    before: the fault of an earlier launch in the same script and logs.
    """

    cause: tuple[str, ...]
    who: str = "rank"
    by: str = ""
    before: str = ""


KINDS = {
    "user_exception": Kind(("user_code",)),
    "missing_module": Kind(("dependency_import",)),
    "host_memory": Kind(("host_oom",)),
    "killed": Kind(("host_oom",)),
    "segfault": Kind(("process_crash",)),
    "abort": Kind(("process_crash",)),
    "stopped": Kind(("process_crash", "nccl_hang")),  # with a supervisor, and from the logs alone
    "skips_collective": Kind(("nccl_hang",)),
    "disk_full": Kind(("storage_full",)),
    "open_files": Kind(("resource_limits",)),
    "bad_sample": Kind(("data_loader",)),
    "corrupt_checkpoint": Kind(("checkpoint_corrupt",)),
    "port_taken": Kind(("rendezvous_port",)),
    "no_network": Kind(("external_service",)),
    "exits_nonzero": Kind(("unknown", "user_code")),
    "nan": Kind(("numeric_divergence",), ""),
    "usage": Kind(("user_code",), "", "words"),
    "no_program": Kind(("slurm_launch",), "", "words"),
    "cancelled": Kind(("slurm_cancelled",), "", "scancel"),
    "requeued": Kind(("slurm_preempted",), "", "requeue"),
    "node_down": Kind(("slurm_node_fail",), "node", "down"),
    "segfault_later": Kind(("process_crash",), before="user_exception"),
    "bad_sample_later": Kind(("data_loader",), before="skips_collective"),
    "user_exception_later": Kind(("user_code",), before="killed"),
    "healthy_later": Kind(("none",), "", before="missing_module"),
}


@dataclass(frozen=True)
class Row:
    kind: str
    rank: int
    told: str
    line: str
    culprits: tuple[str, ...]
    seconds: float
    right: bool
    named: bool | None  # None: nobody is to be named


class Matrix:
    def __init__(self, bench: Bench, seed: int) -> None:
        self._bench, self._random, self._number = bench, random.Random(seed), 0
        self._book = Rulebook(load())
        self._supervised = supervision.Supervised(bench, seed)

    def row(self, kind: str) -> Row:
        """One job with that fault; "" is a healthy one."""
        self._number += 1
        folder = self._bench.dir / f"matrix-{self._number}"
        folder.mkdir()
        rank, at = self._random.randrange(RANKS), self._random.randrange(5, 40)
        apart = self._random.random() < 0.5
        node, struck = self._job(folder, kind, rank, at, apart)
        told = diagnose_logs([folder / "logs"], self._book)
        ended = time.time()
        first = told.incidents[0] if told.incidents else None
        cause = first.category.value if first else "none"
        asked = KINDS.get(kind, Kind(("none",), ""))
        culprits = first.culprits[:1] if first else ()
        named = None
        if asked.who == "rank":
            named = [c.rank for c in culprits] == [rank]
        elif asked.who == "node":
            named = [c.node for c in culprits] == [node]
        line = f"{first.root.file.rpartition('/')[2]}:{first.root.lineno} {first.root.record.text}" if first else ""
        return Row(
            kind or "healthy", rank, cause, line, tuple(map(str, culprits)), ended - struck, cause in asked.cause, named
        )

    def supervised(self, kind: str) -> Row:
        rank, node, told, struck, at = self._supervised.job(kind)
        cause = (told.decided.category or told.cause) if told is not None else "none"
        asked = supervision.CAUSES.get(kind) or KINDS.get(kind, Kind(("none",))).cause
        nodes = told.nodes if told is not None else ()
        words = told.words if told is not None else ""
        named = (list(nodes[:1]) == [node] or f"rank {rank} on {node} " in words) if kind else None
        return Row(kind or "healthy", rank, cause, words, nodes, at - struck, cause in asked, named)

    def _job(self, folder: Path, kind: str, rank: int, at: int, apart: bool) -> tuple[str, float]:
        """Runs it to its end: the node that suffered, and when the fault struck."""
        logs = folder / "logs"
        logs.mkdir()
        asked = KINDS.get(kind, Kind((), ""))
        kind = kind.removesuffix("_later")
        fault = kind if kind in FAULTS or kind == "nan" else ("outside" if asked.by else "")
        trainer = f'"{sys.executable}" "{HERE / "diagnosis_trainer.py"}"'
        program = f'{trainer} --folder "{folder}"'
        if fault:
            program += f" --fault {fault} --rank {rank} --at {at}"
        if kind == "usage":
            program += " --learning-rate"
        if kind == "no_program":
            program = "a_program_that_is_not_there --steps 10"
        options = f'--output="{logs}/rank-%t.log"' if apart else "--label"
        script = folder / "job.sbatch"
        srun, earlier = f"srun --kill-on-bad-exit=1 --open-mode=append {options}", ""
        if asked.before:
            (folder / "earlier").mkdir()
            other = self._random.randrange(RANKS)
            earlier = f'{srun} {trainer} --folder "{folder}/earlier" --fault {asked.before} --rank {other} --at 9\n'
        script.write_text(f"#!/bin/bash\n{earlier}{srun} {program}\n")
        words = (
            f"--nodes={RANKS}",
            f"--ntasks={RANKS}",
            f"--output={logs}/job.out",
            "--no-requeue" if kind != "requeued" else "--requeue",
        )
        slurm, began = self._bench.slurm, time.time()
        job = slurm.submit(Submission(script, words, (), self._bench.env, folder))
        mark = folder / "struck"
        node = ""
        if kind in ("cancelled", "requeued", "node_down"):
            wait_for(mark.exists, 90.0, f"{kind}: the step before it", every_s=0.05)
            node = sorted(n.name for n in self._bench.sandbox.nodes())[rank]
            self._outside(kind, job, node)
        wait_for(lambda: self._over(job, kind), 120.0, f"the end of {kind or 'a healthy run'}", every_s=0.2)
        if kind == "requeued":
            slurm.cancel(job)
        if kind == "node_down":
            self._bench.sandbox.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        return node, float(mark.read_text()) if mark.exists() else began

    def _over(self, job: int, kind: str) -> bool:
        found = self._bench.slurm.job(job)
        if found is None or found.completing:
            return found is None
        return found.state not in _GOING or (kind == "requeued" and found.state is JobState.PENDING)

    def _outside(self, kind: str, job: int, node: str) -> None:
        if kind == "cancelled":
            self._bench.slurm.cancel(job)
        elif kind == "requeued":
            self._bench.sandbox.slurm("scontrol", "requeuehold", str(job))
        else:
            self._bench.sandbox.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=injected")


_GOING = {JobState.PENDING, JobState.RUNNING}


def table(rows: list[Row], hours: float) -> list[str]:
    faults, healthy = [r for r in rows if r.kind != "healthy"], [r for r in rows if r.kind == "healthy"]
    lines = [f"{'fault':20} {'cause':>7} {'culprit':>8} {'median s':>9}  told"]
    for kind in dict.fromkeys(r.kind for r in faults):
        these = [r for r in faults if r.kind == kind]
        named = [r.named for r in these if r.named is not None]
        told = ", ".join(f"{name} {n}" for name, n in Counter(r.told for r in these).most_common())
        who = f"{sum(named)}/{len(named)}" if named else "-"
        right = f"{sum(r.right for r in these)}/{len(these)}"
        lines.append(f"{kind:20} {right:>7} {who:>8} {median(r.seconds for r in these):9.1f}  {told}")
    named = [r.named for r in faults if r.named is not None]
    right = sum(r.right for r in faults)
    alarms = [r for r in healthy if r.told != "none"]
    if faults:
        lines += [
            f"cause right {right}/{len(faults)} = {right / len(faults):.1%}; culprit first {sum(named)}/{len(named)}",
            f"seconds from the fault to the diagnosis: median {median(r.seconds for r in faults):.1f}, "
            f"worst {max(r.seconds for r in faults):.1f}",
        ]
    rate = len(alarms) / max(hours, 1e-9)
    lines.append(f"healthy runs {len(healthy)}, false alarms {len(alarms)}: {rate:.1f} an hour, in {hours:.2f} h")
    lines += [
        f"wrong: {r.kind} (rank {r.rank}): {r.told} {', '.join(r.culprits)}: {r.line}"
        for r in rows
        if not r.right or r.named is False
    ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind [3]")
    parser.add_argument("--healthy", type=int, default=20, help="runs without a fault [20]")
    parser.add_argument("--supervised", type=int, default=1, help="runs of each kind that transom supervises [1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kinds = [kind for kind in asked.only.split(",") if kind] or list(KINDS)
    under = [kind for kind in asked.only.split(",") if kind in supervision.KINDS] or list(supervision.KINDS)
    if unknown := set(kinds) - set(KINDS) - set(supervision.KINDS):
        raise UsageError(f"No fault is called {', '.join(sorted(unknown))}", f"there are {', '.join(KINDS)}")
    with Bench(nodes=RANKS) as bench:
        matrix = Matrix(bench, asked.seed)
        well = asked.healthy // 2 if asked.supervised else 0
        bare = [kind for kind in kinds if kind in KINDS] * asked.rounds
        alone = played(matrix.row, [*bare, *[""] * (asked.healthy - well)])
        watched = played(matrix.supervised, [*under * asked.supervised, *[""] * well])
    parts = {"logs alone, after the job's end": alone, "supervised, while the job lives": watched}
    if asked.json:
        told = {name: [asdict(row) for row in part.rows] for name, part in parts.items()}
        print(json.dumps({"rows": told, **surroundings()}))
    else:
        for name, part in parts.items():
            if part.rows:
                print("\n".join([name, *table(part.rows, part.healthy_s / 3600), ""]))
        print(PUBLISHED)
    rows = [*alone.rows, *watched.rows]
    return 0 if all(r.right and r.named is not False for r in rows) else 1


@dataclass(frozen=True)
class Part:
    rows: list[Row]
    healthy_s: float  # in which there was no fault


def played(row: Callable[[str], Row], kinds: list[str]) -> Part:
    rows: list[Row] = []
    spent = 0.0
    for kind in kinds:
        began = time.time()
        rows.append(row(kind))
        spent += 0.0 if kind else time.time() - began
        last = rows[-1]
        wrong = "" if last.right and last.named is not False else "  WRONG"
        who = ", ".join(last.culprits)
        progress(f"{last.kind} (rank {last.rank}): {last.told} {who} after {last.seconds:.1f} s{wrong}")
    return Part(rows, spent)


if __name__ == "__main__":
    run_bench(main)
