"""The trainer's side in real processes: each test runs a small trainer with its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.table import NodeTable, decode

ROOT = Path(__file__).parents[2]


def trainer(code: str, *flags: str, expect: int = 0, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_")) and k != "RANK"}
    clean["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env={**clean, **env}, capture_output=True, text=True)
    assert done.returncode == expect, done.stderr
    assert expect or done.stderr == ""
    return done.stdout


def last(folder: Path, rank: int = 0) -> rec.Record:
    found = rec.newest((folder / f"rank-{rank}").read_bytes())
    assert found is not None
    return found


def test_a_beat_reaches_the_record(tmp_path: Path) -> None:
    trainer(
        "from transom_cli import beat\nfor i in range(5): beat(i, loss=2.0 / (i + 1))\nbeat(4, loss=7)",
        TRANSOM_BEAT_DIR=str(tmp_path),
        TRANSOM_LAUNCH="2",
        RANK="3",
    )
    found = last(tmp_path, 3)
    assert (found.rank, found.launch, found.step, found.count, found.loss) == (3, 2, 4, 6, 7.0)
    assert rec.PHASES[found.phase] == "done"
    assert (tmp_path / "rank-3").stat().st_mode & 0o777 == 0o600


def test_outside_transom_nothing_happens(tmp_path: Path) -> None:
    code = f"""
import os
from transom_cli.heartbeat.client import beat, phase
os.chdir({str(tmp_path)!r})
with phase("restore"): beat(1)
"""
    trainer(code)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad", ["/nonexistent", "{tmp}/file", "{tmp}/\n odd 'name\""], ids=["missing", "a file", "missing and odd"]
)
def test_unusable_directory_is_reported_once_and_never_raises(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").write_text("")
    code = "import os; os.dup2(1, 2); from transom_cli import beat; beat(1, 2.0); beat(2); print('trained')"
    *said, end = trainer(code, TRANSOM_BEAT_DIR=bad.format(tmp=tmp_path)).splitlines()
    assert end == "trained" and len(said) == 1
    assert said[0].startswith("transom: no heartbeats from rank 0 on ") and "a hang is not detected" in said[0]


def test_odd_arguments_never_reach_the_trainer(tmp_path: Path) -> None:
    code = (
        "from transom_cli import beat; from transom_cli.heartbeat.client import phase\n"
        "beat('x'); beat(None); beat(3, loss='high'); beat(4, loss=object())\n"
        "with phase('lunch'): beat(5, loss=float('inf'))\n"
        "beat(2**80); beat(6)\n"
    )
    trainer(code, TRANSOM_BEAT_DIR=str(tmp_path))
    assert (last(tmp_path).step, last(tmp_path).count, last(tmp_path).loss) == (6, 5, float("inf"))


def test_phases_nest_and_restore_the_former(tmp_path: Path) -> None:
    code = f"""
from transom_cli.heartbeat import record as rec
from transom_cli.heartbeat.client import beat, phase
def now(): print(rec.PHASES[rec.newest(open({str(tmp_path)!r} + "/rank-0", "rb").read()).phase])
with phase("restore"): now()
now(); beat(1); now()
with phase("checkpoint"):
    now()
    with phase("restore"): now()
    beat(2); now()
now()
try:
    with phase("checkpoint"): raise KeyError
except KeyError: now()
"""
    words = trainer(code, TRANSOM_BEAT_DIR=str(tmp_path)).split()
    assert words == ["restore", "start", "step", "checkpoint", "restore", "checkpoint", "step", "step"]


def test_phases_of_two_threads_that_overlap_leave_none_behind(tmp_path: Path) -> None:
    code = """
from transom_cli.heartbeat.client import beat, phase
beat(1)
a, b = phase("checkpoint"), phase("restore")
a.__enter__(); b.__enter__(); a.__exit__(None, None, None); b.__exit__(None, None, None)
import os; os._exit(0)
"""
    trainer(code, TRANSOM_BEAT_DIR=str(tmp_path))
    assert rec.PHASES[last(tmp_path).phase] == "step"


def test_an_uncaught_exception_is_not_done(tmp_path: Path) -> None:
    trainer("from transom_cli import beat; beat(1); 1 / 0", expect=1, TRANSOM_BEAT_DIR=str(tmp_path))
    assert rec.PHASES[last(tmp_path).phase] == "step"


def test_a_forked_child_does_not_beat_for_its_parent(tmp_path: Path) -> None:
    code = """
import os, sys
from transom_cli.heartbeat.client import beat, phase
beat(5)
with phase("checkpoint"):
    pid = os.fork()
    if not pid:
        beat(77)
if not pid:
    beat(78); sys.exit(0)  # an orderly exit: runs atexit, too
os.waitpid(pid, 0)
beat(6)
os._exit(0)
"""
    trainer(code, TRANSOM_BEAT_DIR=str(tmp_path))
    assert (last(tmp_path).step, last(tmp_path).count, rec.PHASES[last(tmp_path).phase]) == (6, 2, "step")


def test_a_spawned_worker_does_not_take_the_record(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
from transom_cli import beat
beat(5)
subprocess.run([sys.executable, "-c", "from transom_cli import beat; beat(99)"], check=True)
beat(6)
"""
    trainer(code, TRANSOM_BEAT_DIR=str(tmp_path))
    assert (last(tmp_path).step, last(tmp_path).count) == (6, 2)


def test_a_restarted_rank_takes_over_from_a_dead_process(tmp_path: Path) -> None:
    for step in (8, 3):
        trainer(f"from transom_cli import beat; beat({step}); import os; os._exit(0)", TRANSOM_BEAT_DIR=str(tmp_path))
    assert (last(tmp_path).step, last(tmp_path).count) == (3, 1)


def test_a_tensor_as_loss(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """
import torch
from transom_cli import beat
beat(1, loss=torch.tensor(1.5, requires_grad=True) * 2)
beat(2, loss=torch.ones(3))
beat(3, loss=(torch.ones(1) * 4).half())
"""
    trainer(code, "-W", "error", TRANSOM_BEAT_DIR=str(tmp_path))
    assert (last(tmp_path).step, last(tmp_path).loss) == (3, 4.0)


def test_loss_on_a_device_is_fetched_rarely(tmp_path: Path) -> None:
    code = """
from transom_cli import beat
class Device: type = "cuda"
class Loss:
    device, fetched = Device(), 0
    def item(self):
        Loss.fetched += 1
        return 0.5
for i in range(1000): beat(i, loss=Loss())
print(Loss.fetched)
"""
    assert trainer(code, TRANSOM_BEAT_DIR=str(tmp_path)) == "1\n"
    assert (last(tmp_path).step, last(tmp_path).loss) == (999, 0.5)


def own(run: Path, name: str = "nodeX.rank1.beats", attempt: str = "12.0") -> NodeTable:
    return decode((run / "attempts" / attempt / "nodes" / name).read_bytes())


def test_without_a_wrapper_the_rank_writes_its_own_table(tmp_path: Path) -> None:
    run = tmp_path / "run with a space"
    run.mkdir()
    code = f"""
import time
from pathlib import Path
from transom_cli import beat
beat(41, loss=0.25)
table = Path({str(run)!r}) / "attempts/12.0/nodes/nodeX.rank1.beats"
while not table.exists(): time.sleep(0.01)
first = table.read_bytes()
beat(42)
while table.read_bytes() == first: time.sleep(0.01)
print(table.read_bytes().hex())
"""
    env = {"TRANSOM_RUN_DIR": str(run), "SLURM_JOB_ID": "12", "SLURM_PROCID": "1", "SLURMD_NODENAME": "nodeX"}
    alive = decode(bytes.fromhex(trainer(code, **env)))
    assert (alive.node, alive.attempt, alive.closed) == ("nodeX", "12.0", False)
    assert [(b.rank, b.step, b.count, b.phase) for b in alive.ranks] == [(1, 42, 2, "step")]
    assert alive.ranks[0].proc in "RSD" and alive.seq > 1
    ended = own(run)
    assert (ended.closed, ended.ranks[0].phase, ended.ranks[0].proc) == (True, "done", "X") and ended.seq > alive.seq


def test_own_table_of_a_requeued_attempt_and_of_a_crash(tmp_path: Path) -> None:
    env = {"TRANSOM_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3", "RANK": "1"}
    trainer("from transom_cli import beat; beat(1); 1 / 0", expect=1, SLURMD_NODENAME="nodeX", **env)
    crashed = own(tmp_path, attempt="12.3")
    assert (crashed.closed, crashed.ranks[0].phase, crashed.ranks[0].proc) == (True, "step", "X")


def test_own_table_is_left_alone_by_a_forked_child(tmp_path: Path) -> None:
    code = """
import os, sys
from transom_cli import beat
beat(5)
pid = os.fork()
if not pid:
    beat(9); sys.exit()
os.waitpid(pid, 0)
"""
    env = {"TRANSOM_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": "12", "RANK": "1", "SLURMD_NODENAME": "nodeX"}
    trainer(code, "-W", "ignore", **env)
    assert own(tmp_path).ranks[0].step == 5


def test_a_run_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    trainer("from transom_cli import beat; beat(1)", TRANSOM_RUN_DIR=str(tmp_path / "gone"), SLURM_JOB_ID="12")
    assert not (tmp_path / "gone").exists()


def test_the_import_is_the_standard_library_and_light() -> None:
    code = "import sys; old = set(sys.modules); import transom_cli; print('\\n'.join(set(sys.modules) - old))"
    names = {n.partition(".")[0] for n in trainer(code).split()}
    assert names <= set(sys.stdlib_module_names) | {"transom_cli"}
    heavy = {"typing", "pathlib", "dataclasses", "threading", "json", "re"}
    alone = trainer(f"import sys; sys.path.append({str(ROOT)!r}); {code}", "-I", "-S").split()
    assert not heavy & set(alone)


def test_a_rank_of_an_older_launch_leaves_the_newer_ones_record_alone(tmp_path: Path) -> None:
    beats = "from transom_cli import beat; beat({}); import os; os._exit(0)"
    trainer(beats.format(50), TRANSOM_BEAT_DIR=str(tmp_path), TRANSOM_LAUNCH="1")
    trainer(beats.format(9), TRANSOM_BEAT_DIR=str(tmp_path), TRANSOM_LAUNCH="0")
    assert (last(tmp_path).launch, last(tmp_path).step, last(tmp_path).count) == (1, 50, 1)


def test_writes_of_an_older_launch_do_not_reach_the_newer_record(tmp_path: Path) -> None:
    """Under torchrun, where no wrapper makes a record anew. The fourth beat is in the slot of the newer one's last."""
    code = """
import os, subprocess, sys
from transom_cli import beat
beat(5)
newer = "from transom_cli import beat; beat(50); import os; os._exit(0)"
subprocess.run([sys.executable, "-c", newer], env=os.environ | {"TRANSOM_LAUNCH": "1"}, check=True)
for step in range(6, 10): beat(step)
os._exit(0)
"""
    trainer(code, TRANSOM_BEAT_DIR=str(tmp_path), TRANSOM_LAUNCH="0")
    assert (last(tmp_path).launch, last(tmp_path).step, last(tmp_path).count) == (1, 50, 1)


def test_spoilt_record_is_recreated(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_bytes(b"x" * rec.SIZE)
    held = (tmp_path / "rank-0").open("rb")
    trainer("from transom_cli import beat; beat(4); import os; os._exit(0)", TRANSOM_BEAT_DIR=str(tmp_path))
    assert last(tmp_path).step == 4
    assert held.read() == b"x" * rec.SIZE, "in a file of its own"
    held.close()
