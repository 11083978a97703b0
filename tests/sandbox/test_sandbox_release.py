"""Another release's Slurm in a folder: built once, noticed when it was not built to its end, refused when unknown.

The packages are made up here, with programs that are scripts; the last test takes real ones.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.release import obtain, packages
from transom_cli.sandbox.release import obtain as pyslurm
from transom_cli.sandbox.release import packages as mirror
from transom_cli.sandbox.release.known import RELEASES, ReleaseHome, check_mirror, check_slurm, find_release
from transom_cli.sandbox.release.packages import Building, _programs
from transom_cli.sandbox.tools import find_tools

LIB = "usr/lib/x86_64-linux-gnu"
Pack = Callable[..., Path]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """A package of these files (path: text), as `dpkg-deb --build` makes it."""

    def pack(name: str, files: dict[str, str]) -> Path:
        tree = tmp_path / "trees" / name
        for path, text in {"DEBIAN/control": _control(name), **files}.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
            (tree / path).chmod(0o4755 if path.startswith("usr/") else 0o644)
        subprocess.run(["dpkg-deb", "--build", str(tree), str(tmp_path / f"{name}_1_all.deb")], check=True,
                       capture_output=True)  # fmt: skip
        return tmp_path / f"{name}_1_all.deb"

    return pack


def _control(name: str) -> str:
    return f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <x@example.org>\nDescription: made up\n"


@pytest.fixture
def archive(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In place of a Debian mirror: Slurm 24.11 as two packages. How often they were fetched."""
    debs = [
        pack("slurmctld", {"usr/sbin/slurmctld-wlm": "#!/bin/sh\necho slurm-wlm 24.11.5\n"}),
        pack("slurm-client", {"usr/bin/squeue": "#!/bin/sh\n", "usr/share/doc/x/readme": "long"}),
        pack("libslurm", {f"{LIB}/slurm-wlm/libslurmfull.so": "", "usr/bin/other": "#!/bin/sh\n"}),
    ]
    fetched: list[int] = []

    def fetch(building: Building, release: object, url: str) -> list[Path]:
        assert url == "http://mirror.example/debian"
        fetched.append(1)
        return debs

    monkeypatch.setattr(packages, "fetch", fetch)
    monkeypatch.setattr(mirror, "host_mirror", lambda: "http://mirror.example/debian")
    monkeypatch.setattr(obtain, "relocate", lambda *_: None)
    return fetched


def build(name: str, folder: Path, said: list[str] | None = None) -> obtain.Obtained:
    return obtain.obtain(name, folder, (said if said is not None else []).append)


def test_built_once_and_used_ever_after(archive: list[int], tmp_path: Path) -> None:
    said: list[str] = []
    got = build("trixie", tmp_path / "r", said)
    home = got.home
    assert got.slurm == "24.11" and len(archive) == 1 and "fetching Slurm of Debian trixie" in said[0]
    assert sorted(p.name for p in home.bin.iterdir()) == ["slurmctld", "squeue"], "and nothing that hides the machine's"
    assert not (home.root / "usr/share/doc").exists() and (home.root / "usr/bin/other").exists()
    assert not (home.root / "usr/sbin/slurmctld").stat().st_mode & 0o6000, "no setuid bit is taken over"
    assert not (home.path / "scratch").exists()
    said.clear()
    assert build("trixie", tmp_path / "r", said) == got and said == [] and len(archive) == 1


@pytest.mark.parametrize("left", ["nothing", "half", "a moved folder", "an odd marker"])
def test_interrupted_build_is_repeated(archive: list[int], tmp_path: Path, left: str) -> None:
    folder = tmp_path / "r"
    home = ReleaseHome(folder / "trixie")
    if left == "a moved folder":
        build("trixie", tmp_path / "elsewhere")
        (tmp_path / "elsewhere").rename(folder)
    elif left != "nothing":
        (home.root / "usr" / "bin").mkdir(parents=True)
        (home.path / "scratch" / "apt").mkdir(parents=True)
        home.bin.mkdir()
        (home.bin / "squeue").symlink_to("/nowhere")
        (home.path / "built.json").write_text('{"schema": 1, "sl' if left == "an odd marker" else "")
    assert build("trixie", folder).home == home
    assert (home.bin / "slurmctld").exists() and (home.bin / "squeue").exists()
    assert len(archive) == (2 if left == "a moved folder" else 1)


def test_deleted_release_is_rebuilt(archive: list[int], tmp_path: Path) -> None:
    """As a cache is cleared of what nobody has used for long."""
    assert obtain.find_built("trixie", tmp_path / "r") is None
    home = build("trixie", tmp_path / "r").home
    assert obtain.find_built("trixie", tmp_path / "r") == home
    packages.remove_tree(home.root)
    assert (home.path / "built.json").exists() and obtain.find_built("trixie", tmp_path / "r") is None
    build("trixie", tmp_path / "r")
    assert (home.bin / "slurmctld").exists() and len(archive) == 2


def test_a_second_builder_waits_and_builds_nothing(archive: list[int], tmp_path: Path) -> None:
    folder, said, waits = tmp_path / "r", list[str](), threading.Event()
    (folder / "trixie").mkdir(parents=True)

    def say(words: str) -> None:
        said.append(words)
        waits.set()

    with (folder / "trixie" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: obtain.obtain("trixie", folder, say))
        second.start()
        assert waits.wait(30) and "another process is building" in said[0] and archive == []
    second.join(60)
    assert len(archive) == 1 and build("trixie", folder).slurm == "24.11" and len(archive) == 1


def test_what_a_killed_builder_had_started_is_waited_for(tmp_path: Path) -> None:
    """It still writes into the folder that the next builder would empty."""
    home, fifo = tmp_path / "forky", tmp_path / "fifo"
    home.mkdir()
    os.mkfifo(fifo)
    script = f"""
from pathlib import Path
from transom_cli.sandbox.release.packages import Building
from transom_cli.sandbox.release.obtain import _one_builder
with _one_builder(Path({str(home)!r}), print) as lock:
    building = Building(Path({str(home)!r}), Path({str(home)!r}, "log"), print, lock)
    building.run(["sh", "-c", "echo begun; read x < {fifo}"])
"""
    builder = subprocess.Popen([sys.executable, "-c", script])
    while not (home / "log").exists() or "\nbegun" not in (home / "log").read_text():
        assert builder.poll() is None
    builder.kill()
    builder.wait()
    with (home / "lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fifo.write_text("x")
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_unknown_slurm_release_is_refused_and_removed(
    archive: list[int], pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obtain, "slurm_release", lambda _: (27, 5))
    with pytest.raises(TransomError, match=r"Debian trixie is now 27\.05") as raised:
        build("trixie", tmp_path / "r")
    assert "24.11, 25.11, 26.05" in raised.value.why and "native" in raised.value.hint
    assert not (tmp_path / "r" / "trixie" / "built.json").exists()
    check_slurm("forky", (25, 11))


def test_without_pyslurm_the_release_serves_and_the_next_call_tries_again(
    archive: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fails(_building: Building, home: ReleaseHome, _plugins: Path, version: str) -> None:
        tried.append(version)
        home.python.parent.mkdir(parents=True)
        raise TransomError("`python` failed (exit 1)", "no index")

    monkeypatch.setattr(pyslurm, "build", fails)
    for count in (1, 2):
        got = build("forky", tmp_path / "r")
        assert got.slurm == "24.11" and "no index" in got.why_no_pyslurm and len(tried) == count

    def succeeds(_building: Building, home: ReleaseHome, *_: object) -> None:
        home.python.parent.mkdir(parents=True)
        home.python.touch()

    monkeypatch.setattr(pyslurm, "build", succeeds)
    assert build("forky", tmp_path / "r").why_no_pyslurm == ""
    assert build("forky", tmp_path / "r").why_no_pyslurm == "" and len(archive) == 1


@pytest.mark.root
def test_what_another_user_could_change_is_not_run(archive: list[int], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    (tmp_path / "r" / "trixie").mkdir(parents=True)
    os.chown(tmp_path / "r" / "trixie", 12345, -1)
    with pytest.raises(NotPermitted, match="belongs") as raised:
        build("trixie", tmp_path / "r")
    assert "12345" in raised.value.why and "--release-dir" in raised.value.hint


@pytest.mark.root
def test_what_root_has_built_serves_others(archive: list[int], ordinary_user: OrdinaryUser, short_dir: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def fails(*_: object) -> None:
        raise TransomError("no index")

    monkeypatch.setattr(pyslurm, "build", fails)
    built = [build(name, short_dir / "r") for name in ("trixie", "forky")]

    def theirs() -> None:
        assert build("trixie", short_dir / "r") == built[0]
        assert "root built" in build("forky", short_dir / "r").why_no_pyslurm

    ordinary_user.call(theirs)
    assert len(archive) == 2


def test_names_and_addresses_are_checked() -> None:
    assert RELEASES["forky"].pyslurm and not RELEASES["trixie"].pyslurm
    with pytest.raises(UsageError, match="Unknown release 'sid'") as raised:
        find_release("sid")
    assert "native, trixie, forky" in raised.value.why
    for good in ("http://deb.example/debian", "https://h:8080/a/b+c", "file:/srv/mirror"):
        assert check_mirror(good) == good
    for bad in ("", "deb.example", "http://h/x y", "http://h/\ndeb http://evil x main", "http://h [trusted=yes]"):
        with pytest.raises(UsageError, match="Not a valid address"):
            check_mirror(bad)


@pytest.mark.parametrize("odd", ["a b", "$ORIGIN", "a:b", "ä"])
def test_folder_unfit_for_slurm_conf_is_refused_before_the_build(tmp_path: Path, odd: str) -> None:
    with pytest.raises(UsageError, match="cannot be stored in") as raised:
        build("trixie", tmp_path / odd)
    assert "--release-dir" in raised.value.hint and not (tmp_path / odd).exists()


def test_the_machines_own_debian_mirror_is_found_among_others() -> None:
    found = (
        "Google|cloud-sdk|main|https://packages.example/apt/\n"
        "Debian|Debian-Security|main|http://deb.example/debian-security/\n"
        "Debian|Debian|contrib|http://other.example/debian/\n"
        "Debian|Debian|main|http://deb.example/debian/\nodd line\n"
    )
    assert mirror.debian_archive(found) == "http://deb.example/debian/"
    assert mirror.debian_archive("Ubuntu|Ubuntu|main|http://u.example/\n") == mirror.debian_archive("") == ""


def test_failed_program_is_quoted(tmp_path: Path) -> None:
    building = Building(tmp_path, tmp_path / "log", print)
    with pytest.raises(TransomError, match=r"`sh` failed \(exit 3\)") as raised:
        building.run(["sh", "-c", "echo working; printf 'no \\033[31mspace\\n'; exit 3"])
    assert raised.value.why.endswith(r"no \x1b[31mspace") and str(tmp_path / "log") in raised.value.hint
    with pytest.raises(TransomError, match="is not installed on this machine"):
        building.run(["/nonexistent/apt-get"])
    with pytest.raises(TransomError, match="failed"):
        building.pipe(["sh", "-c", "exit 2"], ["cat"])


def test_without_debians_keys_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(TransomError, match="Debian's keys are not installed") as raised:
        packages.fetch(Building(tmp_path, tmp_path / "log", print), RELEASES["trixie"], "http://mirror.example/debian")
    assert "debian-archive-keyring" in raised.value.hint and not (tmp_path / "log").exists()


def test_only_dynamically_linked_programs_are_given_another_loader(tmp_path: Path) -> None:
    folder = tmp_path / "usr" / "bin"
    folder.mkdir(parents=True)
    for name, data in {
        "program": b"\x7fELF...../lib64/ld-linux-x86-64.so.2",
        "static": b"\x7fELF......",
        "script": b"#!/bin/sh /lib64/ld-linux",
    }.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755)
    (folder / "link").symlink_to(folder / "program")
    assert [path.name for path in _programs(tmp_path)] == ["program"]


def test_headers_give_versions_to_setup_and_compiler(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "slurm.h").write_text('#include "slurm_version.h"\n')
    (real / "slurm_version.h").write_text("#define SLURM_VERSION_NUMBER 0x1a0505\n")
    into = pyslurm._headers(tmp_path / "into", real, "25.11.2")
    text = (into / "slurm" / "slurm_version.h").read_text()
    assert text.splitlines()[-2] == "#define SLURM_VERSION_NUMBER 0x190b02" and text.splitlines()[-3] == "#if 0"
    assert (into / "slurm" / "slurm.h").read_text().startswith("#include")


def test_missing_release_is_not_replaced_by_the_machines_slurm(tmp_path: Path) -> None:
    with pytest.raises(TransomError, match="no longer exists") as raised:
        find_tools(home=str(tmp_path / "forky"))
    assert "--release forky" in raised.value.hint and "slurmctld" in raised.value.why


@pytest.mark.long
@pytest.mark.sandbox
@pytest.mark.root
def test_from_the_real_mirror_without_root_and_without_a_mount(ordinary_user: OrdinaryUser) -> None:
    """From nothing to a cluster that runs a job."""
    folder = ordinary_user.home / "releases"
    before = Path("/proc/mounts").read_text()

    def whole() -> None:
        try:
            got = build("trixie", folder)
        except TransomError as error:
            (ordinary_user.home / "why-not").write_text(str(error))
            return
        sandbox = Sandbox.up(SandboxSpec(ordinary_user.home / "tx", nodes=2, home=str(got.home.path)))
        try:
            assert "24.11" in sandbox.slurm("sinfo", "-V")
            ran = sandbox.slurm("srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME; readlink -f /proc/$$/exe")
            assert sorted(ran.split())[-2:] == ["node1", "node2"], ran
            assert str(folder) not in ran, "a task is of the machine's own programs"
        finally:
            sandbox.down()

    ordinary_user.call(whole)
    if (ordinary_user.home / "why-not").exists():
        pytest.skip(f"no Debian mirror within reach: {(ordinary_user.home / 'why-not').read_text()}")
    assert Path("/proc/mounts").read_text() == before
