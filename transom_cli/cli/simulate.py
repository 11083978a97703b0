"""`transom simulate`: the run's own policy on simulated failures."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.options import Json, SettingsFile
from transom_cli.cli.run import assignment
from transom_cli.cli.units import parameters
from transom_cli.errors import UsageError
from transom_cli.view.text import plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transom_cli.config.model import Settings
    from transom_cli.simulate.campaign import Summary
    from transom_cli.simulate.cluster import Outcome
    from transom_cli.simulate.model import Costs, Hazard, Scenario, Trace

RATE = 4.0  # faults per 1,000 node-days: Llama 3 had 3.8, Meta's RSC clusters 2.3 and 6.5

Nodes = Annotated[int, typer.Option("-N", "--nodes", min=1, help="Nodes that carry ranks.")]
Days = Annotated[float, typer.Option("--days", min=0.01, help="Simulated time.")]
Failures = Annotated[
    str,
    typer.Option(
        "--failures",
        metavar="RATE|FILE",
        help="Faults per 1,000 node-days; or `stepfun`; or a file: a trace, the node history, `sacct -P` output.",
    ),
]
Params = Annotated[
    str,
    typer.Option("--params", metavar="N", help="Parameters of the model, 70e9 or 70B: the costs of checkpoints."),
]
Gpus = Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node.")]
Bandwidth = Annotated[
    float, typer.Option("--bandwidth", min=0.001, help="Write bandwidth of the shared file system in GB/s.")
]
StepTime = Annotated[float, typer.Option("--step-time", min=0.001, help="Seconds of a training step.")]
Queue = Annotated[float, typer.Option("--queue", min=0.0, help="Mean wait of a requeued job in minutes.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="Simulated runs per row.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the first run.")]
Workers = Annotated[int, typer.Option("-j", "--jobs", min=0, help="Processes; 0: one per core.")]


def simulate(
    nodes: Nodes,
    days: Days = 30.0,
    spares: Annotated[
        str, typer.Option("--spares", help="Spare nodes. Several numbers (0,2 or 1-100) give rows.")
    ] = "0",
    min_nodes: Annotated[
        str,
        typer.Option("--min-nodes", help="Fewest nodes to train on while others are lost (0: all); or several values."),
    ] = "0",
    save_every: Annotated[
        str, typer.Option("--save-every", help="Steps between saves (0: none); or several values.")
    ] = "30",
    persist: Annotated[
        str, typer.Option("--persist", help="Every how many saves one goes to disk; or several values.")
    ] = "10",
    in_process: Annotated[
        str, typer.Option("--in-process", help="Seconds of an in-process restart (0: off); or several values.")
    ] = "0",
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Snapshots stay in the nodes' memory.")] = True,
    failures: Failures = f"{RATE:g}",
    params: Params = "70e9",
    gpus: Gpus = 8,
    bandwidth: Bandwidth = 50.0,
    step_time: StepTime = 10.0,
    queue: Queue = 0.0,
    pool: Annotated[int, typer.Option("--pool", min=0, help="Nodes of the cluster; 0: 4% more than the job.")] = 0,
    file: SettingsFile = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="FILE FILE", help="Two settings files, on the same failures."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="KEY=VALUE", help="Another setting, or assumption (costs.start=30)."),
    ] = None,
    runs: Runs = 20,
    seed: Seed = 1,
    jobs: Workers = 0,
    html: Annotated[Path | None, typer.Option("--html", help="Write the result as a page with plots here.")] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Write the first run of the first row as a run directory here.")
    ] = None,
    json_: Json = False,
) -> None:
    """Predict goodput by simulating the policy.

    transom decides as in a real run, on a simulated cluster; nothing is submitted. docs/simulate.md lists assumptions.
    """
    from itertools import product

    from transom_cli.simulate.cluster import Cluster
    from transom_cli.simulate.export import write_run
    from transom_cli.simulate.model import Costs

    costs = Costs.of(
        nodes,
        params=parameters(params),
        gpus=gpus,
        bandwidth=bandwidth * 1e9,
        step=step_time,
        memory=memory,
        queue=queue * 60.0,
    )
    policies = _policies(nodes, days, costs, read_known(failures), compare or (file,), what_if or [])
    given = (spares, min_nodes, save_every, persist, in_process)
    options = ("--spares", "--min-nodes", "--save-every", "--persist", "--in-process")
    columns = ("spares", "min nodes", "save every", "durable", "in-process")
    shown = [n for n, text in enumerate(given) if n in (0, 2, 3) or text != "0"]
    head = (*(columns[n] for n in shown), *(("policy",) if len(policies) > 1 else ()))
    table: list[tuple[tuple[str, ...], Scenario]] = []
    for values in product(*(numbers(text, option) for text, option in zip(given, options, strict=True))):
        spare, fewest, every, nth, alive = values
        for name, _, one in policies:
            label = (*(str(values[n]) for n in shown), *((name,) if len(policies) > 1 else ()))
            _check(nodes, spare, fewest, pool)
            known = replace(one.costs, save_every=every, persist_every=nth, in_process=float(alive))
            table.append((label, replace(one, costs=known, spares=spare, fewest=fewest, pool=pool)))
    scenarios = [scenario for _, scenario in table]
    if keep is not None:
        cluster = Cluster(scenarios[0], seed)
        cluster.run()
        print(f"{write_run(cluster, keep, policies[0][1]).path}", file=sys.stderr)
    found = run_all(scenarios, runs, seed, jobs)
    labels = [label for label, _ in table]
    print_result(head, labels, found, json_=json_)
    if len(policies) > 1 and not json_:
        print_differences(found, [name for name, *_ in policies])
    if html is not None:
        write_page(html, head, labels, found, scenarios)


def _check(nodes: int, spares: int, fewest: int, pool: int) -> None:
    if fewest > nodes:
        raise UsageError(f"--min-nodes is {fewest}", f"the training has {nodes} nodes")
    if 0 < pool < nodes + spares:
        raise UsageError(
            f"--pool is {pool}", f"{nodes} nodes and {spares} spares do not fit: the job would never start"
        )


def _policies(
    nodes: int, days: float, costs: Costs, known: Hazard | Trace, files: Sequence[Path | None], what_if: Sequence[str]
) -> list[tuple[str, Settings, Scenario]]:
    """Return each settings file, or what --what-if changes, with its name."""
    from transom_cli.simulate.setup import ASSUMED, assume, scenario_of

    def one(name: str, path: Path | None, flags: dict[str, str]) -> tuple[str, Settings, Scenario]:
        settings = load_settings(path, flags)
        return name, settings, scenario_of(settings, nodes, days, known, costs)

    found = [one(path.stem if path is not None else "now", path, {}) for path in files]
    for text in what_if:
        key, value = assignment(text)
        assumed = key.partition(".")[0] in ASSUMED
        name, settings, scenario = one(text, files[0], {} if assumed else {key: value})
        found.append((name, settings, assume(scenario, key, value) if assumed else scenario))
    return found


def numbers(text: str, option: str) -> list[int]:
    """Read `0,2,4` or `1-100`."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise UsageError(
                f"{option} is `{text}`", "it must be a number, several separated by commas, or a range 1-100"
            )
        found += range(int(low), int(high or low) + 1)
    return found


def read_known(failures: str) -> Trace | Hazard:
    from transom_cli.simulate.model import Hazard
    from transom_cli.simulate.traces import read_failures

    try:
        rate = float(failures)
    except ValueError:
        return read_failures(failures)
    if not 0.0 <= rate < 1e6:
        raise UsageError(f"--failures is {failures}", "it must be a rate per 1,000 node-days, such as 4")
    return Hazard(per_node_day=rate / 1000.0)


def load_settings(path: Path | None, flags: dict[str, str] | None = None) -> Settings:

    from transom_cli.config.load import load

    return load(path, flags, os.environ)


def run_all(scenarios: Sequence[Scenario], runs: int, seed: int, jobs: int) -> list[list[Outcome]]:
    """Simulate all scenarios, with a progress bar on a terminal."""
    from rich.progress import Progress

    from transom_cli.simulate.campaign import simulate
    from transom_cli.view.terminal import error_console

    with Progress(console=error_console(), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=runs * len(scenarios))
        return simulate(scenarios, runs, seed, jobs, lambda: bar.advance(task))


def print_result(
    head: tuple[str, ...], labels: Sequence[tuple[str, ...]], found: Sequence[Sequence[Outcome]], *, json_: bool
) -> None:

    from transom_cli.simulate.campaign import Summary

    if json_:
        rows = [
            {**dict(zip(head, label, strict=True)), "runs": len(runs), **asdict(Summary.of(runs))}
            for label, runs in zip(labels, found, strict=True)
        ]
        print(json.dumps({"schema": 1, "rows": rows}))
        return
    columns, body = printed(head, labels, [Summary.of(runs) for runs in found])
    shown = tuple(column.upper() for column in columns)
    right = frozenset(c for c in shown if c not in ("POLICY",))
    print("\n".join(plain(line) for line in table(shown, body, right)))


def printed(
    head: tuple[str, ...], labels: Sequence[tuple[str, ...]], summaries: Sequence[Summary]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the table."""
    kinds = ("redone", "restart", "detection", "checkpoint", "queue")
    columns = (*head, "goodput", "90% interval", "incidents", "requeues", *(f"{k} h" for k in kinds), "stopped")
    body = []
    for label, one in zip(labels, summaries, strict=True):
        lost = tuple(f"{one.hours.get(kind, 0.0):.1f}" for kind in kinds)
        share = (f"{one.goodput.mean:.2%}", f"{one.goodput.low:.2%} to {one.goodput.high:.2%}")
        body.append((*label, *share, f"{one.incidents:.1f}", f"{one.requeues:.1f}", *lost, f"{one.stopped:.0%}"))
    return columns, body


def write_page(
    path: Path, head: tuple[str, ...], labels: Sequence[tuple[str, ...]], found: Sequence[Sequence[Outcome]],
    scenarios: Sequence[Scenario],
) -> None:  # fmt: skip
    from transom_cli import __version__
    from transom_cli.simulate.campaign import Summary
    from transom_cli.simulate.page import document
    from transom_cli.view.report.page import page, write

    summaries = [Summary.of(runs) for runs in found]
    made = f"transom simulate {__version__}, runs of each row: {len(found[0])}"
    columns, body = printed(head, labels, summaries)
    write(path, page(document(head, labels, summaries, columns, body, scenarios, made)))
    print(f"{path}", file=sys.stderr)


def print_differences(found: Sequence[Sequence[Outcome]], names: Sequence[str]) -> None:
    """Print how much goodput each other policy gains on the same failures, pair by pair."""
    from transom_cli.simulate.campaign import Interval

    for n, name in enumerate(names[1:], 1):
        pairs = (zip(one, other, strict=True) for one, other in zip(
            found[:: len(names)], found[n :: len(names)], strict=True))  # fmt: skip
        gain = Interval.of([b.goodput - a.goodput for pair in pairs for a, b in pair])
        interval = f"90% interval {gain.low:+.3%} to {gain.high:+.3%}"
        print(f"\n{name} against {names[0]}, on the same failures: goodput {gain.mean:+.3%} ({interval})")
