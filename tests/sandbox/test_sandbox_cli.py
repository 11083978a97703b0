"""`transom sandbox`: words, streams, exit codes, and what is refused before anything starts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.cli.sandbox_fault import fault_app
from transom_cli.errors import SlurmUnreachable, TransomError, UsageError
from transom_cli.sandbox import faults, state
from transom_cli.sandbox import state as sandbox_spec
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.conf import Ports, cgroup_conf, gres_conf, slurm_conf, topology_conf
from transom_cli.sandbox.tools import find_tools, slurm_release


def transom(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, typer\n"
        "from transom_cli.cli.app import sandbox_app\n"
        "from transom_cli.errors import TransomError\n"
        "try: sandbox_app()\n"
        "except TransomError as error: print(f'error: {error}', file=sys.stderr); sys.exit(error.exit_code)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.sandbox
def test_a_cluster_by_the_command_line(short_dir: Path, sandbox: Sandbox) -> None:
    folder = str(short_dir / "cli")
    up = transom("up", "--nodes", "2", "--gpus-per-node", "1", "--dir", folder)
    try:
        assert up.returncode == 0, up.stderr
        assert up.stdout == f"up: 2 nodes with 1 GPU each in {folder}\n"
        status = json.loads(transom("status", "--json", "--dir", folder).stdout)
        assert status["schema"] == 1 and status["up"]
        assert [(node["name"], node["state"]) for node in status["nodes"]] == [("node1", "idle"), ("node2", "idle")]
        # its own words are not ours, its exit code is passed through, the sandbox of the environment is the default
        done = transom("exec", "--", "srun", "-N2", "bash", "-c", "exit 7", TRANSOM_SANDBOX_DIR=folder)
        assert done.returncode == 7
        assert transom("exec", "no-such-command", TRANSOM_SANDBOX_DIR=folder).returncode == 2
        export = transom("env", "--dir", folder).stdout
        ours = {f"SLURM_CONF={folder}/slurm.conf", f"TRANSOM_STATE_DIR={folder}/state"}
        ours |= {f"TRANSOM_INJECT={folder}/corrupt.json"}
        words = shlex.split(export)
        assert words[::2] == ["export"] * 3 and set(words[1::2]) == ours
        assert transom("fault", "kill-node", "node2", "--dir", folder).stdout.startswith("killed node2: ")
        listed = transom("fault", "list", "--dir", folder).stdout
        assert listed == "node2 is dead   undo: transom sandbox fault restore-node node2\n"
        assert transom("fault", "restore-node", "node2", "--dir", folder).stdout == "restored node2\n"
        assert transom("fault", "list", "--dir", folder).stdout == "no faults\n"
    finally:
        down = transom("down", "--dir", folder)
    assert down.returncode == 0
    after = transom("status", "--dir", folder)
    assert after.returncode == 12 and after.stdout.startswith("down: ")
    refused = transom("exec", "--dir", folder, "--", "true")
    assert refused.returncode == 12 and "is not up" in refused.stderr and "transom sandbox up" in refused.stderr
    assert sandbox.is_up


def test_every_fault_command_names_a_function_of_faults() -> None:
    names = {c.name or c.callback.__name__ for c in fault_app.registered_commands if c.callback} - {"list"}
    assert len(names) > 30 and [name for name in names if not hasattr(faults, name.replace("-", "_"))] == []


@pytest.mark.parametrize("command", ["down", "status", "env", "exec true", "fault list"])
def test_missing_sandbox_error_names_the_command(tmp_path: Path, command: str) -> None:
    done = transom(*command.split(), "--dir", str(tmp_path)) if " true" not in command else transom(
        "exec", "--dir", str(tmp_path), "true")  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert f"error: There is no sandbox in {tmp_path}" in done.stderr
    assert f"hint: transom sandbox up --dir {tmp_path}" in done.stderr


def test_without_slurm_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transom_cli.sandbox.tools.search_path", lambda: str(tmp_path))
    with pytest.raises(SlurmUnreachable, match="Slurm is not installed") as missing:
        Sandbox.up(SandboxSpec(Path("/tmp/never-made")))
    assert missing.value.exit_code == 12
    assert missing.value.hint.endswith("apt-get install --no-install-recommends munge slurm-client slurmctld slurmd")
    with pytest.raises(SlurmUnreachable) as missing:
        find_tools(accounting=True)
    assert "mariadb-server" in missing.value.hint and "slurmdbd" in missing.value.hint
    assert not Path("/tmp/never-made").exists()


@pytest.mark.parametrize("odd", ["with space", 'quo"te', "it's", "new\nline", "per%cent", "hash#", "br[1]", "com,ma"])
def test_a_path_that_slurm_conf_cannot_hold_is_refused(odd: str) -> None:
    with pytest.raises(UsageError, match="path cannot be used") as refused:
        sandbox_spec.check_spec(SandboxSpec(Path("/tmp") / odd))
    assert "cannot contain these characters" in refused.value.why


def test_a_path_too_long_for_unix_sockets_is_refused() -> None:
    longest = next(n for n in range(200, 0, -1) if _fits(n))
    with pytest.raises(UsageError, match=f"too long.*at most {longest}"):
        sandbox_spec.check_spec(SandboxSpec(Path("/" + "x" * longest)))


def _fits(length: int) -> bool:
    try:
        sandbox_spec.check_spec(SandboxSpec(Path("/" + "x" * (length - 1))))
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(("nodes", "gpus"), [(0, 2), (257, 2), (4, -1), (4, 17)])
def test_counts_out_of_range_are_refused(nodes: int, gpus: int) -> None:
    with pytest.raises(UsageError, match="A sandbox"):
        sandbox_spec.check_spec(SandboxSpec(Path("/tmp/x"), nodes, gpus))


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty and not a sandbox") as refused:
        sandbox_spec.check_place(SandboxSpec(tmp_path))
    assert "thesis.tex" in refused.value.why


def test_too_little_space_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _where: type("Usage", (), {"free": 50 * 2**20}))
    with pytest.raises(TransomError, match="Too little space") as full:
        sandbox_spec.check_place(SandboxSpec(tmp_path))
    assert full.value.why == "50 MiB are free, 100 MiB are needed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}'])
def test_unreadable_state_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "sandbox.json").write_text(text)
    with pytest.raises(TransomError, match="state file cannot be read"):
        state.load(tmp_path)


def test_what_users_feel_is_left_at_slurms_defaults() -> None:
    spec = SandboxSpec(Path("/x"), nodes=1, gpus_per_node=1, extra={"KillWait": "5"})
    text = slurm_conf(spec, cluster="c", user="u", ports=Ports(1, 2, 3, 40), first_job=7)
    lines = text.splitlines()
    assert "SlurmdTimeout=300" in lines and "KillWait=5" in lines and "FirstJobId=7" in lines
    assert (
        "NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=40 CPUs=8 RealMemory=16000 Gres=gpu:1" in lines
    )
    for untouched in ("SchedulerParameters", "MinJobAge", "MessageTimeout", "JobRequeue"):
        assert untouched not in text
    assert gres_conf(spec) == "NodeName=node1 Name=gpu File=/x/dev/nvidia0\n"


def test_switches_form_a_tree_on_request() -> None:
    spec = SandboxSpec(Path("/x"), nodes=5, switches=2)
    assert topology_conf(spec).splitlines() == [
        "SwitchName=leaf1 Nodes=node[1-2]",
        "SwitchName=leaf2 Nodes=node[3-5]",
        "SwitchName=spine Switches=leaf[1-2]",
    ]
    found = slurm_conf(spec, cluster="c", user="u", ports=Ports(1, 2, 3, 40), first_job=7)
    plain = slurm_conf(SandboxSpec(Path("/x")), cluster="c", user="u", ports=Ports(1, 2, 3, 40), first_job=7)
    assert "TopologyPlugin=topology/tree" in found.splitlines() and "Topology" not in plain
    assert str(spec) == "5 nodes with 2 GPUs each on 2 switches"
    with pytest.raises(UsageError, match="0 to 2 switches, not 3"):
        sandbox_spec.check_spec(SandboxSpec(Path("/tmp/x"), nodes=2, switches=3))


@pytest.mark.parametrize(
    ("found", "release", "plugin"),
    [
        ("slurm-wlm 22.05.8", (22, 5), "cgroup/v1"),
        ("slurm-wlm 23.11.4", (23, 11), "cgroup/v1"),
        ("slurm 24.05.2", (24, 5), "disabled"),
        ("slurm 26.05.5", (26, 5), "disabled"),
    ],
)
def test_slurmd_is_kept_away_from_cgroup_v2(tmp_path: Path, found: str, release: tuple[int, int], plugin: str) -> None:
    program = tmp_path / "slurmctld"
    program.write_text(f"#!/bin/sh\necho {found}\n")
    program.chmod(0o755)
    assert slurm_release(program) == release
    assert cgroup_conf(release) == f"CgroupPlugin={plugin}\n"


def test_slurm_without_a_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "slurmctld").write_text("#!/bin/sh\necho what?\n")
    (tmp_path / "slurmctld").chmod(0o755)
    with pytest.raises(SlurmUnreachable, match="version cannot be determined"):
        slurm_release(tmp_path / "slurmctld")
