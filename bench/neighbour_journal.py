"""Measure what old and many runs cost: a month's journal, an incident of many ranks, and a folder of 2,000 runs.

    python bench/neighbour_journal.py [--days 30] [--runs 2000] [--live 40] [--nodes 16] [--times 3]

The month has a step every 2.3 s, a checkpoint every 10 s and a fault every 36 hours. It is measured as an operator
writes it, and as a journal in which every checkpoint has a line. Seconds are CPU time of the command, which other work
on the machine does not make longer; file calls are counted by strace, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import report
import status

from transom_cli.core import events as ev
from transom_cli.core.codec import event_to_json
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Journal, fold, read_events, step_and_remember
from transom_cli.supervise.journal_snapshot import SnapshotWriter

SAVED = 10.0  # seconds between two checkpoints
RANKS = 64  # whose stacks an incident has as evidence


@dataclass(frozen=True)
class Row:
    """A measurement. budget: None if there is none."""

    what: str
    figure: float
    unit: str
    budget: float | None = None

    @property
    def kept(self) -> bool:
        return self.budget is None or self.figure <= self.budget


def rows(days: float = 30.0, runs: int = 2000, live: int = 40, nodes: int = 16, times: int = 3) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _month(Path(folder), days, times)
        yield from _evidence(Path(folder), times)
        yield from _list(Path(folder) / "runs", runs, live, nodes, times)


def _month(folder: Path, days: float, times: int) -> Iterator[Row]:
    run = report.make(folder, days, round(days / 1.5), 64, saved=SAVED)
    lines = sum(1 for _ in run.journal.open("rb"))
    plain, names = f"{days:.0f} days, {lines:,} lines", ("status", "explain", "goodput")
    for name in names:
        seconds, memory, _ = measured([name, str(run.path)], times)
        yield Row(f"{name}, {plain}", seconds, "s")
        yield Row(f"{name}, {plain}", memory, "MB", 100.0)
    rewritten(run)
    lines = sum(1 for _ in run.journal.open("rb"))
    for name in names:
        seconds, memory, _ = measured([name, str(run.path)], times)
        yield Row(f"{name}, {days:.0f} days as written", seconds, "s", 1.0)
        yield Row(f"{name}, {days:.0f} days as written", memory, "MB", 100.0)
    yield Row(f"lines of {days:.0f} days as written", lines, "", days * 3000)
    shutil.rmtree(run.path)


def rewritten(run: RunDir) -> None:
    """Write the journal of a run again, as an operator does that sees the same events."""
    events, raw = read_events(run.journal), run.journal
    header = raw.open("rb").readline()
    raw.write_bytes(header)
    journal = Journal(raw, 1)
    with mock.patch("os.fsync"):
        journal.append(events[0])
        folded = fold(raw)
        state, journal.snapshots = folded.state, SnapshotWriter(folded)
        for event in events[1:]:
            state, _ = step_and_remember(state, event, journal)
        journal.close()


def _evidence(folder: Path, times: int, incidents: int = 200) -> Iterator[Row]:
    """Incidents in which each rank's stack is one piece of evidence."""
    run = report.make(folder, 7.0, incidents, 8)
    lines = run.journal.read_text().splitlines()
    seen = [n for n, line in enumerate(lines) if '"what": "diagnosed"' in line]
    for n in reversed(seen):
        told = json.loads(lines[n])
        stack = "state S, in poll (libc.so.6) < all_reduce (distributed.py:2501) < step (train.py:88)"
        words = [f"rank {rank} on gpu{rank // 8:03d}, {stack}" for rank in range(RANKS)]
        found = (ev.RecoverySeen(told["at"], told["attempt"], told["incident"], "evidence", one) for one in words)
        lines[n:n] = [json.dumps({"epoch": 1, **event_to_json(one)}) for one in found]
    run.journal.write_text("\n".join(lines) + "\n")
    for words in ([], ["--json"]):
        seconds, _, printed = measured(["explain", str(run.path), *words], times)
        what = " ".join(["explain", *words, f"of {incidents} incidents, {RANKS} stacks each"])
        yield Row(what, seconds, "s", 2.0)
        yield Row(what, printed / 1e6, "MB", 0.6)
    shutil.rmtree(run.path)


def _list(root: Path, runs: int, live: int, nodes: int, times: int) -> Iterator[Row]:
    make_runs(root, runs, live, nodes)
    what = f"list, {runs:,} runs"
    first, _, _ = measured(["list", "--root", str(root)], 1)
    yield Row(f"{what}, the first time", first, "s")
    for words in ([], ["--all"], ["--since", "7d"], ["--state", "failed"]):
        seconds, _, _ = measured(["list", "--root", str(root), *words], times)
        yield Row(" ".join([what, *words]), seconds, "s", 0.5)
        calls = file_calls(["list", "--root", str(root), *words])
        if calls is not None:
            yield Row(" ".join([what, *words]), calls, "file calls", 8.0 * runs)


def make_runs(root: Path, runs: int, live: int, nodes: int) -> None:
    """Make a folder of runs, the newest of them live. Their files are links to those of two."""
    drafts = root.with_suffix(".drafts")
    ended, training = report.make(drafts / "ended", 0.1, 1, nodes), status.make(drafts / "live", nodes, 8)
    attempt = max(ended.attempts.iterdir())
    for name in (f"gpu{n:03d}" for n in range(nodes)):
        beats = tuple(RankBeat(r, 0, 9, 9, 1.2, 1.83, "step", 4000 + r, "R") for r in range(8))
        (attempt / "nodes").mkdir(exist_ok=True)
        (attempt / "nodes" / f"{name}.beats").write_bytes(encode(NodeTable(name, attempt.name, 99, beats)))
    root.mkdir(mode=0o700)
    for n in range(runs):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time() - 600 * n))
        made = training if n < live else ended
        shutil.copytree(made.path, root / f"run{n}-{stamp}-{n:04x}", copy_function=os.link)
    shutil.rmtree(drafts)


_WATCHED = """
import atexit, re, runpy, sys
def report():
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
    print(f"peak {peak[1]}", file=sys.stderr)
atexit.register(report)
runpy.run_module("transom_cli", run_name="__main__", alter_sys=True)
"""


def measured(words: Sequence[str], times: int) -> tuple[float, float, int]:
    """Run a command a few times. Return the least CPU seconds, the most memory in MB, and the bytes that it prints."""
    spent, memory, printed = [], [], 0
    for _ in range(times):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", _WATCHED, *words], capture_output=True, check=True)
        after = os.times()
        spent.append(sum(after[2:4]) - sum(before[2:4]))
        memory.append(int(done.stderr.rpartition(b"peak ")[2]) / 1024)
        printed = len(done.stdout)
    return min(spent), max(memory), printed


def file_calls(words: Sequence[str]) -> int | None:
    """Count the calls of a command that name or read files, without those of its start; None without strace."""
    if shutil.which("strace") is None:
        return None
    return _calls(words) - _calls(["list", "--root", "/nonexistent"])


def _calls(words: Sequence[str]) -> int:
    traced = ["strace", "-f", "-qq", "-c", "-e", "trace=%file,%desc", sys.executable, "-m", "transom_cli", *words]
    text = subprocess.run(traced, capture_output=True, text=True, check=False).stderr
    total = re.search(r"^\s*100\.00\s+\S+\s+(?:\d+\s+)?(\d+)(?:\s+\d+)?\s+total", text, re.MULTILINE)
    return int(total[1]) if total else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--live", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    kept = True
    for row in rows(given.days, given.runs, given.live, given.nodes, given.times):
        budget = "" if row.budget is None else f"{row.budget:>12,.1f}" + ("" if row.kept else "  EXCEEDED")
        print(f"{row.what:<58}{row.figure:>12,.2f} {row.unit:<11}{budget}", flush=True)
        kept = kept and row.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
