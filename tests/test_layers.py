"""The layers of docs/architecture.md, held by the import graph: who may import what."""

from __future__ import annotations

import ast
import functools
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

# Folders in which everything is pure but the modules named in READERS, and pure modules of other folders.
PURE = (
    "core",
    "core.*",
    "ckpt.schedule",
    "diagnose",
    "diagnose.*",
    "health.gpu.*",
    "health.history.*",
    "view.report.*",
    *(f"ckpt.{name}" for name in ("failures", "manifest", "names", "progress")),
    *(f"ckpt.snapshot.{name}" for name in ("account", "protection")),
    "doctor.config",
    "doctor.symptom",
    *("errors", "inherited", "layout", "plural", "redact"),
    *(f"health.{name}" for name in ("check", "exit_codes", "finding", "protocol")),
    *(f"health.probe.{name}" for name in ("bits", "judge*", "matrix", "messages", "plan", "speed")),
    "heartbeat",
    *(f"heartbeat.{name}" for name in ("step_breakdown", "table")),
    *(f"notify.{name}" for name in ("events", "messages", "metrics")),
    *(f"rpc.{name}" for name in ("errors", "verbs", "wire")),
    "simulate",
    "simulate.*",
    *(f"slurm.{name}" for name in ("accounting", "parse", "port", "tags")),
    *(f"submit.{name}" for name in ("adopt", "directives", "render", "script")),
    *(f"submit.{name}" for name in ("shell_commands", "srun_options", "starters", "unsupported")),
    "supervise.launcher.plan",
    "supervise.run_record",
    *(
        f"view.{name}"
        for name in (
            "advice",
            "attempts",
            "document",
            "evidence",
            "explain",
            "goodput",
            "model",
            "node_state",
            "node_table",
        )
    ),
    *(f"view.{name}" for name in ("outlook", "runs", "slurm_reasons", "status", "text", "timeline", "watch.panels")),
)
# Below these folders, the modules that read files; everything beside them is pure.
READERS = (
    "diagnose.files",
    "diagnose.*.reader",
    "diagnose.logs.aftermath",
    "diagnose.logs.context",
    "diagnose.logs.diagnosis",
    "diagnose.logs.frames",
    "diagnose.logs.processes",
    "diagnose.logs.rule_files",
    "diagnose.unknown.store",
    "health.gpu.dcgm",
    "health.gpu.nvml",
    "health.gpu.watch",
    "health.history.files",
    "health.history.shared",
    *(f"simulate.{name}" for name in ("advise", "campaign", "export", "page", "setup", "traces")),
    "view.report.page",
)
# Values and text only. Not here: os, subprocess, time, socket, random, and all else that looks around.
PURE_STANDARD = {
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum", "fnmatch",
    "functools", "hashlib", "heapq", "hmac", "itertools", "json", "math", "operator", "pathlib", "re", "shlex",
    "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib",
}  # fmt: skip
PURE_OTHERS = {
    "ckpt.manifest": {"xxhash"},
    "ckpt.snapshot.account": {"datetime"},
    "core.policy": {"re2"},
    "diagnose.hangs.dumps": {"io", "pickle"},
    "diagnose.logs.grammar": {"datetime"},
    "diagnose.logs.rulebook": {"re2", "typing"},
    "notify.messages": {"datetime", "email"},
    **{f"simulate.{name}": {"random"} for name in ("fleet", "timeline")},  # seeded generators
    "rpc.verbs": {"inspect"},  # the signature of a handler
    "slurm.parse": {"ClusterShell", "datetime"},
    "submit.render": {"jinja2", "sys"},
    "view.report.charts": {"datetime"},
    "view.slurm_reasons": {"datetime"},
    "view.text": {"datetime"},
    "view.timeline": {"datetime"},
}
PURE_EXCEPTIONS = {
    ("supervise.launcher.plan", "start"),  # the words that start an interpreter of ours
    ("heartbeat.table", "heartbeat.record"),
    ("submit.render", "start"),
    ("submit.render", "submit.inputs"),
}
# Paths and times are values there: these would touch the disk or read a clock.
TOUCHES = {
    "absolute", "chmod", "cwd", "exists", "expanduser", "glob", "home", "is_dir", "is_file", "is_mount", "is_symlink",
    "iterdir", "link_to", "lstat", "mkdir", "now", "open", "owner", "read_bytes", "read_text", "resolve", "rglob",
    "rmdir", "samefile", "stat", "symlink_to", "today", "touch", "unlink", "utcnow", "walk", "write_bytes",
    "write_text",
}  # fmt: skip
PROBES = tuple(f"health.probe.{name}" for name in ("compute", "links", "rank"))
# Used where it is installed, and done without where it is not.
WHERE_IT_IS_THERE = {"diagnose.logs.rulebook": {"re2"}, "diagnose.logs.rule_files": {"tomli"}}
HOOKS = ("heartbeat.collectives",)  # on the trainer's side: torch is imported in the call of a trainer that uses it
ADAPTERS = {
    "slurm.cli": ("bootstrap.slurm", "cli.*", "sandbox.*", "slurm.pyslurm.client"),
    "slurm.pyslurm.client": ("bootstrap.slurm",),
}


def short(name: str) -> str:
    return name.removeprefix("transom_cli").removeprefix(".") or "transom_cli"


@functools.cache
def matching(*patterns: str) -> list[str]:
    return [name for name in GRAPH.paths if any(fnmatchcase(short(name), p) for p in patterns)]


@functools.cache
def pure() -> tuple[str, ...]:
    readers = matching(*READERS)
    return tuple(name for name in matching(*PURE) if name not in readers)


def is_pure(name: str) -> bool:
    return name in pure()


def test_no_import_cycles() -> None:
    edges = {name: GRAPH.inside(name, late=False) for name in GRAPH.paths}
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("name", pure(), ids=short)
def test_pure_modules_import_only_pure_ones(name: str) -> None:
    allowed = PURE_STANDARD | PURE_OTHERS.get(short(name), set())
    assert GRAPH.outside(name, late=True) <= allowed
    impure = {short(other) for other in GRAPH.inside(name, late=True) if not is_pure(other)}
    assert {other for other in impure if (short(name), other) not in PURE_EXCEPTIONS} == set()


@pytest.mark.parametrize("name", pure(), ids=short)
def test_pure_modules_call_nothing_that_touches_the_machine(name: str) -> None:
    calls = [n.func for n in ast.walk(ast.parse(GRAPH.paths[name].read_text())) if isinstance(n, ast.Call)]
    by_name = {c.id for c in calls if isinstance(c, ast.Name)} & {"open", "print", "input", "exec", "eval"}
    by_method = {c.attr for c in calls if isinstance(c, ast.Attribute)} & TOUCHES
    assert by_name | by_method == set()


@pytest.mark.parametrize("name", matching("health.checks.*", "health.gpu.dcgm"), ids=short)
def test_judges_of_a_check_read_nothing_from_the_machine(name: str) -> None:
    """A check's reader and judge share a module, so the rule is by function: what `judge_*` reaches calls no reader."""
    tree = ast.parse(GRAPH.paths[name].read_text())
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    reached: set[str] = set()
    todo = [f for f in functions if f.startswith(("judge", "overdue"))]
    while todo:
        function = todo.pop()
        if function not in functions or function in reached:
            continue
        reached.add(function)
        todo += [n.id for n in ast.walk(functions[function]) if isinstance(n, ast.Name)]
    used = {n.id for f in reached for n in ast.walk(functions[f]) if isinstance(n, ast.Name)}
    assert not used & {"os", "time", "ctypes", "resource", "platform", "open", "sysfs", "names", "run"}
    assert not {name for name in used if name.startswith(("read_", "_read"))}


def test_every_pure_pattern_names_a_module() -> None:
    """A renamed module must not slip out of the rules above."""
    assert [pattern for pattern in (*PURE, *READERS) if not matching(pattern)] == []


def test_adapters_are_imported_only_where_parts_are_picked() -> None:
    for adapter, importers in ADAPTERS.items():
        users = [n for n in GRAPH.paths if f"transom_cli.{adapter}" in GRAPH.inside(n, late=True)]
        strangers = [short(n) for n in users if not any(fnmatchcase(short(n), p) for p in importers)]
        assert strangers == [], f"{adapter} is imported outside {importers}"


@pytest.mark.parametrize(
    "name", matching("heartbeat", "heartbeat.*", "rpc", "rpc.*", "supervise.agent", "supervise.agent.*"), ids=short
)
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


def test_implementations_are_chosen_only_for_commands() -> None:
    """Everything below the command line gets its Slurm, files and senders from its caller."""
    inside = matching("bootstrap", "bootstrap.*")
    users = [name for name in GRAPH.paths if GRAPH.inside(name, late=True) & set(inside) and name not in inside]
    assert [short(name) for name in users if name not in matching("cli", "cli.*")] == []


def test_torch_is_imported_only_by_what_trainers_use_the_probe_and_hooks() -> None:
    users = [n for n in GRAPH.paths if "torch" in GRAPH.outside(n, late=True)]
    allowed = matching("ckpt.*", "elastic.*", "guard.*", "inject", "integrations.*", *PROBES, *HOOKS)
    assert [short(n) for n in users if n not in allowed] == []
    assert "transom_cli.ckpt.save.commit" in users, "this test looks for the wrong name"


def test_faults_are_injected_by_tests_and_by_the_sandbox_alone() -> None:
    """A guard imports the injector late, where TRANSOM_INJECT is set."""
    users = {short(n) for n in GRAPH.paths if "transom_cli.inject" in GRAPH.inside(n, late=True)}
    assert users == {"guard.guard"}
    assert "transom_cli.inject" not in GRAPH.inside("transom_cli.guard.guard", late=False)


@pytest.mark.parametrize("name", matching("health.probe", "health.probe.*"), ids=short)
def test_who_drives_the_probe_needs_no_torch(name: str) -> None:
    """The head runs where torch may not be: only the probe's own processes import it, by their own command line."""
    reached = GRAPH.reached(name, late=True) if name not in matching(*PROBES) else ()
    assert [short(module) for module in reached if "torch" in GRAPH.outside(module, late=True)] == []


@pytest.mark.parametrize("name", matching("ckpt.snapshot", "ckpt.snapshot.*"), ids=short)
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
