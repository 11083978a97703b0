"""contrib/: the sudo wrapper and the reader of the spool, on a real Slurm and with commands that misbehave.

sudo itself is left out: the wrapper knows of it only that SUDO_UID is set, which sudo does not let its caller choose.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser, require_slurm

from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.operator.drain import ask as ask_spool
from transom_cli.supervise.operator.drain import drain, reason

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
WHY = reason('xid: it\'s "Xid" 79; $(reboot)', "r1")


class Installed:
    """Both programs in one folder, as a site installs them: with its own ENVIRONMENT written into the wrapper."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.spool.chmod(0o1777)
        text = (CONTRIB / "transom-drain").read_text()
        lines = [f"ENVIRONMENT = {environment}" if x.startswith("ENVIRONMENT = ") else x for x in text.split("\n")]
        text = "\n".join(lines).replace("PATIENCE = 5", "PATIENCE = 3")
        (folder / "transom-drain").write_text(text.replace('"/var/lib/transom-drain"', repr(str(folder / "state"))))
        shutil.copy(CONTRIB / "transom-drain-spool", folder)
        for name in ("transom-drain", "transom-drain-spool"):
            (folder / name).chmod(0o755)

    def drain(self, uid: int | None, *words: str, **env: str) -> tuple[int, str]:
        sudo = {} if uid is None else {"SUDO_UID": str(uid)}
        full = {"PATH": os.environ["PATH"], **sudo, **env}
        argv = [str(self.folder / "transom-drain"), *words]
        done = subprocess.run(argv, env=full, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()

    def set(self, old: str, new: str) -> None:
        """Change a constant of the wrapper, as an administrator does."""
        program = self.folder / "transom-drain"
        assert old in program.read_text()
        program.write_text(program.read_text().replace(old, new))

    def waiting(self) -> list[str]:
        """The requests that have not been answered."""
        return sorted(path.name for path in self.spool.iterdir() if not path.name.startswith("."))

    def read_spool(self, *node: str) -> int:
        argv = [str(self.folder / "transom-drain-spool"), str(self.spool), *node]
        return subprocess.run(argv, env={}, timeout=60, check=False).returncode

    def request(self, name: str, text: str, owner: int = 0) -> Path:
        path = self.spool / name
        path.write_text(text)
        os.chown(path, owner, -1)
        return path


def with_uid(uid: int, why: str = "") -> str:
    """The reason as Slurm gets it."""
    return (why or WHY).replace("transom:", f"transom: uid {uid}:", 1)


# --- with Slurm's commands as stubs ---

NODE_UP = "NodeName=n2 Arch=x86_64 State=MIXED ThreadsPerCore=1"
STUBS = {
    "scontrol": """
if [ "$1" != show ]; then printf "%s\\n" "$@" >> "{0}/done"
elif [ $# = 3 ] && [ -e "{0}/now" ]; then cat "{0}/now"  # all nodes, a moment later
elif [ -e "{0}/nodes" ]; then grep "NodeName=${4:-.*} " "{0}/nodes"
else cat "{0}/node"
fi""",
    "squeue": 'env > "{0}/env"; cat "{0}/jobs"',
    "sacct": 'echo "Slurm accounting storage is disabled" >&2; exit 1',
}


class Stubbed(Installed):
    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        super().__init__(folder, {"PATH": f"{self.bin}:/usr/bin:/bin"})
        (folder / "node").write_text(NODE_UP + "\n")
        (folder / "jobs").write_text("1000 RUNNING\n")
        for name, body in STUBS.items():
            self.stub(name, body)

    def stub(self, name: str, body: str) -> None:
        (self.bin / name).write_text("#!/bin/bash\n" + body.replace("{0}", str(self.folder)) + "\n")
        (self.bin / name).chmod(0o755)

    @property
    def done(self) -> list[str]:
        path = self.folder / "done"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stubbed(tmp_path: Path) -> Stubbed:
    return Stubbed(tmp_path / "site")


def test_the_programs_run_on_the_python_of_old_distributions() -> None:
    for name in ("transom-drain", "transom-drain-spool"):
        assert ast.parse((CONTRIB / name).read_text(), feature_version=(3, 6)).body, name


def test_it_drains_with_the_reason_and_the_users_number(stubbed: Stubbed) -> None:
    status, result = stubbed.drain(1000, "n2", WHY)
    assert status == 0 and result.startswith("n2 is drained for user 1000")
    assert stubbed.done == ["update", "nodename=n2", "state=drain", f"reason={with_uid(1000)}"]


def test_nothing_of_the_callers_environment_reaches_slurm(stubbed: Stubbed) -> None:
    stubbed.drain(1000, "n2", WHY, SLURM_CONF="/tmp/mine", SQUEUE_FORMAT="1000 RUNNING", LD_LIBRARY_PATH="/tmp")
    names = {line.partition("=")[0] for line in (stubbed.folder / "env").read_text().splitlines()}
    assert names <= {"PATH", "PWD", "SHLVL", "_"}


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 2),
        (("n2",), 2),
        (("n2", WHY, "more"), 2),
        (("n2", "maintenance"), 2),
        (("n2", " transom: x"), 2),
        (("n2", "transom: two\nlines"), 2),
        (("n2", "transom: \x1b[2J"), 2),
        (("n2", "transom: " + "x" * 200), 2),
        (("n[1-9]", WHY), 2),
        (("n2,n3", WHY), 2),
        (("ALL extra=1", WHY), 2),
        (("-n2", WHY), 2),
        (("", WHY), 2),
        (("n2\n", WHY), 2),
    ],
)
def test_other_words_are_refused_before_slurm_is_asked(stubbed: Stubbed, words: tuple[str, ...], status: int) -> None:
    assert stubbed.drain(1000, *words)[0] == status
    assert stubbed.done == [] and not (stubbed.folder / "env").exists()


@pytest.mark.parametrize("uid", ["", "x", "-1", "10000000000000", "1000 "])
def test_without_sudo_nobody_is_served(stubbed: Stubbed, uid: str) -> None:
    assert stubbed.drain(None, "n2", WHY, SUDO_UID=uid)[0] == 2
    assert stubbed.done == []


@pytest.mark.parametrize(
    "jobs", ["", "10001 RUNNING\n", "1000 PENDING\n", "garbage \x00\xff\n" * 1000, "1000\nRUNNING\n"]
)
def test_only_for_a_job_of_the_caller(stubbed: Stubbed, jobs: str) -> None:
    (stubbed.folder / "jobs").write_text(jobs, encoding="latin-1")
    words = "no job of user 1000 runs on n2, or has left it within 600 s"
    assert stubbed.drain(1000, "n2", WHY) == (1, f"transom-drain: {words} (user 1000)")
    assert stubbed.done == []


def rows_of(words: str) -> str:
    """Rows of sacct at the moment of the request; -5 means five seconds ago."""
    now = int(time.time())
    return re.sub(r"(?<=\|)-(\d+)", lambda found: str(now - int(found[1])), words) + "\n"


NOTHING = "transom-drain: no job of user 1000 runs on n2, or has left it within 600 s (user 1000)"


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ("1000|-9000|-5", 0),
        ("1000|-9000|-500", 0),
        ("1000|-9000|-700", 1),  # sacct reports jobs that began before its window, too
        ("1001|-9000|-5", 1),  # another user's
        ("1000|Unknown|-5", 1),  # cancelled while it waited: it was never there
        ("1000|Unknown|Unknown", 1),
        ("1000|-9000|Unknown", 3),  # slurmdbd hears of an end late: neither yes nor no
        ("1000|-9000|Unknown\n1000|-60|-5", 0),
        ("10000|-9000|-5\n|1000|\n1000\n\x1b|||\n|-0|-0|1000", 1),
        ("", 1),
    ],
)
def test_a_job_that_has_just_left_the_node_counts_by_the_accounting_alone(
    stubbed: Stubbed, rows: str, status: int
) -> None:
    (stubbed.folder / "jobs").write_text("")
    (stubbed.folder / "rows").write_text(rows_of(rows))
    stubbed.stub("sacct", 'printf "%s\\n" "$SLURM_TIME_FORMAT" "$@" > "{0}/asked"; cat "{0}/rows"')
    code, words = stubbed.drain(1000, "n2", WHY)
    assert (code, bool(stubbed.done)) == (status, status == 0), words
    assert status != 1 or words == NOTHING
    requested = (stubbed.folder / "asked").read_text().splitlines()
    assert {"%s", "--nodelist=n2", "--starttime=now-600", "--format=UID,Start,End"} <= set(requested)


@pytest.mark.parametrize(("within", "asks"), [("0", ""), ("-5", ""), ("86400", "--starttime=now-3600")])
def test_how_long_is_the_sites_choice_within_bounds(stubbed: Stubbed, within: str, asks: str) -> None:
    program = stubbed.folder / "transom-drain"
    program.write_text(program.read_text().replace("ENDED_WITHIN = 600", f"ENDED_WITHIN = {within}"))
    (stubbed.folder / "jobs").write_text("1000 COMPLETING\n" if not asks else "")
    stubbed.stub("sacct", 'printf "%s\\n" "$@" > "{0}/asked"')
    assert stubbed.drain(1000, "n2", WHY)[0] == 1 and stubbed.done == []
    requested = stubbed.folder / "asked"
    assert (asks in requested.read_text().splitlines()) if asks else not requested.exists()


def test_a_job_that_is_just_leaving_the_node_counts(stubbed: Stubbed) -> None:
    (stubbed.folder / "jobs").write_text("1000 COMPLETING\n")
    assert stubbed.drain(1000, "n2", WHY)[0] == 0 and stubbed.done


@pytest.mark.parametrize(
    ("state", "status", "result"),
    [
        ("State=MIXED+DRAIN X=1\n   Reason=fans [ann@2026-01-01T10:00:00]", 3, "makes no sense"),
        ("State=MIXED+DRAIN X=1 Reason=fans, a=b [ann@2026-01-01T10:00:00]", 0, "drained already: fans, a=b"),
        ("State=IDLE*+DRAIN X=1 Reason=fans [ann@2026-01-01T10:00:00]", 0, "drained already: fans"),
        ("State=DOWN+DRAIN+NOT_RESPONDING X=1 Reason=fans [ann@2026-01-01T10:00:00]", 0, "drained already: fans"),
        ("State=DOWN* X=1 Reason=fans [ann@2026-01-01T10:00:00]", 1, "kept away already: fans"),
        ("State=DOWN X=1 Reason=fans [ann@2026-01-01T10:00:00]", 1, "kept away already: fans"),
        ("State=DOWN X=1 Reason=Not responding [slurm@2026-01-01T10:00:00]", 0, "is drained for user"),
        ("State=IDLE X=1 Reason=old, since resumed [ann@2026-01-01T10:00:00]", 0, "is drained for user"),
    ],
)
def test_what_others_keep_away_stays_as_it_is(stubbed: Stubbed, state: str, status: int, result: str) -> None:
    (stubbed.folder / "node").write_text(f"NodeName=n2 {state}\n")
    code, words = stubbed.drain(1000, "n2", WHY)
    assert (code, result in words) == (status, True), words
    assert bool(stubbed.done) == ("is drained for" in words)


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", 3),
        ("squeue", "exec sleep 30", 3),
        ("scontrol", "echo NodeName=n3 State=IDLE Reason=x", 3),
        ("scontrol", "head -c 100000 /dev/urandom", 3),
        ("scontrol", "echo 'Node n2 not found' >&2; exit 1", 1),
        ("scontrol", f"if [ $1 = show ]; then echo {NODE_UP}; else echo 'Invalid user id' >&2; exit 1; fi", 1),
    ],
)
def test_a_slurm_that_says_no_or_nothing(stubbed: Stubbed, name: str, body: str, status: int) -> None:
    stubbed.stub(name, body)
    code, words = stubbed.drain(1000, "n2", WHY)
    assert code == status and words.startswith("transom-drain: ") and words.isprintable()
    assert stubbed.done == []


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"])
def test_a_node_with_another_users_job_is_not_drained(stubbed: Stubbed, state: str) -> None:
    (stubbed.folder / "jobs").write_text(f"1000 RUNNING\n1001 {state}\n")
    words = "transom-drain: n2 is not drained: a job of another user is on it (user 1000)"
    assert stubbed.drain(1000, "n2", WHY) == (1, words)
    assert stubbed.done == []


def drained(site: Stubbed) -> list[str]:
    return [line.partition("=")[2] for line in site.done if line.startswith("nodename=")]


def up(site: Stubbed, *names: str) -> None:
    rows = [f"NodeName={name} Arch=x86_64 State=MIXED ThreadsPerCore=1\n" for name in names]
    (site.folder / "nodes").write_text("".join(rows))


def test_a_user_has_two_nodes_drained_within_an_hour_and_no_third(stubbed: Stubbed) -> None:
    up(stubbed, "n1", "n2", "n3", "n4")
    assert [stubbed.drain(1000, name, WHY)[0] for name in ("n1", "n2", "n3")] == [0, 0, 1]
    words = "user 1000 had 2 nodes drained within 3600 s, and may have 2"
    assert stubbed.drain(1000, "n4", WHY) == (1, f"transom-drain: {words} (user 1000)")
    (stubbed.folder / "jobs").write_text("1001 RUNNING\n")
    assert stubbed.drain(1001, "n3", WHY)[0] == 0, "another user's count is another's"
    assert drained(stubbed) == ["n1", "n2", "n3"]
    kept = stubbed.folder / "state" / "drains"
    kept.write_text(re.sub(r"^\d+", str(int(time.time()) - 3601), kept.read_text(), flags=re.MULTILINE))
    (stubbed.folder / "jobs").write_text("1000 RUNNING\n")
    assert stubbed.drain(1000, "n4", WHY)[0] == 0, "an hour later"


def test_the_administrator_sets_how_many(stubbed: Stubbed) -> None:
    up(stubbed, "n1", "n2")
    stubbed.set("MOST = 2", "MOST = 1")
    assert [stubbed.drain(1000, name, WHY)[0] for name in ("n1", "n2")] == [0, 1]


def test_a_drain_that_slurm_refused_does_not_count(stubbed: Stubbed) -> None:
    up(stubbed, "n1", "n2")
    body = STUBS["scontrol"]
    stubbed.stub("scontrol", f'[ "$1" = show ] || {{ echo "Invalid user id" >&2; exit 1; }}\n{body}')
    assert [stubbed.drain(1000, "n1", WHY)[0] for _ in range(4)] == [1] * 4
    stubbed.stub("scontrol", body)
    assert [stubbed.drain(1000, name, WHY)[0] for name in ("n1", "n2")] == [0, 0]


def test_what_other_hosts_drained_for_the_user_counts(stubbed: Stubbed) -> None:
    """It is in Slurm's reasons; what stands later in a reason is the user's own text."""
    at = int(time.time()) - 60
    rows = [f"NodeName={n} State=IDLE+DRAIN Reason=transom: uid 1000: x ({n}) [root@{at}]\n" for n in ("n7", "n8")]
    others = [f"NodeName=n9 State=IDLE+DRAIN Reason=transom: uid 1001: transom: uid 1002: x [root@{at}]\n"]
    (stubbed.folder / "now").write_text("".join([*rows, *others, "NodeName=n2 State=MIXED X=1\n"]))
    assert stubbed.drain(1000, "n2", WHY)[0] == 1 and stubbed.done == []
    stubbed.set("MOST = 2", "MOST = 1")
    (stubbed.folder / "jobs").write_text("1002 RUNNING\n")
    assert stubbed.drain(1002, "n2", WHY)[0] == 0


def test_requests_at_the_same_time_do_not_exceed_the_limit(stubbed: Stubbed) -> None:
    names = [f"n{number}" for number in range(1, 9)]
    up(stubbed, *names)
    stubbed.stub("squeue", 'sleep 0.2; cat "{0}/jobs"')
    program = str(stubbed.folder / "transom-drain")
    env = {"PATH": os.environ["PATH"], "SUDO_UID": "1000"}
    started = [subprocess.Popen([program, name, WHY], env=env, stderr=subprocess.DEVNULL) for name in names]
    codes = sorted(process.wait(60) for process in started)
    assert 1 <= codes.count(0) <= 2 and len(drained(stubbed)) == codes.count(0), codes


def test_a_reason_that_an_administrator_gives_meanwhile_is_not_overwritten(stubbed: Stubbed) -> None:
    (stubbed.folder / "now").write_text("NodeName=n2 State=MIXED+DRAIN X=1 Reason=fans, ticket 12 [ann@1767225600]\n")
    assert stubbed.drain(1000, "n2", WHY) == (0, "n2 is drained already: fans, ticket 12")
    assert stubbed.done == []


@pytest.mark.parametrize("what", ["mode", "damaged", "link"])
def test_without_a_trustworthy_count_nothing_is_drained(stubbed: Stubbed, what: str) -> None:
    state = stubbed.folder / "state"
    if what == "link":
        state.symlink_to(stubbed.folder / "bin")
    else:
        state.mkdir(mode=0o700)
        state.chmod(0o770 if what == "mode" else 0o700)
        (state / "drains").write_text("nonsense\n")
    code, words = stubbed.drain(1000, "n2", WHY)
    assert (code, stubbed.done) == (3, []) and str(state) in words


def good(node: str = "n2", **other: object) -> str:
    return json.dumps({"version": 1, "node": node, "reason": WHY, **other})


@pytest.mark.root
class TestSpool:
    """Run by root: requests of several users."""

    @pytest.fixture(autouse=True)
    def as_root(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root: requests count as their files' owners' words")

    def test_a_request_is_its_owners_word(self, stubbed: Stubbed) -> None:
        stubbed.request("n2.1000.json", good(), owner=2000)
        assert stubbed.read_spool() == 0
        assert stubbed.done == [] and stubbed.waiting() == [], "whatever its name says"
        stubbed.request("n2.2000.json", good(), owner=1000)
        assert stubbed.read_spool() == 0
        assert stubbed.done[1] == "nodename=n2" and stubbed.waiting() == []

    def test_what_transom_writes_is_read(self, stubbed: Stubbed) -> None:
        (stubbed.folder / "jobs").write_text("1001 RUNNING\n")
        os.chown(ask_spool(stubbed.spool, "n2", WHY), 1001, -1)
        stubbed.read_spool()
        assert stubbed.done == ["update", "nodename=n2", "state=drain", f"reason={with_uid(1001)}"]

    @pytest.mark.parametrize(
        "text",
        [
            "", "{", "[]", "[" * 4000, "\xff", good("n2,n3"), good("../n2"), good(reason="mine"), good(version=2),
            good(version="1"), good(node=7), good(pad="x" * 5000), json.dumps({"version": 1}),
        ],
    )  # fmt: skip
    def test_what_is_no_request_is_removed(self, stubbed: Stubbed, text: str) -> None:
        stubbed.request("n2.1000.json", text, owner=1000)
        assert stubbed.read_spool() == 0
        assert stubbed.done == [] and stubbed.waiting() == []

    def test_links_pipes_and_folders_lead_nowhere(self, stubbed: Stubbed, tmp_path: Path) -> None:
        target = tmp_path / "theirs"
        target.write_text(good())
        os.chown(target, 1000, -1)
        (stubbed.spool / "soft.json").symlink_to(target)
        (stubbed.spool / "hard.json").hardlink_to(target)
        os.mkfifo(stubbed.spool / "pipe.json")
        (stubbed.spool / "folder.json").mkdir()
        (stubbed.spool / ".n2.tmp").write_text("half")
        assert stubbed.read_spool() == 0
        assert stubbed.done == [] and target.read_text() == good()
        assert stubbed.waiting() == [] and (stubbed.spool / ".n2.tmp").exists()

    def test_a_node_reads_its_own_requests_alone(self, stubbed: Stubbed) -> None:
        stubbed.request("n2.1000.json", good(), owner=1000)
        stubbed.request("bad.json", "{")
        assert stubbed.read_spool("n1") == 0
        assert stubbed.done == [] and len(stubbed.waiting()) == 2
        assert stubbed.read_spool("n2") == 0
        assert stubbed.done and stubbed.waiting() == ["bad.json"]

    def test_it_waits_for_a_slurm_that_does_not_answer(self, stubbed: Stubbed) -> None:
        stubbed.stub("squeue", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
        path = stubbed.request("n2.1000.json", good(), owner=1000)
        assert stubbed.read_spool() == 0 and path.exists() and stubbed.done == []
        stubbed.stub("squeue", STUBS["squeue"])
        assert stubbed.read_spool() == 0 and not path.exists() and stubbed.done

    def test_a_job_that_has_left_the_node_counts_where_there_is_accounting(self, stubbed: Stubbed) -> None:
        (stubbed.folder / "jobs").write_text("")
        (stubbed.folder / "rows").write_text(rows_of("1000|-900|Unknown"))
        stubbed.stub("sacct", 'cat "{0}/rows"')
        path = stubbed.request("n2.json", good(), owner=1000)
        assert stubbed.read_spool() == 0 and path.exists() and stubbed.done == [], "slurmdbd has not heard of its end"
        (stubbed.folder / "rows").write_text(rows_of("1000|-900|-0"))
        assert stubbed.read_spool() == 0 and not path.exists() and stubbed.done

    @pytest.mark.parametrize("kind", ["folder", "link", "pipe", "hard link", "large", "anothers"])
    def test_what_another_user_plants_under_a_users_name_blocks_no_request(
        self, short_dir: Path, ordinary_user: OrdinaryUser, kind: str
    ) -> None:
        stubbed = Stubbed(short_dir / f"planted-{kind}")
        uid, path = ordinary_user.uid, stubbed.spool / f"n2.{ordinary_user.uid}.json"
        secret = stubbed.folder / "secret"
        secret.write_text(good())
        secret.chmod(0o600)
        if kind == "folder":
            (path / "full").mkdir(parents=True)
        elif kind == "link":
            path.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "hard link":
            path.hardlink_to(secret)
        else:
            path.write_text("x" * (1 << 20) if kind == "large" else good(reason="mine"))
        os.chown(path, 4242, -1, follow_symlinks=False)
        (stubbed.folder / "jobs").write_text(f"{uid} RUNNING\n")
        ordinary_user.call(lambda: ask_spool(stubbed.spool, "n2", WHY) and None)
        assert stubbed.read_spool() == 0
        assert stubbed.done == ["update", "nodename=n2", "state=drain", f"reason={with_uid(uid)}"]
        assert stubbed.waiting() == [] and secret.read_text() == good()
        assert secret.stat().st_mode & 0o777 == 0o600

    def test_a_user_with_many_requests_does_not_keep_others_waiting(self, stubbed: Stubbed) -> None:
        for number in range(100):
            stubbed.request(f"n{number}.json", good(f"n{number}"), owner=1000)
        up(stubbed, *(f"n{number}" for number in range(100)))
        stubbed.request("z.json", good(), owner=1001)
        stubbed.stub("squeue", 'echo >> "{0}/asked"; echo 1001 RUNNING')
        assert stubbed.read_spool() == 0
        assert drained(stubbed) == ["n2"] and stubbed.waiting() == []
        assert len((stubbed.folder / "asked").read_text().splitlines()) <= 9, "the rest is removed unread"

    def test_the_limit_holds_for_requests_too(self, stubbed: Stubbed) -> None:
        up(stubbed, "n1", "n2", "n3", "n4")
        for name in ("n1", "n2", "n3", "n4"):
            stubbed.request(f"{name}.1000.json", good(name), owner=1000)
        for name in ("n1", "n2", "n3", "n4"):
            assert stubbed.read_spool(name) == 0
        assert len(drained(stubbed)) == 2 and stubbed.waiting() == []

    @pytest.mark.parametrize("kind", ["folder", "file", "link"])
    def test_a_planted_state_folder_is_not_used(self, stubbed: Stubbed, tmp_path: Path, kind: str) -> None:
        planted = stubbed.spool / ".transom-drain"
        if kind == "folder":
            (planted / "drains").mkdir(parents=True)
        elif kind == "file":
            planted.write_text("")
        else:
            planted.symlink_to(tmp_path)
        os.chown(planted, 4242, -1, follow_symlinks=False)
        stubbed.request("n2.1000.json", good(), owner=1000)
        assert stubbed.read_spool() == 0 and drained(stubbed) == ["n2"]
        assert planted.lstat().st_uid == 0 and planted.is_dir()

    def test_a_second_reader_leaves_the_spool_to_the_first(self, stubbed: Stubbed) -> None:
        stubbed.request("n2.1000.json", good(), owner=1000)
        stubbed.stub("squeue", 'sleep 1; cat "{0}/jobs"')
        argv = [str(stubbed.folder / "transom-drain-spool"), str(stubbed.spool)]
        started = [subprocess.Popen(argv, env={}) for _ in range(3)]
        assert [process.wait(60) for process in started] == [0, 0, 0]
        assert drained(stubbed) == ["n2"]

    @pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 4242)])
    def test_a_spool_that_is_not_roots_alone_is_not_served(self, stubbed: Stubbed, mode: int, owner: int) -> None:
        stubbed.request("n2.1000.json", good(), owner=1000)
        stubbed.spool.chmod(mode)
        os.chown(stubbed.spool, owner, -1)
        assert stubbed.read_spool() == 1 and stubbed.done == []

    def test_no_such_spool(self, stubbed: Stubbed) -> None:
        stubbed.spool.rmdir()
        assert stubbed.read_spool() == 1


# --- on a real Slurm, for a user without rights ---


@pytest.fixture
def real(healed_sandbox: Sandbox, ordinary_user: OrdinaryUser, short_dir: Path) -> Iterator[Installed]:
    folder = short_dir / "contrib"
    folder.mkdir()
    yield Installed(folder, {"PATH": os.environ["PATH"], **healed_sandbox.env()})
    shutil.rmtree(folder)


def start(sandbox: Sandbox, user: OrdinaryUser, node: str) -> str:
    """A running job of the user on the node; its id."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", f"--nodelist={node}", "--wrap=sleep 300"]
    done = user.run(argv, sandbox.env())
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    deadline = time.monotonic() + 30
    while sandbox.slurm("squeue", "-h", "-j", job, "-o", "%T").strip() != "RUNNING":
        assert time.monotonic() < deadline, sandbox.slurm("squeue")
        time.sleep(0.1)
    return job


@pytest.mark.sandbox
@pytest.mark.root
def test_a_user_has_the_nodes_of_his_own_job_drained(
    healed_sandbox: Sandbox, ordinary_user: OrdinaryUser, real: Installed
) -> None:
    sandbox, uid = healed_sandbox, ordinary_user.uid
    start(sandbox, ordinary_user, "node2")
    denied = ordinary_user.run(["scontrol", "update", "nodename=node2", "state=drain", "reason=x"], sandbox.env())
    assert denied.returncode != 0 and "Invalid user id" in denied.stderr
    assert real.drain(uid, "node1", WHY)[0] == 1, "none of his jobs runs there"
    assert real.drain(0, "node2", WHY)[0] == 1, "nor has anybody else one"
    assert real.drain(uid, "node9", WHY)[0] == 1
    status, result = real.drain(uid, "node2", WHY)
    assert status == 0, result
    row = next(row for row in sandbox.nodes() if row.name == "node2")
    assert (row.state, row.reason) == ("draining", with_uid(uid))
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=resume")
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=fans, ticket 12")
    status, result = real.drain(uid, "node2", WHY)
    assert status == 0 and result == "node2 is drained already: fans, ticket 12"


@pytest.mark.long
@pytest.mark.sandbox
@pytest.mark.root
def test_a_user_with_a_core_on_each_of_four_nodes_drains_no_other_users_and_few_own(
    healed_sandbox: Sandbox, ordinary_user: OrdinaryUser, real: Installed
) -> None:
    sandbox, uid = healed_sandbox, ordinary_user.uid
    for node in ("node1", "node2"):
        sandbox.slurm("sbatch", "--output=/dev/null", "-n1", f"--nodelist={node}", "--wrap=sleep 300")
    for node in ("node1", "node2", "node3", "node4"):
        start(sandbox, ordinary_user, node)
    deadline = time.monotonic() + 30
    while len(sandbox.slurm("squeue", "-h", "-t", "RUNNING").splitlines()) < 6:
        assert time.monotonic() < deadline, sandbox.slurm("squeue")
        time.sleep(0.2)
    for node in ("node1", "node2"):
        code, words = real.drain(uid, node, WHY)
        assert code == 1 and "a job of another user is on it" in words
    real.set("MOST = 2", "MOST = 1")
    assert [real.drain(uid, node, WHY)[0] for node in ("node3", "node4")] == [0, 1]
    (real.folder / "state" / "drains").unlink()
    code, words = real.drain(uid, "node4", WHY)
    assert code == 1 and "had 1 nodes drained" in words, "another host knows it from Slurm"
    assert {row.name: row.state for row in sandbox.nodes()} == {
        "node1": "mixed", "node2": "mixed", "node3": "draining", "node4": "mixed",
    }  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.root
def test_a_request_of_a_user_is_answered(healed_sandbox: Sandbox, ordinary_user: OrdinaryUser, real: Installed) -> None:
    start(healed_sandbox, ordinary_user, "node3")
    for node in ("node3", "node4"):
        os.chown(ask_spool(real.spool, node, WHY), ordinary_user.uid, -1)
    assert real.read_spool() == 0 and real.waiting() == []
    rows = {row.name: row for row in healed_sandbox.nodes()}
    assert (rows["node3"].state, rows["node3"].reason) == ("draining", with_uid(ordinary_user.uid))
    assert rows["node4"].state == "idle", "none of his jobs runs there"


@pytest.mark.sandbox
@pytest.mark.root
def test_the_node_that_a_users_job_was_requeued_away_from(ordinary_user: OrdinaryUser, short_dir: Path) -> None:
    require_slurm(accounting=True)
    sandbox = Sandbox.up(SandboxSpec(short_dir / "left", nodes=2, accounting=True))
    try:
        folder = short_dir / "left-contrib"
        folder.mkdir()
        real = Installed(folder, {"PATH": os.environ["PATH"], **sandbox.env()})
        job = start(sandbox, ordinary_user, "node2")
        sandbox.slurm("scontrol", "requeuehold", job)
        deadline, ask = time.monotonic() + 60, ("sacct", "-D", "-X", "-n", "-P", "-o", "State,End", "-j", job)
        while sandbox.slurm("squeue", "-h", "-w", "node2") or "REQUEUED|2" not in sandbox.slurm(*ask):
            assert time.monotonic() < deadline, sandbox.slurm(*ask)
            time.sleep(0.2)
        assert real.drain(ordinary_user.uid, "node1", WHY)[0] == 1, "it was never there"
        assert real.drain(ordinary_user.uid + 1, "node2", WHY)[0] == 1, "it was another's"
        for node in ("node1", "node2"):
            os.chown(ask_spool(real.spool, node, WHY), ordinary_user.uid, -1)
        assert real.read_spool() == 0 and real.waiting() == []
        assert {row.name: row.state for row in sandbox.nodes()} == {"node1": "idle", "node2": "drained"}
    finally:
        sandbox.down()


@pytest.mark.sandbox
@pytest.mark.root
def test_the_whole_ladder_of_a_user_without_rights(
    healed_sandbox: Sandbox, ordinary_user: OrdinaryUser, real: Installed
) -> None:
    """`env SUDO_UID=...` stands in for sudo, and root for the command that sudo starts."""
    uid = ordinary_user.uid
    env = {"PATH": os.environ["PATH"], "HOME": str(ordinary_user.home), **healed_sandbox.env()}
    as_user = ("setpriv", f"--reuid={uid}", f"--regid={ordinary_user.gid}", "--clear-groups", "--inh-caps=-all")
    slurm = CliSlurm(Runner(env=env, prefix=as_user, timeout=15))
    command = ("env", f"SUDO_UID={uid}", str(real.folder / "transom-drain"))
    start(healed_sandbox, ordinary_user, "node1")
    assert drain(slurm, command, "node1", WHY) == ("drained", f"by the site's command: {' '.join(command)}")
    assert drain(slurm, command, "node1", reason("again", "r2")) == ("drained", ""), "as it was"
    how, detail = drain(slurm, command, "node2", WHY, real.spool)
    assert how == "excluded" and detail.startswith("asked the administrators")
    assert "Invalid user id" in detail and f"no job of user {uid} runs on node2" in detail
    assert {row.name: row.state for row in healed_sandbox.nodes()} == {
        "node1": "draining", "node2": "idle", "node3": "idle", "node4": "idle",
    }  # fmt: skip
