"""`transom diagnose` and `transom rules`, as a person types them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.cli.show import show_diagnosis
from transom_cli.errors import UsageError

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def transom(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "transom_cli", *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def test_the_verdict_stands_first(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(
        f"step 1\n{OOM}\n\x1b[31msrun: error: n1: task 3: Exited with exit code 1\x1b[0m\n"
    )
    result = transom("diagnose", "job.out", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("cuda_oom: do not restart it")
    assert "job.out:2" in result.stdout and "rank 3, n1" in result.stdout and "\x1b" not in result.stdout
    assert transom("diagnose", "job.out", "--exit-code", cwd=tmp_path).returncode == 1


def test_json_has_what_is_promised(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(f"{OOM}\n")
    (tmp_path / "well").mkdir()
    (tmp_path / "well" / "a.log").write_text("step 1 loss 0.3\n")
    (tmp_path / "well" / "train.py").write_text("raise ValueError('a program is no log')\n")
    found = json.loads(transom("diagnose", "job.out", "--json", cwd=tmp_path).stdout)
    (incident,) = found["incidents"]
    assert found["schema"] == 1 and found["files"] == 1
    assert {
        "category",
        "action",
        "confidence",
        "root_line",
        "root_file",
        "root_lineno",
        "culprits",
        "consequences",
        "evidence",
    } <= set(incident)
    assert (incident["category"], incident["action"], incident["root_line"]) == ("cuda_oom", "stop", OOM)
    assert incident["culprits"] == [{"node": None, "rank": 3, "device": None}]
    well = transom("diagnose", "well", "--json", "--exit-code", cwd=tmp_path)
    assert well.returncode == 0 and json.loads(well.stdout)["incidents"] == []
    assert "No known failure in 1 file." in transom("diagnose", "well", cwd=tmp_path).stdout


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    result = transom("diagnose", "nowhere.log", cwd=tmp_path)
    assert result.returncode == 2 and "No such file: nowhere.log" in result.stderr
    (tmp_path / "empty").mkdir()
    result = transom("diagnose", "empty", cwd=tmp_path)
    assert result.returncode == 2 and "No log could be read" in result.stderr
    (tmp_path / "bad.toml").write_text('[[rule]]\nname = "x"\n')
    (tmp_path / "a.log").write_text("x\n")
    result = transom("diagnose", "a.log", "--rules", "bad.toml", cwd=tmp_path)
    assert result.returncode == 2 and "bad.toml: rule x: `any` is missing" in result.stderr


def test_empty_and_binary_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty := tmp_path / "empty.log").touch()
    (binary := tmp_path / "model.log").write_bytes(bytes(range(256)) * 8)
    (well := tmp_path / "well.log").write_text("step 1 loss 0.3\n")
    with pytest.raises(UsageError, match="No log could be read") as error:
        show_diagnosis([empty, binary])
    assert "empty.log: the file is empty" in error.value.why and "model.log: a binary file" in error.value.why
    assert show_diagnosis([well, empty]) == 0
    assert "empty.log: the file is empty" in capsys.readouterr().err


def test_own_code_is_named_below_a_python_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = '  File "/home/ann/train.py", line 8, in main'
    (log := tmp_path / "job.out").write_text(
        f"Traceback (most recent call last):\n{frame}\n    cfg['lr']\nKeyError: 'lr'\n"
    )
    show_diagnosis([log])
    said = capsys.readouterr().out
    assert "your code     /home/ann/train.py:8" in said and "culprit       the program" in said
    show_diagnosis([log], json_=True)
    assert json.loads(capsys.readouterr().out)["incidents"][0]["source"] == "/home/ann/train.py:8"


def test_a_sites_rules_are_tried_and_used(tmp_path: Path) -> None:
    rule = (
        '[[rule]]\nname = "fan"\ncategory = "gpu_hardware"\nscope = "node"\nany = ["fan failure"]\n'
        'examples = ["bmc: FAN failure"]\n'
    )
    (tmp_path / "site.toml").write_text(rule)
    (tmp_path / "job.out").write_text("bmc: fan failure\n")
    assert "No known failure" in transom("diagnose", "job.out", cwd=tmp_path).stdout
    assert transom("diagnose", "job.out", "--rules", "site.toml", cwd=tmp_path).stdout.startswith("gpu_hardware")
    result = transom("rules", "check", "site.toml", cwd=tmp_path)
    assert result.returncode == 0 and "none wrong" in result.stdout
    (tmp_path / "site.toml").write_text(rule.replace("bmc: FAN failure", "CUDA out of memory"))
    result = transom("rules", "check", "site.toml", cwd=tmp_path)
    assert result.returncode == 1 and "fan: the rule cuda-oom matches it better" in result.stdout
    assert "cuda-oom" in transom("rules", "list", cwd=tmp_path).stdout


def test_what_no_rule_knows_is_shown_and_can_be_learnt(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss 3.{n}\n" for n in range(900))
    end = "flux capacitor 12 lost its phase\nsrun: error: n1: task 3: Exited with exit code 1\n"
    (tmp_path / "job.out").write_text(steps + end)
    result = transom("diagnose", "job.out", cwd=tmp_path).stdout
    new, _, culprit = result.partition("culprit")
    assert "unrecognised, first seen at job.out:901: flux capacitor 12 lost its phase" in new and culprit
    draft = transom("diagnose", "--learn", "job.out", cwd=tmp_path).stdout
    (tmp_path / "site.toml").write_text(draft.replace('category = "unknown"', 'category = "gpu_hardware"', 1))
    result = transom("diagnose", "job.out", "--rules", "site.toml", cwd=tmp_path)
    assert result.stdout.startswith("gpu_hardware") and "job.out:901" in result.stdout, result.stderr
    frames = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    begin()\n    ~~~~~^^\n'
    (tmp_path / "raised.out").write_text(f"{steps}{frames}FluxError: no phase\n")
    drafts = transom("diagnose", "--learn", "raised.out", cwd=tmp_path).stdout
    assert drafts.count("[[rule]]") == 1 and "FluxError: no phase" in drafts, drafts
    (tmp_path / "well.out").write_text(steps + "flux capacitor 9 lost its phase\n")
    assert "flux" not in transom("diagnose", "job.out", "--healthy", "well.out", cwd=tmp_path).stdout


def test_stacks_tell_who_the_others_wait_for(tmp_path: Path) -> None:
    head = 'Process 7: python train.py\nThread 7 (idle): "MainThread"\n'
    waits = f"{head}    all_reduce (torch/distributed/distributed_c10d.py:2900)\n    step (train.py:9)\n"
    reads = f"{head}    read (data.py:12)\n    step (train.py:7)\n"
    for rank in range(6):
        (tmp_path / f"rank-{rank}.stack.txt").write_text(reads if rank == 4 else waits)
        (tmp_path / f"rank-{rank}.log").write_text("step 3 loss 0.1\n")
    result = json.loads(transom("diagnose", ".", "--json", cwd=tmp_path).stdout)
    assert (result["incidents"][0]["category"], result["incidents"][0]["culprits"][0]["rank"]) == ("nccl_hang", 4)


def test_stacks_of_a_run_that_is_well_are_no_incident(tmp_path: Path) -> None:
    for rank in range(4):
        stack = 'Process 7: python train.py\nThread 7 (active): "MainThread"\n    step (train.py:9)\n'
        (tmp_path / f"rank-{rank}.stack.txt").write_text(stack)
    assert json.loads(transom("diagnose", ".", "--json", cwd=tmp_path).stdout)["incidents"] == []


def test_pipes_and_broken_archives_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(f"{'x' * 20000}\n{OOM}\n")
    argv = ["bash", "-c", f'"{sys.executable}" -m transom_cli diagnose --json <(cat job.out)']
    result = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert json.loads(result.stdout)["incidents"][0]["category"] == "cuda_oom", result.stderr
    packed = bytearray(gzip.compress(b"".join(b"step %d of many\n" % n for n in range(5000))))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    (tmp_path / "old.log.gz").write_bytes(bytes(packed))
    result = transom("diagnose", "job.out", "old.log.gz", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("cuda_oom") and "not read: old.log.gz: " in result.stderr


REQUEUED = "slurmstepd-n1: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-28T21:35:33 DUE TO JOB REQUEUE ***\n"
STACK = 'Process 7: x\nPython v3.11.7 (x)\n\nThread 7 (idle): "MainThread"\n    {}\n    step (train.py:9)\n'


@pytest.fixture
def of_run(tmp_path: Path) -> Path:
    """The directory of a run whose job transom has requeued."""
    run = tmp_path / "gpt-20261128-213413-4d06"
    (run / "attempts" / "3.0" / "logs" / "0").mkdir(parents=True)
    (run / "run.toml").touch()
    (run / "slurm-3.log").write_text(REQUEUED)
    return run


def test_requeue_that_transom_requested_is_no_cause(of_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = of_run / "attempts" / "3.0" / "logs" / "0" / "rank-0.log"
    log.write_text("[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'tokens'\n")
    show_diagnosis([of_run])
    shown = capsys.readouterr()
    assert shown.out.startswith("user_code") and "KeyError: 'tokens'" in shown.out
    assert f"transom explain {of_run.name}" in shown.err
    show_diagnosis([of_run / "slurm-3.log"])
    assert "No known failure" in capsys.readouterr().out
    elsewhere = of_run.parent / "slurm-3.log"
    elsewhere.write_text(REQUEUED)
    show_diagnosis([elsewhere])
    shown = capsys.readouterr()
    assert shown.out.startswith("slurm_preempted") and not shown.err


def test_newest_hang_of_a_run_decides_if_its_logs_show_no_cause(
    of_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits, sleeps = "all_reduce (torch/distributed/distributed_c10d.py:9)", "clock_nanosleep (libc.so.6)"
    for age, incident in enumerate(("l2", "l1")):
        folder = of_run / "attempts" / "3.0" / "evidence" / incident
        folder.mkdir(parents=True)
        for rank in range(3):
            hung = rank == (2 if incident == "l2" else 0)
            (folder / f"rank-{rank}.stack.txt").write_text(STACK.format(sleeps if hung else waits))
        os.utime(folder, (1e9 - age, 1e9 - age))
    (of_run / "slurm-3.log").write_text(REQUEUED + "srun: error: n1: task 0: Terminated\n")
    show_diagnosis([of_run])
    shown = " ".join(capsys.readouterr().out.split())
    assert "rank 2 is in a sleep, the others wait; its line is step (train.py:9)" in shown
    assert "culprit rank 2" in shown and "rank 0 is in a sleep" not in shown
