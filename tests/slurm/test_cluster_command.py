"""Commands that a person is told to type: they name the cluster that has the job, wherever they are shown."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import transom_cli
from transom_cli.core.operator.state import Exclusion, Isolation, Job, Phase, State
from transom_cli.notify.events import HOLDING, notifications_for
from transom_cli.slurm.port import cluster_command, release_commands
from transom_cli.slurm.runner import classify
from transom_cli.view.model import RunView, build_view
from transom_cli.view.outlook import next_commands

HELD = State(phase=Phase.HELD, since=100.0, verdict="Slurm holds the job: x", job=Job(id=7, state="PENDING"))
PACKAGE = Path(transom_cli.__file__).parent


def view(state: State, cluster: str = "alps") -> RunView:
    return replace(build_view("r1", state, {}, 200.0, operator=True), cluster=cluster)


def test_cluster_option_follows_the_command() -> None:
    assert cluster_command("scontrol release 7") == "scontrol release 7"
    assert cluster_command("scontrol release 7", "alps") == "scontrol -M alps release 7"
    assert cluster_command("scancel 7", "al ps;\x1b") == "scancel -M 'al ps;\\x1b' 7"
    assert cluster_command("sinfo", "alps") == "sinfo -M alps"


def test_a_job_that_only_lacks_nodes_is_not_just_released() -> None:
    assert release_commands(7, "JobHeldUser", ("n1",)) == {"continue": "scontrol release 7"}
    assert release_commands(7, "BadConstraints", ()) == {
        "what it asks for": "scontrol show job 7   # no node has all of it",
        "with other nodes": "scontrol release 7",
    }
    assert release_commands(7, "BadConstraints", ("n1", "n2"), "alps") == {
        "continue": "transom nodes --lift n1,n2",
        "new nodes": "scontrol -M alps release 7",
    }


def test_screens_name_it() -> None:
    waits = replace(HELD, phase=Phase.PENDING, job=replace(HELD.job, reason="Resources"))
    lost = replace(view(replace(HELD, phase=Phase.TRAINING)), operator=False)
    assert dict(next_commands(view(HELD)))["release"] == "scontrol -M alps release 7"
    assert dict(next_commands(view(waits)))["check"] == "squeue -M alps --start -j 7"
    assert dict(next_commands(lost))["ask Slurm"] == "scontrol -M alps show job 7"
    requested = replace(view(replace(waits, phase=Phase.RECOVERING)), switches="1@00:05:00")
    assert dict(next_commands(requested))["any switch"] == "scontrol -M alps update jobid=7 switches=999"
    assert "-M" not in " ".join(command for _, command in next_commands(view(HELD, "")))


def test_messages_name_it() -> None:
    (news,) = notifications_for(HELD, 100.0, HELD, 100.0 + HOLDING, "alps")
    assert "release: scontrol -M alps release 7" in news.details
    exclusion = Exclusion("n1", 1.0, None, "drained", "i1", "x")
    unfit = replace(HELD, job=replace(HELD.job, reason="BadConstraints"), isolation=Isolation((exclusion,)))
    (news,) = notifications_for(unfit, 100.0, unfit, 100.0 + HOLDING, "alps")
    assert news.details[-2:] == ("release: transom nodes --lift n1", "new nodes: scontrol -M alps release 7")


HINT = (
    "`squeue -M alps --me` lists your jobs, `sacct -M alps -D -j 38` one that has ended, if the cluster has accounting"
)


def test_errors_name_it() -> None:
    for words, hint in (("Unable to contact slurm controller", "scontrol -M alps ping"),
                        ("Invalid job id specified", HINT)):  # fmt: skip
        assert classify(["squeue", "-j", "38"], 1, "", words, "alps").hint == hint
        assert "-M" not in classify(["squeue"], 1, "", words).hint


ELSEWHERE = ("sandbox/", "cli/sandbox", "slurm/cli.py")  # one cluster and its own; the commands that are run


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", "")


def _tells_a_command(node: ast.AST) -> bool:
    text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else ""
    return (
        re.search(r"(scontrol (release|update|requeue|show job|show node)|scancel(?! retries)|squeue.* -j) .*\{", text)
        is not None
    )


def test_every_suggested_command_names_the_cluster() -> None:
    """f-strings with such a command stand in a call of `cluster_command`."""
    without, seen = [], 0
    for path in PACKAGE.rglob("*.py"):
        if str(path.relative_to(PACKAGE)).startswith(ELSEWHERE):
            continue
        tree = ast.parse(path.read_text())
        calls = [
            n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "cluster_command"
        ]
        inside = {id(n) for call in calls for n in ast.walk(call)}
        found = [n for n in ast.walk(tree) if _tells_a_command(n)]
        seen += len(found)
        without += [f"{path.name}: {ast.unparse(n)}" for n in found if id(n) not in inside]
    assert without == [] and seen >= 6
