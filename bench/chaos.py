"""Inject several random faults per run at random moments, also during recovery, and check all invariants.

    python bench/chaos.py [--recovery] [--seed 1] [--runs 20] [--only N] [--site a,b] [--log FILE] [--json]

Each run trains the example GPT on 3 of a sandbox's 6 nodes, with its files on its own shared disk. It suffers two to
four faults: on ranks, agents, the launcher, the operator, nodes, slurmctld, the disk (full, read-only, stalled) and the
clock. Faults that a person would repair (the disk, the controller, a dead operator) are repaired after a while, as
planned. Run n of seed s always has the same plan `s/n`: `--only n` repeats it. With `--log FILE`, a campaign can be
split (`--first`, `--runs`) and resumed.

With `--recovery`, runs have `launch.recoverable` and `launch.standby`, and the faults come around an in-process
restart: a rank dies, once more during the re-entry, or with its standby; a standby dies before; a rank is stopped or
holds the GIL, alone or while another one dies. Each run has three such stories, each after the recovery from the one
before. Any launch but the first must say which ranks stayed, or why not, and whether standbys were used.

Each run must end with the final state of the uninterrupted run, bit for bit, or stop for a reason that its faults
explain. chaos_judge.py lists all invariants. Exit code 1 if one is violated; the evidence is kept.
"""

from __future__ import annotations

import argparse
import json
import queue
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chaos_stories
import chaos_trainer
from chaos_faults import possible
from chaos_judge import INVARIANTS
from chaos_plan import KINDS, RECOVERY_OPTIONS, SANDBOX_NODES, Plan, make_plan, make_recovery_plan
from chaos_run import INTERRUPTED, NotSubmitted, one_run
from harness import Bench, BenchError, Result, Training, progress, reference, run_bench, surroundings

from transom_cli.errors import TransomError

TRAINING = Training(steps=40, every=4, delay=0.15)
SMALL = ("--layers", "1", "--width", "32", "--context", "32", "--batch", "2")
RECOVERY_TRAINING = Training(steps=300, every=4, delay=0.5, shape=SMALL)  # no delay once all faults are made
RULE = """[[policy.rules]]
name = "same-nodes"  # by default, the second death on a node would exclude it
cause = ["rank_killed", "rank_failed", "hang"]
action = "relaunch"
"""


class ChaosBench(Bench):
    """A sandbox whose runs live under a clock that can jump, where that can be made.

    recovery: no such clock, no faults of disks, and a rule that keeps relaunches on the same nodes.
    """

    def __init__(self, keep: bool = False, profiles: Sequence[str] = (), *, recovery: bool = False) -> None:
        super().__init__(nodes=SANDBOX_NODES, keep=keep, profiles=profiles, as_root=True)
        self.clock_env: dict[str, str] = {}
        self.kinds: frozenset[str] = frozenset()
        self._recovery = recovery

    def __enter__(self) -> ChaosBench:
        super().__enter__()
        if self._recovery:
            settings = self.dir / "no-settings" / "transom"
            settings.mkdir(parents=True)
            (settings / "config.toml").write_text(RULE)
            return self
        self.clock_env, self.kinds = possible(self.sandbox)
        return self

    @property
    def env(self) -> dict[str, str]:
        # A launcher that hangs before its first sign of life must be found within a run's bound.
        return {**super().env, **self.clock_env, "TRANSOM_DETECT__FIRST_STEP": "120"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1", help="run n has the seed `<seed>/<n>` [1]")
    parser.add_argument("--runs", type=int, default=20, help="[20]")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="the number of the first run [1]")
    parser.add_argument("--only", type=int, metavar="N", help="only run number N, to do one again")
    parser.add_argument("--parallel", type=int, default=1, metavar="K", help="sandboxes side by side [1]")
    parser.add_argument("--plan", action="store_true", help="show the plans, and run nothing")
    parser.add_argument(
        "--recovery", action="store_true", help="faults around an in-process restart, with its settings on"
    )
    parser.add_argument("--site", default="", help="site profiles of the sandbox, joined with commas [none]")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append each finished run to this file, and skip those that are in it"
    )
    parser.add_argument("--wanted", default="", help="JSON of the undisturbed result, to spare that run")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the sandbox's files")
    return parser.parse_args()


def line(row: dict[str, Any]) -> str:
    head = f"run {row['seed']}: "
    if "error" in row:
        return head + row["error"]
    seen = row["seen"]
    made = ", ".join(f"{x['kind']} of {x['target']} at {x['at']:.0f} s" for x in seen["made"]) or "no fault was made"
    how = "bit-identical" if seen["sha256"] == seen["wanted"] else f"{seen['phase']}: {seen['verdict']}"
    bad = "".join(f"\n    VIOLATED {x['invariant']}: {x['words']}" for x in row["violations"])
    kept = f"\n    kept: {row['kept']}" if bad else ""
    return f"{head}{made}; {how}, {row['took']:.0f} s{bad}{kept}"


def logged(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of this seed and site that the log has, of this or an earlier part of the campaign."""
    if args.log is None or not args.log.exists():
        return []
    rows = [json.loads(text) for text in args.log.read_text().splitlines()]
    return [row for row in rows if row["site"] == args.site and row["seed"].rpartition("/")[0] == args.seed]


def work(args: argparse.Namespace, numbers: queue.SimpleQueue[int], rows: list[dict[str, Any]]) -> Result:
    """Take the next number as long as there is one; in one sandbox, and in a new one where that cannot be healed."""
    wanted = Result(**json.loads(args.wanted)) if args.wanted else None
    while wanted is None or not numbers.empty():
        profiles = tuple(filter(None, args.site.split(",")))
        with ChaosBench(args.keep, profiles, recovery=args.recovery) as bench:
            if wanted is None and args.recovery:
                chaos_trainer.hurry(bench.result_of("reference")).touch()
                wanted = reference(bench, RECOVERY_TRAINING, RECOVERY_OPTIONS, Path(chaos_trainer.__file__))
                progress(f"--wanted '{json.dumps(vars(wanted))}'")
            if wanted is None:
                wanted = reference(bench, training_of(args))
                progress(f"--wanted '{json.dumps(vars(wanted))}'")
            bench.runs = bench.dir / "disk"  # a new one for every run
            while (number := _next(numbers)) is not None:
                row, lost = chaos(bench, f"{args.seed}/{number}", wanted, args)
                rows.append(row)
                if args.log is not None:
                    with args.log.open("a") as file:  # one short line at once: parts may run side by side
                        file.write(json.dumps({**row, "site": args.site}) + "\n")
                bench.keep |= lost or bool(row["violations"] or "error" in row)  # its folder, to find out why
                progress(line(row))
                if lost:
                    break
    return wanted


def _next(numbers: queue.SimpleQueue[int]) -> int | None:
    try:
        return numbers.get_nowait()
    except queue.Empty:
        return None


def training_of(args: argparse.Namespace) -> Training:
    return RECOVERY_TRAINING if args.recovery else TRAINING


def plan_of(args: argparse.Namespace, seed: str, kinds: Collection[str]) -> Plan:
    return make_recovery_plan(seed) if args.recovery else make_plan(seed, TRAINING.steps, kinds)


def chaos(bench: ChaosBench, seed: str, wanted: Result, args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A run that the harness itself cannot bring to its end is no good one either; the next ones go on.

    And whether the sandbox is lost for them.
    """
    row: dict[str, Any] = {"seed": seed, "violations": []}
    for again in (True, False):
        try:
            row = one_run(bench, plan_of(args, seed, bench.kinds), bench.kinds, training_of(args), wanted)
        except NotSubmitted as error:  # on a machine that is too busy for it
            progress(f"run {seed}: {error.what}: {error.why}")
            row["error"] = f"{error.what}: {error.why}"
            bench.heal()
            if again:
                continue
        except TransomError as error:
            row["error"] = f"{error.what}: {error.why}"
        break
    try:
        bench.heal()
    except TransomError as error:
        row["error"] = f"{row.get('error', '')} (after it the sandbox was lost: {error.what}: {error.why})".strip()
        return row, True
    return row, False


def main() -> int:
    args = arguments()
    wanted_numbers = [args.only] if args.only is not None else range(args.first, args.first + args.runs)
    if args.plan:
        for number in wanted_numbers:
            plan = plan_of(args, f"{args.seed}/{number}", KINDS)
            print("\n    ".join([f"run {plan.seed}:", *(x.words for x in plan.injections)]))
        return 0
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    rows = [row for row in logged(args) if int(row["seed"].rpartition("/")[2]) in wanted_numbers]
    known = {row["seed"] for row in rows}
    for number in wanted_numbers:
        if f"{args.seed}/{number}" not in known:
            numbers.put(number)
    began = time.time()
    with ThreadPoolExecutor(args.parallel) as pool:
        workers = [pool.submit(work, args, numbers, rows) for _ in range(args.parallel) if not numbers.empty()]
        try:
            results = {worker.result() for worker in workers}
        except BaseException:
            INTERRUPTED.set()
            raise
    if len(results) > 1:
        raise BenchError("Two uninterrupted runs ended in different states", str(results))
    rows.sort(key=lambda row: int(row["seed"].rpartition("/")[2]))
    bad = [row for row in rows if row["violations"] or "error" in row]
    done = sum(row.get("seen", {}).get("exit_code") == 0 for row in rows)
    if args.json:
        print(json.dumps({
            "schema": 1, "bench": "chaos", "seed": args.seed, "site": args.site, "training": vars(training_of(args)),
            "where": surroundings(),
            "took": round(time.time() - began), "invariants": INVARIANTS, "done": done, "of": len(rows),
            "violated": len(bad), "runs": rows,
        }))  # fmt: skip
    else:
        print("\n".join(line(row) for row in rows))
        print(f"\n{chaos_stories.table(rows)}" if args.recovery else "")
        print(f"\n{len(rows)} runs, {done} done bit-identically, {len(rows) - done - len(bad)} stopped for good reason")
        print(f"runs in which something did not hold: {len(bad)}")
    if bad:
        raise BenchError(f"In {len(bad)} of {len(rows)} runs something did not hold")
    return 0


if __name__ == "__main__":
    run_bench(main)
