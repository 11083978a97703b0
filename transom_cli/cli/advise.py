"""`transom advise`: which settings pay on this cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli import simulate as sim
from transom_cli.cli.common import bounded, run_to_read
from transom_cli.cli.options import Json, Root, SettingsFile
from transom_cli.cli.units import parameters
from transom_cli.errors import TransomError, UsageError
from transom_cli.view.text import plain, table

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.supervise.run_record import RunRecord


def advise(
    nodes: Annotated[
        int, typer.Option("-N", "--nodes", min=0, help="Nodes that carry ranks; 0: as many as --run has.")
    ] = 0,
    run: Annotated[
        str | None,
        typer.Option("--run", help="A run: advise by its record first; its nodes, step time and faults count."),
    ] = None,
    root: Root = None,
    days: sim.Days = 30.0,
    spares: Annotated[int, typer.Option("--spares", min=0, help="Spare nodes now.")] = 0,
    save_every: Annotated[int, typer.Option("--save-every", min=1, help="Steps between saves now.")] = 30,
    persist: Annotated[int, typer.Option("--persist", min=1, help="Every how many saves one goes to disk now.")] = 10,
    failures: sim.Failures = f"{sim.RATE:g}",
    params: sim.Params = "70e9",
    gpus: sim.Gpus = 8,
    bandwidth: sim.Bandwidth = 50.0,
    step_time: sim.StepTime = 10.0,
    queue: sim.Queue = 0.0,
    file: SettingsFile = None,
    runs: Annotated[int, typer.Option("--runs", min=2, help="Simulated runs of each value.")] = 10,
    seed: sim.Seed = 1,
    jobs: sim.Workers = 0,
    json_: Json = False,
) -> None:
    """Recommend settings by simulation.

    With --run, print first what the run's own record says about its settings.

    Each setting is varied alone, on the same failures. The gain is in useful node time, for which spares count as used.
    Give your own failures with --failures.
    """

    from rich.progress import Progress

    from transom_cli.simulate import advise as advisor
    from transom_cli.simulate.model import Costs
    from transom_cli.simulate.setup import scenario_of
    from transom_cli.view.advice import advice, faults_of, pace
    from transom_cli.view.terminal import error_console

    said: tuple[str, ...] = ()
    settings, known = sim.load_settings(file), sim.read_known(failures)
    if run is not None:
        record, settings = read_run(run, root)
        said = advice(record, settings.detect.factor)
        nodes = nodes or len(record.state.job.nodes) - record.state.request.spares
        step_time = pace(record) or step_time
        known = faults_of(record) or known
    if nodes < 1:
        raise UsageError("`transom advise` needs the number of nodes", hint="-N 64, or --run RUN")
    costs = Costs.of(
        nodes, params=parameters(params), gpus=gpus, bandwidth=bandwidth * 1e9, step=step_time, save_every=save_every,
        persist_every=persist, queue=queue * 60.0,
    )  # fmt: skip
    scenario = replace(scenario_of(settings, nodes, days, known, costs), spares=spares)
    with Progress(console=error_console(), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("simulating", total=runs * advisor.count(scenario))
        found = advisor.advise(scenario, runs, seed, jobs, lambda: bar.advance(task))
    if json_:
        print(json.dumps({"schema": 1, "run": said, "advice": [{**asdict(one), "clear": one.clear} for one in found]}))
        return
    if said:
        print("\n".join((*said, "")))
    body = []
    for one in found:
        tried = ", ".join(
            f"{value}: {share:.2%}" for value, share in sorted(one.values, key=lambda v: str(v[0]).rjust(9))
        )
        gain = f"{one.gain.mean:+.2%}" if one.best != one.now else ""
        change = f"change to {one.best}" if one.clear else "keep"
        body.append((one.name, str(one.now), change, gain, tried))
    print("\n".join(plain(line) for line in table(("SETTING", "NOW", "ADVICE", "GAIN", "TRIED"), body, frozenset())))


def of_newest_run(root: Path | None) -> tuple[str, ...]:
    """Return what the newest run says about its settings; nothing if it cannot be read or says nothing."""
    from transom_cli.view.advice import advice, faults_of

    try:
        record, settings = read_run(None, root)
    except TransomError:
        return ()
    return advice(record, settings.detect.factor) if faults_of(record) is not None else ()


def read_run(run: str | None, root: Path | None) -> tuple[RunRecord, Settings]:
    from transom_cli.config.run_settings import read_settings
    from transom_cli.supervise.record_reader import read_run_record

    found = run_to_read(bounded(root, run), run)
    return read_run_record(found), read_settings(found)
