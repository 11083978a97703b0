"""What a trainer sees under transom is what it sees under plain srun, and what transom adds by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person

from transom_cli.sandbox.cluster import Sandbox, wait_until

pytestmark = pytest.mark.sandbox

LOOK = """
import json, os, resource, signal, sys, time
rank = os.environ["SLURM_PROCID"]
seen = {
    "env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[2:], "umask": os.umask(0),
    "ignored": sorted(n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK)],
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")),
    "stdin": os.readlink("/proc/self/fd/0").partition(":")[0],
    "affinity": len(os.sched_getaffinity(0)), "nice": os.nice(0),
}
print("out of rank", rank)
print("err of rank", rank, file=sys.stderr)
open(f"{sys.argv[1]}/{rank}.json", "w").write(json.dumps(seen))
end = time.monotonic() + 30
while rank == "1" and not os.path.exists(f"{sys.argv[1]}/0.json") and time.monotonic() < end:
    time.sleep(0.05)  # with its end srun kills the other one
sys.exit(7 if rank == "1" else 0)
"""
ADDED = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH"}
ADDED |= {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "GLIBC_TUNABLES", "FT_RANK_MONITOR_IPC_SOCKET"}


def seen(folder: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((folder / f"{rank}.json").read_text()))


@pytest.fixture
def both(person: Person, sandbox: Sandbox, short_dir: Path) -> tuple[Path, Path]:
    plain, ours, look = short_dir / "plain", short_dir / "ours", short_dir / "look.py"
    plain.mkdir()
    ours.mkdir()
    look.write_text(LOOK)
    script = short_dir / "plain.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
        f"#SBATCH --output={plain}/slurm.log\nsrun --kill-on-bad-exit=1 {sys.executable} {look} {plain} 'a b' '*'\n"
    )
    job = sandbox.slurm("sbatch", "--parsable", f"--chdir={person.cwd}", str(script)).strip()
    assert wait_until(lambda: (plain / "1.json").exists() and not sandbox.slurm("squeue", "-h", "-j", job), 60.0)
    words = ("-N", "2", "--set", "restart.max_without_progress=0", "--set", "restart.relaunches=0")
    done = person.run(*words, "--", sys.executable, str(look), str(ours), "a b", "*")
    assert done.returncode != 0, "rank 1 ends with 7"
    return plain, ours


def test_what_a_trainer_sees(both: tuple[Path, Path], person: Person) -> None:
    plain, ours = both
    for rank in (0, 1):
        before, under = seen(plain, rank), seen(ours, rank)
        for what in ("cwd", "argv", "umask", "blocked", "limits", "stdin", "affinity", "nice"):
            assert under[what] == before[what], what
        assert set(under["fds"]) <= set(before["fds"]) | {3}, "nothing of transom's is open in it"
        assert set(under["ignored"]) - set(before["ignored"]) <= {12}, "USR2 may be ignored, no other signal"
        added = {k for k in under["env"].keys() - before["env"].keys() if not k.startswith("TRANSOM_")}
        assert added <= ADDED
        assert before["env"].keys() - under["env"].keys() <= {"OLDPWD", "_"}, "a shell's own"
        same = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_STEP_NUM_NODES")
        same += ("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURM_CPUS_ON_NODE", "HOME", "USER", "PATH")
        for name in same:
            assert under["env"].get(name) == before["env"].get(name), name
    log = next((person.newest().attempts).glob("*/logs/0/rank-1.log")).read_text()
    assert set(log.splitlines()) == {"out of rank 1", "err of rank 1"}
    outcome = json.loads(next(person.newest().attempts.glob("*/outcome.json")).read_text())
    assert [(x["rank"], x["code"]) for x in outcome["exits"] if x["code"]][:1] == [(1, 7)]
