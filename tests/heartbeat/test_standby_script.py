"""The script of a standby runs up to the call of its training function, under the real wrapper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_place import Place
from test_standby import Waiting

from transom_cli.supervise.agent.standby import REPORT

# What a script does before its training function, and then in it.
SCRIPT = """
import json, os, random, signal, sys
from pathlib import Path
from transom_cli.heartbeat import paths
random.seed(7)
print("built", flush=True)
{code}
paths.await_rank("the call of train")  # as the decorator does
usr1, usr2 = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGUSR2)
names = ("MASTER_PORT", "RANK", "TRANSOM_STANDBY", "OWN")
print(json.dumps({{
    "env": {{name: os.environ.get(name) for name in names}}, "main": __name__, "pid": os.getpid(),
    "signals": [usr1 == signal.SIG_DFL, usr2 == signal.SIG_IGN], "random": random.random(),
    "oom": Path("/proc/self/oom_score_adj").read_text(),
    "input": sys.stdin.read(), "hidden": paths.sys.modules.get("transom_standby") is None,
}}), flush=True)
"""


class Running(Waiting):
    """A wrapper whose standby runs its script."""

    def __init__(self, place: Place, tmp_path: Path) -> None:
        super().__init__(place, tmp_path)
        self.out = tmp_path / "out"
        self.recoverable = True

    def begin(self, code: str = "", **env: str) -> subprocess.Popen[str]:
        self.script.write_text(SCRIPT.format(code=code))
        self.modules.write_text(json.dumps({"modules": {}, "recoverable": self.recoverable}))
        flags = ("--auto-beat", "--standby", str(self.modules), "--run-script")
        command = (sys.executable, str(self.script))
        return self.place.start(*command, flags=flags, MASTER_PORT="0", **env)

    def report(self, wrapper: subprocess.Popen[str]) -> dict[str, str]:
        """What the standby says when it waits."""
        assert wrapper.stdout is not None
        line = wrapper.stdout.readline()
        assert line.startswith(REPORT), line
        return dict(json.loads(line[len(REPORT) :]))


@pytest.fixture
def running(place: Place, tmp_path: Path) -> Iterator[Running]:
    made = Running(place, tmp_path)
    yield made
    for one in place.started:
        one.kill()


def test_it_waits_at_the_call_and_goes_on_from_there(running: Running) -> None:
    wrapper = running.begin()
    said = running.report(wrapper)
    assert said["at"] == "before the call of train in train.py, line 8"
    assert (said["rank"], said["launch"], said["node"], said["why"], said["failed"]) == (3, 2, "nodeX", "", "")
    pid = running.waiter(wrapper)
    score = Path(f"/proc/{pid}/oom_score_adj")
    assert score.read_text() == "1000\n", "the kernel ends it before a rank"
    os.kill(pid, signal.SIGUSR1)
    assert not running.log.exists(), "what it prints is kept back"
    found = running.go(wrapper)
    assert running.log.read_text().splitlines()[0] == "built"
    assert found["env"] == {"MASTER_PORT": "4711", "RANK": "3", "TRANSOM_STANDBY": None, "OWN": None}
    assert (found["main"], found["pid"], found["signals"]) == ("__main__", pid, [True, True])
    assert (found["input"], found["hidden"]) == ("", True)
    assert found["oom"] == Path("/proc/self/oom_score_adj").read_text()
    assert found["random"] == 0.32383276483316237, "as in any process with this seed"
    assert (running.place.exit()["code"], running.place.exit()["standby"]) == (0, "used")


def test_a_launch_that_begins_first_is_joined_when_the_script_is_there(running: Running) -> None:
    wrapper = running.begin("import time; time.sleep(0.3)")
    pid = running.waiter(wrapper)
    found = running.go(wrapper)
    assert (found["pid"], found["env"]["MASTER_PORT"]) == (pid, "4711")  # type: ignore[index]
    assert running.place.exit()["standby"] == "used"


@pytest.mark.parametrize(
    ("code", "before"),
    [
        ("print(os.environ['MASTER_PORT'])", "reading MASTER_PORT"),
        ("print('MASTER_PORT' in os.environ and dict(os.environ)['MASTER_PORT'])", "reading MASTER_PORT"),
        ("Path(os.environ['OUT']).write_text(os.environ.get('MASTER_PORT')); print(4711)", "reading MASTER_PORT"),
        ("Path(os.environ['OUT']).write_text('x'); print(4711)", "changing {out}"),
        ("Path(os.environ['OUT']).mkdir(); print(4711)", "changing {out}"),
        ("list(Path(os.environ['TRANSOM_ATTEMPT_DIR']).iterdir()); print(4711)", "a look at {attempt}"),
        ("if os.fork() == 0: os._exit(0)\nprint(4711)", "forking"),
        (
            "import socket\ntry: socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError: print(4711)",
            "opening a connection",
        ),
    ],
)
def test_it_waits_before_what_only_the_rank_may_do(running: Running, code: str, before: str) -> None:
    wrapper = running.begin(code, OUT=str(running.out))
    said = running.report(wrapper)
    what = before.format(out=running.out, attempt=running.place.attempt.path)
    assert said["at"].startswith(f"before {what} in train.py, line ")
    assert not running.out.exists()
    pid = running.waiter(wrapper)
    found = running.go(wrapper)
    assert (found["pid"], running.log.read_text().splitlines()[1]) == (pid, "4711")
    assert running.place.exit()["standby"] == "used"


def test_caches_programs_and_known_variables_do_not_stop_it(running: Running) -> None:
    cache = running.dir / "model_cache"
    code = f"import subprocess; subprocess.run(['true'], check=True); Path({str(cache)!r}).mkdir()\n"
    code += (
        f"Path({str(cache)!r}, 'x').write_text(os.environ['RANK']); os.makedirs({str(running.dir)!r}, exist_ok=True)"
    )
    wrapper = running.begin(code)
    assert running.report(wrapper)["at"].startswith("before the call of train")
    assert (cache / "x").read_text() == "3"


def test_a_value_that_the_script_has_set_stays(running: Running) -> None:
    wrapper = running.begin("os.environ['OWN'] = '1'; os.environ['MASTER_PORT'] = '99'")
    running.report(wrapper)
    env = running.go(wrapper)["env"]
    assert (env["OWN"], env["MASTER_PORT"]) == ("1", "99")  # type: ignore[index]


THREAD = """
import threading
print('own', 'OWN' in os.environ, os.getcwd(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
os.environ['OWN'] = 'left'
os.chdir('/')
signal.signal(signal.SIGTERM, signal.SIG_IGN)
thread = threading.Thread(target=lambda: os.environ.get('MASTER_PORT'))
thread.start()
thread.join()
"""


def test_a_thread_that_reads_the_rendezvous_makes_it_start_from_scratch(running: Running) -> None:
    wrapper = running.begin(THREAD)
    why = "a thread waits before reading MASTER_PORT in train.py, line "
    assert running.report(wrapper)["why"].startswith(why)
    pid = running.waiter(wrapper)
    found = running.go(wrapper)
    assert (found["pid"], found["env"]["MASTER_PORT"]) == (pid, "4711")  # type: ignore[index]
    text = running.log.read_text()
    assert f"starts from scratch, not from its standby: {why}" in text and text.count("built") == 1
    assert f"own False {Path.cwd()} True" in text, "nothing of the first try is left"
    assert str(running.place.exit()["standby"]).startswith(why)


def test_a_script_that_fails_is_replaced_by_a_standby_that_only_imports(running: Running) -> None:
    code = f"if not os.path.exists({str(running.out)!r}): raise ValueError('no data')"
    wrapper = running.begin(code)
    failed = running.report(wrapper)
    assert failed["failed"] == "its script has ended: ValueError: no data"
    ready = running.report(wrapper)
    assert (ready["at"], ready["why"], ready["failed"]) == ("", "", "")
    running.out.write_text("")
    pid = running.waiter(wrapper)
    assert running.go(wrapper)["pid"] == pid
    assert running.log.read_text().splitlines()[0] == "built"
    assert (running.place.exit()["code"], running.place.exit()["standby"]) == (0, "used")


def test_without_a_launch_it_ends_where_it_waits(running: Running) -> None:
    wrapper = running.begin(f"Path({str(running.out)!r}).write_text('x')")
    running.report(wrapper)
    wrapper.communicate(timeout=60)
    assert wrapper.returncode == 0
    assert not running.out.exists() and not running.log.exists()


def test_a_training_that_is_not_recoverable_does_not_run_beforehand(running: Running) -> None:
    running.recoverable = False
    wrapper = running.begin("print('x')")
    said = running.report(wrapper)
    assert (said["at"], said["why"]) == ("", "")
