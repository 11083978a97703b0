"""Measure the speed and memory of log diagnosis: a large log of a healthy run, and a crash of many ranks.

    python bench/diagnose.py [--mb 1000] [--ranks 512] [--rank-mb 2] [--json]

bulk: MB/s on one core over typical trainer output (iteration lines, progress bars with carriage returns, dataset
messages, NCCL's start-up), from the page cache. For comparison, `grep -c` with the same texts (fixed strings, one
core), and a loop of Python's `re` over a part of the lines. crash: the logs of all ranks in one folder, where one rank
ran out of memory and the collectives of the others timed out: seconds, peak memory, and the culprit. failures: logs in
which every line reports one. start-up: CPU seconds of the command on a log of one line, minus an empty interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.reader import hits_in_file
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Level, Rulebook

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.11 GiB"
LATE = (
    "[rank{0}]:[E1103 08:11:02.120481233 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7781, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600043 milliseconds.\n"
    "[rank{0}]: Some NCCL operations have failed or timed out.\n"
)


def healthy(megabytes: float, seed: int, rank: int = 0) -> bytes:
    """Lines as trainers print them."""
    rng = random.Random(seed)
    lines: list[str] = []
    size, step = 0, 0
    while size < megabytes * 1e6:
        step += 1
        loss = 2 + rng.random()
        kind = step % 8
        if kind < 4:
            line = (
                f"[2026-01-05 12:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d}] [INFO] [rank {rank}] iter"
                f" {step:8d}/ 500000 | consumed samples: {step * 512} | elapsed time per iteration (ms): "
                f"{900 + rng.random() * 9:.1f} | learning rate: 3.000E-04 | lm loss: {loss:.6E} | grad norm: "
                f"{rng.random():.3f} | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
            )
        elif kind < 6:
            rate = rng.random() * 9
            line = f"\rEpoch 1: {step % 100}%|##    | {step}/500000 [00:31<01:02, {rate:.2f}it/s, loss={loss:.3f}]"
        elif kind == 6:
            channel = f"Channel {step % 32:02d}/0 : {rank}[{rank % 8}] -> {rank + 1}[0]"
            line = f"n{rank}:4711:4799 [{rank % 8}] NCCL INFO {channel}\n"
        else:
            line = f"step {step} loss {loss:.4f} error rate {rng.random():.4f} tokens/s {rng.random() * 9e4:.0f}\n"
        lines.append(line)
        size += len(line)
    return "".join(lines).encode()


def bulk(folder: Path, megabytes: float) -> dict[str, Any]:
    part = healthy(min(megabytes, 50), 1)
    path = folder / "bulk.log"
    with path.open("wb") as file:
        for _ in range(max(1, round(megabytes * 1e6 / len(part)))):
            file.write(part)
    size = path.stat().st_size / 1e6
    book = Rulebook(load())
    path.read_bytes()  # into the page cache
    found: dict[str, Any] = {"MB": round(size)}
    began = time.process_time()
    hits = hits_in_file(path, book)
    found["ours"] = round(size / (time.process_time() - began))
    found["hits"] = len(hits)
    texts = sorted({text for rule in book.rules if rule.level is not Level.BENIGN for text in rule.any})
    words = folder / "texts"
    words.write_text("\n".join(texts) + "\n")
    began = time.perf_counter()
    subprocess.run(
        ["grep", "-c", "-F", "-f", str(words), str(path)], env={"LC_ALL": "C"}, capture_output=True, check=False
    )
    found["grep -F"] = round(size / (time.perf_counter() - began))
    loop, some = re.compile("|".join(map(re.escape, texts))), part[:5_000_000].decode()
    began = time.perf_counter()
    sum(1 for line in some.split("\n") if loop.search(line))
    found["loop over re"] = round(5 / (time.perf_counter() - began), 1)
    path.unlink()
    return found


STORM = (
    "[rank{r}]:[E1103 08:11:{s:02d}.{n:09d} ProcessGroupNCCL.cpp:616] [Rank {r}]{middle} Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600{s:03d} milliseconds."
    "{end}",
    "gpu{node}:47{r}:4799 [{device}] transport/net_ib.cc:93 NCCL WARN NET/IB :{middle} Got async event : port error"
    "{end}",
    "[rank{r}]: RuntimeError:{middle} CUDA error: an illegal memory access was encountered{end}",
    "srun: error: gpu{node}: task {r}: Exited with exit code 1{middle}{end}",
)


def dense(folder: Path, megabytes: float, own: str) -> dict[str, Any]:
    """A log of failures alone. own: where lines have words that no other line has: at the "end", in the "middle"."""
    rng, lines, size, n = random.Random(3), [], 0, 0
    while size < megabytes * 1e6:
        n += 1
        rank, seconds, words = rng.randrange(64), rng.randrange(60), {"middle": "", "end": ""}
        if own:
            word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=12))
            words[own] = (
                f" {word}" if own == "end" else f" /data/{word[:5]}/{word[5:]}.jpg 0x{rng.randrange(1 << 40):x}"
            )
        lines.append(STORM[n % len(STORM)].format(r=rank, s=seconds, n=n, node=rank // 8, device=rank % 8, **words))
        size += len(lines[-1]) + 1
    path = folder / "dense.log"
    path.write_text("\n".join(lines) + "\n")
    book = Rulebook(load())
    began = time.process_time()
    hits = hits_in_file(path, book)
    return {"MB": round(size / 1e6), "ours": round(size / 1e6 / (time.process_time() - began), 1), "hits": len(hits)}


def start_up(folder: Path, times: int = 7) -> dict[str, Any]:
    """CPU seconds of `transom diagnose` on a log of one line, minus an empty interpreter: the median. The first
    call compiles the modules, as installing them does."""
    (folder / "short.log").write_text("step 1\n")
    commands = {"diagnose": ["-m", "transom_cli", "diagnose", str(folder / "short.log")], "empty": ["-c", "pass"]}
    spent: dict[str, list[float]] = {name: [] for name in commands}
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *commands["diagnose"]], capture_output=True, check=True, env=environ)
    for _ in range(times):
        for name, words in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], capture_output=True, check=True, env=environ)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    both = {name: sorted(found)[times // 2] for name, found in spent.items()}
    return {"CPU seconds": round(both["diagnose"] - both["empty"], 3)}


def crash(folder: Path, ranks: int, megabytes: float) -> dict[str, Any]:
    culprit = random.Random(7).randrange(ranks)
    part = healthy(megabytes, 2)
    for rank in range(ranks):
        end = OOM.format(rank % 8) + "\n" if rank == culprit else LATE.format(rank)
        (folder / f"rank-{rank}.log").write_bytes(part + b"\n" + end.encode())
    wall, cpu = time.perf_counter(), time.process_time()
    diagnosed = diagnose_logs([folder], Rulebook(load()))
    first = diagnosed.incidents[0]
    return {
        "ranks": ranks,
        "MB": round(ranks * len(part) / 1e6),
        "seconds": round(time.perf_counter() - wall, 1),
        "CPU seconds": round(time.process_time() - cpu, 1),
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "category": first.category.value,
        "right rank": [c.rank for c in first.culprits] == [culprit],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=1000, help="of the healthy log [1000]")
    parser.add_argument("--ranks", type=int, default=512, help="that write logs in the crash [512]")
    parser.add_argument("--rank-mb", type=float, default=2, help="of each [2]")
    parser.add_argument("--dense-mb", type=float, default=40, help="of the logs of failures alone [40]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="diagnose-") as name:
        for part in ("bulk", "crash"):
            (Path(name) / part).mkdir()
        after = crash(Path(name) / "crash", args.ranks, args.rank_mb)
        found = {
            "bulk, MB/s a core": bulk(Path(name) / "bulk", args.mb),
            "failures that repeat, MB/s": dense(Path(name), args.dense_mb, ""),
            "failures that differ, MB/s": dense(Path(name), args.dense_mb, "end"),
            "failures that differ in the middle, MB/s": dense(Path(name), args.dense_mb, "middle"),
            "start-up": start_up(Path(name)),
            "crash": after,
        }
    if args.json:
        print(json.dumps(found))
        return
    for part, values in found.items():
        print(part)
        for key, value in values.items():
            print(f"  {key:14} {value}")


if __name__ == "__main__":
    main()
