"""`transom advise`: which settings pay on this cluster."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from transom_cli.cli.simulate import (
    RATE,
    Bandwidth,
    Days,
    Failures,
    Gpus,
    Nodes,
    Params,
    Queue,
    Seed,
    SettingsFile,
    StepTime,
    Workers,
    load_settings,
    read_known,
)  # fmt: skip
from transom_cli.cli.status import Json


def advise(
    nodes: Nodes,
    days: Days = 30.0,
    spares: Annotated[int, typer.Option("--spares", min=0, help="Spare nodes now.")] = 0,
    save_every: Annotated[int, typer.Option("--save-every", min=1, help="Steps between saves now.")] = 30,
    persist: Annotated[int, typer.Option("--persist", min=1, help="One of how many saves is durable now.")] = 10,
    failures: Failures = f"{RATE:g}",
    params: Params = 70e9,
    gpus: Gpus = 8,
    bandwidth: Bandwidth = 50.0,
    step_time: StepTime = 10.0,
    queue: Queue = 0.0,
    file: SettingsFile = None,
    runs: Annotated[int, typer.Option("--runs", min=2, help="Simulated runs of each value.")] = 10,
    seed: Seed = 1,
    jobs: Workers = 0,
    json_: Json = False,
) -> None:
    """Recommend settings by simulation.

    Each setting is varied alone, on the same failures. The gain is in useful node time, for which spares count as used.
    Give your own failures with --failures.
    """
    import json
    from dataclasses import asdict, replace

    from rich.console import Console
    from rich.progress import Progress

    from transom_cli.simulate import advise as advisor
    from transom_cli.simulate.model import Costs
    from transom_cli.simulate.setup import scenario_of
    from transom_cli.view.text import plain, table

    costs = Costs.of(
        nodes, params=params, gpus=gpus, bandwidth=bandwidth * 1e9, step=step_time, save_every=save_every,
        persist_every=persist, queue=queue * 60.0,
    )  # fmt: skip
    scenario = replace(scenario_of(load_settings(file), nodes, days, read_known(failures), costs), spares=spares)
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=runs * advisor.count(scenario))
        found = advisor.advise(scenario, runs, seed, jobs, lambda: bar.advance(task))
    if json_:
        print(json.dumps({"schema": 1, "advice": [{**asdict(one), "clear": one.clear} for one in found]}))
        return
    body = []
    for one in found:
        tried = ", ".join(
            f"{value}: {share:.2%}" for value, share in sorted(one.values, key=lambda v: str(v[0]).rjust(9))
        )
        gain = f"{one.gain.mean:+.2%}" if one.best != one.now else ""
        change = f"change to {one.best}" if one.clear else "keep"
        body.append((one.name, str(one.now), change, gain, tried))
    print("\n".join(plain(line) for line in table(("SETTING", "NOW", "ADVICE", "GAIN", "TRIED"), body, frozenset())))
