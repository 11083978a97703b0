"""What `transom check` does: whom it examines and how, what it prints, with which exit code."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import BadNodes, TransomError, Unknown, UsageError

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.health.about import Tier
    from transom_cli.health.exam import Wishes
    from transom_cli.health.report import Report

PLACES = ("prolog", "epilog", "healthcheck", "nagios")


@dataclass(frozen=True)
class Asked:
    settings: Settings
    tier: Tier
    nodes: str = ""
    here: bool = False
    gpus: int | None = None
    folders: tuple[str, ...] = ()
    probe: bool | None = None
    place: str = ""
    record: Path | None = None
    hash_serials: bool = False
    replay: Path | None = None
    verbose: bool = False
    as_json: bool = False


def settings_for(assignments: Sequence[str], off: Sequence[str]) -> Settings:
    from transom_cli.cli.run import assignment
    from transom_cli.config.load import load

    flags: dict[str, object] = dict(assignment(text) for text in assignments)
    if off:
        flags["health.off"] = list(off)
    return load(None, flags, os.environ)


def run_check(asked: Asked) -> int:
    """The exit code. Also where nothing is well, what was read is saved first, and printed."""
    from transom_cli.ui.waiting import waiting

    wishes = _wishes(asked)
    with waiting(f"nodes are examined, for {wishes.budget:.0f} s at most"):
        report = _replayed(asked) if asked.replay is not None else _examined(asked, wishes)
    if asked.record is not None:
        _record(asked, wishes, report)
    if asked.place:
        return _answer(asked.place, report)
    _show(asked, report)
    return _code(report)


def listing(*, as_json: bool) -> list[str]:
    """All checks with their readers and tiers, and all thresholds with their defaults."""
    import dataclasses

    from transom_cli.health.registry import CHECKS, LIMITS, OVERALL

    limits = {f.name: f.default for kind in LIMITS for f in dataclasses.fields(kind)}
    if as_json:
        checks = [{"name": n, "tier": c.tier.value, "read_by": c.name} for c in CHECKS for n in c.findings]
        return [json.dumps({"schema": 1, "checks": checks, "of_all_nodes": list(OVERALL), "limits": limits})]
    lines = [f"{c.name} ({c.tier.value}, {c.seconds:g} s): {', '.join(c.findings)}" for c in CHECKS]
    lines.append(f"all nodes together: {', '.join(OVERALL)}")
    return [
        *lines,
        "",
        "thresholds (health.limits):",
        *(f"  {name} = {value}" for name, value in sorted(limits.items())),
    ]


def _wishes(asked: Asked) -> Wishes:
    from transom_cli.health.about import About, Tier
    from transom_cli.health.exam import Wishes
    from transom_cli.supervise.launcher.allocation import gpus_on_node, start_time
    from transom_cli.wiring.settings import health_options

    options = health_options(asked.settings)
    gpus = gpus_on_node(os.environ) if asked.gpus is None else asked.gpus
    since = start_time(os.environ)
    about = About(asked.tier, gpus, since, asked.folders, site_checks=options.site_checks)
    probes = options.probe and asked.tier is not Tier.WATCH and not asked.place  # a Prolog has seconds
    probe = probes if asked.probe is None else asked.probe
    budget = options.deep_budget if asked.tier is Tier.DEEP else options.budget
    return Wishes(about, frozenset(options.off), options.limits, probe, gpus, options.python, budget=budget)


def _examined(asked: Asked, wishes: Wishes) -> Report:
    from transom_cli.beats.places import node_name
    from transom_cli.health.crew_local import LocalCrew, by_ssh
    from transom_cli.health.examining import examine, examine_job

    allocated = [] if asked.here else _nodes(os.environ.get("SLURM_JOB_NODELIST", ""))
    named = _nodes(asked.nodes)
    if allocated:
        strange = [n for n in named if n not in allocated]
        if strange:
            raise UsageError(
                f"Not in this allocation: {', '.join(strange)}",
                f"it has {os.environ['SLURM_JOB_NODELIST']}",
                "Leave the allocation's shell to examine other nodes, by ssh.",
            )
        return examine_job(_job_id(), named or allocated, wishes)
    if named and named != [node_name()]:
        if shutil.which("ssh") is None:
            raise UsageError("Other nodes are examined by ssh, and there is none here", hint="Call it inside salloc.")
        return examine(LocalCrew(named, by_ssh), wishes)
    return examine(LocalCrew([node_name()]), wishes)


def _nodes(words: str) -> list[str]:
    if not words:
        return []
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return list(NodeSet(words))
    except NodeSetException as error:
        raise UsageError(f"`{words}` names no nodes", str(error)) from error


def _job_id() -> int:
    try:
        return int(os.environ["SLURM_JOB_ID"])
    except (KeyError, ValueError) as error:
        raise UsageError("SLURM_JOB_NODELIST is set, and SLURM_JOB_ID is not", hint="Use --here.") from error


def _replayed(asked: Asked) -> Report:
    from transom_cli.health.recording import replay

    assert asked.replay is not None
    try:
        text = asked.replay.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"`{asked.replay}` cannot be read", error.strerror or str(error)) from error
    limits, off = asked.settings.health.limits, frozenset(asked.settings.health.off)
    return replay(text, limits, off, asked.replay.name)


def _record(asked: Asked, wishes: Wishes, report: Report) -> None:
    from transom_cli import __version__
    from transom_cli.files import publish_text
    from transom_cli.health.recording import record

    assert asked.record is not None
    text = record(report, wishes.about, __version__, hash_serials=asked.hash_serials)
    try:
        publish_text(asked.record.absolute(), text)
    except OSError as error:
        raise TransomError(f"`{asked.record}` cannot be written", error.strerror or str(error)) from error
    print(f"recorded: {asked.record}", file=sys.stderr)


def _show(asked: Asked, report: Report) -> None:
    from transom_cli.health.summary import document
    from transom_cli.ui.check import check_lines

    if asked.as_json:
        print(json.dumps(document(report)))
    else:
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
        print("\n".join(check_lines(report, width, verbose=asked.verbose)))


def _answer(place: str, report: Report) -> int:
    """What Slurm, or the site's monitoring, understands: one line and an exit code. A HealthCheckProgram drains its
    node by itself, unless somebody has drained it already.
    """
    from transom_cli.health.node import slurm_codes
    from transom_cli.slurm.runner import Runner
    from transom_cli.supervise.operator.draining import owner_of
    from transom_cli.wiring.slurm import slurm_client

    node = report.nodes[0]
    answers = {"prolog": slurm_codes.prolog, "epilog": slurm_codes.epilog, "nagios": slurm_codes.nagios}
    if place in answers:
        answer = answers[place](report.findings)
    else:
        answer = slurm_codes.health_check_program(node, report.findings)
    print(answer.line)
    if answer.argv and not any(known.drain or owner_of(known) for known in slurm_client().nodes([node])):
        Runner().run(list(answer.argv))
    return answer.code


def _code(report: Report) -> int:
    from transom_cli.health.finding import Verdict

    if any(f.verdict.bad for f in report.findings):
        return BadNodes.exit_code
    looked = any(f.verdict is not Verdict.UNKNOWN for f in report.findings)
    return 0 if looked else Unknown.exit_code
