"""Code that others left where a run works never runs in a process of transom's own, on the login node or on nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from e2e.support import Person, over
from planted import Planted

from transom_cli.layout import RunDir

pytestmark = pytest.mark.sandbox

TRANSOM = Path(sys.executable).with_name("transom")  # as a person types it: its own folder leads sys.path
TRAINER = """\
import json, os, sys
path = [os.path.abspath(entry) for entry in sys.path]
seen = {"path": path, "PYTHONPATH": os.environ.get("PYTHONPATH"), "safe": "PYTHONSAFEPATH" in os.environ}
with open(sys.argv[1] + os.environ["RANK"], "w") as file:
    json.dump(seen, file)
"""


def transom(person: Person, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **person.env, "TRANSOM_ROOT": str(person.root)}
    done = subprocess.run(
        [str(TRANSOM), *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "kind", [("--tasks-per-node", "1"), ("--torchrun", "--tasks-per-node", "1"), ("--operator", "job")], ids=" ".join
)
def test_code_planted_where_a_run_works_never_runs(
    person: Person, short_dir: Path, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """In the folder of `cd there; transom run`, which is the job's too, and on the job's PYTHONPATH."""
    if "--torchrun" in kind:
        pytest.importorskip("torch")
    place = short_dir / f"planted-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    here = Planted(place / "here", place / "marks")
    shared = Planted(place / "shared", place / "shared-marks", ("transom_cli", "typer", "pydantic", "jinja2"))
    (tmp_path / "train.py").write_text(TRAINER)
    pythonpath = f"{shared.folder}:{tmp_path}"
    command = [str(tmp_path / "train.py"), str(tmp_path / "rank")]
    words = [
        "-N",
        "2",
        *kind,
        "--set",
        f'job.env={{PYTHONPATH="{pythonpath}"}}',
        "--set",
        f"job.chdir={here.folder}",
        "--",
    ]
    told = transom(
        person, here.folder, "run", "--detach", *words, *([] if "--torchrun" in kind else [sys.executable]), *command
    )
    run = RunDir(person.root / told.stdout.strip())
    transom(person, here.folder, "attach", "--detach", run.run_id)
    assert person.wait(run, over)["phase"] == "done"

    assert here.marks == [] and shared.marks == []
    for rank in ("0", "1"):  # the trainer is as it would be without transom, but for the automatic heartbeats
        seen = json.loads((tmp_path / f"rank{rank}").read_text())
        auto, _, rest = seen["PYTHONPATH"].partition(":")
        assert auto.endswith("/heartbeat/auto") and rest == pythonpath
        assert seen["path"][:3] == [str(tmp_path), str(shared.folder), str(tmp_path)], "the hook leaves the path"
        assert not seen["safe"]
