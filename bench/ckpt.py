"""Compare the cost and the value of checkpoints: transom's Checkpointer and its peers, in turns, on the same state.

    python bench/ckpt.py [--gib 1,3] [--ranks 1,2,4] [--replicated] [--rounds 3] [--only M,M] [--peers DIR] [--json]

The state is that of a GPT with AdamW: 741 tensors (fp32 parameters, two moments, a bf16 copy, small ones), sharded over
the ranks as by FSDP2, or replicated. The ranks are processes on this machine that communicate over gloo. A turn of a
method is a training from its start: a first save, saves without training, saves during training steps (matrix products
of about --step-ms), a save whose memory is measured, and a save after whose return the trainer is killed at once (-9).
Then the training restarts, finds the newest state and loads it. The methods take turns in each round.

    made            seconds until the method is ready: its memory, its processes
    first, stall    seconds that save() blocks the slowest rank, the first time and later (median, max)
    durable         from the call of save() until the state is on disk and synced: without and with training
    speed           of the training steps during a save, relative to the same steps just before it
    load            until the trainer's own tensors contain the state: from memory that survived the trainer (if the
                    method has such), from files in the page cache, and from files evicted from it ("?" if they could
                    not be evicted)
    same bits       whether every load returned the state of its step, bit for bit
    extra memory    anonymous and shared memory (PSS) of the ranks and all helpers, relative to the time before the
                    method was created: the maximum during a save, and after it
    steps lost      after kill -9, and the source of the restored state: 0 is the state of the last call

The limits of the machine are measured with the same number of bytes in the same rounds (bench/ckpt_limits.py). The
lower bound of a blocking save and of a load from memory is a copy of the tensors; that of the others is the speed of
disk or page cache.

External peers are loaded from --peers DIR, a folder or a venv, which should not contain torch:

    pip install --no-deps --target DIR $(python bench/ckpt_methods.py)

The bench names each peer that is missing or does not start, with the reason and its requirements.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from ckpt_below import adopt, end_all
from ckpt_methods import METHODS, peer_places
from ckpt_plan import Case, plan, total
from ckpt_table import OURS, floors, grouped, limits_table, main_table, ratio_table, ratios, summary
from ckpt_turn import Options, Turn, take
from harness import BenchError, progress, run_bench
from rich.console import Console

from transom_cli.inherited import TUNABLES, with_streaming_copies

LIMITS = Path(__file__).with_name("ckpt_limits.py")
GIB = 1 << 30
MEMORY = 4  # times what the ranks hold: the state, two copies that some methods make, and what a restart compares
DISK = 5  # ... : as many checkpoints may be there at once


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", default="1", metavar="G,G", help="sizes of the whole state, GiB [1]")
    parser.add_argument("--ranks", default="1", metavar="N,N", help="numbers of ranks [1]")
    parser.add_argument("--replicated", action="store_true", help="the whole state on every rank, as with DDP")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each method [3]")
    parser.add_argument("--saves", type=int, default=3, help="of each kind in a turn, after the first [3]")
    parser.add_argument("--only", default=",".join(METHODS), metavar="M,M", help="some of the methods [all]")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where peers were installed")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="a folder on the disk to measure [the temporary one]")
    parser.add_argument("--step-ms", type=float, default=25.0, help="length of a training step alone [25]")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for each half of a turn [600]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args(words)
    try:
        args.gib = [float(word) for word in args.gib.split(",") if word]
        args.ranks = [int(word) for word in args.ranks.split(",") if word]
    except ValueError as error:
        parser.error(f"--gib and --ranks: numbers, with commas between them ({error})")
    args.only = [word for word in args.only.split(",") if word]
    if not args.only or set(args.only) - set(METHODS):
        parser.error(f"--only: some of {', '.join(METHODS)}")
    if not args.gib or min(args.gib) <= 0 or not args.ranks or min(args.ranks) < 1:
        parser.error("--gib and --ranks: at least one number each, above 0")
    if min(args.rounds, args.saves) < 1 or args.step_ms <= 0 or args.timeout <= 0:
        parser.error("--rounds, --saves, --step-ms and --timeout: above 0")
    if args.peers is not None and not args.peers.is_dir():
        parser.error(f"--peers: {args.peers} is no folder")
    return args


def cases(args: argparse.Namespace, folder: Path) -> tuple[list[Case], list[str]]:
    """Those that fit this machine, and why the others do not."""
    fitting, left_out = [], []
    for gib in args.gib:
        for ranks in args.ranks:
            case = Case(total(plan(int(gib * GIB))), ranks, not args.replicated)
            memory, disk = psutil.virtual_memory().available, shutil.disk_usage(folder).free
            if MEMORY * case.held > memory:
                left_out.append(
                    f"{case.words}: needs {MEMORY * case.held / GIB:.1f} GiB of memory, {memory / GIB:.1f} free"
                )
            elif DISK * case.held > disk:
                left_out.append(
                    f"{case.words}: needs {DISK * case.held / GIB:.1f} GiB in {folder}, {disk / GIB:.1f} free"
                )
            else:
                fitting.append(case)
    return fitting, left_out


def limits(size: int, folder: Path) -> dict[str, float | str]:
    """In a process of its own, so that it finds no memory of ours and leaves none."""
    argv = [sys.executable, str(LIMITS), str(size), str(folder)]
    env = {**os.environ, TUNABLES: with_streaming_copies(os.environ)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BenchError("The limits of this machine could not be measured", said)
    return dict(json.loads(done.stdout))


def rounds(
    args: argparse.Namespace, fitting: list[Case], shared: Options
) -> tuple[list[Turn], dict[int, list[dict[str, float | str]]]]:
    """All turns. What failed in a case is not tried again in it."""
    turns: list[Turn] = []
    found: dict[int, list[dict[str, float | str]]] = {}
    for number in range(args.rounds):
        for size in dict.fromkeys(case.size for case in fitting):
            found.setdefault(size, []).append(limits(size, shared.folder))
        for case in fitting:
            for method in args.only:
                if any(turn.why and (turn.method, turn.case) == (method, case) for turn in turns):
                    continue
                turn = take(method, case, shared, len(turns))
                turns.append(turn)
                words = turn.why or f"stall {[round(save['stall'], 4) for save in turn.saves]}"
                progress(f"round {number + 1}, {case.words}, {METHODS[method].what}: {words}")
    return turns, found


def missing(turns: list[Turn]) -> list[str]:
    """What failed, with the reason; and how to get it, when it was not there."""
    failures = []
    for turn in turns:
        if turn.why:
            entry, hint = METHODS[turn.method], ""
            if entry.needs and turn.why.startswith(("ModuleNotFoundError", "ImportError")):
                hint = f"; pip install --no-deps --target DIR {shlex.join(entry.needs)}, then --peers DIR"
            failures.append(f"{entry.what}, {turn.case.words}: {turn.why}{hint}")
    return failures


def report(
    args: argparse.Namespace, fitting: list[Case], turns: list[Turn], found: dict[int, list[dict[str, float | str]]]
) -> list[dict[str, Any]]:
    """Return the results by case; print the tables unless JSON is requested."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    results = []
    for case in fitting:
        good = [turn.as_json() for turn in turns if turn.case == case and not turn.why]
        rows = {method: summary(group) for method, group in grouped(good, lambda turn: turn["method"]).items()}
        floor = floors(found[case.size], case.size)
        times = ratios(rows, floor)
        results.append({"case": vars(case), "methods": rows, "floors": floor, "ratios": times})
        if args.json:
            continue
        tables = [limits_table(case.words, found[case.size], case.size), main_table(case.words, rows)]
        tables += [ratio_table(case.words, rows, times, to) for to in ("floor", OURS)]
        for table in tables:
            if table.row_count:
                console.print(table)
                console.print()
    return results


def surroundings(folder: Path, peers: Path | None) -> dict[str, Any]:
    import torch

    from transom_cli import __version__

    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    places = [str(place) for place in peer_places(str(peers))] if peers else []
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions(path=places)} if places else {}
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "load": [round(x, 2) for x in os.getloadavg()],
        "file_system": max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else "unknown",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transom": __version__,
        "peers": packages,
    }


def main() -> int:
    args = arguments()
    began = time.time()
    adopt()
    where = Path(tempfile.mkdtemp(prefix="tbench-ckpt-", dir=args.dir)).absolute()
    try:
        where_words = surroundings(where, args.peers)
        fitting, left_out = cases(args, where)
        if not fitting:
            raise BenchError("No case fits this machine", "\n".join(left_out), "smaller --gib or --ranks, or --dir")
        peers = str(args.peers.absolute()) if args.peers else ""
        shared = Options(where, peers, args.saves, args.step_ms / 1000, args.timeout)
        turns, found = rounds(args, fitting, shared)
        results = report(args, fitting, turns, found)
    finally:
        end_all()
        shutil.rmtree(where, ignore_errors=True)
    left_out += missing(turns)
    if args.json:
        print(json.dumps({
            "schema": 1, "bench": "ckpt", "unit": "s", "where": where_words, "took": round(time.time() - began),
            "cases": results, "limits_gb_s": {str(size): limit for size, limit in found.items()},
            "turns": [turn.as_json() for turn in turns], "not_measured": left_out,
        }))  # fmt: skip
    else:
        for line in left_out:
            print(f"not measured: {line}")
        print("measured on {cpus} CPUs, load {load} at the start; {file_system}; PyTorch {torch}".format(**where_words))
    bad = [turn for turn in turns if turn.method == OURS and (turn.why or turn.survived.get("silent"))]
    bad += [turn for turn in turns if turn.method == OURS and any(load["wrong"] for load in turn.loads)]
    if bad:
        why = bad[0].why or "a load gave other bits than were saved"
        raise BenchError(f"transom failed in {bad[0].case.words}", why)
    return 0


if __name__ == "__main__":
    run_bench(main)
