"""Several clusters: which one a job goes to, and what never reaches another one's controller."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_fake import FakeSlurm

from transom_cli.bootstrap.slurm import require_own_cluster, require_slurm, run_slurm
from transom_cli.config.load import load
from transom_cli.errors import UsageError
from transom_cli.layout import RunDir
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.guards import WrongCluster, pinned_to_cluster
from transom_cli.slurm.parse import parse_squeue, parse_submitted
from transom_cli.slurm.port import SlurmUnknown, Submission
from transom_cli.slurm.runner import Runner, read_cluster_name
from transom_cli.submit.script import inspect_script
from transom_cli.submit.submission import SubmissionRecord, restore_submission_environment
from transom_cli.submit.unsupported import cluster_of, refuse_federation

FEDERATION = """\
Federation: alps
Self:       eiger:148.187.1.1:6817 ID:1 FedState:ACTIVE Features:
Sibling:    daint:148.187.1.2:6817 ID:2 FedState:ACTIVE Features: PersistConnSend/Recv:Yes/Yes Synced:Yes
"""


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("7\n", 7),
        ("7;alps\n", 7),
        ("a plugin says hello\n7;alps", 7),
        ("Submitted batch job 7\n", 7),
        ("Submitted batch job 7 on cluster alps\n", 7),
    ],
)
def test_what_sbatch_answers(text: str, job: int) -> None:
    assert parse_submitted(text) == job


@pytest.mark.parametrize("text", ["", "\n", "Submitted batch job\n", "x7\n", "7\nSubmission is late\n"])
def test_invalid_sbatch_output_is_refused(text: str) -> None:
    with pytest.raises(SlurmUnknown, match="cannot be parsed"):
        parse_submitted(text)


def test_the_line_that_some_releases_print_over_a_cluster_of_several() -> None:
    assert parse_squeue("CLUSTER: alps\n") == parse_squeue("\nCLUSTER: alps\n") == []


@pytest.mark.parametrize(
    ("setting", "script", "environ", "name"),
    [
        (None, None, {}, ""),
        ("alps", None, {"SBATCH_CLUSTERS": "daint"}, "alps"),
        (None, None, {"SBATCH_CLUSTERS": "daint", "SLURM_CLUSTERS": "x"}, "daint"),
        (None, None, {"SLURM_CLUSTERS": "daint"}, "daint"),
        ("alps", "eiger", {}, "eiger"),
        ("alps", "eiger", {"SBATCH_CLUSTERS": "daint"}, "daint"),
        ("", None, {"SBATCH_CLUSTERS": ""}, ""),
    ],
)
def test_which_cluster(setting: str | None, script: str | None, environ: dict[str, str], name: str) -> None:
    assert cluster_of(setting, script, 3, environ) == name


@pytest.mark.parametrize("several", ["a,b", "all", "ALL", "-a", "a b", "a;b", " "])
def test_list_of_clusters_is_refused_and_its_source_named(several: str) -> None:
    with pytest.raises(UsageError) as raised:
        cluster_of("alps", several, 3, {})
    assert raised.value.why == f"line 3 of the script requests `{several}`" and "--clusters NAME" in raised.value.hint
    with pytest.raises(UsageError, match="one cluster"):
        cluster_of(several, None, 0, {})


@given(st.text(max_size=20))
def test_a_cluster_is_a_plain_name_or_refused(text: str) -> None:
    try:
        name = cluster_of(text, None, 0, {})
    except UsageError:
        return
    assert name == text and not name.startswith("-") and "," not in name and name.isprintable()


def test_a_script_says_it_too() -> None:
    for line in ("#SBATCH -M alps", "#SBATCH --clusters=alps", "#SBATCH --clusters alps"):
        facts = inspect_script(f"#!/bin/bash\n{line}\ntrue\n")
        assert (facts.clusters, facts.lines["clusters"]) == ("alps", 2)


def test_a_federation_is_refused_and_anything_else_is_none() -> None:
    with pytest.raises(UsageError, match=r"federation, `alps`") as raised:
        refuse_federation(FEDERATION)
    assert "scontrol show federation" in raised.value.hint
    for shown in ("", "There are no federations.\n", "slurm_load_federation"):
        refuse_federation(shown)


class Commands:
    """Slurm's commands as stubs that write down their words; `name` is what their controller calls its cluster."""

    def __init__(self, folder: Path, name: str = "alps") -> None:
        folder.mkdir()
        self.asked = folder / "asked"
        self.named = folder / "name"
        self.named.write_text(name)
        (folder / "federation").touch()
        script = f"""#!/bin/bash
echo "$(basename "$0") $*" >> "{self.asked}"
case "$*" in
*"show config"*) echo "Configuration data"; echo "ClusterName             = $(cat "{self.named}")";;
*"show federation"*) cat "{folder}/federation";;
*) [ "$(basename "$0")" != sbatch ] || echo "7;$(cat "{self.named}")";;
esac
"""
        for command in ("sbatch", "squeue", "scontrol", "scancel", "sacct"):
            (folder / command).write_text(script)
            (folder / command).chmod(stat.S_IRWXU)
        self.folder = folder
        self.runner = Runner(env={"PATH": f"{folder}:/usr/bin:/bin"}, cluster="alps")

    @property
    def words(self) -> list[str]:
        return self.asked.read_text().split("\n")[:-1] if self.asked.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    return made


def test_every_command_gets_the_cluster_option_first(commands: Commands, tmp_path: Path) -> None:
    slurm = CliSlurm(commands.runner)
    assert slurm.submit(Submission(tmp_path / "s", ("--hold",))) == 7
    slurm.jobs()
    slurm.nodes(("n1",))
    slurm.requeue_hold(7)
    slurm.update_pending(7, exclude=("n1",))
    slurm.release(7)
    slurm.cancel(7)
    assert read_cluster_name(commands.runner) == "alps"
    assert len(commands.words) == 8 and all(line.split()[1] == "--clusters=alps" for line in commands.words)
    assert commands.words[0].startswith("sbatch --clusters=alps --parsable --hold")


def test_other_clusters_are_not_asked() -> None:
    fake, found = FakeSlurm(), ["eiger"]
    slurm = pinned_to_cluster(fake, "alps", lambda: found[-1])
    for call in (lambda: slurm.jobs(), lambda: slurm.cancel(1), lambda: slurm.requeue(1)):
        with pytest.raises(WrongCluster) as raised:
            call()
        assert "`alps`" in raised.value.why and "`eiger`" in raised.value.why and "ClusterName" in raised.value.hint
    assert fake.calls == []
    found.append("alps")
    assert slurm.jobs() == [] and len(fake.calls) == 1


def test_cluster_name_is_checked_again_only_after_an_outage() -> None:
    fake, requested = FakeSlurm(), []

    def ask() -> str:
        requested.append(1)
        return "alps" if len(requested) < 2 else "eiger"

    slurm = pinned_to_cluster(fake, "alps", ask)
    slurm.jobs()
    slurm.nodes()
    assert len(requested) == 1
    with pytest.raises(SlurmUnknown):
        slurm.history(1)  # there is no accounting: an answer that tells nothing
    with pytest.raises(WrongCluster):
        slurm.jobs()


def test_silent_controller_is_not_identified() -> None:
    def silent() -> str:
        raise SlurmUnknown("Slurm did not answer", "Slurm said: Unable to contact slurm controller")

    fake = FakeSlurm()
    with pytest.raises(SlurmUnknown, match="did not answer"):
        pinned_to_cluster(fake, "alps", silent).cancel(1)
    assert fake.calls == []


def test_a_run_keeps_its_cluster(commands: Commands, tmp_path: Path) -> None:
    settings = load(None, {"job.cluster": "alps"}, {}, site=None, user=tmp_path / "none")
    assert require_slurm(settings) == "alps"
    assert [line.split()[1:4] for line in commands.words] == [
        ["--clusters=alps", "--me", "--all"],
        ["--clusters=alps", "show", "federation"],
        ["--clusters=alps", "show", "config"],
    ]
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    plan = SubmissionRecord(
        ("--requeue",), env=(("A", "b"),), requested_cluster="alps", cluster="alps", sbatch=(("SBATCH_QOS", "high"),)
    )
    plan.save(run)
    assert SubmissionRecord.load(run) == plan
    require_own_cluster(run)
    run_slurm(run).cancel(7)
    assert commands.words[-1] == "scancel --clusters=alps 7"
    commands.named.write_text("eiger")
    before = len(commands.words)
    with pytest.raises(WrongCluster, match="not the cluster") as raised:
        require_own_cluster(run)
    assert raised.value.exit_code == 12
    with pytest.raises(WrongCluster):
        run_slurm(run).cancel(7)
    assert all("show config" in line for line in commands.words[before:])


def test_a_run_that_was_made_before_clusters_were_kept(commands: Commands, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.submission.write_text('{"options": [], "args": [], "chdir": "", "env": {}}')
    assert SubmissionRecord.load(run) == SubmissionRecord()
    require_own_cluster(run)
    run_slurm(run).cancel(7)
    assert commands.words == ["scancel 7"]


def test_slurm_without_federation_support(commands: Commands, tmp_path: Path) -> None:
    script = (commands.folder / "scontrol").read_text()
    refusing = script.replace(f'cat "{commands.folder}/federation"', "echo 'invalid entity' >&2; exit 1")
    assert refusing != script
    (commands.folder / "scontrol").write_text(refusing)
    assert require_slurm(load(None, {}, {}, site=None, user=tmp_path / "none")) == "alps"


def test_operator_reuses_the_first_submissions_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "of another shell")
    run = RunDir(tmp_path)
    SubmissionRecord().save(run)
    restore_submission_environment(run)
    assert os.environ["SBATCH_PARTITION"] == "of another shell", "a run from before they were kept"
    SubmissionRecord(sbatch=(("SBATCH_QOS", "high"),)).save(run)
    restore_submission_environment(run)
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SBATCH_")}
    assert kept == {"SBATCH_QOS": "high"}


def test_a_federation_is_refused_before_anything_is_made(commands: Commands, tmp_path: Path) -> None:
    (commands.folder / "federation").write_text(FEDERATION)
    with pytest.raises(UsageError, match="federation"):
        require_slurm(load(None, {}, {}, site=None, user=tmp_path / "none"))
