"""Rendered sbatch scripts: their text, and that every value arrives at the launcher unharmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli import start
from transom_cli.config.describe import settings_of
from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.errors import UsageError
from transom_cli.submit import render
from transom_cli.submit.directives import read_directives
from transom_cli.submit.render import directive, instead_of, output_pattern, render_script

# of another interpreter than this one
INSTALLED = "'import site; site.addsitedir(site.getusersitepackages()); from transom_cli.start import main; main()'"
NASTY = ["plain", "a b", "it's", 'say "x"', "two\nlines", "$HOME `id` $(id)", "back\\slash", "#no", "", "--", "é*?[~"]


def settings(**flags: object) -> Settings:
    return load(None, flags, site=None, user=Path("/nonexistent"))


def made(**flags: object) -> Settings:
    """Settings from dotted keys, whose dots are written `__`."""
    return settings(**{key.replace("__", "."): value for key, value in flags.items()})


def test_srun_script_word_for_word() -> None:
    requested = made(
        name="gpt",
        job__partition="gpu",
        job__nodes=4,
        job__gpus_per_node=8,
        job__time="1-0",
        job__cpus_per_task=6,
        job__exclude=["node[1-2]", "node7"],
        job__chdir="/home/me/my code",
        job__setup=["source venv/bin/activate"],
        job__env={"A": "x y"},
        job__sbatch=["--switches=1"],
        launch__python="/opt/py/bin/python",
        launch__srun_args=["--cpu-bind=cores"],
        launch__container__image="/i/torch.sqsh",
        launch__container__mounts=["/data:/data:ro", "/home"],
        launch__container__args=["--no-container-mount-home"],
    )
    text = render_script(requested, Path("/runs/gpt-1"), ["python", "train.py", "--lr", "1e-3"])
    assert (
        text.replace(INSTALLED, "@INSTALLED@")
        == """\
#!/bin/bash
#SBATCH --job-name=gpt
#SBATCH --output=/runs/gpt-1/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --signal=B:USR2@120
#SBATCH --partition=gpu
#SBATCH --time=1-0
#SBATCH --cpus-per-task=6
#SBATCH --exclude=node[1-2],node7
#SBATCH "--chdir=/home/me/my code"
#SBATCH --switches=1

# Slurm's warning before the time limit is for the launcher. Until the launcher runs, it must not end this script.
trap '' USR2

# No -u: the module and activate scripts of many sites read unset variables.
set -e -o pipefail

export TRANSOM_CHECKPOINT_DIR=/runs/gpt-1/checkpoints
export A='x y'

source venv/bin/activate

# Slurm starts every rank: one task per GPU. The launcher replaces this shell, so it receives its signals.
exec /opt/py/bin/python -I -c @INSTALLED@ transom_cli attempt-launcher \\
    --run-dir /runs/gpt-1 \\
    --kind srun \\
    --tasks-per-node 8 \\
    --auto-beat \\
    --srun-arg=--cpus-per-task=6 \\
    --srun-arg=--cpu-bind=cores \\
    --srun-arg=--container-image=/i/torch.sqsh \\
    --srun-arg=--container-mounts=/data:/data:ro,/home \\
    --srun-arg=--no-container-mount-home \\
    -- python train.py --lr 1e-3
"""
    )


def test_torchrun_script_word_for_word() -> None:
    requested = made(
        launch__kind="torchrun",
        launch__python="python3",
        launch__torchrun_args=["--max-restarts=0"],
        job__nodes=2,
        job__gpus_per_node=8,
        job__signal_before=0,
        auto_beat=False,
        checkpoint__directory="/big/ckpt",
    )
    text = render_script(requested, Path("/runs/r"), ["train.py"])
    assert (
        text.replace(INSTALLED, "@INSTALLED@")
        == """\
#!/bin/bash
#SBATCH --job-name=run
#SBATCH --output=/runs/r/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8

# Slurm's warning before the time limit is for the launcher. Until the launcher runs, it must not end this script.
trap '' USR2

# No -u: the module and activate scripts of many sites read unset variables.
set -e -o pipefail

export TRANSOM_CHECKPOINT_DIR=/big/ckpt

# Slurm starts one task per node, and torchrun starts the ranks there. The launcher replaces this shell, so it receives
# its signals.
exec python3 -I -c @INSTALLED@ transom_cli attempt-launcher \\
    --run-dir /runs/r \\
    --kind torchrun \\
    --tasks-per-node 8 \\
    --no-auto-beat \\
    --torchrun-arg=--max-restarts=0 \\
    -- train.py
"""
    )


@pytest.mark.parametrize("kind", ["srun", "torchrun"])
def test_every_value_arrives_unharmed_through_a_real_shell(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "a 'b' \"c\" $d"
    folder.mkdir()
    stub = folder / "py thon"
    stub.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['NASTY'], "
        "os.environ['TRANSOM_CHECKPOINT_DIR']]))\n"
    )
    stub.chmod(0o755)
    requested = made(
        launch__kind=kind,
        launch__python=str(stub),
        launch__srun_args=["--x=a 'b' $c"],
        launch__torchrun_args=['--log-dir=a "b"'],
        launch__container__image="image with blanks",
        job__env={"NASTY": "\n".join(NASTY)},
        job__setup=["true # 'unbalanced", "unset NOT_THERE"],
        job__chdir=str(folder),
    )
    text = render_script(requested, folder / "run", NASTY)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    argv, variable, checkpoints = json.loads(done.stdout)
    options, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert command == NASTY and variable == "\n".join(NASTY)
    assert options[:2] == ["-I", "-c"]
    assert options[3:7] == ["transom_cli", "attempt-launcher", "--run-dir", str(folder / "run")]
    assert "--srun-arg=--x=a 'b' $c" in options and "--srun-arg=--container-image=image with blanks" in options
    assert ('--torchrun-arg=--log-dir=a "b"' in options) is (kind == "torchrun")
    assert checkpoints == str(folder / "run" / "checkpoints")


@pytest.mark.parametrize("kind", ["srun", "torchrun"])
def test_a_warning_while_the_job_is_prepared_does_not_end_the_script(tmp_path: Path, kind: str) -> None:
    """Slurm signals the batch script's own process alone; what takes its place ignores USR2 until it says otherwise."""
    loading = tmp_path / "python"
    loading.write_text("#!/bin/sh\nkill -USR2 $$\necho loaded\n")
    loading.chmod(0o755)
    ours = ("kill -USR2 $$", "echo prepared")
    text = render_script(made(launch__kind=kind, launch__python=str(loading), job__setup=ours), Path("/r"), ["true"])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "prepared\nloaded\n")


@pytest.mark.parametrize(
    ("requested", "before"),
    [({}, 120), ({"time": "2"}, 30), ({"time": "1-0"}, 120), ({"time": 2, "signal_before": 90}, 90)],
)
def test_the_warning_leaves_time_to_train(requested: dict[str, object], before: int) -> None:
    text = render_script(settings(job=requested), Path("/r"), ["true"])
    assert f"#SBATCH --signal=B:USR2@{before}\n" in text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1))
def test_directive_round_trips(value: str) -> None:
    [read] = read_directives(f"#!/bin/sh\n#SBATCH --comment={directive(value)}\n")
    assert (read.option.name, read.option.value) == ("comment", value)


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x7f"])
def test_what_slurm_cannot_carry_is_refused(character: str) -> None:
    with pytest.raises(UsageError, match="not possible in an #SBATCH line") as caught:
        render_script(made(), Path(f"/runs/a{character}b"), ["true"])
    assert repr(character) in caught.value.why and caught.value.hint
    with pytest.raises(UsageError, match="NUL"):
        render_script(made(), Path("/runs/a"), ["a\0b"])


def test_percent_signs_of_a_path_are_not_slurms() -> None:
    assert output_pattern("/runs/100%j", "slurm-%j.log") == "/runs/100%%j/slurm-%j.log"
    with pytest.raises(UsageError, match="cannot write logs"):
        output_pattern("/a\\b", "slurm-%j.log")


def test_no_command_and_impossible_flags_are_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        render_script(made(), Path("/r"), [])
    with pytest.raises(UsageError, match=r"job\.sbatch") as caught:
        render_script(made(job__sbatch=["--arr=1-3", "--no-requeue", "--exclusive"]), Path("/r"), ["true"])
    assert caught.value.why.splitlines() == [
        "--array: start one run per element, or use `#SBATCH --array=0-7` in your own script",
        "--no-requeue: transom requeues the job, and sets this itself",
    ]


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--nodes=5", "--nodes: use `job.nodes`"),
        ("-N5", "--nodes: use `job.nodes`"),
        ("-N 5", "--nodes: use `job.nodes`"),
        ("-HN5", "--nodes: use `job.nodes`"),
        ("-n8", "--ntasks: use `job.tasks_per_node`"),
        ("--ntasks-per-node=8", "--ntasks-per-node: use `job.tasks_per_node`"),
        ("-Jx", "--job-name: use `name`"),
        ("-t5", "--time: use `job.time`"),
        ("-xn1", "--exclude: use `job.exclude`"),
        ("--gpus-per-node=8", "--gpus-per-node: use `job.gpus_per_node`"),
        ("-eerr", "--error: the log is in the run directory"),
        ("-k", "--no-kill: use `job.spares`"),
        ("--requeue", "--requeue: transom requeues the job"),
        ("-Q", "--quiet: transom reads the output of sbatch"),
        ("--pars", "--parsable: transom reads the output of sbatch"),
    ],
)
def test_flag_with_a_setting_is_refused_and_names_the_setting(flag: str, words: str) -> None:
    """With `--nodes=5` the first start once had five nodes, and the restart the setting's one."""
    with pytest.raises(UsageError, match=r"job\.sbatch") as caught:
        render_script(made(job__sbatch=[flag]), Path("/r"), ["true"])
    assert caught.value.why.startswith(words)


def test_every_setting_that_a_refusal_names_exists() -> None:
    assert set(render._SETTINGS.values()) <= {setting.key for setting in settings_of()}


@pytest.mark.parametrize(
    "flag", ["--exclusive", "--gres=gpu:a100:8", "--mail-user=me", "-wnode1", "-H", "--switches=1"]
)
def test_other_flags_are_let_through(flag: str) -> None:
    assert f"#SBATCH {flag}\n" in render_script(made(job__sbatch=[flag]), Path("/r"), ["true"])


def test_cpus_per_task_is_not_given_to_srun_twice() -> None:
    text = render_script(made(job__cpus_per_task=4, launch__srun_args=["-c2"]), Path("/r"), ["true"])
    assert "--srun-arg=-c2" in text and "--srun-arg=--cpus-per-task" not in text


def test_our_own_interpreter_does_not_search_the_jobs_folder() -> None:
    text = render_script(made(), Path("/r"), ["true"])
    assert f"exec {sys.executable} -I {start.__file__} transom_cli attempt-launcher" in text


def test_a_template_that_forgets_to_quote_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun.sbatch.j2").write_text("exec {{ run_dir }}\n")
    monkeypatch.setattr(render, "template_folder", lambda: tmp_path)
    with pytest.raises(TypeError, match="unquoted"):
        render_script(made(), Path("/r"), ["true"])


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("-w", "n1", "use `--set job.sbatch=--nodelist=n1`, or an `#SBATCH` line of your own script"),
        ("--constraint", "a&b", "use `--set job.constraint='a&b'`, or an `#SBATCH` line of your own script"),
        ("--exclusive", "--", "use `--set job.sbatch=--exclusive`, or an `#SBATCH` line of your own script"),
        ("-o", "x.log", "not possible: the log is in the run directory"),
        ("--no-such", "x", ""),
    ],
)
def test_an_option_of_sbatch_has_its_place_in_the_settings(option: str, value: str, says: str) -> None:
    assert instead_of(option, value) == says
