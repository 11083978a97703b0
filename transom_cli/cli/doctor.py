"""`transom doctor`: can transom work from here?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    root: Annotated[Path | None, typer.Option("--root", help="Where run directories live.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """See whether transom can do its work from here: Slurm, rights, files, this machine's habits. Nothing is changed.

    Exit code 0: it can; 1: something keeps it from working (`fail`). What compute nodes are like tells `transom check`.
    """
    import json
    import os
    import shutil
    import sys
    from dataclasses import asdict

    from transom_cli.config.load import load
    from transom_cli.doctor.examine import examine
    from transom_cli.doctor.symptom import Grade, Symptom
    from transom_cli.errors import TransomError
    from transom_cli.slurm.pyslurm.trial import Trial
    from transom_cli.slurm.runner import Runner
    from transom_cli.submit.clusters import cluster_of
    from transom_cli.ui.doctor import symptom_lines
    from transom_cli.wiring.slurm import slurm_client, try_pyslurm

    def runs() -> Path:
        """All settings are read, also where the root is given: what is wrong with them is to be told."""
        settings = load(None, {}, os.environ)
        return root or settings.root

    def drain() -> tuple[tuple[str, ...], Path | None]:
        asked = load(None, {}, os.environ).isolate
        return asked.drain_command, asked.drain_spool

    def backend() -> Trial:
        return try_pyslurm(load(None, {}, os.environ).slurm)

    def cluster() -> str:
        """The one that a run would be submitted to."""
        try:
            return cluster_of(load(None, {}, os.environ).job.cluster, None, 0, os.environ)
        except TransomError:  # the settings are wrong, and are told so; or it names several, and a run tells that
            return ""

    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000
    found: list[Symptom] = []
    there = cluster()
    for one in examine(slurm_client(10.0, there), Runner(timeout=10.0, cluster=there), runs, backend, drain):
        found.append(one)
        if not json_:
            print("\n".join(symptom_lines(one, width)), flush=True)
    failed = any(one.grade is Grade.FAIL for one in found)
    if json_:
        print(json.dumps({"schema": 1, "well": not failed, "found": [asdict(one) for one in found]}))
    raise typer.Exit(1 if failed else 0)
