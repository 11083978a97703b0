"""A rank is killed, and the training continues: transom, NVRx in-process and ft_launcher, torchft, torchrun.

    python bench/recovery_peers.py --out FILE [--runs 5] [--faults 2] [--start 0 20] [--ways torchrun,torchft] [--table]

One model (examples/gpt), three ranks over gloo on this machine, the same pauses and the same faults: SIGKILL to rank 1
or 2 in a random step between two checkpoints. Each tool runs at its documented settings and at its best (see `CASES`).
transom runs in a Slurm sandbox with a rank per node, the others as processes. They take turns. --start, if not 0:
importing transformers, and a model whose building takes that many seconds. FILE gets one line of JSON per fault;
what it has is not measured again, nor a case that never came back.

    first step   from the kill to the end of the first step of the training that continues, a repeated one or not
    new step     to the first step that nobody had finished before
    full         to the first step with three ranks again; "never": not in 15 s (and twice --start) after the new step
    lost         finished steps that are repeated
    extra        memory of all processes besides the three ranks: of the supervisor, standbys, reserves. PSS counts
                 shared pages in parts. Slurm's own processes do not count
    lines        in the training script, for the tool (bench/peers_trainer.py marks them)
    load         of the machine in the minute before the end of each fault
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from elastic_peers import process
from harness import Bench, BenchError, progress, run_bench, wait_for

from transom_cli.rpc.sockets import free_port

TRAINER = Path(__file__).with_name("peers_trainer.py")
RANKS, EVERY, PATIENCE = 3, 10, 120.0
STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
FT = "nvidia_resiliency_ext.fault_tolerance.launcher"
FT_DEFAULT = ("--ignore-missing-fault-tol-cfg",)
FT_QUICK = (*FT_DEFAULT, "--monitor-interval=0.1", "--ft-workload-check-interval=0.5", "--term-timeout=1")
MARK = "BENCH_PEERS"  # in the environment of every process of a case
_SLURM = ("slurm", "munged", "srun", "sbatch")
# By default a node that loses a rank twice is excluded and the job requeued, as after three relaunches of a few steps.
_ALL_FAULTS = """
restart.relaunches = 100
[[policy.rules]]
name = "killed-by-the-bench"
cause = "rank_killed"
action = "relaunch"
"""


@dataclass(frozen=True)
class Case:
    """tool: who runs it. way: of the trainer. options: of `transom run` or of the launcher."""

    name: str
    tool: str
    way: str = "plain"
    best: bool = False
    every: int = EVERY
    options: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


_SET = "--set"
_STANDBY, _STAY = (_SET, "launch.standby=true"), (_SET, "launch.recoverable=true")
_SCRIPT = (_SET, "launch.standby_reach=recoverable")  # standbys wait at the call of the training
CASES = (
    Case("transom", "transom"),
    Case("transom-standby", "transom", options=_STANDBY),
    Case("transom-stay", "transom", "transom", options=_STAY),
    Case("transom-best", "transom", "transom", True, 1, (*_STAY, *_STANDBY)),
    Case("transom-script", "transom", "transom", True, 1, (*_STAY, *_STANDBY, *_SCRIPT)),
    Case("transom-elastic", "transom", "elastic", True, 1, (*_STAY, *_STANDBY)),
    Case("inprocess", "srun", "inprocess"),
    Case("inprocess-best", "srun", "inprocess", True, 1),
    Case("ft_launcher", FT, options=FT_DEFAULT),
    Case("ft_launcher-best", FT, best=True, every=1, options=FT_QUICK, env=tuple(STORE.items())),
    Case("torchft", "torchft", "torchft"),
    Case("torchft-best", "torchft", "torchft", True),
    Case("torchrun", "torch.distributed.run"),
    Case("torchrun-best", "torch.distributed.run", best=True, every=1, env=tuple(STORE.items())),
)


@dataclass(frozen=True)
class Line:
    """What a rank wrote after a step. life: when it entered the training, or its replicas changed."""

    at: float
    step: int
    rank: int
    world: int
    life: float
    pid: int
    began: float
    imported: float


def trace(folder: Path) -> list[Line]:
    lines = [line for path in folder.glob("trace-*.jsonl") for line in path.read_text().splitlines()]
    return sorted((Line(**json.loads(line)) for line in lines if line.endswith("}")), key=lambda line: line.at)


def judged(lines: Sequence[Line], at: float) -> dict[str, Any]:
    """Seconds from the fault, and steps. None: it has not come. Pure."""
    old = max((line.step for line in lines if line.life <= at), default=0)
    later = [line for line in lines if line.life > at]

    def since(found: Iterable[Line]) -> float | None:
        times = [line.at for line in found]
        return round(min(times) - at, 2) if times else None

    resumed = min((line.step for line in later), default=None)
    return {
        "first": since(later),
        "new": since(line for line in later if line.step > old),
        "full": since(line for line in later if line.world == RANKS),
        "lost": None if resumed is None else max(0, old - resumed + 1),
    }


def lines_for(case: Case) -> int:
    """How many lines of the trainer are there for this tool."""
    marked = re.findall(r"# (transom|elastic|inprocess|torchft)( best)?\b", TRAINER.read_text())
    return sum(way == case.way and (case.best or not best) for way, best in marked)


def members(folder: Path) -> list[psutil.Process]:
    """The processes of a case, but not Slurm's."""
    found = []
    for one in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get(MARK) == str(folder) and not str(one.info["name"]).startswith(_SLURM):
                found.append(one)
    return found


def extra(folder: Path, ranks: set[int]) -> dict[str, float]:
    """Memory of the other processes of a case, in MB."""
    rss, pss, count = 0, 0, 0
    for one in members(folder):
        if one.pid not in ranks:
            with contextlib.suppress(psutil.Error, OSError):
                memory = one.memory_full_info()
                rss, pss, count = rss + memory.rss, pss + memory.pss, count + 1
    return {"rss": round(rss / 1e6), "pss": round(pss / 1e6), "processes": count}


class Attempt:
    """One training of a case, which is watched and then ended."""

    def __init__(
        self, case: Case, folder: Path, start: float, args: argparse.Namespace, sandbox: Callable[[], Bench]
    ) -> None:
        self.case, self.folder, self._start, self._sandbox = case, folder, start, sandbox
        self._children: list[subprocess.Popen[bytes]] = []
        self._pids: set[int] = set()  # of the ranks before the last fault
        self._victim = 0
        words = [case.way, str(folder), "--every", str(case.every), "--building", str(start)]
        self.train = [str(TRAINER), *words, "--active", str(RANKS), *(["--best"] if case.best else [])]
        paths = [args.nvrx.resolve(), args.torchft.resolve()] if case.tool != "transom" else []
        if case.tool != "torchft":
            paths = paths[:1]  # its folder has packages that others have too
        # All ranks are on this machine, whose own name may lead nowhere.
        self.env = {"PYTHONPATH": ":".join(map(str, paths)), "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        self.env |= {MARK: str(folder), **dict(case.env)}
        if not paths:
            del self.env["PYTHONPATH"]

    def start(self) -> None:
        case = self.case
        if case.tool == "transom":
            bench = self._sandbox()
            name = self.folder.name
            ask = ["--root", str(bench.runs), "--name", name, "-N", str(RANKS), *case.options, "--detach"]
            os.environ |= self.env  # reaches the ranks through Slurm
            try:
                bench.transom("run", *ask, "--", bench.python, *self.train, timeout_s=240.0)
            finally:
                for key in self.env:
                    os.environ.pop(key)
        elif case.tool == "srun":
            self._as_srun(RANKS + case.best)
        elif case.tool == "torchft":
            self._torchft()
        else:
            self._begin([*self._agent(case.tool, RANKS), *case.options, *self.train], {}, "agent")

    def _begin(self, argv: list[str], env: dict[str, str], log: str) -> None:
        self._children.append(process([sys.executable, *argv], {**self.env, **env}, self.folder / f"{log}.log"))

    def _agent(self, module: str, ranks: int) -> list[str]:
        words = ["--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=100", "--local-addr=127.0.0.1"]
        return ["-m", module, *words, "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]

    def _as_srun(self, ranks: int) -> None:
        """As `srun --kill-on-bad-exit=0` does: nobody restarts or ends a rank."""
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "TORCH_CPP_LOG_LEVEL": "error"}
            self._begin(self.train, env, f"rank-{rank}")

    def _torchft(self) -> None:
        port = free_port()
        script = self.folder / "lighthouse.py"  # it reads its arguments behind a script's name
        script.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
        joins = "1000" if self.case.best else "10000"
        heartbeat = ["--heartbeat_timeout_ms", "1000"] if self.case.best else []
        words = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", joins, *heartbeat]
        self._begin([str(script), *words, "--bind", f"127.0.0.1:{port}"], {}, "lighthouse")
        for replica in range(RANKS):
            env = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "REPLICA_GROUP_ID": str(replica)}
            self._begin([*self._agent("torch.distributed.run", 1), *self.train], env, f"replica-{replica}")

    def measure(self, rng: random.Random, faults: int) -> Iterator[dict[str, Any]]:
        """Start it; then kill a rank and wait until all ranks train again, as often as asked for."""
        self.start()
        settled, again = 10.0 + self._start, self.case.tool not in ("srun",)  # a reserve is used up
        for number in range(faults if again else 1):
            row = self._fault(rng, settled)
            yield {"fault": number, **row}
            if row["full"] is None:
                return
            settled = 3.0

    def _fault(self, rng: random.Random, settled: float) -> dict[str, Any]:
        lines: list[Line] = []
        began = time.time()

        def there(step: int, settle: float) -> bool:
            lines[:] = trace(self.folder)
            whole = [line for line in lines if line.world == RANKS and line.at > began]
            return bool(whole) and whole[-1].step >= step and time.time() > whole[0].at + settle

        wait_for(lambda: there(1, settled), PATIENCE + 3 * self._start + settled, "the training", 0.3)
        if _STANDBY[1] in self.case.options:
            wait_for(self._standbys_wait, PATIENCE + 3 * self._start, "the standbys", 0.3)
            there(1, 0.0)
        ranks = {line.rank: line.pid for line in lines}  # the newest of each
        spent = extra(self.folder, set(ranks.values()))
        step = lines[-1].step // EVERY * EVERY + EVERY + rng.randrange(1, EVERY)
        wait_for(lambda: there(step, 0.0), PATIENCE, f"step {step}", 0.02)
        stayed = [rank for rank, pid in ranks.items() if rank and pid in self._pids]
        others = [rank for rank in range(1, RANKS) if rank != self._victim]
        victim = rng.choice(stayed or others)
        self._pids, self._victim = set(ranks.values()), victim
        at = time.time()
        os.kill(ranks[victim], signal.SIGKILL)
        row = {"victim": victim, "step": step, "extra": spent}
        deadline, grace = at + PATIENCE + 3 * self._start, self._start * 2 + 15
        while time.time() < deadline:
            found = judged(trace(self.folder), at)
            back = found["new"] is not None
            alone = self.case.tool == "srun" and not self.case.best  # nobody replaces the rank
            if back and alone:
                break
            if (back and found["full"] is not None) or (back and time.time() > at + found["new"] + grace):
                break
            time.sleep(0.3)
        return {**row, **judged(trace(self.folder), at), "load": round(os.getloadavg()[0], 1)}

    def _standbys_wait(self) -> bool:
        """Whether all standbys of the next launch are ready, as `transom status` shows."""
        paths = self._sandbox().runs.glob(f"{self.folder.name}*/attempts/*/standbys.json")
        said = [json.loads(path.read_text()) for path in paths]
        return any(sum(one["nodes"].values()) == one["ranks"] for one in said)

    def end(self) -> None:
        if self.case.tool == "transom":
            self._sandbox().heal()
        for _ in range(3):
            for one in members(self.folder):
                with contextlib.suppress(psutil.Error):
                    one.kill()
            time.sleep(0.2)
        for child in self._children:
            child.wait()


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def span(values: Sequence[float | None], digits: int = 1) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "never"
    never = f", {len(values) - len(known)} never" if len(known) < len(values) else ""
    if len(known) == 1:
        return f"{known[0]:.{digits}f}{never}"
    return f"{statistics.median(known):.{digits}f} ({min(known):.{digits}f} to {max(known):.{digits}f}){never}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """By case, in Markdown. Pure."""
    head = ("case", "n", "first step, s", "new step, s", "full, s", "lost", "extra RSS", "extra PSS", "lines", "load")
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for start in sorted({row["start"] for row in rows}):
        for case in CASES:
            these = [row for row in rows if (row["case"], row["start"]) == (case.name, start) and "error" not in row]
            if not these:
                continue
            name = case.name + (f", start {start:g} s" if start else "")
            lost = span([row["lost"] for row in these], 0)
            memory = [f"{statistics.median(row['extra'][kind] for row in these):.0f} MB" for kind in ("rss", "pss")]
            spans = [span([row[what] for row in these]) for what in ("first", "new", "full")]
            load = f"{min(row['load'] for row in these):.0f} to {max(row['load'] for row in these):.0f}"
            cells = [name, str(len(these)), *spans, lost, *memory, str(lines_for(case)), load]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def attempts(args: argparse.Namespace, made: contextlib.ExitStack) -> None:
    """Measure what the file does not have."""
    bench: list[Bench] = []

    def sandbox() -> Bench:
        if not bench:
            bench.append(made.enter_context(Bench()))
            settings = Path(bench[0].env["XDG_CONFIG_HOME"]) / "transom"
            settings.mkdir(parents=True)
            (settings / "config.toml").write_text(_ALL_FAULTS)
        return bench[0]

    found = rows_of(args.out)
    done = {(row["case"], row["start"], row["run"]) for row in found if "error" not in row}
    never = {(row["case"], row["start"]) for row in found if row.get("new", 0) is None}
    wanted = [case for case in CASES if not args.ways or case.name in args.ways]
    numbers = range(args.first, args.first + args.runs)
    for number, start, case in itertools.product(numbers, args.start, wanted):
        if (case.name, start, number) in done or (case.name, start) in never:
            continue
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix=f"{case.name}-")))
        attempt = Attempt(case, folder, start, args, sandbox)
        about = {"case": case.name, "start": start, "run": number}
        try:
            for row in attempt.measure(random.Random(f"{args.seed}/{number}"), args.faults):
                if row["new"] is None:
                    never.add((case.name, start))
                write(args.out, {**about, **row})
        except BenchError as error:
            progress("".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log"))))
            write(args.out, {**about, "error": f"{error.what}: {error.why}"})
        finally:
            attempt.end()


def write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        print(json.dumps(row), file=file, flush=True)
    progress(json.dumps(row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results: a line of JSON for each attempt")
    parser.add_argument("--runs", type=int, default=5, help="of each case [5]")
    parser.add_argument(
        "--faults", type=int, default=2, metavar="N", help="of each run [2]; 1 if the rank is not replaced"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--start", type=float, nargs="+", default=[0.0, 20.0], help="seconds to build the model [0 20]")
    parser.add_argument("--ways", type=lambda text: text.split(","), help="some of the cases [all]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nvrx", type=Path, default=Path(".nvrx"), metavar="DIR")
    parser.add_argument("--torchft", type=Path, default=Path(".torchft"), metavar="DIR")
    parser.add_argument("--table", action="store_true", help="print what is there, and measure nothing")
    args = parser.parse_args()
    if unknown := set(args.ways or ()) - {case.name for case in CASES}:
        parser.error(f"--ways: there is no {', '.join(sorted(unknown))}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if not args.table:
        with contextlib.ExitStack() as made:
            attempts(args, made)
    print(table(rows_of(args.out)))
    return 0


if __name__ == "__main__":
    run_bench(main)
