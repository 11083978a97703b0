"""The layers of docs/architecture.md, held by the import graph: who may import what."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from import_graph import Graph

ROOT = Path(__file__).resolve().parent.parent
GRAPH = Graph.of(ROOT / "transom_cli")
STANDARD = set(sys.stdlib_module_names)

PURE = (
    "errors",
    "doctor.symptom",
    "layout",
    "plural",
    "agent.wire",
    "core",
    "core.*",
    "slurm.overwritten",
    "slurm.byhand",
    "slurm.parse",
    "slurm.port",
    "slurm.sacct",
    "slurm.starts",
    "slurm.pyslurm.match",
    "slurm.tags",
    "sandbox.release.known",
    "beats.phases",
    "beats.spent",
    "beats.table",
    "ckpt.pace.cadence",
    "ckpt.pace.coming",
    "ckpt.pace.intervals",
    "ckpt.manifest",
    "ckpt.memory.account",
    "ckpt.memory.galois",
    "ckpt.memory.protection",
    "ckpt.names",
    "ckpt.pace.stopwatch",
    "ckpt.failures",
    "ckpt.underway",
    "diagnose.clue",
    "diagnose.logs.blame",
    "diagnose.logs.cause",
    "diagnose.logs.collector",
    "diagnose.logs.engines",
    "diagnose.logs.exchange",
    "diagnose.logs.errorfile",
    "diagnose.logs.grammar",
    "diagnose.logs.hit",
    "diagnose.logs.rule",
    "diagnose.logs.rulebook",
    "diagnose.logs.telling",
    "diagnose.told",
    "diagnose.unknown.draft",
    "diagnose.unknown.miner",
    "diagnose.unknown.novel",
    "diagnose.unknown.tape",
    "diagnose.unknown.templates",
    "diagnose.unknown.tokens",
    "diagnose.hangs",
    "diagnose.hangs.clusters",
    "diagnose.hangs.dumps",
    "diagnose.hangs.findings",
    "diagnose.hangs.flight",
    "diagnose.hangs.matching",
    "diagnose.hangs.mismatches",
    "diagnose.hangs.places",
    "diagnose.hangs.syndromes",
    "diagnose.hangs.unpickle",
    "diagnose.hangs.waits",
    "diagnose.hangs.words",
    "diagnose.numerics",
    "diagnose.oddity",
    "diagnose.slow",
    "diagnose.slow.*",
    "health.about",
    "health.crew",
    "health.edges",
    "health.finding",
    "health.history.fold",
    "health.history.lemons",
    "health.history.records",
    "health.history.telling",
    "health.gpu.dcgm",
    "health.gpu.events",
    "health.gpu.follow",
    "health.gpu.heard",
    "health.gpu.judge",
    "health.gpu.judge_*",
    "health.gpu.limits",
    "health.gpu.reading",
    "health.gpu.shown",
    "health.gpu.telling",
    "health.gpu.worst",
    "health.gpu.xid",
    "health.gpu.xid_table",
    "health.kernel_rules",
    "health.lines",
    "health.node.alike",
    "health.node.shared",
    "health.node.slurm_codes",
    "health.options",
    "health.probe.blame",
    "health.probe.exact",
    "health.probe.judge*",
    "health.probe.limits",
    "health.probe.matrix",
    "health.probe.plan",
    "health.probe.reading",
    "health.probe.shapes",
    "health.probe.speeds",
    "health.probe.told",
    "report.asked",
    "report.curves",
    "report.document",
    "report.incidents",
    "report.material",
    "report.nodes",
    "report.scale",
    "report.shapes",
    "report.spent",
    "report.timeline",
    "supervise.attempts",
    "supervise.book",
    "supervise.launcher.containing",
    "ui.concerning",
    "ui.goodput",
    "ui.story",
    "ui.wrapping",
    "submit.arrays",
    "submit.clusters",
    "submit.hyperpod",
    "submit.operatorjob",
    "submit.options",
    "submit.quoting",
    "submit.render",
    "ui.ahead",
    "ui.attempts",
    "ui.document",
    "ui.gpus",
    "ui.incidents",
    "ui.lines",
    "ui.nodemap",
    "ui.nodestate",
    "ui.render",
    "ui.runs",
    "ui.limitwords",
    "ui.saving",
    "ui.slurmwords",
    "ui.todo",
    "ui.told",
    "ui.view",
    "ui.watch.content",
    "ui.watch.frame",
    "ui.changes",
    "ui.words",
    "telling.documents",
    "telling.news",
    "telling.numbers",
    "telling.pacing",
    "telling.target",
    "telling.words",
)
# Values and text only. Not here: os, subprocess, time, socket, random, and all else that looks around.
PURE_STANDARD = {
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "fnmatch",
    "functools", "hashlib", "heapq", "hmac", "itertools", "json", "math", "operator", "pathlib", "re", "shlex",
    "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib",
}  # fmt: skip
PURE_OTHERS = {
    "ckpt.memory.account": {"datetime"},  # a time as the manifest has it
    "ckpt.manifest": {"xxhash"},
    "diagnose.logs.grammar": {"datetime"},  # a printed time as seconds
    "diagnose.logs.engines": {"re2", "typing"},
    "core.policy": {"re2"},  # a user's expressions, in linear time
    "diagnose.hangs.unpickle": {"io", "pickle"},  # values alone, see its docstring
    "slurm.parse": {"ClusterShell", "datetime"},  # node lists as text; the length between two printed times
    "submit.render": {"jinja2", "sys"},  # which interpreter this is
    "report.scale": {"datetime"},  # words of an axis, in their zone
    "ui.goodput": {"datetime"},  # a time as UTC
    "ui.story": {"datetime"},  # a time as people read it, in their zone
    "ui.slurmwords": {"datetime"},  # a time as Slurm prints it
    "ui.words": {"datetime"},  # a time as people read it, in their zone
    "telling.documents": {"email"},  # a mail as text
    "telling.words": {"datetime"},  # a time as UTC
}
PURE_EXCEPTIONS = {
    ("beats.table", "beats.record"),  # for the names of the phases, which both formats share
    ("submit.render", "submit.templates"),  # reads the package's own templates
}
# Paths and times are values there: these would touch the disk or read a clock.
TOUCHES = {
    "absolute", "chmod", "cwd", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "is_mount", "is_symlink",
    "iterdir", "link_to", "lstat", "mkdir", "now", "open", "owner", "read_bytes", "read_text", "resolve", "rglob",
    "rmdir", "samefile", "stat", "symlink_to", "today", "touch", "unlink", "utcnow", "walk", "write_bytes",
    "write_text",
}  # fmt: skip
PROBES = tuple(f"health.probe.{name}" for name in ("board_store", "compute", "kernels", "links", "rank"))
# Used where it is installed, and done without where it is not.
WHERE_IT_IS_THERE = {"diagnose.logs.engines": {"re2"}, "diagnose.logs.rulefiles": {"tomli"}}
HOOKS = ("beats.collectives",)  # on the trainer's side: torch is imported in the call of a trainer that uses it
ADAPTERS = {
    "slurm.cli": ("wiring.slurm", "cli.*", "sandbox.*", "slurm.pyslurm.client"),
    "slurm.pyslurm.client": ("wiring.slurm", "slurm.pyslurm.trial"),
    "slurm.fake": (),
}


def short(name: str) -> str:
    return name.removeprefix("transom_cli").removeprefix(".") or "transom_cli"


def matching(*patterns: str) -> list[str]:
    return [name for name in GRAPH.paths if any(fnmatchcase(short(name), p) for p in patterns)]


def is_pure(name: str) -> bool:
    return name in matching(*PURE)


def test_no_import_cycles() -> None:
    edges = {name: GRAPH.inside(name, late=False) for name in GRAPH.paths}
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("name", matching(*PURE), ids=short)
def test_pure_modules_import_only_pure_ones(name: str) -> None:
    allowed = PURE_STANDARD | PURE_OTHERS.get(short(name), set())
    assert GRAPH.outside(name, late=True) <= allowed
    impure = {short(other) for other in GRAPH.inside(name, late=True) if not is_pure(other)}
    assert {other for other in impure if (short(name), other) not in PURE_EXCEPTIONS} == set()


@pytest.mark.parametrize("name", matching(*PURE), ids=short)
def test_pure_modules_call_nothing_that_touches_the_machine(name: str) -> None:
    calls = [n.func for n in ast.walk(ast.parse(GRAPH.paths[name].read_text())) if isinstance(n, ast.Call)]
    by_name = {c.id for c in calls if isinstance(c, ast.Name)} & {"open", "print", "input", "exec", "eval"}
    by_method = {c.attr for c in calls if isinstance(c, ast.Attribute)} & TOUCHES
    assert by_name | by_method == set()


def test_every_pure_pattern_names_a_module() -> None:
    """A renamed module must not slip out of the rules above."""
    assert [pattern for pattern in PURE if not matching(pattern)] == []


def test_adapters_are_imported_only_where_parts_are_picked() -> None:
    for adapter, importers in ADAPTERS.items():
        users = [n for n in GRAPH.paths if f"transom_cli.{adapter}" in GRAPH.inside(n, late=True)]
        strangers = [short(n) for n in users if not any(fnmatchcase(short(n), p) for p in importers)]
        assert strangers == [], f"{adapter} is imported outside {importers}"


@pytest.mark.parametrize("name", matching("beats", "beats.*", "agent", "agent.*"), ids=short)
def test_beats_and_agent_run_on_the_standard_library_alone(name: str) -> None:
    """They run in other people's trainers and containers, where nothing of ours is installed."""
    for module in GRAPH.reached(name, late=True):
        late = short(name) not in HOOKS or module != name
        others = GRAPH.outside(module, late=late) - WHERE_IT_IS_THERE.get(short(module), set())
        assert others <= STANDARD, f"through {short(module)}"


@pytest.mark.parametrize("name", matching("ckpt", "ckpt.*"), ids=short)
def test_checkpoints_bring_no_command_line_into_the_trainer(name: str) -> None:
    for module in GRAPH.reached(name, late=True):
        unwanted = GRAPH.outside(module, late=True) & {"typer", "click", "rich", "pyslurm", "pydantic", "jinja2"}
        assert unwanted == set(), f"through {short(module)}"


def test_torch_is_imported_only_by_checkpoints_the_probe_and_hooks() -> None:
    users = [n for n in GRAPH.paths if "torch" in GRAPH.outside(n, late=True)]
    assert [short(n) for n in users if n not in matching("ckpt.*", *PROBES, *HOOKS)] == []
    assert "transom_cli.ckpt.saving.engine" in users, "this test looks for the wrong name"


@pytest.mark.parametrize("name", matching("health.probe", "health.probe.*"), ids=short)
def test_who_drives_the_probe_needs_no_torch(name: str) -> None:
    """The head runs where torch may not be: only the probe's own processes import it, by their own command line."""
    reached = GRAPH.reached(name, late=True) if name not in matching(*PROBES) else ()
    assert [short(module) for module in reached if "torch" in GRAPH.outside(module, late=True)] == []


@pytest.mark.parametrize("name", matching("ckpt.memory", "ckpt.memory.*"), ids=short)
def test_memory_that_outlives_the_trainer_needs_no_torch(name: str) -> None:
    for module in GRAPH.reached(name, late=True):
        assert "torch" not in GRAPH.outside(module, late=True), f"through {short(module)}"


@pytest.mark.parametrize("name", matching("cli", "cli.*"), ids=short)
def test_commands_import_what_is_heavy_late(name: str) -> None:
    assert GRAPH.outside(name, late=False) <= STANDARD | {"typer"}
    heavy = [m for m in GRAPH.inside(name, late=False) if not is_pure(m) and m not in matching("cli", "cli.*")]
    assert [short(m) for m in heavy if m != "transom_cli"] == []  # the root gives the version


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import json, sys\n"
        "from transom_cli.__main__ import main\n"
        "sys.argv = ['transom', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    assert "run" in done.stdout
    assert {"torch", "rich", "pydantic", "jinja2", "numpy", "psutil", "ClusterShell"} & set(modules) == set()


def test_the_graph_sees_every_form_of_import(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "door.py").write_text("import os\nfrom house.room import chair\n")
    (package / "room" / "__init__.py").write_text("from . import chair\n")
    (package / "room" / "chair.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "try:\n    import json.decoder\nexcept ImportError:\n    pass\n"
        "def sit():\n    from .. import door\n    import numpy\n"
    )
    graph = Graph.of(package)
    assert graph.inside("house.door", late=False) == {"house.room.chair"}
    assert graph.inside("house.room", late=False) == {"house.room.chair"}
    assert graph.inside("house.room.chair", late=False) == set()
    assert graph.inside("house.room.chair", late=True) == {"house.door"}
    assert graph.outside("house.room.chair", late=False) == {"typing", "json"}
    assert graph.outside("house.room.chair", late=True) == {"typing", "json", "numpy"}
    assert graph.reached("house.room", late=True) == {"house.room", "house.room.chair", "house.door"}


def test_what_is_imported_from_a_package_of_ours_is_there() -> None:
    """Also in functions, where an import fails only once it is needed; mypy lets a missing module pass."""
    missing = []
    for path in (
        p for folder in ("transom_cli", "bench", "scripts", "examples") for p in (ROOT / folder).rglob("*.py")
    ):
        for found in ast.walk(ast.parse(path.read_text())):
            if not isinstance(found, ast.ImportFrom) or not (found.module or "").startswith("transom_cli"):
                continue
            place = ROOT / str(found.module).replace(".", "/")
            inside = (place / "__init__.py").read_text() if place.is_dir() else ""
            there = place.is_dir() or place.with_suffix(".py").exists()
            for alias in found.names:
                submodule = (place / f"{alias.name}.py").exists() or (place / alias.name).is_dir()
                if not there or (inside and not submodule and alias.name not in inside):
                    missing.append(f"{path.name}:{found.lineno}: {found.module}.{alias.name}")
    assert not missing
