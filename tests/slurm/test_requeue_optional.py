"""A site's job_submit plugin refuses changes to jobs: each step that a requeue can do without is optional."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from slurm_worlds import FakeWorld
from test_requeue_crash import once, prepared, run

from transom_cli.errors import TransomError
from transom_cli.slurm.port import SlurmDenied, SlurmRefused

WORDS = ("Slurm refused `scontrol update`", "Slurm said: Unspecified error")


def refuse(world: FakeWorld, monkeypatch: pytest.MonkeyPatch, call: str, error: TransomError) -> None:
    def refused(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(world.slurm, call, refused)


@pytest.mark.parametrize("error", [SlurmRefused(*WORDS), SlurmDenied(*WORDS)], ids=["refused", "denied"])
@pytest.mark.parametrize("call", ["shrink", "update_pending", "set_comment", "start_now"])
@pytest.mark.parametrize("case", ["healthy", "dead node", "failed"])
def test_refused_change_costs_time_but_not_the_run(
    case: str, call: str, error: TransomError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, request = prepared(tmp_path, case)
    refuse(world, monkeypatch, call, error)
    result = run(world, request)
    assert set(world.slurm.job(result.job_id).excluded) == set(request.exclude)
    once(world, request, result)


@pytest.mark.parametrize("call", ["requeue_hold", "release"])
def test_denied_requeue_is_reported(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, request = prepared(tmp_path, "healthy")
    refuse(world, monkeypatch, call, SlurmDenied(*WORDS))
    with pytest.raises(SlurmDenied):
        run(world, request)


def test_job_that_somebody_holds_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, request = prepared(tmp_path, "healthy")
    world.slurm.requeue_behind(request.job_id)
    world.slurm.hold_behind(request.job_id)
    refuse(world, monkeypatch, "update_pending", SlurmRefused(*WORDS))
    with pytest.raises(SlurmRefused):
        run(world, replace(request, exclude=("n1",)))
    world.slurm.tick(200)
    assert [job.job_id for job in world.slurm.jobs()] == [request.job_id]
    assert world.slurm.job(request.job_id).held
