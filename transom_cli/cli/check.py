"""`transom check`: examine nodes by hand, in a Slurm Prolog, Epilog or HealthCheckProgram, or from a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.errors import UsageError


def check(
    tier: Annotated[str, typer.Option(help="quick: seconds; deep: minutes; watch: no probe at all.")] = "quick",
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", "-w", help="Which nodes [default: of this allocation, else this one]."),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="This node alone, also inside an allocation.")] = False,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs that each node must have.")] = None,
    path: Annotated[
        list[Path] | None, typer.Option(help="A directory that must answer and be writable; repeatable.")
    ] = None,
    probe: Annotated[bool | None, typer.Option("--probe/--no-probe", help="Compute and send a little.")] = None,
    off: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="A check that is not wanted.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as `health.budget=60`.")
    ] = None,
    as_: Annotated[
        str | None, typer.Option("--as", help="Exit code for a place: prolog, epilog, healthcheck or nagios.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Save the raw readings into this file.")] = None,
    hash_serials: Annotated[bool, typer.Option("--hash-serials", help="Save digests of serial numbers.")] = False,
    replay: Annotated[Path | None, typer.Option(help="Judge recorded readings; nothing is examined.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name all checks and thresholds.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show also what is well.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Are these nodes fit to train on? Exit code 0: yes; 14: one is not; 22: nothing could be looked at.

    Inside salloc or a batch script it examines the allocation by a step; other nodes (--nodes, outside of an
    allocation), also drained ones, by ssh; else this node.
    """
    from transom_cli.cli.checking import PLACES, Asked, listing, run_check, settings_for
    from transom_cli.health.about import Tier

    if tier not in [t.value for t in Tier]:
        raise UsageError(f"`--tier {tier}` is unknown", hint="Use `quick`, `deep` or `watch`.")
    if as_ is not None and as_ not in PLACES:
        raise UsageError(f"`--as {as_}` is unknown", hint=f"Use {', '.join(PLACES)}.")
    if nodes and (here or as_):
        raise UsageError(f"`--nodes` and `{'--here' if here else '--as'}` exclude each other")
    if replay is not None and (record or nodes):
        raise UsageError("`--replay` examines nothing", hint="Leave `--record` and `--nodes` out.")
    settings = settings_for(set_ or [], off or [])
    if list_:
        print("\n".join(listing(as_json=json_)))
        return
    asked = Asked(
        settings=settings,
        tier=Tier(tier),
        nodes=nodes or "",
        here=here or as_ is not None,
        gpus=gpus,
        folders=tuple(str(p.absolute()) for p in path or ()),
        probe=probe,
        place=as_ or "",
        record=record,
        hash_serials=hash_serials,
        replay=replay,
        verbose=verbose,
        as_json=json_,
    )
    raise typer.Exit(run_check(asked))
