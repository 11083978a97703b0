"""`transom simulate`: the run's own policy on simulated failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.status import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transom_cli.config.model import Settings
    from transom_cli.simulate.cluster import Outcome
    from transom_cli.simulate.model import Hazard, Scenario, Trace

RATE = 4.0  # faults per 1,000 node-days: Llama 3 had 3.8, Meta's RSC clusters 2.3 and 6.5

Nodes = Annotated[int, typer.Option("-N", "--nodes", min=1, help="Nodes that carry ranks.")]
Days = Annotated[float, typer.Option("--days", min=0.01, help="Simulated time.")]
Failures = Annotated[
    str,
    typer.Option(
        "--failures",
        help="Faults per 1,000 node-days; or `stepfun`; or a file: a trace, the node history, `sacct -P` output.",
    ),
]
Params = Annotated[float, typer.Option("--params", help="Parameters of the model: sizes the costs of checkpoints.")]
Gpus = Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node.")]
Bandwidth = Annotated[float, typer.Option("--bandwidth", help="Write bandwidth of the shared file system in GB/s.")]
StepTime = Annotated[float, typer.Option("--step-time", min=0.001, help="Seconds of a training step.")]
Queue = Annotated[float, typer.Option("--queue", min=0.0, help="Mean wait of a requeued job in minutes.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Simulated runs of each row.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the first run.")]
Workers = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Processes; 0: one per core.")]
SettingsFile = Annotated[Path | None, typer.Option("-f", "--file", help="Settings file of a run (TOML).")]


def simulate(
    nodes: Nodes,
    days: Days = 30.0,
    spares: Annotated[str, typer.Option("--spares", help="Spare nodes; several numbers give a row each.")] = "0",
    save_every: Annotated[str, typer.Option("--save-every", help="Steps between saves (0: none); or several.")] = "30",
    persist: Annotated[str, typer.Option("--persist", help="One of how many saves is durable; or several.")] = "10",
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Snapshots stay in the nodes' memory.")] = True,
    failures: Failures = f"{RATE:g}",
    params: Params = 70e9,
    gpus: Gpus = 8,
    bandwidth: Bandwidth = 50.0,
    step_time: StepTime = 10.0,
    queue: Queue = 0.0,
    pool: Annotated[int, typer.Option("--pool", min=0, help="Nodes of the cluster; 0: 4% more than the job.")] = 0,
    file: SettingsFile = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="Two settings files, on the same failures.")
    ] = None,
    runs: Runs = 20,
    seed: Seed = 1,
    jobs: Workers = 0,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Write the first run of the first row as a run directory here.")
    ] = None,
    json_: Json = False,
) -> None:
    """Predict goodput by simulating the policy.

    The deciders of transom run on a simulated cluster. Nothing is submitted. docs/simulate.md lists all assumptions.
    """
    from dataclasses import replace
    from itertools import product

    from transom_cli.simulate.cluster import Cluster
    from transom_cli.simulate.export import write_run
    from transom_cli.simulate.model import Costs
    from transom_cli.simulate.setup import scenario_of

    known = read_known(failures)
    files = compare or (file,)
    settings = [load_settings(one) for one in files]
    table: list[tuple[tuple[str, ...], Scenario]] = []
    wanted = product(numbers(spares, "--spares"), numbers(save_every, "--save-every"), numbers(persist, "--persist"))
    for spare, every, nth in wanted:
        costs = Costs.of(
            nodes, params=params, gpus=gpus, bandwidth=bandwidth * 1e9, step=step_time, save_every=every,
            persist_every=nth, memory=memory, queue=queue * 60.0,
        )  # fmt: skip
        for path, one in zip(files, settings, strict=True):
            scenario = replace(scenario_of(one, nodes, days, known, costs), spares=spare, pool=pool)
            label = (str(spare), str(every), str(nth), *((path.stem,) if compare and path else ()))
            table.append((label, scenario))
    if keep is not None:
        cluster = Cluster(table[0][1], seed)
        cluster.run()
        print(f"{write_run(cluster, keep, settings[0]).path}", file=sys.stderr)
    found = run_all([scenario for _, scenario in table], runs, seed, jobs)
    head = ("spares", "save every", "durable", *(("policy",) if compare else ()))
    print_result(head, [label for label, _ in table], found, json_=json_)
    if compare and not json_:
        print_differences(found, [one.stem for one in compare])


def numbers(text: str, option: str) -> list[int]:
    from transom_cli.errors import UsageError

    found = [int(one) for one in text.split(",") if one.strip().isdecimal()]
    if not found or len(found) != len(text.split(",")):
        raise UsageError(f"{option} is `{text}`", "it must be a number, or several separated by commas")
    return found


def read_known(failures: str) -> Trace | Hazard:
    from transom_cli.errors import UsageError
    from transom_cli.simulate.model import Hazard
    from transom_cli.simulate.traces import read_failures

    try:
        rate = float(failures)
    except ValueError:
        return read_failures(failures)
    if not 0.0 <= rate < 1e6:
        raise UsageError(f"--failures is {failures}", "it must be a rate per 1,000 node-days, such as 4")
    return Hazard(per_node_day=rate / 1000.0)


def load_settings(path: Path | None) -> Settings:
    import os

    from transom_cli.config.load import load

    return load(path, {}, os.environ)


def run_all(scenarios: Sequence[Scenario], runs: int, seed: int, jobs: int) -> list[list[Outcome]]:
    """Simulate all scenarios, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from transom_cli.simulate.campaign import simulate

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=runs * len(scenarios))
        return simulate(scenarios, runs, seed, jobs, lambda: bar.advance(task))


def print_result(
    head: tuple[str, ...], labels: Sequence[tuple[str, ...]], found: Sequence[Sequence[Outcome]], *, json_: bool
) -> None:
    import json
    from dataclasses import asdict

    from transom_cli.simulate.campaign import Summary
    from transom_cli.view.text import plain, table

    summaries = [Summary.of(runs) for runs in found]
    if json_:
        rows = [
            {**dict(zip(head, label, strict=True)), "runs": len(runs), **asdict(one)}
            for label, runs, one in zip(labels, found, summaries, strict=True)
        ]
        print(json.dumps({"schema": 1, "rows": rows}))
        return
    kinds = ("redone", "restart", "detection", "checkpoint", "queue")
    columns = (*head, "goodput", "90% interval", "incidents", "requeues", *(f"{k} h" for k in kinds), "stopped")
    body = []
    for label, one in zip(labels, summaries, strict=True):
        lost = tuple(f"{one.hours.get(kind, 0.0):.1f}" for kind in kinds)
        share = (f"{one.goodput.mean:.2%}", f"{one.goodput.low:.2%} to {one.goodput.high:.2%}")
        body.append((*label, *share, f"{one.incidents:.1f}", f"{one.requeues:.1f}", *lost, f"{one.stopped:.0%}"))
    shown = tuple(column.upper() for column in columns)
    right = frozenset(c for c in shown if c not in ("POLICY",))
    print("\n".join(plain(line) for line in table(shown, body, right)))


def print_differences(found: Sequence[Sequence[Outcome]], names: Sequence[str]) -> None:
    """Print how much goodput the second policy gains on the same failures, pair by pair."""
    from transom_cli.simulate.campaign import Interval

    pairs = (zip(one, other, strict=True) for one, other in zip(found[::2], found[1::2], strict=True))
    gain = Interval.of([b.goodput - a.goodput for pair in pairs for a, b in pair])
    interval = f"90% interval {gain.low:+.3%} to {gain.high:+.3%}"
    print(f"\n{names[1]} against {names[0]}, on the same failures: goodput {gain.mean:+.3%} ({interval})")
