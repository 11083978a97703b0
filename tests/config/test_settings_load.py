"""Settings: their layers, and that all errors are reported at once, each with its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from transom_cli.config.load import freeze, load, thaw, user_file
from transom_cli.config.model import Settings
from transom_cli.config.sources import RUN_VARIABLES, is_setting, outer_run_variables
from transom_cli.errors import UsageError
from transom_cli.slurm.port import slurm_seconds

REPO = Path(__file__).resolve().parents[2]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refusal(*args: object, **kwargs: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(*args, **{"site": None, **kwargs})  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return caught.value


def test_each_layer_overrides_the_one_below_key_by_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config/transom").mkdir(parents=True)
    site = write(tmp_path / "site.toml", '[job]\npartition="site"\naccount="site"\nqos="site"\ntime="1"\nmem="1G"\n')
    write(home / ".config/transom/config.toml", '[job]\naccount="user"\nqos="user"\ntime="2"\nmem="2G"\n')
    run = write(tmp_path / "run.toml", '[job]\nqos="run"\ntime="3"\nmem="3G"\n')
    environ = {"HOME": str(home), "TRANSOM_JOB__TIME": "4", "TRANSOM_JOB__MEM": "4G"}
    job = load(run, {"job": {"mem": "5G", "nodes": None}}, environ, site=site).job
    assert (job.partition, job.account, job.qos, job.time, job.mem, job.nodes) == ("site", "user", "run", "4", "5G", 1)


def test_user_file_follows_xdg_and_ignores_a_relative_one() -> None:
    assert user_file({"HOME": "/h"}) == Path("/h/.config/transom/config.toml")
    assert user_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == Path("/x/transom/config.toml")
    assert user_file({"HOME": "/h", "XDG_CONFIG_HOME": "x"}) == Path("/h/.config/transom/config.toml")


def test_lists_are_replaced_and_variables_joined(tmp_path: Path) -> None:
    site = write(tmp_path / "s.toml", '[job]\nsetup=["a"]\n[job.env]\nA="1"\nB="1"\n')
    run = write(tmp_path / "r.toml", '[job]\nsetup=["b"]\n[job.env]\nB="2"\n')
    job = load(run, site=site, user=tmp_path / "none").job
    assert job.setup == ("b",) and job.env == {"A": "1", "B": "2"}


def test_text_of_variables_and_flags_is_read_by_kind() -> None:
    environ = {
        "TRANSOM_NAME": "gpt 7b",
        "TRANSOM_AUTO_BEAT": "no",
        "TRANSOM_JOB__NODES": "4",
        "TRANSOM_JOB__SBATCH": "--switches=1 '--mail-user=a b'",
        "TRANSOM_JOB__SETUP": "module load cuda\n\n  source env",
        "TRANSOM_JOB__ENV": "A='x y' B=2",
        "TRANSOM_DETECT__FACTOR": "6.5",
        "TRANSOM_LAUNCH__CONTAINER__IMAGE": "/i.sqsh",
    }
    flags = {"job.exclude": '["node1", "node2"]', "launch.srun_args": ["--cpu-bind=cores"]}
    settings = load(None, flags, environ, site=None)
    assert settings.name == "gpt 7b" and settings.auto_beat is False and settings.detect.factor == 6.5
    job = settings.job
    assert job.nodes == 4 and job.sbatch == ("--switches=1", "--mail-user=a b")
    assert job.setup == ("module load cuda", "  source env") and job.env == {"A": "x y", "B": "2"}
    assert job.exclude == ("node1", "node2") and settings.launch.srun_args == ("--cpu-bind=cores",)
    assert settings.launch.container.image == "/i.sqsh"


def test_empty_text_takes_an_optional_setting_back(tmp_path: Path) -> None:
    site = write(tmp_path / "s.toml", '[job]\npartition="gpu"\ncpus_per_task=4\ntime="5"\n')
    environ = {"TRANSOM_JOB__CPUS_PER_TASK": "", "TRANSOM_JOB__TIME": ""}
    job = load(None, {"job.partition": ""}, environ, site=site).job
    assert (job.partition, job.cpus_per_task, job.time) == (None, None, None)


def test_paths_count_from_their_layer_and_links_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    run = write(tmp_path / "conf/run.toml", 'root="runs"\n[launch]\npython="venv/bin/python"\n')
    settings = load(run, {"job.chdir": "work"}, {"TRANSOM_CHECKPOINT__DIRECTORY": "/big"}, site=None)
    assert settings.root == tmp_path / "conf/runs" and settings.job.chdir == tmp_path / "work"
    assert settings.launch.python == str(tmp_path / "conf/venv/bin/python")
    assert settings.checkpoint.directory == Path("/big")
    assert load(None, {"launch.python": "python3"}, site=None).launch.python == "python3"
    assert load(None, {"root": "~/r"}, site=None).root == Path.home() / "r"


def test_errors_of_all_layers_are_reported_at_once(tmp_path: Path) -> None:
    site = write(tmp_path / "site.toml", 'naem="x"\n[job]\nnodes="4"\nsbatch=["x", 3]\n')
    user = write(tmp_path / "user.toml", '[launch]\nkind="mpi"\npartition=3\n')
    run = write(tmp_path / "run.toml", "[job\n")
    environ = {"TRANSOM_JOB__CPUS": "2", "TRANSOM_JOB__TIME": "9x9", "TRANSOM_PARTITION": "a", "TRANSOM_ATTEMPT": "1.0"}
    error = refusal(run, {"slurm": 3, "job.nodes": "four"}, environ, site=site, user=user)
    assert error.what == "12 settings are invalid"
    lines = error.why.splitlines()
    assert f"{site}: naem: no such setting; did you mean `name`?" in lines
    assert f"{site}: job.nodes: should be a valid integer, not '4'" in lines
    assert any(line.startswith(f"{site}: job.sbatch[0]: 'x' is not a flag") for line in lines)
    assert f"{site}: job.sbatch[1]: should be a valid string, not 3" in lines
    assert f"{user}: launch.kind: should be 'srun' or 'torchrun', not 'mpi'" in lines
    assert f"{user}: launch.partition: no such setting; did you mean `job.partition` or `operator.partition`?" in lines
    assert any(line.startswith(f"{run}: not TOML: ") and "line 1, column 5" in line for line in lines)
    assert "TRANSOM_JOB__CPUS: job.cpus: no such setting; did you mean `TRANSOM_JOB__CPUS_PER_TASK`?" in lines
    assert any(line.startswith("TRANSOM_JOB__TIME: job.time: '9x9' is not a Slurm time") for line in lines)
    both = "`TRANSOM_JOB__PARTITION` or `TRANSOM_OPERATOR__PARTITION`?"
    assert "TRANSOM_PARTITION: partition: no such setting; did you mean " + both in lines
    assert "command line: slurm: is a section with keys, not 3" in lines
    assert any(line.startswith("command line: job.nodes (--nodes): should be a valid integer") for line in lines)
    assert any(line.startswith("valid in [job]: partition, account, ") for line in lines)
    assert sum(line.startswith("valid ") for line in lines) == 3


def test_overridden_bad_value_is_still_reported(tmp_path: Path) -> None:
    site = write(tmp_path / "s.toml", "[job]\nnodes=0\n")
    assert "job.nodes: should be greater than or equal to 1" in refusal(None, {"job.nodes": 2}, site=site).why


def test_what_concerns_two_keys_is_judged_over_all_layers(tmp_path: Path) -> None:
    site = write(tmp_path / "s.toml", "[detect]\nfloor=2000\n")
    assert load(None, {"detect.ceiling": 4000}, site=site).detect.floor == 2000
    assert "floor (2000 s) is above ceiling (1800 s)" in refusal(None, site=site).why
    assert "no image" in refusal(None, {"launch.container.mounts": "/a:/b"}).why


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"job.partition": "a\nb"}, r"job.partition \(--partition\): contains the control character '\\n'"),
        ({"job.mem": "lots"}, "job.mem \\(--mem\\): 'lots' is not a Slurm size"),
        ({"job.env": "1A=x"}, "job.env: '1A' is not a valid name of an environment variable"),
        ({"job.env": "A"}, "job.env: 'A' is not of the form NAME=VALUE"),
        ({"job.setup": "[1"}, "job.setup: is not a TOML value"),
        ({"job.exclude": "'a"}, "job.exclude \\(--exclude\\): cannot be split into words"),
        ({"detect.factor": "inf"}, "detect.factor: should be a finite number"),
        ({"isolate.max_fraction": 2}, "isolate.max_fraction: should be less than or equal to 1"),
        ({"name": ""}, "name: "),
        ({"auto_beat": "perhaps"}, "auto_beat: should be a valid boolean"),
    ],
)
def test_bad_values(flags: dict[str, object], words: str) -> None:
    assert re.search(f"^command line: {words}", refusal(None, flags).why, re.MULTILINE)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such settings file" in refusal(tmp_path / "missing.toml").what
    assert "cannot be read: Is a directory" in refusal(tmp_path).why
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name="a"\n# caf\xe9\n')
    assert "line 2: not UTF-8 text" in refusal(latin).why
    assert load(None, site=tmp_path / "missing.toml", user=tmp_path / "missing.toml").name == "run"


def test_toml_times_and_numbers_need_no_quotes(tmp_path: Path) -> None:
    job = load(write(tmp_path / "r.toml", "[job]\ntime=01:30:00\nmem=64000\n"), site=None).job
    assert (job.time, job.mem) == ("01:30:00", "64000")
    assert load(write(tmp_path / "r.toml", "[job]\ntime=60\n"), site=None).job.time == "60"


def test_frozen_settings_come_back_equal(tmp_path: Path) -> None:
    flags = {
        "name": 'a "b" \\ c\'s é',
        "root": str(tmp_path / "a b"),
        "job.setup": ["echo 'a\nb'", "x\\ty"],
        "job.env": {"A": 'multi\nline "q"', "B": ""},
        "job.time": "1-0",
        "launch.kind": "torchrun",
        "launch.container.image": "i",
        "isolate.max_fraction": 0.3,
    }
    settings = load(None, flags, site=None)
    text = freeze(settings)
    assert thaw(text, "run.toml") == settings
    run = write(tmp_path / "run.toml", text)
    assert load(run, site=None, user=tmp_path / "none") == settings
    assert load(run, {"detect.floor": 6}, site=None) != settings
    assert thaw(freeze(Settings()), "run.toml") == Settings()


def test_settings_do_not_change() -> None:
    settings = load(site=None)
    with pytest.raises(ValueError, match="frozen"):
        settings.job.nodes = 3  # type: ignore[misc]
    assert settings.launch.python == sys.executable and settings.ranks_per_node == 1
    assert load(None, {"job.gpus_per_node": 8}, site=None).ranks_per_node == 8


def test_run_time_variables_are_no_settings_and_do_not_leak() -> None:
    environ = dict.fromkeys(RUN_VARIABLES, "x") | {"TRANSOM_SANDBOX_DIR": "/s", "TRANSOM_NAME": "n"}
    assert load(None, None, environ, site=None).name == "n"
    assert outer_run_variables(environ) == tuple(sorted(RUN_VARIABLES))


def test_every_variable_named_in_the_code_is_a_setting_or_known() -> None:
    from transom_cli.config.describe import settings_of

    settings = {setting.variable for setting in settings_of()}
    named: dict[str, Path] = {}
    for folder in ("transom_cli", "examples", "bench", "sbatch_templates"):
        for path in (REPO / folder).rglob("*"):
            if path.suffix in (".py", ".j2", ".sh"):
                named |= dict.fromkeys(re.findall(r"\bTRANSOM_[A-Z_]*[A-Z]\b", path.read_text()), path)
    assert "TRANSOM_RUN_DIR" in named
    unknown = {name: str(path) for name, path in named.items() if is_setting(name) and name not in settings}
    assert unknown == {}, "add it to config/sources.py, or transom refuses to start where it is set"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 120), ("90:30", 91 * 60), ("1:30:00", 5400), ("2-0", 172800), ("1-2:30", 95400), ("0-0:0:5", 60),
        ("0", None), ("UNLIMITED", None), ("infinite", None), (None, None),
    ],
)  # fmt: skip
def test_slurms_times_in_seconds(value: str | None, seconds: int | None) -> None:
    assert slurm_seconds(value) == seconds


def test_a_warning_at_the_very_start_is_refused_and_the_default_gives_way(tmp_path: Path) -> None:
    site = write(tmp_path / "s.toml", "[job]\nsignal_before=300\n")
    error = refusal(None, {"job.time": "5"}, site=site)
    assert "all layers combined: job: signal_before (300 s) is not below the time limit of 300 s (time 5)" in error.why
    assert "raise time, or remove signal_before" in error.why
    assert load(None, {"job.time": "6"}, site=site).job.warn_before == 300
    short = load(None, {"job.time": "2"}, site=None)
    assert short.job.warn_before == 30 and thaw(freeze(short), "run.toml").job.warn_before == 30
    assert load(None, {"job.signal_before": 0, "job.time": "1"}, site=None).job.warn_before == 0
    assert load(site=None).job.warn_before == 120


@pytest.mark.parametrize("layer", ["site", "user", "run", "environment", "flags"])
def test_a_run_observes_if_any_layer_says_so(tmp_path: Path, layer: str) -> None:
    """The strictest layer decides: what the site says, no run can undo."""

    def file(name: str) -> Path:
        return write(tmp_path / f"{name}.toml", f'[run]\nmode = "{"observe" if layer == name else "act"}"\n')

    environ = {"TRANSOM_RUN__MODE": "observe" if layer == "environment" else "act"}
    flags = {"run.mode": "observe" if layer == "flags" else "act"}
    settings = load(file("run"), flags, environ, site=file("site"), user=file("user"))
    assert settings.run.mode == "observe" and thaw(freeze(settings), "run.toml") == settings
