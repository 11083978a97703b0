"""The wrapper around a rank, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_place import WRAPPER, Place, wait_for

from transom_cli.heartbeat import paths
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.local_table import process
from transom_cli.supervise.agent.rank_wrapper import tasks_on_node


def test_the_environment_of_a_rank(place: Place) -> None:
    out, _ = place.python("import json, os; print(json.dumps(dict(os.environ)))").communicate()
    env = json.loads(out)
    assert [env[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["3", "5", "1", "2"]
    assert env[paths.RUN_DIR] == str(place.run.path)
    assert env[paths.ATTEMPT] == place.attempt.name == "12.0"
    assert env[paths.ATTEMPT_DIR] == str(place.attempt.path)
    assert env[paths.CHECKPOINT_DIR] == str(place.run.checkpoints)
    assert (env[paths.LAUNCH], env[paths.ROLE], env[paths.BEAT_DIR]) == ("2", "rank", str(place.beats))
    assert env[paths.MEMORY] == paths.AGENTS


def test_inherited_rank_variables_never_reach_a_trainer(place: Place) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    inherited = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"), "0")
    inherited |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    out, _ = place.python(code, **inherited).communicate()
    env = json.loads(out)
    assert [env[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["3", "5", "1", "2"]
    assert not [name for name in env if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))]


@pytest.mark.parametrize(("only", "said"), [("3", "3\n"), ("1,3", "3\n"), ("1,30", "")])
def test_step_for_lost_ranks_starts_these_alone(place: Place, only: str, said: str) -> None:
    rank = place.python("import os; print(os.environ['RANK'])", flags=("--only", only))
    assert (rank.communicate()[0], rank.returncode) == (said, 0)
    assert bool(list(place.attempt.path.rglob("rank-3.json"))) is bool(said), (
        "no end is recorded of what was not started"
    )


def test_inherited_node_rank_never_reaches_torchrun(place: Place) -> None:
    code = "import os; print(os.environ['PET_NODE_RANK'], 'RANK' in os.environ)"
    out, _ = place.python(code, flags=("--torchrun",), PET_NODE_RANK="0", RANK="0", SLURM_PROCID="1").communicate()
    assert out == "1 False\n"


def test_torchrun_gets_the_launchs_port_in_its_environment(place: Place) -> None:
    code = "import os; print(os.environ['PET_MASTER_PORT'])"
    theirs = {"PET_MASTER_PORT": "29500", "MASTER_PORT": "12345"}
    out, _ = place.python(code, flags=("--torchrun",), **theirs).communicate()
    assert out == "12345\n"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", "glibc.cpu.x86_non_temporal_threshold=262144"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.cpu.x86_non_temporal_threshold=262144"),
        ("glibc.cpu.x86_non_temporal_threshold=65536", "glibc.cpu.x86_non_temporal_threshold=65536"),
    ],
)
def test_large_copies_of_a_rank_bypass_the_caches_and_the_users_tunables_stay(
    place: Place, given: str, wanted: str
) -> None:
    out, _ = place.python("import os; print(os.environ['GLIBC_TUNABLES'])", GLIBC_TUNABLES=given).communicate()
    assert out == f"{wanted}\n"


@pytest.mark.parametrize(
    ("layout", "tasks"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,3(x2)", [1, 3, 3]), ("8(x2)", [8, 8])]
)
def test_tasks_on_node(layout: str, tasks: list[int]) -> None:
    assert [tasks_on_node(layout, n) for n in range(len(tasks))] == tasks
    with pytest.raises(ValueError, match="is not in SLURM_TASKS_PER_NODE"):
        tasks_on_node(layout, len(tasks))


@pytest.mark.parametrize("code", [0, 1, 2, 93, 255])
def test_it_ends_with_the_code_of_the_rank(place: Place, code: int) -> None:
    rank = place.python(f"from transom_cli import beat; beat(7); raise SystemExit({code})")
    _, err = rank.communicate()
    assert (rank.returncode, err) == (code, "")
    told = place.exit()
    assert (told["schema"], told["rank"], told["node"], told["code"], told["signal"]) == (1, 3, "nodeX", code, None)
    assert told["steps"] == 7 and told["started"] <= told["wall"]  # type: ignore[operator]
    assert rec.PHASES[place.record().phase] == ("step" if code else "done")
    assert place.record().pid == place.record().child == told["pid"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGUSR1])
def test_it_ends_by_the_signal_of_the_rank(place: Place, number: signal.Signals, tmp_path: Path) -> None:
    rank = place.python(f"import os; os.kill(os.getpid(), {int(number)})")
    rank.wait()
    assert rank.returncode == -number
    assert (place.exit()["code"], place.exit()["signal"], place.exit()["steps"]) == (None, number, -1)


def test_signals_of_the_step_reach_the_rank_with_its_own_dispositions(place: Place) -> None:
    code = """
import signal
defaults = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
assert all(signal.getsignal(s) == signal.SIG_DFL for s in defaults)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
ignored = int(open("/proc/self/status").read().split("SigIgn:")[1].split()[0], 16)
ignored &= (1 << 31) - 1  # make hands on two of glibc's own, 32 and 33, as ignored
pipe, file_size, usr2 = (1 << (s - 1) for s in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR2))
assert ignored & ~(pipe | file_size) == usr2, hex(ignored)  # Python itself ignores the first two
signal.signal(signal.SIGUSR2, lambda *_: (print("saved"), exit(0)))
print("ready", flush=True)
signal.pause()
"""
    rank = place.python(code)
    assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    child = place.record().child
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(rank.pid, number)  # the wrapper's own copies
    os.kill(child, signal.SIGUSR2)
    out, err = rank.communicate()
    assert (rank.returncode, out, err) == (0, "saved\n", "")


def test_rank_without_a_handler_survives_slurms_warning(place: Place) -> None:
    rank = place.python("import time; print('ready', flush=True); time.sleep(0.5); print('went on')")
    assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    os.kill(place.record().child, signal.SIGUSR2)
    out, _ = rank.communicate()
    assert (rank.returncode, out) == (0, "went on\n")


def test_the_rank_dies_with_its_wrapper(place: Place) -> None:
    rank = place.start("sleep", "600")
    wait_for(lambda: place.beats.is_dir() and (place.beats / "rank-3").exists() and place.record().child)
    child = place.record().child
    wait_for(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    rank.kill()
    rank.wait()
    wait_for(lambda: process(child)[0] in "XZ")


def test_a_command_that_is_not_there(place: Place) -> None:
    rank = place.start("./no such command")
    _, err = rank.communicate()
    assert rank.returncode == 127 and err == "transom: cannot run ./no such command: No such file or directory\n"
    assert place.exit()["code"] == 127


def test_an_attempt_directory_that_the_node_cannot_see(place: Place) -> None:
    place.attempt.path.rmdir()
    rank = place.start("true")
    _, err = rank.communicate()
    assert rank.returncode == 14
    assert err == f"transom: run directory {place.attempt.path} is not visible on node nodeX\n"


def test_rank_runs_without_heartbeats_if_the_directory_is_not_private(place: Place) -> None:
    place.beats.mkdir(mode=0o755)
    rank = place.python("import os; print('TRANSOM_BEAT_DIR' in os.environ, 'TRANSOM_MEMORY' in os.environ)")
    out, err = rank.communicate()
    assert (rank.returncode, out) == (0, "False False\n")
    assert (
        err.startswith("transom: no heartbeats from rank 3 on nodeX, so a hang is not detected: ")
        and err.count("\n") == 1
    )


def test_wrong_arguments(place: Place) -> None:
    for words in (["--launch", "x", "--", "true"], ["--attempt-dir", "/tmp"], ["--nonsense", "--", "true"]):
        done = subprocess.run([sys.executable, "-I", "-S", str(WRAPPER), *words], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("transom: rank wrapper: ")


def test_torchrun_makes_the_ranks_itself(place: Place) -> None:
    code = """
import os, subprocess, sys
assert "RANK" not in os.environ
for rank, step in (("4", 10), ("5", 12)):
    beats = f"from transom_cli import beat; beat({step})"
    subprocess.run([sys.executable, "-c", beats], env=os.environ | {"RANK": rank}, check=True)
sys.exit(9)
"""
    rank = place.python(code, flags=("--torchrun",), SLURM_PROCID="1")  # one task per node
    _, err = rank.communicate()
    assert (rank.returncode, err) == (9, "")
    told = place.exit("node-1")
    assert (told["rank"], told["code"], told["steps"]) == (None, 9, 12)
    assert (place.record(4).step, place.record(5).launch, place.record(5).child) == (10, 2, 0)


def test_a_new_launch_starts_a_new_record(place: Place) -> None:
    place.python("from transom_cli import beat; beat(50)").communicate()
    place.python("import os; os._exit(0)").communicate()
    assert (place.record().step, place.record().count) == (-1, 0)


@pytest.mark.parametrize("newer", ["exits", "record"])
def test_rank_of_a_replaced_launch_is_not_started(place: Place, newer: str) -> None:
    place.beats.mkdir(mode=0o700)
    made = rec.Record(3, 3, 1)
    if newer == "exits":
        place.attempt.exits(3).mkdir(parents=True)
        made.launch = 2
    os.close(rec.create(str(place.beats / "rank-3"), made))
    rank = place.python("print('trained')")
    out, err = rank.communicate()
    assert (rank.returncode, out) == (16, "")
    why = "rank 3 of launch 2 is not started on nodeX: launch 3 or a later one has taken its place"
    assert err == f"transom: {why}\n"
    assert place.record().launch == made.launch and place.record().child == 0
    assert not place.attempt.exits(2).exists()


def test_torchrun_of_a_replaced_launch_is_not_started(place: Place) -> None:
    place.beats.mkdir(mode=0o700)
    paths.mark_torchrun(str(place.beats), 3, "1")
    rank = place.python("print('trained')", flags=("--torchrun",))
    out, err = rank.communicate()
    assert (rank.returncode, out) == (16, "") and err.startswith(
        "transom: torchrun of launch 2 is not started on nodeX"
    )


def test_leftovers_of_an_older_launch_do_not_block_a_rank(place: Place) -> None:
    place.beats.mkdir(mode=0o700)
    paths.mark_torchrun(str(place.beats), 1, "1")
    place.attempt.exits(1).mkdir(parents=True)
    os.close(rec.create(str(place.beats / "rank-3"), rec.Record(3, 1, 1)))
    out, err = place.python("print('trained')").communicate()
    assert (out, err, place.record().launch) == ("trained\n", "", 2)
