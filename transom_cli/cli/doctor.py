"""`transom doctor`: check whether transom can work from here."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.options import Json, Root
from transom_cli.errors import TransomError, UsageError
from transom_cli.slurm.port import BackendTrial
from transom_cli.view.text import NEVER_CUT


def doctor(
    root: Root = None,
    site: Annotated[bool, typer.Option("--site", help="Also check what differs between sites.")] = False,
    job: Annotated[
        bool, typer.Option("--job", help="With --site: submit a job of one task, which takes a few seconds.")
    ] = False,
    json_: Json = False,
) -> None:
    """Check whether transom can work from here.

    Checks Slurm, rights, files and limits of this machine, and changes nothing. --site adds: ports, WaitTime, Prolog,
    preemption, cgroups, group names, exported variables, purged files, quota, limits of this host. --job adds what only
    a job shows: the time until it runs, whether nodes see the folder of runs, what you may change, requeue.

    Exit code 0: it can; 1: something prevents it (`fail`). To check compute nodes, use `transom check`.
    """

    from transom_cli.bootstrap.slurm import slurm_client, try_pyslurm
    from transom_cli.cli.advise import of_newest_run
    from transom_cli.config.load import load
    from transom_cli.doctor.examine import Site, examine
    from transom_cli.doctor.symptom import Grade, Symptom
    from transom_cli.slurm.runner import Runner
    from transom_cli.submit.unsupported import cluster_of
    from transom_cli.supervise.operator.registry import Registry, operator_folder
    from transom_cli.view.findings import symptom_lines
    from transom_cli.view.terminal import Waiting, waiting, width

    def runs() -> Path:
        """Load all settings, even if --root is given, so that errors in them are reported."""
        settings = load(None, {}, os.environ)
        return root or settings.root

    def drain() -> tuple[tuple[str, ...], Path | None]:
        isolate = load(None, {}, os.environ).isolate
        return isolate.drain_command, isolate.drain_spool

    def backend() -> BackendTrial:
        return try_pyslurm(load(None, {}, os.environ).slurm)

    def options() -> Site:
        from transom_cli.submit.render import job_flags

        settings = load(None, {}, os.environ)
        flags = tuple(job_flags(settings)) if job else None
        partition, shared = settings.job.partition or "", settings.isolate.shared_history
        return Site(flags, partition, shared, say=lambda words: bars[-1].add(0, words))

    def operators() -> tuple[int, int | None]:
        registry = Registry(operator_folder(os.environ))
        return len(registry.names()), registry.process()

    def cluster() -> str:
        """Return the cluster to which a run would be submitted."""
        try:
            return cluster_of(load(None, {}, os.environ).job.cluster, None, 0, os.environ)
        except TransomError:  # reported with the settings; or several clusters, which `transom run` reports
            return ""

    if job and not site:
        raise UsageError("`--job` belongs to `--site`", hint="transom doctor --site --job")
    found: list[Symptom] = []
    bars: list[Waiting] = []
    there = cluster()
    runner = Runner(timeout=10.0, cluster=there)
    wanted = options if site else None
    symptoms = iter(examine(slurm_client(10.0, there), runner, runs, backend, drain, operators, wanted))
    while True:
        with waiting(f"{len(found)} checks done") as bar:  # of one check: what is printed is progress, too
            bars.append(bar)
            one = next(symptoms, None)
        if one is None:
            break
        found.append(one)
        if not json_:
            print("\n".join(symptom_lines(one, width() or NEVER_CUT)), flush=True)
    failed = any(one.grade is Grade.FAIL for one in found)
    if json_:
        print(json.dumps({"schema": 1, "well": not failed, "found": [asdict(one) for one in found]}))
    elif failed:
        print("\nnot ready: runs do not work here until each `fail` is solved")
    else:
        print("\nready: try this\n  transom run -N 1 -t 5 -- hostname")
        for words in of_newest_run(root):
            print(f"advice from your newest run: {words}")
    raise typer.Exit(1 if failed else 0)
