"""What tests on the real Slurm share: is it there, another user, submit a job, wait for its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from transom_cli.errors import SlurmUnreachable, TransomError
from transom_cli.sandbox import processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.release.known import NATIVE
from transom_cli.sandbox.release.obtain import default_folder, find_built, obtain
from transom_cli.sandbox.tools import find_tools


def require_slurm(*, accounting: bool = False) -> None:
    """Skip the test (or fail it, where Slurm is required) when Slurm is not installed."""
    try:
        find_tools(accounting)
    except SlurmUnreachable as missing:
        _do_without(missing)


def asked_release() -> str:
    """Whose Slurm the session's sandbox is to run."""
    return os.environ.get("TRANSOM_SANDBOX_TEST_RELEASE", NATIVE)


def release_home() -> str:
    """Of the release that the tests are asked to run on, built now if need be; empty: this machine's own Slurm."""
    name = asked_release()
    if name == NATIVE:
        require_slurm()
        return ""
    try:
        found = find_built(name, default_folder())
        return str((found or obtain(name, default_folder(), _say).home).path)
    except TransomError as error:
        _do_without(error)


def _say(words: str) -> None:
    print(words, file=sys.__stderr__)


def _do_without(missing: TransomError) -> NoReturn:
    if os.environ.get("TRANSOM_REQUIRE_SLURM") == "1":
        pytest.fail(str(missing))
    pytest.skip(str(missing))


@dataclass(frozen=True)
class OrdinaryUser:
    name: str
    uid: int
    gid: int
    home: Path

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, in its home folder."""
        full = {"PATH": os.environ["PATH"], "HOME": str(self.home), "USER": self.name, **env}
        return subprocess.run(
            argv, env=full, cwd=self.home, input=stdin, capture_output=True, text=True, timeout=timeout_s,
            user=self.uid, group=self.gid, extra_groups=[],
        )  # fmt: skip

    def call(self, function: Callable[[], None]) -> None:
        """Call a function as this user, and raise if it did.

        In a forked process, since this Python itself need not be readable to the user.
        """
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read_end)
                os.setgroups([])
                os.setgid(self.gid)
                os.setuid(self.uid)
                os.environ.update(HOME=str(self.home), USER=self.name)
                function()
                status = 0
            except BaseException:
                os.write(write_end, traceback.format_exc().encode()[-60_000:])
            finally:
                os._exit(status)
        os.close(write_end)
        with os.fdopen(read_end) as words:
            told = words.read()
        _, status = os.waitpid(pid, 0)
        assert status == 0, told


def client(sb: Sandbox, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={**os.environ, **sb.env()}, capture_output=True, text=True, timeout=60, cwd="/tmp")


def submit(sb: Sandbox, body: str, *options: str) -> int:
    done = subprocess.run(
        ["sbatch", "--parsable", "--output=/dev/null", *options],
        input=f"#!/bin/bash\n{body}\n", env={**os.environ, **sb.env()}, cwd="/tmp", capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split(";")[0])


def sleepers(sb: Sandbox, job: int) -> list[int]:
    return [proc.pid for proc in processes.of_job(sb.cluster, job) if proc.comm == "sleep"]


def wait_sleepers(sb: Sandbox, job: int, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(sleepers(sb, job)) < count:
        assert time.monotonic() < deadline, sb.slurm("squeue")
        time.sleep(0.1)
