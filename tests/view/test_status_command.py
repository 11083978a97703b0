"""`transom status` and `transom list` as a person or a program calls them, in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from view_made import JOB, Made
from view_scenes import SCENES

from transom_cli.core import events as ev

PROGRAM = (sys.executable, "-m", "transom_cli")
ESCAPE = b"\x1b"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A run that trains now, with one node that is slow. No Slurm answers."""
    monkeypatch.setattr("view_made.NOW", time.time())
    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    made = Made(tmp_path / "runs", nodes=12).began().stepped().saved()
    made.report("slow_node", "a node is slow; rank 24 on gpu003 spends 0.71 s in forward, usual is 0.3 s", "gpu003")
    made.found("gpu005", "host:x", "fail", "\x1b[2J\x07 a GPU is gone")
    return made.beats().operator()


def transom(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "TERM": "xterm-256color", **env}
    return subprocess.run([*PROGRAM, *map(str, words)], env=full, capture_output=True, text=True, timeout=60)


def on_terminal(*words: object, columns: int = 80, **env: str) -> bytes:
    """What a terminal of so many columns gets."""
    pid, master = pty.fork()
    if not pid:
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
        full = {**kept, "TERM": "xterm-256color", "COLUMNS": str(columns), **env}
        os.execve(sys.executable, [*PROGRAM, *map(str, words)], full)
    told, deadline, poll = b"", time.monotonic() + 60, select.poll()  # as select(), for any descriptor
    poll.register(master, select.POLLIN)
    while time.monotonic() < deadline:
        if poll.poll(1000):
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            told += part
    os.close(master)
    os.waitpid(pid, 0)
    return told


def test_a_pipe_gets_the_screen_without_colours_and_uncut(made: Made) -> None:
    done = transom("status", made.run.path)
    assert done.returncode == 0 and ESCAPE not in done.stdout.encode(), done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{made.run.run_id}  TRAINING, DEGRADED ")
    assert "noticed     a node is slow; rank 24 on gpu003 spends 0.71 s in forward, usual is 0.3 s" in lines
    assert "nodes       ...s.?.. ....  (? suspect, s slow)" in lines
    assert "10 nodes ok, not listed (--all lists them)" in lines


def test_a_terminal_gets_the_same_words_in_colours(made: Made) -> None:
    coloured = on_terminal("status", made.run.path)
    assert ESCAPE + b"[" in coloured and b"\x1b[2J" not in coloured and b"\x07" not in coloured
    for words, env in ((("--no-color",), {}), ((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"})):
        plain = on_terminal("status", made.run.path, *words, **env)
        assert ESCAPE not in plain
        assert _names(plain) == _names(_stripped(coloured))


def _stripped(told: bytes) -> bytes:
    import re

    return re.sub(rb"\x1b\[[0-9;]*m", b"", told)


def _names(told: bytes) -> list[list[bytes]]:
    """Its words, without the numbers, which change with time."""
    return [[w for w in line.split() if not any(c in b"0123456789" for c in w)] for line in told.splitlines()]


def test_a_terminals_width_is_kept(made: Made) -> None:
    for columns in (60, 80, 132):
        lines = on_terminal("status", made.run.path, "--all", "--no-color", columns=columns).decode().splitlines()
        assert max(map(len, lines)) <= columns and any(line.startswith("gpu011") for line in lines)


def test_a_reader_that_leaves_gets_no_traceback(made: Made) -> None:
    for words in (("status", "--all"), ("status", "--json"), ("list",)):
        where = ("--root", str(made.run.path.parent)) if words[0] == "list" else (str(made.run.path),)
        asked = subprocess.Popen([*PROGRAM, *words, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert asked.stdout is not None and asked.stderr is not None
        asked.stdout.close()
        assert asked.stderr.read() == b""
        asked.wait(60)


def test_head_shows_the_answer(made: Made) -> None:
    command = f"{' '.join(PROGRAM)} status {made.run.path} --all | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "TRAINING" in done.stdout and done.stderr == ""


def test_it_never_loads_torch_nor_what_it_does_not_need(made: Made) -> None:
    program = (
        "import json, sys\n"
        "from transom_cli.__main__ import main\n"
        f"sys.argv = ['transom', 'status', {str(made.run.path)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    heavy = {"torch", "numpy", "rich", "jinja2", "psutil", "ClusterShell", "textual", "transom_cli.config.model"}
    assert heavy & modules == set() and "TRAINING" in done.stdout


@pytest.mark.parametrize(
    ("scene", "code"),
    [("healthy", 0), ("one_node_of_many", 20), ("not_a_number", 20), ("examining", 20), ("held", 21), ("unknown", 22),
     ("without_an_operator", 22), ("slurm_is_silent", 22), ("done", 0), ("given_up", 21), ("stopped", 130)],
)  # fmt: skip
def test_the_code_says_how_the_run_is(scene: str, code: int, tmp_path: Path) -> None:
    from transom_cli.cli.show import code_of

    assert code_of(SCENES[scene](tmp_path)) == code


def test_a_code_is_only_given_where_it_is_asked_for(made: Made) -> None:
    assert transom("status", made.run.path, "--exit-code").returncode == 20
    assert transom("status", made.run.path).returncode == 0


def test_under_watch_its_width_is_kept_and_the_better_view_named(made: Made, tmp_path: Path) -> None:
    """As watch(1) starts a command: by a shell, with a pipe for stdout, and its columns in COLUMNS."""
    watch = tmp_path / "watch"
    watch.symlink_to(shutil.which("bash") or "/bin/bash")
    command = f"{' '.join(PROGRAM)} status {made.run.path}; true"
    env = {**os.environ, "COLUMNS": "64"}
    done = subprocess.run([str(watch), "-c", command], env=env, capture_output=True, text=True, timeout=60)
    assert max(map(len, done.stdout.splitlines())) <= 64
    assert done.stderr == f"note: `transom attach {made.run.run_id}` redraws itself, without a new process each time\n"


def test_the_live_view_is_the_same_screen(made: Made) -> None:
    made.seen((2.0, ev.JobSeen(0, JOB, 0, "COMPLETED", exit_code=0)))
    shown = _stripped(on_terminal("attach", made.run.path, columns=100)).decode()
    assert f"{made.run.run_id}  DONE " in shown and "checkpoint  disk 18,000 (17 min ago)" in shown


def test_all_runs_are_listed_the_newest_first(made: Made) -> None:
    root = made.run.path.parent
    older = Made(root / "x", nodes=1)
    older.run.path.rename(root / "gpt-20261101-000000-0000")
    asked = transom("list", "--root", root)
    head, first, second = asked.stdout.splitlines()
    assert head.split() == ["RUN", "STATE", "FOR", "STEP", "DISK", "JOB", "AGE", "NOTE"]
    assert first.split()[:2] == [made.run.run_id, "training"] and str(JOB) in first and "18,400" in first
    assert (
        second.split()[:2] == ["gpt-20261101-000000-0000", "unknown"] and "was submitting; no live operator" in second
    )
    rows = json.loads(transom("list", "--root", root, "--json").stdout)["runs"]
    assert [row["status"] for row in rows] == ["training", "unknown"]


def test_a_list_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    asked = transom("list", "--root", tmp_path)
    assert (asked.returncode, asked.stdout) == (0, "") and "transom run" in asked.stderr
    assert json.loads(transom("list", "--root", tmp_path, "--json").stdout) == {"schema": 2, "earlier": 0, "runs": []}


def test_a_journal_that_cannot_be_read_is_told_and_the_others_are_listed(made: Made) -> None:
    broken = Made(made.run.path.parent / "y", nodes=1).run
    broken.journal.write_text("nonsense\n")
    broken.path.rename(made.run.path.parent / "bad-20261201-000000-0000")
    asked = transom("list", "--root", made.run.path.parent)
    assert asked.returncode == 0 and "bad-20261201-000000-0000" in asked.stderr and "training" in asked.stdout


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm of one command, which the test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "scontrol"


def test_slurm_is_asked_where_the_journal_does_not_know(slurm: Path, tmp_path: Path) -> None:
    slurm.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    slurm.chmod(0o755)
    made = Made(tmp_path / "runs").seen((9.0, ev.Started(0, 1)), (8.0, ev.Submitted(0, "submit", JOB, True)))
    asked = transom("status", made.operator().run.path)
    assert "query failed just now: slurm_load_jobs error: Unable to contact slurm controller" in asked.stdout
    assert asked.returncode == 0


def test_what_slurm_refuses_to_say_is_left_out_where_the_operator_sees_the_job(slurm: Path, made: Made) -> None:
    slurm.write_text(f"#!/bin/sh\ntouch {slurm.parent}/asked\necho 'slurm_load_jobs error: odd' >&2\nexit 1\n")
    slurm.chmod(0o755)
    asked = transom("status", made.run.path)
    assert asked.returncode == 0 and "as seen by the operator" in asked.stdout and "odd" not in asked.stdout
    assert (slurm.parent / "asked").exists()
