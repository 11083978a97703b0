"""Every shell command and Python snippet of the README and the docs runs, in order, as a reader would run them.

Each group of pages has a home folder of its own, with a clone and a sandbox cluster in it. A snippet that cannot run
here has a comment `<!-- not run: reason -->` before it. `READER` holds what a reader replaces or has already.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("console", "sh", "bash", "python")
NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATIENCE = 500.0  # seconds for one command
OTHERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md") if path.stem != "quickstart")
TRAINER = ("checkpoints", "elastic", "silent", "simulate", "standby", "unknown")  # of the other pages
READER: dict[str, Any] = json.loads(Path(__file__).with_name("reader.json").read_text())


@dataclass(frozen=True)
class Snippet:
    """One fenced block of a page. line: of its fence. skipped: the reason why it is not run, or ""."""

    page: str
    line: int
    language: str
    text: str
    skipped: str

    @property
    def commands(self) -> list[str]:
        """The shell commands: lines after `$`, or the whole script."""
        if self.language != "console":
            return [self.text]
        return [line[2:] for line in self.text.replace("\\\n", "").splitlines() if line.startswith("$ ")]


def snippets(page: str) -> list[Snippet]:
    text = (ROOT / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        skipped = NOT_RUN.fullmatch(before)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Snippet(page, line, match[1], match[2], skipped[1] if skipped else ""))
    return [one for one in found if one.language in LANGUAGES]


@dataclass
class Reader:
    """Somebody with a clone in a home folder of their own, and one shell."""

    home: Path
    failed: list[str] = field(default_factory=list)
    step: int = -1  # at the last fault

    def __post_init__(self) -> None:
        self.clone = self.home / "clone"
        (self.clone / ".venv").mkdir(parents=True)
        for one in ROOT.iterdir():
            if not one.name.startswith(".") and one.name not in ("site", "dist", "build"):
                (self.clone / one.name).symlink_to(one)
        for one in ("bin", "lib", "pyvenv.cfg"):
            (self.clone / ".venv" / one).symlink_to(Path(sys.prefix) / one)
        # `make setup` has been here: it finds that nothing is missing.
        stamp = 'echo "$(cksum <pyproject.toml) $PWD $(readlink -f .venv/bin/python)" > .venv/.transom-setup'
        subprocess.run(["bash", "-c", stamp], cwd=self.clone, check=True)
        unset = ("SLURM_", "SBATCH_", "TRANSOM_", "PYTEST_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(unset)}
        loop = "while IFS= read -r -d '' line <&3; do eval \"$line\" 3<&-; printf '\\n@@ %d\\n' $?; done"
        given, self._give = os.pipe()
        self._shell = subprocess.Popen(
            ["bash", "-c", loop + " 3<&" + str(given)],
            cwd=self.clone,
            env={**env, "HOME": str(self.home), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(given,),
            start_new_session=True,
        )
        os.close(given)

    def shell(self, command: str) -> tuple[int, str]:
        """Run a command in the reader's shell. Returns its exit code and output."""
        assert self._shell.stdout is not None
        os.write(self._give, command.encode() + b"\0")
        said, deadline = b"", time.monotonic() + PATIENCE
        while not (ended := re.search(rb"\n@@ (\d+)\n$", said)):
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._shell.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                raise AssertionError(
                    f"`{command}` did not end within {PATIENCE:g} s; it said:\n{said.decode()[-3000:]}"
                )
            said += part
        return int(ended[1]), said[: ended.start()].decode()

    def follow(self, page: str) -> None:
        """Run the snippets of a page in order, in a folder that holds what its reader already has."""
        own = READER.get(page, {})
        for command in own.get("before", ()):
            code, said = self.shell(command)
            assert code == 0, f"{page}: before its snippets: {command}\n{said}"
        for one in snippets(page):
            for number, text in enumerate(() if one.skipped else one.commands):
                for word, instead in {**own.get("replace", {}), **READER["*"]["replace"]}.items():
                    text = text.replace(word, instead)
                began = time.monotonic()
                code, said = self._run(one, number, text, own)
                print(f"{page}:{one.line} exit code {code} after {time.monotonic() - began:.1f} s: {text}\n{said}")
                allowed = next((codes for part, codes in own.get("codes", {}).items() if part in text), [0])
                if code not in allowed:
                    self.failed.append(f"{page}:{one.line}: exit code {code}: {text}\n{said[-1500:]}")

    def _run(self, one: Snippet, number: int, text: str, own: dict[str, Any]) -> tuple[int, str]:
        if one.language in ("bash", "sh"):
            Path(script := self.home / "snippet.sh").write_text(text)
            return self.shell(f"bash {script}")
        if one.language == "python":
            first = text.strip().splitlines()[0]
            Path(script := self.home / "snippet.py").write_text(own.get("python", {}).get(first, "") + text)
            ranks = own.get("launcher", "python")
            return self.shell(f"TRANSOM_CHECKPOINT_DIR={self.home}/snippet-{one.line} {ranks} {script}")
        if text.startswith("transom sandbox fault kill"):
            self._await_training()
        if text.startswith("transom attach"):  # and Ctrl-C after a minute
            return self.shell(f"timeout --preserve-status -s INT 60 {text.partition('#')[0]} || test $? = 130")
        return self.shell(text)

    def _await_training(self) -> None:
        """Wait until the newest run makes new steps, as a reader who looks at `transom status`."""
        deadline = time.monotonic() + PATIENCE
        while True:
            code, said = self.shell("transom status --json")
            view = json.loads(said) if code == 0 else {}
            if view.get("status") == "training" and view.get("step", -1) > max(self.step, 5):
                self.step = view["step"]
                return
            assert time.monotonic() < deadline and not view.get("over"), f"the run does not train: {said[-2000:]}"
            time.sleep(1.0)

    def leave(self) -> None:
        """Take the cluster down, and end every process that has this home folder."""
        os.close(self._give)
        home, transom = f"HOME={self.home}".encode(), str(Path(sys.prefix) / "bin" / "transom")
        env = {**os.environ, "HOME": str(self.home)}
        subprocess.run([transom, "sandbox", "down"], env=env, capture_output=True, timeout=120, check=False)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if home in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass
        self._shell.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def reader() -> Iterator[Reader]:
    if shutil.which("slurmctld", path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip("Slurm is not installed")
    one = Reader(Path(tempfile.mkdtemp(prefix="tsm-", dir="/tmp")) / "reader")
    yield one
    one.leave()
    shutil.rmtree(one.home.parent, ignore_errors=True)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", *OTHERS])
def test_console_snippets_contain_commands(page: str) -> None:
    assert [one.line for one in snippets(page) if not one.skipped and not one.commands] == []


def _check(reader: Reader, *pages: str) -> None:
    for page in pages:
        reader.follow(page)
    assert not reader.failed, "\n\n".join(reader.failed)


def test_readme_runs_as_written(reader: Reader) -> None:
    _check(reader, "README.md")


def test_quickstart_runs_as_written(reader: Reader) -> None:
    _check(reader, "docs/quickstart.md")


@pytest.mark.parametrize("group", ["trainer", "a to m", "n to z"])
def test_other_pages_run_as_written(reader: Reader, group: str) -> None:
    pages = [page for page in OTHERS if _group(Path(page).stem) == group]
    for command in READER["others"]:
        code, said = reader.shell(command)
        assert code == 0, f"{command}\n{said}"
    _check(reader, *(page for page in pages if re.search(os.environ.get("PAGE", ""), page)))


def _group(stem: str) -> str:
    return "trainer" if stem in TRAINER else "a to m" if stem < "n" else "n to z"
