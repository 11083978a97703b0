"""Site checks as real programs: exit codes, output, and programs that misbehave."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from processes import wait_for

from transom_cli.core import codec
from transom_cli.health.check import About, NoLimits, Tier
from transom_cli.health.checks.site import (
    TIMEOUT,
    NhcReading,
    SiteReading,
    judge_nhc,
    judge_site,
    read_nhc,
    read_site,
)
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.system import Ran, run

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checks.d"
    made.mkdir(mode=0o755)
    return made


def program(folder: Path, name: str, text: str, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def look(folder: Path, timeout: float = TIMEOUT) -> dict[str, Finding]:
    about = About(tier=Tier.QUICK, site_checks=str(folder))
    reading = read_site(about, timeout)
    assert codec.build(SiteReading, codec.plain(reading)) == reading
    return {f.check: f for f in judge_site("n1", reading, about, NoLimits())}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("text", "verdict", "says"),
    [
        ("echo all is well", Verdict.PASS, "all is well"),
        ("echo a bit warm; exit 1", Verdict.MONITOR, "a bit warm"),
        ("echo; echo scratch is gone >&2; exit 2", Verdict.FAIL, "scratch is gone"),
        ("echo no idea; exit 3", Verdict.UNKNOWN, "no idea"),
        ("echo oops; exit 4", Verdict.UNKNOWN, "exited with code 4: oops"),
        ("no-such-command", Verdict.UNKNOWN, "exited with code 127: "),
        ("kill -SEGV $$", Verdict.UNKNOWN, "was killed by signal 11"),
        ("exit 2", Verdict.FAIL, "no output, exit code 2"),
        (r"printf 'red: \033[31m\tbad\a\n'; exit 1", Verdict.MONITOR, "red:  bad"),
    ],
)
def test_exit_code_is_the_verdict_and_first_line_the_evidence(
    folder: Path, text: str, verdict: Verdict, says: str
) -> None:
    program(folder, "disk", text)
    found = look(folder)["site:disk"]
    assert found.verdict is verdict
    assert found.evidence == says or (verdict is Verdict.UNKNOWN and says in found.evidence)


def test_program_gets_node_tier_and_slurm_variables_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu007")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SECRET", "x")
    program(folder, "env", 'echo "$TRANSOM_NODE $TRANSOM_TIER $SLURM_JOB_ID $SECRET. $(pwd)"')
    assert look(folder)["site:env"].evidence == "gpu007 quick 12 . /"


def test_hanging_program_is_killed_with_its_children_and_others_still_count(folder: Path, tmp_path: Path) -> None:
    program(
        folder, "hangs", f"sleep 600 & echo $! >{tmp_path}/grandchild; echo $$ >{tmp_path}/child; echo waiting; wait"
    )
    program(folder, "well", "echo fine")
    found = look(folder, timeout=1.0)
    assert found["site:hangs"].verdict is Verdict.UNKNOWN
    assert found["site:hangs"].evidence.endswith("hangs was killed after 1 s: waiting")
    assert found["site:well"].evidence == "fine"
    for name in ("child", "grandchild"):
        pid = int((tmp_path / name).read_text())
        wait_for(lambda pid=pid: gone(pid))  # type: ignore[misc]


def test_background_child_is_not_waited_for_and_is_killed(tmp_path: Path) -> None:
    path = program(tmp_path, "leaves", f"sleep 600 & echo $! >{tmp_path}/grandchild; echo done; exit 1")
    before = time.monotonic()
    ran = run((str(path),), ENV, 60.0)
    assert time.monotonic() - before < 30.0
    assert (ran.code, ran.output) == (1, "done")
    wait_for(lambda: gone(int((tmp_path / "grandchild").read_text())))


def test_endless_output_is_truncated(tmp_path: Path) -> None:
    ran = run((str(program(tmp_path, "yes", "yes $(printf 'x%.0s' $(seq 1 999))")),), ENV, 0.5)
    assert ran.code is None and 0 < len(ran.output) <= 300
    ran = run((str(program(tmp_path, "much", "head -c 30000000 /dev/zero | tr '\\0' 'y'; exit 2")),), ENV, 30.0)
    assert ran.code == 2 and len(ran.output) <= 300, "a program that prints more than is kept still ends normally"


def test_world_writable_program_is_not_run(folder: Path) -> None:
    program(folder, "anyone", "echo hello", mode=0o757)
    program(folder, "README", "exit 2", mode=0o644)
    program(folder, ".hidden", "exit 2")
    program(folder, "old.sh~", "exit 2")
    found = look(folder)
    assert list(found) == ["site:anyone"]
    assert found["site:anyone"].verdict is Verdict.UNKNOWN and "is world-writable" in found["site:anyone"].evidence
    folder.chmod(0o777)
    found = look(folder)
    assert list(found) == ["site"] and "mode 0777" in found["site"].evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_program_of_another_user_is_not_run(folder: Path) -> None:
    os.chown(program(folder, "strangers", "exit 2"), 65534, 65534)
    found = look(folder)["site:strangers"]
    assert found.verdict is Verdict.UNKNOWN and "belongs to user 65534" in found.evidence


def test_missing_folder_is_unknown_and_empty_one_not_applicable(folder: Path, tmp_path: Path) -> None:
    (missing,) = look(tmp_path / "none").values()
    assert missing.verdict is Verdict.UNKNOWN and "does not exist" in missing.evidence
    (empty,) = look(folder).values()
    assert (empty.verdict, empty.applies) == (Verdict.PASS, False)
    (without,) = judge_site("n1", read_site(About()), About(), NoLimits())
    assert (without.verdict, without.applies) == (Verdict.PASS, False)


def test_program_that_cannot_start_is_unknown(folder: Path) -> None:
    path = folder / "broken"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    assert "could not run: No such file" in look(folder)["site:broken"].evidence


def test_nhc_may_not_mark_nodes_offline(tmp_path: Path) -> None:
    nhc = program(tmp_path, "nhc", 'echo "ERROR:  nhc:  check_x failed ($*)"; exit 1')
    reading = read_nhc(About(tier=Tier.DEEP), str(nhc))
    assert reading.ran is not None and reading.ran.output.endswith("check_x failed (-l - MARK_OFFLINE=0)")
    assert read_nhc(About(), str(tmp_path / "none")) == NhcReading()


@pytest.mark.parametrize(
    ("code", "as_root", "verdict"),
    [
        (0, True, Verdict.PASS),
        (1, True, Verdict.FAIL),
        (1, False, Verdict.MONITOR),
        (142, True, Verdict.UNKNOWN),
        (None, True, Verdict.UNKNOWN),
    ],
)
def test_nhc_failure_is_a_fail_only_as_root(code: int | None, as_root: bool, verdict: Verdict) -> None:
    (found,) = judge_nhc("n1", NhcReading(Ran("nhc", code, "words"), as_root), About(), NoLimits())
    assert (found.check, found.verdict) == ("nhc", verdict)
