"""`transom explain`: what happened to a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from transom_cli.cli.status import Json, Root, Run
from transom_cli.errors import UsageError


def explain(
    run: Run = None,
    incident: Annotated[str | None, typer.Option("--incident", "-i", help="Only this one, as i2.")] = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """What happened: the story of each incident, from the journal."""
    import json

    from transom_cli.submit.rundir import find_run
    from transom_cli.ui.read import read_view
    from transom_cli.ui.render import held_lines, incident_lines
    from transom_cli.wiring import runs_root

    view = read_view(find_run(runs_root(root), run))
    chosen = [i for i in reversed(view.incidents) if incident in (None, i.id)]
    if incident is not None and not chosen:
        known = ", ".join(i.id for i in reversed(view.incidents)) or "none"
        raise UsageError(f"Run `{view.run_id}` has no incident `{incident}`", f"it has: {known}")
    if json_:
        told = {"schema": 1, "run_id": view.run_id, "phase": view.phase, "verdict": view.verdict}
        print(json.dumps({**told, "incidents": [asdict(i) for i in chosen]}))
        return
    stories = ["\n".join(incident_lines(i, 10_000)) for i in chosen]
    if view.phase == "held" and incident is None:
        stories.append("\n".join(held_lines(view)))
    print("\n\n".join(stories) or f"{view.run_id}: no incident so far")
