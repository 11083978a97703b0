"""A command that sees a folder as a client of a network file system may: late, but for what it changes itself."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

READER = """
import sys
from pathlib import Path
print("here", flush=True)
for line in sys.stdin:
    what, name, *rest = line.split()
    path = Path(sys.argv[1]) / name
    try:
        if what == "write":
            path.write_text(rest[0])
        if what == "size":
            print(path.stat().st_size, flush=True)
            continue
        print(sorted(p.name for p in path.parent.iterdir()) if what == "list" else path.read_text(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""
LATE = 2.0
Ask = Callable[[str], str]


@pytest.fixture
def how() -> str:
    return f"{LATE:g}"


@pytest.fixture
def ask(tmp_path: Path, how: str) -> Iterator[Ask]:
    """What the command answers that sees `tmp_path` late."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, FUSE and unshare")
    if importlib.util.find_spec("mfusepy") is None:
        pytest.skip("needs mfusepy")
    (tmp_path / "a").write_text("old")
    words = ["-m", "transom_cli.sandbox.stale_view", how, str(tmp_path), "-", sys.executable, "-c", READER]
    command = [sys.executable, *words, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        requested, answers = process.stdin, process.stdout
        assert answers.readline() == "here\n"

        def answer(line: str) -> str:
            requested.write(f"{line}\n")
            requested.flush()
            return answers.readline().strip()

        yield answer
        requested.close()
        assert process.wait(10) == 0
    assert str(tmp_path) not in Path("/proc/mounts").read_text(), "nobody else ever saw a mount"


def test_what_others_change_shows_late_and_ones_own_at_once(ask: Ask, tmp_path: Path) -> None:
    began = time.monotonic()
    assert (ask("read a"), ask("read b"), ask("list a")) == ("old", "FileNotFoundError", "['a']")
    (tmp_path / "fresh").write_text("new")
    (tmp_path / "fresh").replace(tmp_path / "a")
    (tmp_path / "b").write_text("there")
    seen = ask("read a"), ask("read b"), ask("list a")
    if time.monotonic() - began < LATE:  # else the machine was too busy to see it
        assert seen == ("old", "FileNotFoundError", "['a']")
    assert ask("write c mine") == "mine" and (tmp_path / "c").read_text() == "mine"
    time.sleep(LATE)
    assert (ask("read a"), ask("read b"), ask("list a")) == ("new", "there", "['a', 'b', 'c']")


def test_of_a_file_that_grows_no_more_is_seen_than_was_known(ask: Ask, tmp_path: Path) -> None:
    began = time.monotonic()
    assert ask("read a") == "old"
    with (tmp_path / "a").open("a") as file:
        file.write(", and more")
    seen = ask("read a")
    if time.monotonic() - began < LATE:
        assert seen == "old"
    time.sleep(LATE)
    assert ask("read a") == "old, and more"


@pytest.mark.parametrize("how", ["nfs=600"])
def test_stale_view_revalidates_on_open_but_caches_missing_names(ask: Ask, tmp_path: Path) -> None:
    assert (ask("read a"), ask("read b"), ask("size a")) == ("old", "FileNotFoundError", "3")
    (tmp_path / "a").write_text("newer")
    (tmp_path / "b").write_text("there")
    assert (ask("size a"), ask("read b")) == ("3", "FileNotFoundError")
    assert (ask("read a"), ask("size a")) == ("newer", "5"), "it was opened"
    assert ask("read b") == "FileNotFoundError"
    assert ask("list a") == "['a', 'b']", "the folder was opened"
    assert ask("read b") == "there"
