"""What a user's script gets in its environment, and whether nodes can see the run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

import transom_cli
from transom_cli.errors import UsageError
from transom_cli.submit.inputs import mount_of, root_warning
from transom_cli.submit.submission import refuse_caller, replace_sbatch_variables, sbatch_variables, script_environment

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /dev/shm rw shared:5 - tmpfs tmpfs rw
31 22 0:27 / /home rw - nfs4 server:/home rw
32 31 0:28 / /home/my\\040scratch rw - tmpfs tmpfs rw
33 22 0:29 / /var/lib rw - overlay overlay rw
34 22 0:30 / /dev/shm rw - ext4 /dev/sdb rw
garbage
"""


def test_only_the_run_without_automatic_beats() -> None:
    environ = {"PYTHONPATH": "/x"}
    assert script_environment(Path("/r"), False, environ) == {
        "TRANSOM_RUN_DIR": "/r",
        "TRANSOM_CHECKPOINT_DIR": "/r/checkpoints",
        "GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=262144",
    }
    assert script_environment(Path("/r"), False, {}, checkpoints=Path("/c"))["TRANSOM_CHECKPOINT_DIR"] == "/c"


def test_the_hook_comes_first_and_a_checkout_last() -> None:
    made = script_environment(Path("/r"), True, {"PYTHONPATH": "/a::/b:/a"}, package=Path("/src/transom_cli"))
    assert made["PYTHONPATH"] == "/src/transom_cli/heartbeat/auto:/a:/b:/src"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_environments_packages_are_not_pressed_on_another_python(folder: str) -> None:
    package = Path(f"/venv/lib/{folder}/transom_cli")
    assert script_environment(Path("/r"), True, {}, package=package)["PYTHONPATH"] == f"{package}/heartbeat/auto"


def test_a_colon_in_the_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="PYTHONPATH cannot contain"):
        script_environment(Path("/r"), True, {}, package=Path("/a:b/transom_cli"))


def test_another_python_of_the_job_finds_the_beats(tmp_path: Path) -> None:
    """An isolated environment without transom, as a user's own would be."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    added = script_environment(tmp_path / "run", True, {})
    program = "import transom_cli.heartbeat.client as c; print(c.__file__)"
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", program],
        env={"PATH": os.environ["PATH"], **added},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(Path(transom_cli.__file__).resolve().parent / "heartbeat" / "client.py"), (
        done.stderr
    )


def test_the_callers_own_variables_of_sbatch_are_kept_but_for_what_the_script_says() -> None:
    theirs = {
        "SBATCH_QOS": "high",
        "SBATCH_PARTITION": "p",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_REQ_SWITCH": "1",
        "A": "b",
    }
    assert sbatch_variables(theirs) == {k: v for k, v in theirs.items() if k != "A"}
    answered = sbatch_variables({**theirs, "SBATCH_JOB_NAME": "x"}, ["partition", "time", "switches", "job-name"])
    assert answered == {"SBATCH_QOS": "high"}
    elsewhere = {"SBATCH_ACCOUNT": "theirs", "SBATCH_QOS": "low", "PATH": "/bin"}
    replace_sbatch_variables(elsewhere, answered)
    assert elsewhere == {"SBATCH_QOS": "high", "PATH": "/bin"}


def test_an_array_by_variable_is_refused() -> None:
    refuse_caller({"SBATCH_ARRAY_INX": ""})
    with pytest.raises(UsageError, match="SBATCH_ARRAY_INX") as caught:
        refuse_caller({"SBATCH_ARRAY_INX": "1-3"})
    assert "unset SBATCH_ARRAY_INX" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc", ("/", "ext4")),
        ("/home/me/runs", ("/home", "nfs4")),
        ("/home/my scratch/x", ("/home/my scratch", "tmpfs")),
        ("/home/my scratchy", ("/home", "nfs4")),
        ("/dev/shm/x", ("/dev/shm", "ext4")),
        ("/var/lib", ("/var/lib", "overlay")),
    ],
)
def test_the_mount_that_holds_a_path(path: str, expected: tuple[str, str]) -> None:
    assert mount_of(PurePath(path), MOUNTS) == expected


def test_a_node_local_folder_is_warned_of(tmp_path: Path) -> None:
    def table(kind: str) -> str:
        return f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {tmp_path} rw - {kind} none rw\n"

    root = tmp_path / "not" / "there" / "yet"
    warning = root_warning(root, table("tmpfs"))
    assert warning and str(root) in warning and "tmpfs" in warning and "--root" in warning
    assert root_warning(root, table("overlay")) and root_warning(root, table("ramfs"))
    assert root_warning(root, table("nfs4")) is None and root_warning(root, "") is None


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_this_machines_own_memory_folder() -> None:
    assert "/dev/shm" in (root_warning(Path("/dev/shm/x/y")) or "")


HOME_MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
31 22 0:27 / /home rw - nfs4 server:/home rw
32 22 0:28 / /scratch rw - lustre mds:/scratch rw
33 22 0:29 / /local rw - ext4 /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("root", "home", "warned"),
    [
        ("/home/me/.transom", "/home/me", True),
        ("/home/runs", "/home/me", True),
        ("/scratch/me/runs", "/home/me", False),
        ("/scratch/me/runs", "/scratch/me", True),
        ("/local/me/.transom", "/local/me", False),
        ("/root/.transom", "/root", False),
    ],
)
def test_run_root_on_the_home_file_system_is_warned_of(root: str, home: str, warned: bool) -> None:
    warning = root_warning(Path(root), HOME_MOUNTS, Path(home))
    assert (warning is not None) is warned, warning
    assert warning is None or ("home directories" in warning and "--root" in warning)


def test_a_diskless_login_node_is_no_home(tmp_path: Path) -> None:
    table = "1 0 0:9 / / rw - nfs4 server:/image rw\n"
    assert root_warning(Path("/scratch/x"), table, Path("/home/me")) is None
    assert root_warning(Path("/home/me/x"), table, Path("/home/me")) is not None
