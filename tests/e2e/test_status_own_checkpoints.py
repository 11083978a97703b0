"""A trainer that knows nothing of transom: its steps are counted for it, and its checkpoints are its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e.support import Person

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
TRAINER = str(Path(__file__).with_name("own_trainer.py"))
PATIENCE = 240.0


@pytest.fixture
def folder(person: Person) -> Path:
    pytest.importorskip("torch")
    made = person.root.with_name(f"{person.root.name}-own")
    made.mkdir()
    return made


def train(person: Person, folder: Path, nodes: int, relaunches: int, *words: str) -> dict[str, object]:
    person.env["TRANSOM_RESTART__RELAUNCHES"] = str(relaunches)
    person.env["TRANSOM_RESTART__MAX_WITHOUT_PROGRESS"] = "1"
    person.env["TRANSOM_RESTART__BACKOFF"] = "0.5"
    person.run("-N", str(nodes), "--", sys.executable, TRAINER, str(folder), *words, timeout=PATIENCE)
    return person.status(person.newest())


@pytest.mark.parametrize("relaunches", [0, 1], ids=["by-requeues", "by-relaunches"])
def test_a_trainer_that_resumes_from_its_own_checkpoints_is_never_given_up(
    person: Person, folder: Path, relaunches: int
) -> None:
    """It makes 150, 70 and 50 steps before it is killed: by its own count no start comes as far as the first."""
    view = train(person, folder, 3, relaunches, "--die", "0:150,1:220,2:270")
    assert (view["phase"], view["verdict"], view["excluded"]) == ("done", "", [])
    assert view["starts"] == (3 if relaunches == 0 else 0), "a relaunch is always left"
    told = person.transom("explain", person.newest().run_id).stdout + person.transom("goodput").stdout
    assert "done again" not in told and "redone" not in told
    status = person.transom("status", person.newest().run_id).stdout
    assert "since this start" in status


def test_a_trainer_without_checkpoints_that_always_crashes_at_the_same_step_is_stopped(
    person: Person, folder: Path
) -> None:
    view = train(person, folder, 1, 1, "--save-every", "0", "--crash", "50")
    assert (view["phase"], view["exit_code"], view["starts"]) == ("failed", 1, 1)
    assert "times in a row, never past the same step" in str(view["verdict"])
