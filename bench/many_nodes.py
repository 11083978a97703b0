"""Run a real job on a cluster of many nodes on this machine, and kill a node in it.

    python bench/many_nodes.py [--nodes 128] [--json]

Each node is a slurmd with an agent and one rank of an idle trainer (`bench/idle_trainer.py`); only the work is not
real. The bench prints how long the cluster, the job's start and each part of the recovery take, and the resources of
launcher, operator and agents. Everything shares this machine's cores, which are busy while hundreds of processes start
at once; on a cluster, each node has its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
from harness import Bench, BenchError, LiveRun, progress, surroundings, wait_for
from injury import PHASES, Fault, recovery

from transom_cli.sandbox import faults
from transom_cli.sandbox import processes as belonging

TRAINER = Path(__file__).with_name("idle_trainer.py")
IDLE = 2  # nodes beside the job's
STEPS, FAULT, MEASURED = 3600, 10, 20.0  # steps; the step after which a node dies; seconds
PATIENCE = 600.0
_ROLES = {
    "launch": "launcher", "transom_cli.supervise.agent.agent": "agent",
    "transom_cli.ckpt.snapshot.daemon": "snapshot daemon", "operate": "operator", str(TRAINER): "rank",
}  # fmt: skip


def processes(bench: Bench, run: LiveRun) -> dict[str, list[psutil.Process]]:
    """By role, as their command lines tell."""
    found: dict[str, list[psutil.Process]] = {role: [] for role in _ROLES.values()}
    pids = {proc.ident.pid for proc in belonging.of_sandbox(bench.sandbox.cluster)}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        role = next((_ROLES[word] for word in words[1:5] if word in _ROLES), "")
        if role and (process.pid in pids or (role == "operator" and run.name in words[-1])):
            found[role].append(process)
    return found


def costs(bench: Bench, run: LiveRun) -> dict[str, Any]:
    """Share of a core, and MB, by role: of the launcher and the operator themselves, of agents and ranks the median."""
    there = processes(bench, run)
    before = {p.pid: sum(p.cpu_times()[:2]) for ps in there.values() for p in ps}
    time.sleep(MEASURED)
    spent: dict[str, Any] = {}
    for role, found in there.items():
        shares, sizes = [], []
        for process in found:
            try:
                shares.append((sum(process.cpu_times()[:2]) - before[process.pid]) / MEASURED)
                sizes.append(process.memory_info().rss / 1e6)
            except psutil.Error:
                continue
        if shares:
            spent[role] = {"count": len(shares), "core": statistics.median(shares), "mb": statistics.median(sizes)}
    return spent


def measured(nodes: int) -> dict[str, Any]:
    began = time.monotonic()
    with Bench(nodes=nodes + IDLE) as bench:
        up = time.monotonic() - began
        progress(f"{nodes + IDLE} nodes are up")
        began = time.monotonic()
        run = bench.submit(
            "many", [str(TRAINER), str(STEPS)], options=("-N", str(nodes), "--set", "health.probe=false")
        )
        run.wait_step(1, PATIENCE)
        first = time.monotonic() - began
        progress("it steps")
        run.wait_step(FAULT, PATIENCE)
        spent = costs(bench, run)
        state = run.state
        victim = state.job.nodes[len(state.job.nodes) // 2]
        fault = Fault("node-kill", victim, False, run.view.step, time.time())
        faults.kill_node(bench.sandbox, victim)
        progress(f"{victim} is dead")
        wait_for(lambda: bool(run.state.incidents), PATIENCE, "an incident")
        wait_for(lambda: run.state.incidents[-1].result != "", PATIENCE, "the end of the incident")
        found = recovery(run, fault)
        kept_off = [x.node for x in run.state.isolation.exclusions]
        if kept_off != [victim]:
            raise BenchError(f"{victim} died, and kept off are: {kept_off}")
        bench.transom("stop", "--root", str(bench.runs), timeout_s=120.0)
        return {"nodes": nodes, "up": up, "first_step": first, "spent": spent, "recovery": found.as_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=128, help="of the job [128]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args = parser.parse_args()
    result = measured(args.nodes)
    if args.json:
        print(json.dumps({**result, "surroundings": surroundings()}))
        return
    print(f"{args.nodes} nodes of a job: the cluster is up after {result['up']:.1f} s,", end=" ")
    print(f"the first step of all ranks comes {result['first_step']:.1f} s after `transom run`")
    print(f"{'':14}{'number':>8}{'of a core':>11}{'MB':>6}")
    for role, row in result["spent"].items():
        print(f"{role:14}{row['count']:>8}{row['core']:>11.2%}{row['mb']:>6.0f}")
    parts = result["recovery"]
    print(f"a node's death to the first new step: {parts['total']:.1f} s:", end=" ")
    print(", ".join(f"{name} {parts[name]:.1f}" for name in PHASES))


if __name__ == "__main__":
    main()
