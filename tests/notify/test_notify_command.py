"""`transom notify test`, what is refused at submission, and the operator's log as JSON: as a person types it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from notify_made import Answer, program, receiving, secrets, until

from transom_cli.config.load import load
from transom_cli.core.operator.state import Policy
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.operator.run_logs import JsonLines


def transom(home: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "transom_cli", *map(str, words)]
    full = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **env}
    return subprocess.run(argv, env=full, capture_output=True, text=True, timeout=60)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config" / "transom").mkdir(parents=True)
    return tmp_path


def settings(home: Path, *targets: str, more: str = "") -> Path:
    file = home / "run.toml"
    file.write_text(more + "".join(f"[[notify.targets]]\n{target}\n" for target in targets))
    return file


def test_each_target_is_told_and_what_came_of_it_is_said(home: Path) -> None:
    path = program(home / "page", "cat > /dev/null; echo 'no pager' >&2; exit 4")
    mail = program(home / "sendmail", f"cat > {home}/mail")
    with receiving() as good, receiving(Answer(403, body=b"invalid_token")) as bad:
        secrets(home / "config/transom/secrets.toml", team=good.url(), ops=bad.url())
        file = settings(
            home,
            'name = "team"\nkind = "slack"',
            'name = "ops"\nkind = "webhook"',
            f'name = "page"\nkind = "command"\nargv = "{path}"',
            f'name = "mail"\nkind = "mail"\nto = "root"\nprogram = "{mail}"',
        )
        done = transom(home, "notify", "test", "-f", file)
        assert done.returncode == 1 and done.stderr == ""
        lines = done.stdout.splitlines()
        assert [line.rpartition(" (")[0] for line in lines] == [
            "team (slack): delivered",
            "ops (webhook): not delivered: 127.0.0.1 answered 403 Forbidden (invalid_token)",
            "page (command): not delivered: page ended with exit code 4: no pager",
            "mail (mail): delivered",
        ]
        assert len(good.heard) == 1 and len(bad.heard) == 1, "once, with no second try"
        one = transom(home, "notify", "test", "team", "-f", file, "--event", "held", "--json")
        told = json.loads(one.stdout)
    assert one.returncode == 0 and told["schema"] == 1
    assert [(t["target"], t["delivered"], t["why"]) for t in told["targets"]] == [("team", True, "")]
    assert "a test of notifications (held)" in json.loads(good.heard[1].body)["text"]
    assert "nothing has happened" in (home / "mail").read_text()
    for text in (done.stdout, one.stdout, one.stderr):
        assert "SECRET" not in text


def test_what_would_be_sent_is_shown_without_a_secret(home: Path) -> None:
    file = settings(
        home, 'name = "team"\nkind = "webhook"', 'name = "m"\nkind = "mail"\nto = "a@b"\nsubject = "[{event}]"'
    )
    done = transom(home, "notify", "test", "-f", file, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"event": "incident"' in done.stdout and "Subject: [incident]" in done.stdout
    shown = json.loads(transom(home, "notify", "test", "-f", file, "--dry-run", "--json").stdout)
    assert [m["target"] for m in shown["messages"]] == ["team", "m"]


def test_the_targets_of_a_run_are_those_that_it_was_started_with(home: Path) -> None:
    with receiving() as server:
        secrets(home / "config/transom/secrets.toml", team=server.url())
        asked = load(settings(home, 'name = "team"\nkind = "webhook"'), {}, {}, site=None, user=home / "none")
        run = new_run(home / "runs", "r", datetime(2026, 3, 4, tzinfo=timezone.utc), asked, "#!/bin/bash\ntrue\n")
        done = transom(home, "notify", "test", "--run", run.path, "--event", "failed")
        assert done.returncode == 0, done.stderr
    assert json.loads(server.heard[0].body)["event"] == "failed"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no notification targets are configured"),
        (("-f", "F", "nobody"), "no notification target `nobody`"),
        (("-f", "F", "--event", "lunch"), "`--event lunch` is not an event"),
        (("-f", "F", "--run", "x"), "cannot be combined: a run has its own settings"),
    ],
)
def test_what_cannot_be_tried_is_refused(home: Path, words: tuple[str, ...], says: str) -> None:
    file = settings(home, 'name = "team"\nkind = "slack"')
    done = transom(home, "notify", "test", *(str(file) if word == "F" else word for word in words))
    assert done.returncode == 2 and says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("target", "more", "code", "says"),
    [
        ('name = "team"\nkind = "slack"', "", 2, "no secret for the notification target `team`"),
        ('name = "open"\nkind = "slack"', "", 13, "others may read the notification secrets"),
        ('name = "c"\nkind = "command"\nargv = "/no/such"', "", 2, "no executable `/no/such` was found"),
        ('name = "m"\nkind = "mail"\nto = "a@b"\nprogram = "no-such-mail"', "", 2, "no executable `no-such-mail`"),
        ("", '[metrics]\ntextfile = "/no/such/folder"\n', 2, "/no/such/folder is not a writable folder"),
    ],
)
def test_what_would_fail_in_the_night_is_refused_at_submission(
    home: Path, target: str, more: str, code: int, says: str
) -> None:
    file = secrets(home / "config/transom/secrets.toml", other="http://127.0.0.1:9/SECRET", open="http://h/SECRET")
    if '"open"' in target:
        file.chmod(0o644)
    done = transom(home, "run", "-f", settings(home, *([target] if target else []), more=more), "--", "true")
    assert done.returncode == code and says in done.stderr and "SECRET" not in done.stderr
    assert not (home / ".transom").exists()


def test_metrics_without_the_library_are_refused_at_submission(home: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "from transom_cli.__main__ import main\n"
        "sys.argv = ['transom', 'run', '--set', 'metrics.port=9999', '--', 'true']\n"
        "main()\n"
    )
    env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "metrics need prometheus-client, which is not installed" in done.stderr
    assert "pip install 'transom-cli[metrics]'" in done.stderr


def line(level: int, message: str, *args: object, **more: object) -> dict[str, object]:
    record = logging.LogRecord("transom.operator", level, "f", 1, message, args, more.pop("exc_info", None))  # type: ignore[arg-type]
    vars(record).update(more)
    text = JsonLines("demo-1").format(record)
    assert "\n" not in text
    told = json.loads(text)
    assert told["schema"] == 1 and told["run"] == "demo-1" and told["time"].endswith("Z")
    return dict(told)


def test_a_line_of_the_log_as_json() -> None:
    told = line(logging.INFO, "%s %s", "StepSeen", {"step": 4}, event="StepSeen", facts={"step": 4, "odd": Path("/x")})
    assert (told["level"], told["event"], told["facts"]) == ("info", "StepSeen", {"step": 4, "odd": "/x"})
    assert told["message"] == "StepSeen {'step': 4}"
    plain = line(logging.WARNING, "a\nb\x1b[31m")
    assert plain["message"] == "a\nb\x1b[31m" and "event" not in plain
    try:
        raise ValueError("boom")
    except ValueError:
        assert "ValueError: boom" in str(line(logging.ERROR, "x", exc_info=sys.exc_info())["exception"])


def test_a_real_operators_log_is_json_and_its_numbers_are_written(home: Path) -> None:
    """Slurm's commands all fail: the operator's words are what counts."""
    flags = {"log_json": "true", "metrics.textfile": str(home), "metrics.every": "1"}
    asked = load(None, flags, {}, site=None, user=home / "none")
    run = new_run(home / "runs", "r", datetime(2026, 3, 4, tzinfo=timezone.utc), asked, "#!/bin/bash\ntrue\n")
    SubmissionRecord(chdir="/").save(run)
    write_header(run.journal, Policy(), 1)
    for name in ("sbatch", "scontrol", "squeue", "sacct", "scancel"):
        program(home / name, "echo 'Unable to contact slurm controller' >&2; exit 1")
    numbers = home / f"transom-{run.run_id}.prom"
    env = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home)}
    argv = [sys.executable, "-m", "transom_cli", "operate", "--run-dir", str(run.path)]
    with (home / "log").open("w") as log, subprocess.Popen(argv, env=env, stdout=log, stderr=log) as operator:
        try:
            until(lambda: '"SlurmLost"' in (home / "log").read_text(), 40.0)
            until(
                lambda: numbers.exists() and f'transom_slurm_up{{run="{run.run_id}"}} 0.0' in numbers.read_text(), 40.0
            )
        finally:
            operator.terminate()
            operator.wait(30)
    told = [json.loads(text) for text in (home / "log").read_text().splitlines()]
    assert {one["run"] for one in told} == {run.run_id}
    orders = [one for one in told if one.get("event") == "order"]
    assert orders[0]["facts"]["action"] == "Submit" and orders[0]["facts"]["key"] == "submit"
    assert any(one.get("event") == "SlurmLost" and one["facts"]["error"] for one in told)
