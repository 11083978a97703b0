"""Record the output of this Slurm release as test data: python scripts/slurm_samples.py [--release trixie] FOLDER

Plays one scenario on a sandbox and writes what squeue, scontrol and sacct say of it, with the user's name changed; the
tests of `transom_cli.slurm.parse` read the same of every release (tests/slurm/samples/<release>/).
"""

from __future__ import annotations

import argparse
import getpass
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.release.known import NATIVE
from transom_cli.sandbox.release.obtain import default_folder, obtain
from transom_cli.slurm.accounting import SACCT_FORMAT, SACCT_TIMES
from transom_cli.slurm.parse import SQUEUE_FORMAT

SMALL = ("--mem=100", "--output=/dev/null")
FREE_TEXT = ("--job-name=na me=x Reason=foo", "--comment=transom:r1:i1 a=b Reason=c")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", default=NATIVE)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    say = lambda words: print(words, file=sys.stderr)  # noqa: E731
    home = "" if asked.release == NATIVE else str(obtain(asked.release, default_folder(), say).home.path)
    with tempfile.TemporaryDirectory(prefix="tsm-", dir="/tmp") as place:
        sandbox = Sandbox.up(SandboxSpec(Path(place) / "sb", home=home, accounting=True))
        try:
            samples = Scenario(sandbox, Path(place) / 'a dir\'s "q"').play()
        finally:
            sandbox.down()
        samples |= configurations(Path(place), home)
    asked.folder.mkdir(parents=True, exist_ok=True)
    user = getpass.getuser()
    names = {
        place: "/shared",
        f"UserId={user}(": "UserId=trainer(",
        f"GroupId={user}(": "GroupId=trainer(",
        f"\x1f{user}\x1f": "\x1ftrainer\x1f",
        **({f"{home}/bin/": ""} if home else {}),
    }
    for name, text in samples.items():
        for was, now in names.items():
            text = text.replace(was, now)
        (asked.folder / name).write_text(text)
    return 0


STRICT = {
    "WaitTime": "30", "KillWait": "5", "JobRequeue": "0", "Prolog": "/bin/true", "TaskProlog": "/bin/true",
    "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE",
}  # fmt: skip


def configurations(place: Path, home: str) -> dict[str, str]:
    """Return what `scontrol show config` and `show partition` say with Slurm's defaults, and on a strict site."""
    found = {}
    for name, extra in (("", {}), ("_strict", STRICT)):
        sandbox = Sandbox.up(SandboxSpec(place / f"config{name}", 1, home=home, extra=extra))
        try:
            for what in ("config", "partition"):
                found[f"{what}{name}.txt"] = sandbox.slurm("scontrol", "show", what, *(["-o"] * (what == "partition")))
        finally:
            sandbox.down()
    return found


class Scenario:
    """Submit jobs 1 (three nodes, free text with keys) and 2 (all nodes, a name with two lines), then jobs that end."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        folder.mkdir()
        self.taken: dict[str, str] = {}

    def play(self) -> dict[str, str]:
        first = self.submit("exec sleep 600", *FREE_TEXT, "--nodes=3", "--exclude=node4", "--time=10", "--requeue")
        self.wait(first, "JobState=RUNNING")
        self.take_job("job_running", first)
        self.sandbox.slurm("scontrol", "requeuehold", str(first))
        self.wait(first, "JobState=PENDING")
        second = self.submit("exec sleep 600", "--job-name=two\nlines", "--comment=pipe|x", "--nodes=4")
        self.wait(second, "JobState=RUNNING")
        self.take_job("job_requeued_held", first)
        self.taken["squeue.txt"] = self.squeue()
        self.sandbox.slurm("scontrol", "release", str(first))
        time.sleep(2)
        self.take_job("job_waiting", first)
        self.sandbox.slurm("scancel", str(second))
        self.wait(second, "JobState=CANCELLED")
        self.take_job("job_two_lines", second)
        self.sandbox.slurm("scancel", str(first))
        for name, body, state in (
            ("job_failed", "exit 7", "FAILED"),
            ("job_killed", "kill -9 $$", "FAILED"),
        ):
            job = self.submit(body)
            self.wait(job, f"JobState={state}")
            self.take_job(name, job)
        pending = self.submit("true", "--begin=now+1hour")
        self.take_job("job_pending", pending)
        self.sandbox.slurm("scancel", str(pending))
        self.wait(pending, "JobState=CANCELLED")
        self.take_job("job_cancelled", pending)
        self.taken["squeue_ended.txt"] = self.squeue()
        self.nodes()
        self.taken["sacct.txt"] = self.sacct(pending + 1)
        return self.taken

    def nodes(self) -> None:
        update = ("scontrol", "update")
        self.sandbox.slurm(*update, "nodename=node2", "state=drain", "reason=transom: gpu lost (r1) = a")
        job = self.submit("exec sleep 600", "--nodelist=node3")
        self.wait(job, "JobState=RUNNING")
        self.sandbox.slurm(*update, "nodename=node4", "state=down", "reason=it's gone")
        self.taken["nodes.txt"] = self.sandbox.slurm("scontrol", "show", "node", "-o")

    def sacct(self, last: int) -> str:
        """Record all jobs, once accounting knows the end of the last one."""
        self.sandbox.slurm("scontrol", "update", "nodename=node3", "state=down", "reason=it's gone too")
        times = [f"{name}={value}" for name, value in SACCT_TIMES.items()]
        jobs = ",".join(str(job) for job in range(1, last + 1))
        argv = ("env", *times, "sacct", "-D", "-X", "-P", "-n", "-o", SACCT_FORMAT, "-j", jobs)
        self.until(lambda: f"{last}|NODE_FAIL" in self.sandbox.slurm(*argv), 40.0)
        return self.sandbox.slurm(*argv)

    def submit(self, body: str, *options: str) -> int:
        script = self.folder / "job x.sbatch"
        script.write_text(f"#!/bin/bash\n{body}\n")
        argv = ["sbatch", "--parsable", *SMALL, *options, f"--chdir={self.folder}", str(script), "arg one", "$two"]
        return int(self.sandbox.slurm(*argv))

    def take_job(self, name: str, job: int) -> None:
        self.taken[f"{name}.txt"] = self.sandbox.slurm("scontrol", "show", "job", "-o", str(job))

    def squeue(self) -> str:
        return self.sandbox.slurm("squeue", "--all", "--noheader", "--states=all", f"--Format={SQUEUE_FORMAT}")

    def wait(self, job: int, words: str, timeout_s: float = 40.0) -> None:
        self.until(lambda: words in self.sandbox.slurm("scontrol", "show", "job", "-o", str(job)), timeout_s)

    def until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
