"""HyperPod's own restart is found wherever it may be switched on, and refused where it would act."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.errors import UsageError
from transom_cli.submit import unsupported
from transom_cli.submit.unsupported import find_auto_resume, judge_auto_resume

IDIOM = """#!/bin/bash
#SBATCH --nodes=2
AUTO_RESUME=""
if [ -d "/opt/sagemaker_cluster" ]; then
    AUTO_RESUME="--auto-resume=1"
fi
srun ${AUTO_RESUME} python train.py
"""


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (IDIOM, 5),
        ("#!/bin/bash\nsrun --auto-resume=1 -l python train.py\n", 2),
        ("#!/bin/bash\nsrun -l --auto-resume 1 python train.py\n", 2),
        ("#!/bin/bash\n  srun --auto-resume='1' x\n", 2),
        ("#!/bin/bash\nsrun --auto-resume=$RESUME x\n", 2),
    ],
)
def test_found_in_a_script(script: str, line: int) -> None:
    assert find_auto_resume(script, (), {}).startswith(f"line {line} of the script: ")


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/bash\n# srun --auto-resume=1 was here\nsrun x\n",
        "#!/bin/bash\nsrun --auto-resume=0 x\n",
        "#!/bin/bash\npython train.py --auto-resumed 1\n",
        "",
    ],
)
def test_not_found_where_it_is_off(script: str) -> None:
    assert find_auto_resume(script, ("python", "train.py"), {"A": "--auto-resume=0"}) == ""


def test_auto_resume_is_found_in_commands_and_variables() -> None:
    assert "the command line" in find_auto_resume("", ("--cpu-bind=cores", "--auto-resume=1"), {})
    assert find_auto_resume("", (), {"B": "x", "AUTO": "-l --auto-resume=1"}) == "the variable AUTO"


def test_refused_on_hyperpod_and_a_note_elsewhere() -> None:
    found = find_auto_resume(IDIOM, (), {})
    with pytest.raises(UsageError, match="both restart") as raised:
        judge_auto_resume(found, hyperpod=True)
    assert raised.value.why == found and "--auto-resume=1" in raised.value.hint
    assert judge_auto_resume(found, hyperpod=False).startswith(found)
    assert judge_auto_resume("", hyperpod=True) == ""


def test_hyperpod_is_checked_before_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transom_cli.submit.prepare import prepare

    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text(IDIOM)
    prepare(("train.sbatch",), None, {})
    monkeypatch.setattr(unsupported, "HYPERPOD_FOLDER", str(tmp_path))
    for words, flags in (
        (("train.sbatch",), {}),
        (("true",), {"launch.srun_args": ["--auto-resume=1"]}),
        (("true",), {"job.env": {"AUTO_RESUME": "--auto-resume=1"}}),
    ):
        with pytest.raises(UsageError, match="HyperPod"):
            prepare(words, None, flags)
