"""`transom check`: check nodes by hand, in a Slurm Prolog, Epilog or HealthCheckProgram, or from a recording."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.options import Json
from transom_cli.cli.run import assignment
from transom_cli.errors import BadNodes, TransomError, Unknown, UsageError

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.health.check import Tier
    from transom_cli.health.report import Report
    from transom_cli.health.run import HealthRequest

MOST_ERRORS = 3  # lines of ssh that are shown
PLACES = ("prolog", "epilog", "healthcheck", "nagios")


def check(
    tier: Annotated[
        str, typer.Option(metavar="quick|deep|watch", help="Seconds, minutes, or no probe at all.")
    ] = "quick",
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodelist", "-w", "--nodes", help="Nodes to check [default: those of this allocation, else this one]."
        ),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="Check only this node, even inside an allocation.")] = False,
    gpus: Annotated[int | None, typer.Option(min=0, help="Number of GPUs that each node must have.")] = None,
    path: Annotated[
        list[Path] | None, typer.Option(help="Directory that must answer and be writable (repeatable).")
    ] = None,
    probe: Annotated[
        bool | None, typer.Option("--probe/--no-probe", help="Run a short computation and exchange on the nodes.")
    ] = None,
    off: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Check to leave out (repeatable).")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as `health.budget=60`.")
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="CALLER", help="Exit code for a caller: prolog, epilog, healthcheck or nagios."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Save the raw readings to this file.")] = None,
    hash_serials: Annotated[
        bool, typer.Option("--hash-serials", help="Save digests instead of serial numbers.")
    ] = False,
    replay: Annotated[Path | None, typer.Option(help="Judge recorded readings instead of checking nodes.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all checks and thresholds.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show checks that passed.")] = False,
    json_: Json = False,
) -> None:
    """Check whether nodes are fit to train on. Exit code 0: yes; 14: at least one is not; 22: no check could run.

    Inside salloc or a batch script, it checks the nodes of the allocation in a job step. With --nodelist, outside an
    allocation, it checks those nodes over ssh, even if they are drained. Otherwise it checks this node.
    """
    from transom_cli.health.check import Tier

    if tier not in [t.value for t in Tier]:
        raise UsageError(f"`--tier {tier}` is unknown", hint="Use `quick`, `deep` or `watch`.")
    if as_ is not None and as_ not in PLACES:
        raise UsageError(f"`--as {as_}` is unknown", hint=f"Use {', '.join(PLACES)}.")
    if nodes and (here or as_):
        raise UsageError(
            f"`--nodelist` and `{'--here' if here else '--as'}` cannot be combined", hint="omit one of them"
        )
    if replay is not None and (record or nodes):
        raise UsageError("`--replay` checks no nodes", hint="Leave out `--record` and `--nodelist`.")
    settings = settings_for(set_ or [], off or [])
    if list_:
        print("\n".join(listing(as_json=json_)))
        return
    from transom_cli.health.fleet import with_fleet
    from transom_cli.health.report import document
    from transom_cli.view.findings import check_lines
    from transom_cli.view.terminal import waiting, width

    folders = tuple(str(p.absolute()) for p in path or ())
    request = _request(settings, Tier(tier), gpus, folders, probe, in_a_hurry=as_ is not None)
    with waiting(f"checking nodes, for at most {request.budget:.0f} s"):
        if replay is not None:
            report = _replayed(replay, request)
        else:
            report = _checked(nodes or "", request, here=here or as_ is not None)
            report = with_fleet(report, request.off, os.environ)
    if record is not None:
        _record(record, request, report, hash_serials=hash_serials)
    if as_ is not None:
        raise typer.Exit(_exit_code_for(as_, report))
    print(json.dumps(document(report)) if json_ else "\n".join(check_lines(report, width() or 100, verbose=verbose)))
    raise typer.Exit(_exit_code(report))


def settings_for(assignments: Sequence[str], off: Sequence[str]) -> Settings:
    from transom_cli.config.load import load

    flags: dict[str, object] = dict(assignment(text) for text in assignments)
    if off:
        flags["health.off"] = list(off)
    return load(None, flags, os.environ)


def listing(*, as_json: bool) -> list[str]:
    """Return all checks with their readers and tiers, and all thresholds with their defaults."""

    from transom_cli.health.registry import CHECKS, LIMITS, OVERALL

    limits = {f.name: f.default for kind in LIMITS for f in dataclasses.fields(kind)}
    if as_json:
        checks = [{"name": n, "tier": c.tier.value, "read_by": c.name} for c in CHECKS for n in c.findings]
        return [json.dumps({"schema": 1, "checks": checks, "of_all_nodes": list(OVERALL), "limits": limits})]
    lines = [f"{c.name} ({c.tier.value}, {c.seconds:g} s): {', '.join(c.findings)}" for c in CHECKS]
    lines.append(f"all nodes together: {', '.join(OVERALL)}")
    thresholds = (f"  {name} = {value}" for name, value in sorted(limits.items()))
    return [*lines, "", "thresholds (health.limits):", *thresholds]


def _request(
    settings: Settings, tier: Tier, gpus: int | None, folders: tuple[str, ...], probe: bool | None, *, in_a_hurry: bool
) -> HealthRequest:
    from transom_cli.config.run_settings import health_options
    from transom_cli.health.check import About, Tier
    from transom_cli.health.run import HealthRequest
    from transom_cli.supervise.launcher.allocation import gpus_on_node, start_time

    health = health_options(settings)
    gpus = gpus_on_node(os.environ) if gpus is None else gpus
    about = About(tier, gpus, start_time(os.environ), folders, site_checks=health.site_checks)
    default = health.probe and tier is not Tier.WATCH and not in_a_hurry  # a Prolog has only seconds
    probe = default if probe is None else probe
    budget = health.deep_budget if tier is Tier.DEEP else health.budget
    return HealthRequest(about, frozenset(health.off), health.limits, probe, gpus, health.python, budget=budget)


def _checked(nodes: str, request: HealthRequest, *, here: bool) -> Report:
    from transom_cli.health.run import check_job, check_nodes
    from transom_cli.health.transport import LocalTransport, by_ssh
    from transom_cli.heartbeat.paths import node_name

    allocated = [] if here else _nodes(os.environ.get("SLURM_JOB_NODELIST", ""))
    named = _nodes(nodes)
    if allocated:
        others = [n for n in named if n not in allocated]
        if others:
            raise UsageError(
                f"Not in this allocation: {', '.join(others)}",
                f"The allocation has {os.environ['SLURM_JOB_NODELIST']}.",
                "Leave the allocation's shell to check other nodes over ssh.",
            )
        return check_job(_job_id(), named or allocated, request)
    if named and named != [node_name()]:
        if shutil.which("ssh") is None:
            hint = "Run this inside salloc."
            raise UsageError("Other nodes are checked over ssh, but ssh is not installed here", hint=hint)
        _require_known(named)
        transport = LocalTransport(named, by_ssh)
        report = check_nodes(transport, request)
        errors = [f"ssh: {line.removeprefix('ssh: ')}" for line in transport.errors] if report.silent else []
        return dataclasses.replace(report, notes=(*report.notes, *errors[-MOST_ERRORS:]))
    return check_nodes(LocalTransport([node_name()]), request)


def _require_known(named: Sequence[str]) -> None:
    """Raise UsageError for a node that Slurm does not have. If Slurm does not answer, ssh decides."""
    from transom_cli.bootstrap.slurm import known_nodes, partitions
    from transom_cli.submit.capacity import refuse_unknown

    inside = partitions()
    if inside and (nodes := known_nodes(inside)):
        refuse_unknown(named, nodes, "nodelist", "run `transom check` on that host")


def _nodes(expression: str) -> list[str]:
    if not expression:
        return []
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return list(NodeSet(expression))
    except NodeSetException as error:
        raise UsageError(f"`{expression}` is not a list of nodes", str(error), "write it as n3 or n[1-4],n7") from error


def _job_id() -> int:
    try:
        return int(os.environ["SLURM_JOB_ID"])
    except (KeyError, ValueError) as error:
        raise UsageError("SLURM_JOB_NODELIST is set, but SLURM_JOB_ID is not", hint="Use --here.") from error


def _replayed(file: Path, request: HealthRequest) -> Report:
    from transom_cli.health.report import replay

    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read `{file}`", error.strerror or str(error)) from error
    return replay(text, dict(request.limits), request.off, file.name)


def _record(file: Path, request: HealthRequest, report: Report, *, hash_serials: bool) -> None:
    from transom_cli import __version__
    from transom_cli.files import publish_text
    from transom_cli.health.report import record

    text = record(report, request.about, __version__, hash_serials=hash_serials)
    try:
        publish_text(file.absolute(), text)
    except OSError as error:
        why = error.strerror or str(error)
        raise TransomError(f"cannot write `{file}`", why, "name another file with `--record`") from error
    print(f"recorded: {file}", file=sys.stderr)


def _exit_code_for(place: str, report: Report) -> int:
    """Print one line for Slurm or the site's monitoring, and return its exit code.

    A HealthCheckProgram drains its node itself, unless somebody has drained it already.
    """
    from transom_cli.bootstrap.slurm import slurm_client
    from transom_cli.health import exit_codes
    from transom_cli.slurm.runner import Runner
    from transom_cli.supervise.operator.drain import owner_of

    node = report.nodes[0]
    answers = {"prolog": exit_codes.prolog, "epilog": exit_codes.epilog, "nagios": exit_codes.nagios}
    if place in answers:
        answer = answers[place](report.findings)
    else:
        answer = exit_codes.health_check_program(node, report.findings)
    print(answer.line)
    if answer.argv and not any(known.drain or owner_of(known) for known in slurm_client().nodes([node])):
        Runner().run(list(answer.argv))
    return answer.code


def _exit_code(report: Report) -> int:
    from transom_cli.health.finding import Verdict

    if any(f.verdict.bad for f in report.findings):
        return BadNodes.exit_code
    checked = any(f.verdict is not Verdict.UNKNOWN for f in report.findings)
    return 0 if checked else Unknown.exit_code
