"""Measure what protecting snapshots costs: memory, the training's network, and the effect of `protect_rate`.

    python bench/ckpt_protect.py [--mib 512] [--protect replica] [--rates 0,400,100] [--saves 3] [--durable] [--json]

Two "nodes" on this machine, each with its own snapshot daemon, train over gloo: a step is an all-reduce of 16 MiB. For
each rate (the most MB/s that a node pulls; 0: no limit), the bench prints the step time without and during protection,
and how long protection takes. Everything uses loopback, so the processors act as the network. The memory is the most
that a node has allocated since just before its Checkpointer was made (PSS), as a multiple of its snapshot. With
`--durable`, each save is written to disk too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ckpt_below import adopt, end_all, memory_below

MIB = 1 << 20
STEP = 16 * MIB  # bytes all-reduced by a step
ALONE = 40  # steps measured with nothing beside them


def rank(directory: Path, mib: int, protect: str, rate: float, saves: int, durable: bool) -> None:
    import torch
    import torch.distributed as dist

    from transom_cli.ckpt.checkpointer import Checkpointer
    from transom_cli.ckpt.names import MEMORY
    from transom_cli.ckpt.snapshot.client import agents_path
    from transom_cli.rpc.local import connect

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = dist.get_rank()
    state = {f"w{mine}-{n}": torch.full((MIB // 4,), float(n)) for n in range(mib)}
    gradients, over = torch.ones(STEP // 4), torch.zeros(1)
    dist.barrier()
    if mine == 0:
        print("null", flush=True)
        sys.stdin.readline()  # until the memory is counted
    dist.barrier()
    persist = 1 if durable else 1 << 30
    ck = Checkpointer(state, directory, every=1, persist=persist, protect=protect, protect_rate=rate or None)
    ck.restore()
    line = connect(agents_path(os.environ["TRANSOM_BEAT_DIR"]))
    line.call("look", directory=str(directory), token=(directory / MEMORY).read_text())

    def steps(count: int | None, until: int = 0) -> list[float]:
        """Seconds of each; without a count until that step is protected, as rank 0's node has it."""
        found: list[float] = []
        while count is None or len(found) < count:
            began = time.perf_counter()
            dist.all_reduce(gradients)
            found.append(time.perf_counter() - began)
            if count is None:
                over.fill_(float(line.call("state")[0]["protected"] == until))
                dist.broadcast(over, src=0)
                if over.item():
                    break
        return found

    for step in range(1, saves + 3):  # the first two make their memory
        alone = steps(ALONE)
        ck.save(step)
        began = time.perf_counter()
        beside = steps(None, step)
        if step > 2 and mine == 0:
            times = {"alone": statistics.median(alone), "beside": statistics.fmean(beside)}
            print(json.dumps({**times, "steps": len(beside), "took": time.perf_counter() - began}), flush=True)
        ck.wait()
    ck.close()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # nothing of gloo's threads is waited for


class Peak:
    """The most memory of all processes below this one while the `with` block runs."""

    def __enter__(self) -> Peak:
        self.most, self._over = memory_below(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, memory_below())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure(mib: int, protect: str, rate: float, saves: int, durable: bool) -> dict[str, Any]:
    """`rate` in bytes a second; 0: no limit."""
    with tempfile.TemporaryDirectory(prefix="protect-", dir="/dev/shm") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM"))}
        clean |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
        argv = [sys.executable, __file__, "--rank", f"{folder}/c", "--mib", str(mib), "--protect", protect]
        ranks = []
        for n in range(2):
            beats = Path(folder) / f"n{n}"
            beats.mkdir(mode=0o700)
            env = {**clean, "RANK": str(n), "TRANSOM_BEAT_DIR": str(beats), "SLURMD_NODENAME": f"n{n}"}
            words = [*argv, "--rates", str(rate), "--saves", str(saves), *(["--durable"] if durable else [])]
            ranks.append(subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        try:
            assert ranks[0].stdout is not None
            ranks[0].stdout.readline()
            before = memory_below()
            with Peak() as peak:
                rows = [json.loads(line) for line in ranks[0].communicate("\n", timeout=600)[0].splitlines()]
            if ranks[1].wait(60) or ranks[0].returncode or not rows:
                raise SystemExit("error: a rank ended; its output is above")
        finally:
            for one in ranks:
                one.kill()
            end_all()  # their daemons too
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return {
        "rate": rate,
        **middle,
        "speed": middle["alone"] / middle["beside"],
        "memory": (peak.most - before) / 2 / MIB / mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="of each rank's snapshot [512]")
    parser.add_argument("--protect", default="replica", help="as the Checkpointer has it; for two nodes [replica]")
    parser.add_argument("--rates", default="0,400,100", metavar="MB/s,..", help="0: no limit [0,400,100]")
    parser.add_argument("--saves", type=int, default=3, help="measured for each rate [3]")
    parser.add_argument("--durable", action="store_true", help="write each save to disk as well")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        rates = [float(word) for word in args.rates.split(",")]
    except ValueError as error:
        parser.error(f"--rates: numbers, with commas between them ({error})")
    if args.mib < 1 or args.saves < 1 or min(rates) < 0:
        parser.error("--mib and --saves: at least 1; --rates: none below 0")
    if args.rank is not None:
        rank(args.rank, args.mib, args.protect, rates[0], args.saves, args.durable)
    adopt()
    rows = [measure(args.mib, args.protect, rate * 1e6, args.saves, args.durable) for rate in rates]
    if args.json:
        print(json.dumps({"schema": 1, "bench": "ckpt-protect", "mib": args.mib, "rates": rows}))
        return
    print(f"{args.mib} MiB a node, {args.protect}; steps: an all-reduce of 16 MiB between two processes")
    for row in rows:
        limit = f"{row['rate'] / 1e6:g} MB/s" if row["rate"] else "no limit"
        print(
            f"{limit:>10}: step {1e3 * row['alone']:.1f} ms alone, {1e3 * row['beside']:.1f} beside "
            f"({row['speed']:.2f} of the speed), protected after {row['took']:.2f} s; "
            f"memory: {row['memory']:.1f} times the state"
        )


if __name__ == "__main__":
    main()
