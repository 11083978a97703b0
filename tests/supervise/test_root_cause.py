"""The first cause in logs as trainings really leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transom_cli.ckpt.seal import seal
from transom_cli.core.log_lines import clean
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise import root_cause as examine_module
from transom_cli.supervise.agent.logs import TAIL, read_cause, tail_of
from transom_cli.supervise.root_cause import candidates, examine, is_error, log_sizes

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    main()\n'
PEER = TRACE + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited\n"

SAMPLES = [
    (
        "dependency_import",
        TRACE + "ModuleNotFoundError: No module named 'tokeniser'\n",
        "ModuleNotFoundError: No module",
    ),
    ("user_code", "[rank3]: " + TRACE.replace("\n", "\n[rank3]: ") + "KeyError: 'lr'\n", "KeyError: 'lr'"),
    ("user_code", "3: " + TRACE.replace("\n", "\n3: ") + "ValueError: bad batch\n", "ValueError: bad batch"),
    ("network_fabric", PEER, "torch.distributed.DistBackendError: NCCL error"),
    (
        "network_fabric",
        TRACE + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]\n",
        "RuntimeError: [../third_party/gloo",
    ),
    ("cuda_oom", TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "torch.OutOfMemory"),
    ("storage_full", TRACE + "OSError: [Errno 28] No space left on device: 'x'\n", "OSError: [Errno 28]"),
    (
        "gpu_hardware",
        TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
        "RuntimeError: CUDA error",
    ),
    ("user_code", "usage: train.py [--lr LR]\n\ntrain.py: error: unrecognized arguments: --lrr\n", "train.py: error:"),
    ("unknown", "step 5 loss 3.1\ncould not open shard 3\n", "could not open shard 3"),
    ("unknown", "step 5 loss 3.1\nstep 6 loss 3.0\n", ""),
    ("unknown", "\n\n", ""),
]


@pytest.mark.parametrize(("category", "text", "line"), SAMPLES)
def test_samples(category: str, text: str, line: str, place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, text)
    told = examine("k", run, attempt, 0, 5.0)
    assert told.category == category
    assert told.line.startswith(line) and bool(told.line) == bool(line)


def test_ordinary_last_line_is_no_failure_and_is_labelled(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    cancelled = "slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-01-01T10:10:10 ***\n"
    for end in ("", cancelled):
        write(attempt, 0, f"rank 0/2 starts at step 10 on n1 w0=0.095303\n{end}")
        told = examine("k", run, attempt, 0, 5.0)
        assert (told.category, told.line, told.where) == ("unknown", "", "rank-0.log (its last line)")
        assert told.last == "rank 0/2 starts at step 10 on n1 w0=0.095303"
    write(attempt, 0, f"FATAL: no licence for the data set\n{cancelled}")
    told = examine("k", run, attempt, 0, 5.0)
    assert (told.line, told.last) == ("FATAL: no licence for the data set", "")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("Error: no such shard", True),
        ("mypackage.errors.BadShard: shard 3 cannot be read", True),
        ("app.ShardError: 3", True),
        ("[rank0]: transom_cli.ckpt.failures.SaveFailed: step-4 was not saved", True),
        ("2026-01-01 10:10:10 [ERROR] shard 3", True),
        ("saving failed", True),
        ("step 10 error 0.31", False),
        ("val_error=0.2", False),
        ("eval: error: 0.25", False),
        ("Saved 0 errors to report.txt", False),
        ("done, all good", False),
    ],
)
def test_lines_that_clearly_report_an_error(line: str, error: bool) -> None:
    assert is_error(line) == error


def test_line_of_a_save_that_the_training_survives_is_no_cause_of_a_kill(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    full = "node1: No space left on device: /ckpt/.tmp-step-150/__0_0.distcp"
    survived = f"transom: step-150 was not saved: {full}; training continues, and the next save tries again\n"
    write(attempt, 0, f"step 140 loss 0.2\n{survived}step 150 loss 0.1\n{survived}{PEER}")
    write(attempt, 1, "step 150 loss 0.1\n")
    told = examine("k", run, attempt, 1, 5.0)
    assert (told.category, told.line) == ("unknown", "")
    write(attempt, 1, f"{survived}{TRACE}OSError: [Errno 28] No space left on device: 'x'\n")
    told = examine("k", run, attempt, 1, 5.0)
    assert (told.category, told.line) == ("storage_full", "OSError: [Errno 28] No space left on device: 'x'")


def test_what_ranks_print_once_the_launcher_has_ended_the_launch_is_no_cause(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    for rank in range(2):
        write(attempt, rank, "step 5 loss 3.1\n")
    sizes = log_sizes(attempt, 0)
    write(attempt, 0, f"step 5 loss 3.1\n{PEER}")
    assert examine("k", run, attempt, None, 5.0).category == "network_fabric"
    told = examine("k", run, attempt, None, 5.0, sizes=sizes)
    assert (told.category, told.line, told.last) == ("unknown", "", "")
    answer = json.loads(json.dumps(read_cause(attempt.logs(0), ["rank-0.log", "rank-1.log"])[0]))
    told = examine("k", run, attempt, None, 5.0, [answer], sizes=sizes)
    assert (told.category, told.line) == ("unknown", "")
    before = f"step 5\n{TRACE}RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    write(attempt, 0, before)
    sizes = log_sizes(attempt, 0)
    write(attempt, 0, f"{before}{PEER}")
    assert examine("k", run, attempt, None, 5.0, sizes=sizes).category == "gpu_hardware"


def test_corrupt_checkpoint_is_named_by_its_folder(place: tuple[RunDir, AttemptDir], tmp_path: Path) -> None:
    run, attempt = place
    write(attempt, 0, TRACE + "ValueError: Can't find a valid checkpoint at out/checkpoint-30\n")
    assert examine("k", run, attempt, 0, 5.0).line.startswith("ValueError"), "nothing is known of the script"
    for name in ("checkpoint-20", "checkpoint-30"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "model.safetensors").write_bytes(b"x")
    seal(tmp_path / "out" / "checkpoint-20", 20)
    run.submission.write_text(json.dumps({"chdir": str(tmp_path)}))
    run.script.write_text("exec transom attempt-launcher -- python train.py --output_dir=out --steps 60\n")
    found = examine("k", run, attempt, 0, 5.0)
    assert found.category == "checkpoint_corrupt"
    assert found.line.startswith(
        f"{tmp_path}/out/checkpoint-30 has no seal (move it to use the one before): ValueError"
    )
    (tmp_path / "out" / "checkpoint-30").rename(tmp_path / "elsewhere")
    assert examine("k", run, attempt, 0, 5.0).line.startswith("ValueError"), "the newest one is sealed"


def test_a_line_may_meet_a_terminal() -> None:
    assert clean("\x1b[31mred\x1b[0m \x07bell\x9b") == "red bell"
    assert clean("progress 1%\rprogress 99%") == "progress 99%"
    assert len(clean("x" * 5000)) == 300


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDir, AttemptDir]:
    monkeypatch.setattr(examine_module, "SETTLE", 0.0)
    run = RunDir(tmp_path)
    attempt = run.attempt(7, 1)
    attempt.logs(0).mkdir(parents=True)
    return run, attempt


def write(attempt: AttemptDir, rank: int, text: str, launch: int = 0) -> None:
    attempt.logs(launch).mkdir(parents=True, exist_ok=True)
    (attempt.logs(launch) / f"rank-{rank}.log").write_text(text)


def test_the_rank_that_died_first_is_read_first(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    for rank in range(12):
        write(attempt, rank, TRACE + f"ValueError: of rank {rank}\n")
    names = [p.name for p in candidates(run, attempt, 3)]
    assert names[:4] == ["rank-3.log", "rank-0.log", "rank-1.log", "rank-2.log"]
    assert names[-2:] == ["rank-11.log", "slurm-7.log"]
    told = examine("i1/examine", run, attempt, 3, 5.0)
    assert (told.key, told.category, told.line, told.where) == (
        "i1/examine",
        "user_code",
        "ValueError: of rank 3",
        "rank-3.log (11 more report the same)",
    )
    write(attempt, 11, TRACE + "ValueError: another\n")
    assert examine("k", run, attempt, 11, 5.0).where == "rank-11.log"


def test_a_victim_is_passed_over_for_the_culprit(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, PEER)
    write(attempt, 1, "step 5\n")
    write(attempt, 2, TRACE + "ValueError: mine\n")
    told = examine("k", run, attempt, 0, 5.0)
    assert (told.category, told.where) == ("user_code", "rank-2.log")


def test_with_victims_alone_a_victim_tells(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, PEER)
    assert examine("k", run, attempt, None, 5.0).category == "network_fabric"


def test_the_newest_launch_by_number(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, TRACE + "ValueError: nine\n", launch=9)
    write(attempt, 0, TRACE + "ValueError: ten\n", launch=10)
    assert examine("k", run, attempt, 0, 5.0).line == "ValueError: ten"


def test_an_earlier_attempts_error_is_not_this_ones(place: tuple[RunDir, AttemptDir]) -> None:
    """The batch script's output is one file for all attempts: it tells only where no rank does."""
    run, attempt = place
    (run.path / "slurm-7.log").write_text(TRACE + "ValueError: of attempt 7.0\n")
    write(attempt, 0, "step 41\n")
    assert examine("k", run, attempt, 0, 5.0).category == "unknown"
    (attempt.logs(0) / "rank-0.log").unlink()
    assert examine("k", run, attempt, 0, 5.0).line == "ValueError: of attempt 7.0"


def test_an_exit_code_is_no_word_of_a_users_error(place: tuple[RunDir, AttemptDir]) -> None:
    """Before the first step such an error ends the run: that needs more than how a process ended."""
    run, attempt = place
    write(attempt, 0, "srun: error: n1: task 0: Exited with exit code 3\n")
    assert examine("k", run, attempt, 0, 5.0).category == "unknown"
    write(attempt, 0, TRACE + "KeyError: 'lr'\nsrun: error: n1: task 0: Exited with exit code 3\n")
    assert examine("k", run, attempt, 0, 5.0).category == "user_code"


def test_where_no_rule_knows_why_what_is_new_tells(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    steps = "".join(f"step {n} loss 3.{n}\n" for n in range(900))
    write(attempt, 0, steps + "flux capacitor 12 failed\nclosing files\n")
    told = examine("k", run, attempt, 0, 5.0)
    assert (told.category, told.line, told.where) == ("unknown", "unrecognised: flux capacitor 12 failed", "rank-0.log")
    write(attempt, 0, steps + "closing files\n")
    assert examine("k", run, attempt, 0, 5.0).last == "closing files", "nothing speaks of a fault"
    write(attempt, 0, "step 1\nflux capacitor 12 failed\nclosing files\n")
    assert examine("k", run, attempt, 0, 5.0).last == "closing files", "there is nothing to compare with"


def test_no_log_at_all(place: tuple[RunDir, AttemptDir]) -> None:
    told = examine("k", *place, None, 5.0)
    assert (told.category, told.line, told.where) == ("unknown", "", "no log")


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"\xff" * (2 * TAIL) + b"\nthe end")
    assert tail_of(path) == (b"the end", 2 * TAIL + 1)
    path.write_bytes(b"a\nb\n")
    assert tail_of(path) == (b"a\nb\n", 0)
    assert tail_of(tmp_path / "none") == (b"", 0)


def test_what_the_agents_have_read_is_not_read_again(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    for rank in range(4):
        write(attempt, rank, TRACE + f"ValueError: of rank {rank}, as the file says\n")
    first, victim = Path(attempt.path / "first"), Path(attempt.path / "victim")
    for folder, name, text in ((first, "rank-1.log", TRACE + "ValueError: told\n"), (victim, "rank-0.log", PEER)):
        folder.mkdir()
        (folder / name).write_text(text)
    (first / "rank-2.log").write_text("step 3\n")
    asked = [read_cause(victim, ["rank-0.log"])[0], read_cause(first, ["rank-1.log", "rank-2.log"])[0]]
    asked = [json.loads(json.dumps(answer)) for answer in asked]  # as it comes over the line
    told = examine("k", run, attempt, 1, 5.0, asked)
    assert (told.line, told.where) == ("ValueError: told", "rank-1.log"), "an own error, of the rank that died first"
    told = examine("k", run, attempt, 3, 5.0, asked)
    assert told.line == "ValueError: of rank 3, as the file says", "the first to die, and its node does not answer"


def test_lines_of_a_node_with_a_wrong_clock_are_in_their_right_place(place: tuple[RunDir, AttemptDir]) -> None:
    """The culprit's node is 200 s ahead: its lines would come after those of the victims."""
    run, attempt = place
    full = "2026-01-05 12:0{}:00,123 [ERROR] OSError: [Errno 28] No space left on device: '{}'\n"
    for rank, minute in ((0, 4), (1, 6)):
        write(attempt, rank, full.format(minute, f"of rank {rank}"))
    victim, culprit = (read_cause(attempt.logs(0), [f"rank-{rank}.log"])[0] for rank in (0, 1))
    assert "of rank 0" in examine("k", run, attempt, None, 5.0, [victim, culprit]).line
    told = examine("k", run, attempt, None, 5.0, [victim, {**culprit, "behind": -200.0}])
    assert "of rank 1" in told.line


def test_answers_that_are_none_are_left_out(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, TRACE + "ValueError: of the file\n")
    nonsense = [
        {"names": "rank-0.log"},
        {"names": [3, None], "hits": [{"rule": "x"}, 3], "last": ["y"]},
        {"hits": 7},
        {},
    ]
    assert examine("k", run, attempt, 0, 5.0, nonsense).line == "ValueError: of the file"
    (attempt.path / "rank-0.log").write_text(TRACE + "ValueError: mine\n")
    loud = json.loads(json.dumps(read_cause(attempt.path, ["rank-0.log"])[0]))
    loud["hits"][0]["text"] = "ValueError: \x1b[31mred"
    loud["hits"].append({**loud["hits"][0], "rule": "of a newer release"})
    assert examine("k", run, attempt, 0, 5.0, [loud]).line == "ValueError: red"


def test_that_the_step_was_ended_is_no_cause(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    cancelled = "slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-01-01T10:10:10 ***\n"
    write(attempt, 0, f"step 5 loss 3.1\n{cancelled}")
    write(attempt, 1, f"step 5 loss 3.1\n{cancelled}")
    assert examine("k", run, attempt, 1, 5.0).category == "unknown"
    write(attempt, 1, f"step 5\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n{cancelled}")
    assert examine("k", run, attempt, 1, 5.0).category == "cuda_oom"


def test_ranks_that_lost_the_one_that_died_first_are_its_victims(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, "step 5 loss 3.1\n")
    write(attempt, 1, f"step 5 loss 3.1\n{PEER}")
    told = examine("k", run, attempt, 0, 5.0)
    assert (told.category, told.line, told.last) == ("unknown", "", "step 5 loss 3.1")
    assert examine("k", run, attempt, 1, 5.0).category == "network_fabric", "it died of that itself"
    assert examine("k", run, attempt, None, 5.0).category == "network_fabric", "who died first is not known"
    write(attempt, 0, "step 5\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert examine("k", run, attempt, 0, 5.0).category == "cuda_oom"


def test_ranks_that_lost_a_silent_one_are_its_victims_once_its_agent_has_read_its_log(
    place: tuple[RunDir, AttemptDir], tmp_path: Path
) -> None:
    run, attempt = place
    write(attempt, 0, f"step 5 loss 3.1\n{PEER}")
    assert examine("k", run, attempt, 1, 5.0).category == "network_fabric", "its log may not be visible yet"
    empty = json.loads(json.dumps(read_cause(tmp_path, ["rank-1.log"])[0]))
    told = examine("k", run, attempt, 1, 5.0, [empty])
    assert told.category == "unknown" and told.where.startswith("rank-0.log (its last line)")


def test_slurms_end_of_the_other_ranks_is_no_cause_of_a_killed_one(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, "step 5\nslurmstepd-n1: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-28T19:15:19 ***\n")
    assert (examine("k", run, attempt, 1, 5.0).category, examine("k", run, attempt, 1, 5.0).line) == ("unknown", "")


def test_sruns_report_of_a_killed_rank_is_no_sign_of_too_little_memory(place: tuple[RunDir, AttemptDir]) -> None:
    run, attempt = place
    write(attempt, 0, "step 5 loss 3.1\nsrun: error: node1: task 0: Killed\n")
    assert examine("k", run, attempt, 0, 5.0).category == "process_crash"
    write(attempt, 0, "srun: error: node1: task 0: Killed\nsrun: error: node1: task 0: Out Of Memory\n")
    assert examine("k", run, attempt, 0, 5.0).category == "host_oom"
