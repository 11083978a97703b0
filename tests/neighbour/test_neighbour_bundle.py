"""`transom bundle`: what support needs, and no secret, whatever the place in which it was written."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cli.cli_support import transom

from transom_cli.config.load import load
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.redact import Redactor
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, write_header

SECRETS = {
    "a variable of the job": "correct-horse-battery",
    "a Hugging Face token": "hf_aBcDeFgHiJkLmNoPqRsT",
    "a GitHub token": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "a W&B key": "0123456789abcdef0123456789abcdef01234567",
    "an AWS key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "an AWS ID": "AKIAIOSFODNN7EXAMPLE",
    "a web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "a webhook": "T0123/B0456/XyZabc",
    "a password in an address": "pa55word",
    "a short password": "hunter2",
    "a bearer": "abcdef0123",
    "a notification token": "tok-3141592653",
    "a private key": "MIIEvQIBADANBgkqhkiG",
}
LINES = f"""\
export HF_TOKEN={SECRETS["a Hugging Face token"]}
cloning with {SECRETS["a GitHub token"]}
wandb: {SECRETS["a W&B key"]}
{{"aws_secret_access_key": "{SECRETS["an AWS key"]}", "id": "{SECRETS["an AWS ID"]}"}}
cookie {SECRETS["a web token"]}
POST https://hooks.slack.com/services/{SECRETS["a webhook"]} failed
postgres://ann:{SECRETS["a password in an address"]}@db7.example.org/runs
train.py --db-password {SECRETS["a short password"]} --steps 3
Authorization: Bearer {SECRETS["a bearer"]}
the variable was {SECRETS["a variable of the job"]}
told {SECRETS["a notification token"]}
-----BEGIN RSA PRIVATE KEY-----
{SECRETS["a private key"]}
-----END RSA PRIVATE KEY-----
RuntimeError: CUDA error on gpu017.example.org (10.3.1.17), mail ann@example.org, tokens: 4096, step 18000
"""
NAMES = ("gpu017", "gpu018", "zeus", "example.org", "10.3.1.17", "/home/", "/root")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    secrets = tmp_path / "secrets.toml"
    secrets.write_text(f'[team]\nurl = "https://x.example/y"\ntoken = "{SECRETS["a notification token"]}"\n')
    secrets.chmod(0o600)
    flags = {
        "job.env": {"PLAIN": SECRETS["a variable of the job"]},
        "job.setup": [f"export PIN={SECRETS['a short password']}"],
        "notify.secrets": str(secrets),
    }
    settings = load(None, flags, site=None, user=Path("/nonexistent"))
    when = datetime(2026, 3, 4, tzinfo=timezone.utc)
    made = new_run(tmp_path / "runs", "demo", when, settings, f"#!/bin/bash\n{LINES}")
    SubmissionRecord(chdir="/home/ann/x").save(made)
    write_header(made.journal, Policy(), 2)
    journal = Journal(made.journal, 1)
    for event in (
        ev.Started(1.0, 1),
        ev.Submitted(2.0, "submit", 7),
        ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("gpu017", "gpu018"), batch_host="gpu017"),
        ev.OutcomeSeen(4.0, "7.0", "failed", LINES, nodes=("gpu017", "gpu018")),
        ev.RequeueRequested(5.0, "ann on zeus.example.org", "requeue-1"),
    ):
        journal.append(event)
    journal.close()
    attempt = made.attempt(7, 0)
    for folder in (attempt.nodes, attempt.logs(0), attempt.health, attempt.exits(0)):
        folder.mkdir(parents=True)
    for path in (
        made.operator_log,
        made.job_log(7),
        attempt.launcher_journal,
        attempt.outcome,
        attempt.logs(0) / "rank-0.log",
        attempt.health / "l1.json",
        attempt.exits(0) / "rank-0.json",
        attempt.findings("gpu017"),
        attempt.agents_log,
    ):
        path.write_text(LINES + json.dumps({"words": LINES}) + "\n")
    return made


def _content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}  # type: ignore[union-attr]


def test_planted_secrets_and_names_do_not_appear(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    done = transom("bundle", run.path, "-o", target, MY_API_KEY="from-the-shell-9", USER="ann", LOGNAME="ann")
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    content = _content(target)
    whole = "\n".join((*content, *content.values(), done.stdout))
    assert [what for what, value in SECRETS.items() if value in whole] == []
    assert [name for name in NAMES if name in whole] == []
    assert " ann " not in whole and "ann@" not in whole
    assert "job.sbatch" not in whole and "agent.secret" not in whole


def test_a_bundle_has_what_explains_the_run(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    done = transom("bundle", run.path, "-o", target)
    content = _content(target)
    for name in ("versions.json", "settings.json", "state.json", "operator.jsonl", "operator.log", "slurm-7.log"):
        assert f"bundle/{name}" in content and f"  {name}\n" in done.stdout, name
    attempt = "bundle/attempts/7.0"
    for name in ("outcome.json", "launcher.jsonl", "health/l1.json", "logs/0/rank-0.log", "exits/0/rank-0.json"):
        assert f"{attempt}/{name}" in content, name
    log = content[f"{attempt}/logs/0/rank-0.log"]
    assert "RuntimeError: CUDA error on node1" in log and "tokens: 4096, step 18000" in log
    assert f"{attempt}/nodes/node1.jsonl" in content, "the same node has the same name everywhere"
    assert json.loads(content["bundle/state.json"])["job"]["nodes"] == ["node1", "node2"]
    assert "from-the-shell" not in log and list(content) == sorted(content)


def test_the_same_run_gives_the_same_bytes_and_no_file_is_overwritten(run: RunDir, tmp_path: Path) -> None:
    first, second = tmp_path / "1.tar.gz", tmp_path / "folder" / f"transom-{run.run_id}.tar.gz"
    second.parent.mkdir()
    for target in (first, second.parent):
        assert transom("bundle", run.path, "-o", target).returncode == 0
    assert gzip.decompress(first.read_bytes()) == gzip.decompress(second.read_bytes())
    assert first.read_bytes() == second.read_bytes()
    again = transom("bundle", run.path, "-o", first)
    assert again.returncode == 2 and "already exists" in again.stderr


def test_keep_names_keeps_hosts_and_no_secrets(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "out.tar.gz"
    assert transom("bundle", run.path, "-o", target, "--keep-names").returncode == 0
    whole = "\n".join(_content(target).values())
    assert "gpu017" in whole and "10.3.1.17" in whole
    assert [what for what, value in SECRETS.items() if value in whole] == []


@pytest.mark.long
def test_the_size_is_bounded_and_what_is_left_out_is_printed(run: RunDir, tmp_path: Path) -> None:
    attempt = run.attempt(7, 0)
    for rank in range(30):
        (attempt.logs(0) / f"rank-{rank}.log").write_text("one line of a log without anything secret\n" * 4000)
    target = tmp_path / "out.tar.gz"
    done = transom("bundle", run.path, "-o", target, "--max-size", "1")
    content = _content(target)
    assert sum(map(len, content.values())) <= 1 << 20
    assert "left out: attempts/7.0/logs/0/rank-29.log" in done.stderr and "bundle/operator.jsonl" in content


def test_links_and_special_files_are_not_read(run: RunDir, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("my own private words\n")
    attempt = run.attempt(7, 0)
    for path in (attempt.logs(0) / "rank-1.log", attempt.health / "l2.json"):
        path.symlink_to(mine)
    os.mkfifo(attempt.logs(0) / "rank-2.log")
    run.operator_log.unlink()
    os.mkfifo(run.operator_log)
    target = tmp_path / "out.tar.gz"
    assert transom("bundle", run.path, "-o", target).returncode == 0
    assert "my own private words" not in "\n".join(_content(target).values())


@pytest.mark.parametrize(
    "piece", ["a-", "token", "1:", 'password "', "://", "a.1", "-----BEGIN PRIVATE KEY-----", "@a."]
)
def test_redaction_takes_linear_time_for_hostile_lines(piece: str) -> None:
    """Ten times the text takes about ten times as long, not a hundred times."""
    redactor = Redactor(["correct-horse"], ["ann"], ["gpu017"], ["/home/ann"])

    def seconds(size: int) -> float:
        text = (piece * size)[:size]
        began = time.process_time()
        redactor.text(text)
        return time.process_time() - began

    assert seconds(100_000) < 40 * max(seconds(10_000), 0.001)
