"""A standby rank under the real wrapper: it waits, becomes a rank, or starts from scratch and says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_place import Place, wait_for

from transom_cli.heartbeat import paths
from transom_cli.supervise.agent.processes import find
from transom_cli.supervise.agent.standby import REPORT, suits
from transom_cli.supervise.agent.termination import kill_ranks

SCRIPT = """
import json, os, signal, sys
here = {name: os.environ.get(name) for name in ("MASTER_PORT", "RANK", "TRANSOM_LAUNCH", "TRANSOM_STANDBY", "EXTRA")}
usr1, usr2 = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
print(json.dumps({
    "env": here, "argv": sys.argv[1:], "main": __name__, "path": sys.path[0], "pid": os.getpid(),
    "ready": "fractions" in sys.modules, "orig": sys.orig_argv[1:], "input": sys.stdin.read(),
    "signals": [usr1 == signal.SIG_DFL, usr2 == signal.SIG_IGN],
    "readers": "reader" in sys.modules, "world": os.environ["WORLD_SIZE"],
    "slurm": [os.environ.get(f"SLURM_{name}") for name in ("PROCID", "NODEID", "NNODES", "STEP_NODELIST")],
}), flush=True)
sys.exit(7)
"""


class Waiting:
    """A wrapper with a standby of a small script, in a folder of its own."""

    def __init__(self, place: Place, tmp_path: Path) -> None:
        self.place, self.dir = place, tmp_path
        self.modules, self.script = tmp_path / "modules.json", tmp_path / "train.py"
        self.packages = tmp_path / "site-packages"
        self.packages.mkdir()
        self.script.write_text(SCRIPT)
        place.attempt.logs(2).mkdir(parents=True)
        self.mark = place.attempt.exits(2) / "from-scratch-3"
        self.log = place.attempt.logs(2) / "rank-3.log"

    def learn(self, *names: str) -> None:
        """Write the list as a rank does that has imported these modules."""
        code = f"import {', '.join(('json', 'signal', *names))}; from transom_cli.heartbeat.standby import learn; "
        env = os.environ | {"PYTHONPATH": os.pathsep.join((str(self.packages), *sys.path))}
        subprocess.run([sys.executable, "-c", code + f"learn({str(self.modules)!r})"], check=True, env=env)

    def start(self, *command: str, flags: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        flags = ("--auto-beat", "--standby", str(self.modules), *flags)
        command = command or (sys.executable, str(self.script), "--lr", "3e-4")
        env.setdefault("PYTHONPATH", str(self.packages))
        return self.place.start(*command, flags=flags, MASTER_PORT="0", **env)

    def waiter(self, wrapper: subprocess.Popen[str]) -> int:
        """The PID of the standby, once it has executed the rank's command."""
        found: list[int] = []

        def there() -> bool:
            children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()
            found[:] = [int(pid) for pid in children if str(self.script) in _words(pid)]
            return bool(found)

        wait_for(there)
        return found[0]

    def go(self, wrapper: subprocess.Popen[str], **variables: str) -> dict[str, object]:
        """Let the launch begin. Return what the script has printed in its log."""
        self.mark.parent.mkdir(parents=True)
        message = json.dumps({"MASTER_PORT": "4711", **variables})
        wrapper.communicate(message + "\n", timeout=60)
        said = self.log.read_text().splitlines() if self.log.exists() else []
        return dict(json.loads(said[-1])) if said else {}


def _words(pid: str | int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def waiting(place: Place, tmp_path: Path) -> Waiting:
    return Waiting(place, tmp_path)


def test_a_standby_becomes_a_rank_as_if_it_had_just_been_started(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    assert not waiting.log.exists()
    said = waiting.go(wrapper)
    assert said == {
        "env": {"MASTER_PORT": "4711", "RANK": "3", "TRANSOM_LAUNCH": "2", "TRANSOM_STANDBY": None, "EXTRA": None},
        "argv": ["--lr", "3e-4"], "main": "__main__", "path": str(waiting.dir), "pid": standby, "ready": True,
        "orig": [str(waiting.script), "--lr", "3e-4"], "input": "", "signals": [True, True], "readers": False,
        "world": "5", "slurm": ["3", "1", None, None],
    }  # fmt: skip
    ended = waiting.place.exit()
    assert (ended["code"], ended["standby"], ended["pid"]) == (7, "used", standby)
    assert not waiting.mark.exists()
    assert waiting.place.record().child == standby


ON_SPARE = ("--hosts", "nodeA,nodeX", "--tasks-per-node", "2")  # its ranks are 2 and 3 until it has their place


def test_standby_of_a_spare_becomes_a_rank_of_the_node_that_it_replaces(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start(flags=ON_SPARE)
    standby = waiting.waiter(wrapper)
    waiting.log = waiting.place.attempt.logs(2) / "rank-1.log"
    said = waiting.go(wrapper, TRANSOM_HOSTS="nodeX,nodeB,nodeC", TRANSOM_ONLY="0,1", EXTRA="x")
    env = {"MASTER_PORT": "4711", "RANK": "1", "TRANSOM_LAUNCH": "2", "TRANSOM_STANDBY": None, "EXTRA": "x"}
    assert (said["env"], said["pid"], said["ready"]) == (env, standby, True)
    assert (said["world"], said["slurm"]) == ("6", ["1", "0", "3", "nodeX,nodeB,nodeC"])
    assert waiting.place.exit("rank-1")["standby"] == "used"
    assert waiting.place.record(1).child == standby


def test_rank_that_was_a_standby_of_a_spare_is_found_by_its_own_number(waiting: Waiting) -> None:
    waiting.script.write_text("import os, time\nos.fork()\ntime.sleep(600)\n")
    waiting.learn("fractions")
    wrapper = waiting.start(flags=ON_SPARE)
    waiting.waiter(wrapper)
    waiting.mark.parent.mkdir(parents=True)
    assert wrapper.stdin is not None
    wrapper.stdin.write(json.dumps({paths.HOSTS: "nodeX,nodeB", paths.ONLY: "0,1"}) + "\n")
    wrapper.stdin.flush()
    found = lambda: [(one.kind, one.rank) for one in find(waiting.place.attempt.path, 2, "nodeX")]  # noqa: E731
    wait_for(lambda: len(found()) == 3)
    assert found()[1:] == [("rank", 1), ("child", 1)]
    kill_ranks(waiting.place.attempt.path, 2, "nodeX", (1,))
    assert wrapper.wait(30) and not found()


def test_standby_on_a_node_that_has_been_replaced_ends(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    waiting.go(wrapper, TRANSOM_HOSTS="nodeA,nodeB", TRANSOM_ONLY="2,3")
    assert wrapper.returncode == 0 and not waiting.log.exists() and not Path(f"/proc/{standby}").exists()


def test_without_a_launch_nothing_of_the_script_runs(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    said, error = wrapper.communicate(timeout=60)
    assert error == "" and all(line.startswith(REPORT) for line in said.splitlines())
    assert wrapper.returncode == 0
    assert not waiting.log.exists()
    assert not _words(standby)
    assert not waiting.place.attempt.exits(2).exists()
    assert not (waiting.place.beats / "rank-3").exists()


READS = "import os\nNUMBER = os.environ.get('MASTER_PORT')\n"
WALKS = "import os\nNAMES = [name for name, value in os.environ.items() if value == 'nothing']\n"
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='poller').start()\n"
SOCKET = "import socket\nKEPT = socket.socket()\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (READS, "an import has read MASTER_PORT, which has changed"),
        (THREAD, "an import has started the thread poller"),
        (SOCKET, "an import has opened 1 sockets"),
        ("raise RuntimeError('not here')", "RuntimeError: not here"),
    ],
)
def test_an_import_with_effects_makes_it_start_from_scratch(waiting: Waiting, code: str, why: str) -> None:
    (waiting.packages / "reader.py").write_text("")
    waiting.learn("reader", "threading", "socket")
    (waiting.packages / "reader.py").write_text(code)
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    said = waiting.go(wrapper)
    assert said["pid"] == standby
    assert (said["readers"], said["env"]["MASTER_PORT"], said["signals"]) == (False, "4711", [True, True])  # type: ignore[index]
    assert f"this rank starts from scratch, not from its standby: {why}" in waiting.log.read_text()
    assert waiting.mark.exists()
    assert waiting.place.exit()["code"] == 7


def test_a_walk_over_all_variables_is_no_reading_of_one(waiting: Waiting) -> None:
    (waiting.packages / "reader.py").write_text(WALKS)
    waiting.learn("reader")
    wrapper = waiting.start()
    waiting.waiter(wrapper)
    assert waiting.go(wrapper)["readers"] is True


def test_a_module_from_elsewhere_makes_it_start_from_scratch(waiting: Waiting) -> None:
    (waiting.packages / "reader.py").write_text("")
    waiting.learn("reader")
    other = waiting.dir / "other" / "site-packages"
    other.mkdir(parents=True)
    (other / "reader.py").write_text("")
    wrapper = waiting.start(PYTHONPATH=f"{other}:{waiting.packages}")
    waiting.waiter(wrapper)
    assert waiting.go(wrapper)["readers"] is False
    assert f"module reader comes from {other}/reader.py" in waiting.log.read_text()


def test_a_standby_that_was_killed_is_replaced_by_an_ordinary_start(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    os.kill(standby, signal.SIGKILL)
    wait_for(lambda: not _words(standby))
    said = waiting.go(wrapper)
    assert said["pid"] != standby
    assert (said["ready"], said["env"]["MASTER_PORT"]) == (False, "4711")  # type: ignore[index]
    assert waiting.place.exit()["standby"] == "the standby has ended"
    assert waiting.mark.exists()


def test_signals_to_all_tasks_of_the_job_leave_a_standby_alone(waiting: Waiting) -> None:
    waiting.learn("fractions")
    wrapper = waiting.start()
    standby = waiting.waiter(wrapper)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        for pid in (wrapper.pid, standby):
            os.kill(pid, number)
    assert waiting.go(wrapper)["pid"] == standby


def test_a_list_that_cannot_be_read_makes_it_start_from_scratch(waiting: Waiting) -> None:
    wrapper = waiting.start()
    waiting.waiter(wrapper)
    assert waiting.go(wrapper)["ready"] is False
    assert "FileNotFoundError" in waiting.log.read_text()


def test_a_shell_script_waits_in_the_wrapper_and_starts_as_ever(waiting: Waiting) -> None:
    waiting.learn("fractions")
    before = waiting.dir / "before"
    command = f"touch {before}; exec {sys.executable} {waiting.script}"
    wrapper = waiting.start("/bin/sh", "-c", command)
    wait_for(lambda: wrapper.stdin is not None and "rank_wrapper" in _words(wrapper.pid))
    assert not before.exists()
    assert waiting.go(wrapper)["ready"] is False
    assert before.exists()
    assert waiting.place.exit()["standby"] == "/bin/sh does not run a Python script"


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        ("python train.py", True),
        ("/opt/conda/bin/python3.12 -u -W ignore -X faulthandler train.py -c x", True),
        ("python -Wignore -m pkg.train", True),
        ("python -m torch.distributed.run train.py", False),
        ("python -I train.py", False),
        ("python -E train.py", False),
        ("python -c pass", False),
        ("python -", False),
        ("python", False),
        ("pythonic train.py", False),
        ("torchrun train.py", False),
        ("bash train.sh", False),
    ],
)
def test_which_commands_can_wait(command: str, fits: bool) -> None:
    assert suits(command.split()) is fits


@pytest.mark.long
def test_rank_0_writes_what_it_has_imported_after_some_steps(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "modules.json"
    code = f"""
import os, torch
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for step in range(6):
    parameter.grad = torch.ones(1)
    optimizer.step()
    print(os.path.exists({str(out)!r}), {paths.LEARN!r} in os.environ)
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    for rank in ("1", "0"):
        said, _ = place.start(
            sys.executable, str(script), flags=("--auto-beat", "--learn", str(out)), SLURM_PROCID=rank
        ).communicate(timeout=120)
    assert said.splitlines() == ["False True"] * 4 + ["True False"] * 2
    learned = json.loads(out.read_text())
    names = learned["modules"]
    assert learned["recoverable"] is False
    assert {"torch", "torch.optim.sgd"} <= names.keys()
    assert "__main__" not in names
