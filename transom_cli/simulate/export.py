"""Writes a simulated run as a run directory, for `transom explain`, `goodput` and `report`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.core.codec import event_to_json, plain
from transom_cli.files import make_private, publish_text
from transom_cli.layout import RunDir
from transom_cli.simulate.cluster import BEGIN, Cluster
from transom_cli.submit.rundir import new_run
from transom_cli.supervise.journal import write_header

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

SCRIPT = "#!/bin/bash\n# A simulated run: nothing ran.\n"


def write_run(cluster: Cluster, root: Path, settings: Settings) -> RunDir:
    """Write the journals of a simulated run into a new run directory."""
    run = new_run(root, settings.name, datetime.fromtimestamp(BEGIN, timezone.utc), settings, SCRIPT)
    scenario = cluster.scenario
    write_header(run.journal, scenario.operator, scenario.requested, scenario.spares)
    with run.journal.open("a", encoding="utf-8") as journal:
        journal.writelines(json.dumps({"epoch": 1, **event_to_json(event)}) + "\n" for event in cluster.journal)
    for attempt in cluster.attempts:
        folder = run.attempt(attempt.state.job_id, attempt.state.restart)
        make_private(folder.path)
        publish_text(folder.launcher_journal, "".join(json.dumps(r) + "\n" for r in attempt.records))
        publish_text(folder.progress, "".join(json.dumps(r) + "\n" for r in attempt.progress))
        if attempt.outcome is not None:
            publish_text(folder.outcome, json.dumps(plain(attempt.outcome)) + "\n")
    return run
