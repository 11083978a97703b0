"""The guard in a training: what it finds, where it stays silent, and what it passes to the next launch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_server import Forked
from torch import nn
from torch.nn import functional

from transom_cli.core.codec import plain
from transom_cli.core.silent import PATIENCE, Guarded, SilentState, watch
from transom_cli.diagnose.clue import Silent
from transom_cli.guard import Guard, guard
from transom_cli.heartbeat import guard_record, paths
from transom_cli.inject import Fault, Injector

SCRIPT = Path(__file__).with_name("guard_rank.py")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = functional.scaled_dot_product_attention
    yield
    assert functional.scaled_dot_product_attention is before, "the guard was not closed"


def ranks(tmp_path: Path, world: int, *faults: dict[str, Any], steps: int = 40, more: str = "") -> list[dict[str, Any]]:
    started = [
        Forked(
            ["python", str(SCRIPT), str(tmp_path / "meeting"), str(steps), json.dumps(faults), *more.split()],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    return [json.loads(one.communicate(timeout=120)[0].splitlines()[-1]) for one in started]


@pytest.mark.parametrize("where", ["weight", "moment", "reduced"])
def test_the_replica_that_differs_is_named_by_the_majority(tmp_path: Path, where: str) -> None:
    fault = {"where": where, "name": "0.weight", "bit": 21, "step": 15, "rank": 1}
    for found in ranks(tmp_path, 3, fault):
        first = found["events"][0]
        assert (first["kind"], first["ranks"], first["majority"]) == ("replica", [1], True)
        assert 15 <= first["step"] < 15 + 6 and first["clean"] < 15
        assert first["digests"][0] == first["digests"][2] != first["digests"][1]


def test_two_replicas_are_both_named_in_the_very_step(tmp_path: Path) -> None:
    fault = {"where": "weight", "name": "0.weight", "bit": 21, "step": 12, "rank": 1}
    for found in ranks(tmp_path, 2, fault, steps=25):
        first = found["events"][0]
        assert (first["ranks"], first["majority"], first["step"], first["clean"]) == ([0, 1], False, 12, 11)


@pytest.mark.long
def test_what_was_never_equal_is_no_replica(tmp_path: Path) -> None:
    for found in ranks(tmp_path, 3, more="--own"):
        assert (found["events"], found["excluded"]) == ([], ["2.bias"])


@pytest.mark.long
@pytest.mark.parametrize("lasting", [True, False])
def test_a_wrong_product_under_fsdp_is_repeated_by_other_ranks_and_the_node_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """Shards have no replicas. n2 computes wrong: first with rank 1, and with rank 0 once the ranks were rotated."""
    state, found = SilentState(), []
    for launch, placed in ((0, ("n1", "n2")), (1, ("n2", "n1"))):
        fault = {"where": "activation", "name": "0", "bit": 29, "step": 9, "steps": 0, "rank": placed.index("n2")}
        folder = tmp_path / str(launch)
        folder.mkdir()
        (folder / "doubt.json").write_text(json.dumps(plain(state)))
        for name, value in ((paths.BEAT_DIR, folder), (paths.ATTEMPT_DIR, folder), (paths.LAUNCH, launch)):
            monkeypatch.setenv(name, str(value))
        wrong = [fault] if lasting or not launch else []
        for one in ranks(folder, 2, *wrong, more="--fsdp"):
            assert (one["uncompared"], one["failed"]) == ("the parameters are sharded", "")
            assert one["checked"] > 20
        seen = [Guarded(r, n, guard_record.read(str(folder), launch, r)) for r, n in enumerate(placed)]
        for _ in range(PATIENCE + 2):
            state, some = watch(state, launch, seen)
            found += [(one.what, one.nodes) for one in some]
    assert found == [(Silent.CORRUPTION, ("n2",)), (Silent.NODE, ("n2",))]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(2, 6, 2, 8).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 16))


def train(*faults: Fault, steps: int = 30, dtype: torch.dtype = torch.float32, **options: Any) -> Guard:
    torch.manual_seed(0)
    model = Small().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    injector = Injector(model, optimizer, faults)
    watching = guard(model, optimizer, **{"budget": 1e6, **options})
    for step in range(steps):
        optimizer.zero_grad()
        data = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(step)).to(dtype).requires_grad_()
        model(data).float().square().mean().backward()
        optimizer.step()
    watching.close()
    injector.close()
    return watching


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_training_without_a_fault_has_no_finding_and_every_product_its_turn(dtype: torch.dtype) -> None:
    watching = train(dtype=dtype)
    assert (watching.events, watching.failed) == ([], "")
    assert watching.checked >= 25
    assert set(watching._passed) == set(watching._items), "two layers and an attention, forward and backward"


@pytest.mark.parametrize(
    ("where", "what"),
    [("activation", "forward"), ("input_gradient", "input gradient"), ("weight_gradient", "weight gradient")],
)
def test_a_wrong_product_is_named(where: str, what: str) -> None:
    watching = train(Fault(where, "out", bit=29, step=4, steps=0))
    first = next(event for event in watching.events if event["kind"] == "product")
    assert (first["item"], first["ranks"]) == (f"out {what}", (0,))
    assert (
        "largest rounding error: row" in first["words"] and "computing it again gives another result" in first["words"]
    )


def test_a_gradient_that_is_not_finite_is_located_by_layer() -> None:
    watching = train(Fault("gradient", "q.weight", value="inf", step=5))
    assert [(event["kind"], event["item"]) for event in watching.events][:1] == [("value", "q.weight")]


def test_steps_that_a_gradient_scaler_skips_are_no_finding() -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    watching = guard(model, optimizer, budget=1e6)
    for step in range(40):
        optimizer.zero_grad()
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        scaler.scale(model(data).square().mean() * 1e6).backward()
        scaler.step(optimizer)
        scaler.update()
    watching.close()
    assert scaler.get_scale() < 2.0**127, "some steps were skipped"
    assert watching.events == []


def test_an_update_that_is_far_larger_than_before_is_reported_with_its_parameter() -> None:
    """The second moment of a layer loses its exponent, so Adam divides by almost nothing."""
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watching = guard(model, optimizer, budget=1e6)
    for step in range(80):
        if step >= 60:
            optimizer.state[model.out.weight]["exp_avg_sq"].zero_()
        optimizer.zero_grad()
        model(torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    watching.close()
    assert [event["item"] for event in watching.events] == ["update of out.weight"]


def test_a_budget_limits_how_often_products_are_checked() -> None:
    assert train(budget=1e-9).checked <= 2


def test_a_check_that_fails_ends_the_checks_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom_cli.guard.products.product", lambda *_: 1 / 0)
    monkeypatch.setattr("transom_cli.heartbeat.client.known_step", lambda: 0)
    watching = train()
    assert "ZeroDivisionError" in watching.failed and watching.step == 30


def test_the_next_launch_repeats_the_doubtful_step_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.BEAT_DIR, str(tmp_path))
    monkeypatch.setenv(paths.ATTEMPT_DIR, str(tmp_path))
    monkeypatch.setenv(paths.LAUNCH, "0")
    train(Fault("activation", "out", bit=29, step=4, steps=0))
    record = guard_record.read(str(tmp_path), 0, 0)
    (event, *_) = record["events"]
    state = SilentState()
    for _ in range(PATIENCE + 1):
        state, _ = watch(state, 0, [Guarded(0, "n1", record)])
    (tmp_path / "doubt.json").write_text(json.dumps(plain(state)))
    monkeypatch.setenv(paths.LAUNCH, "1")
    clean = train(budget=1e-9)
    found = guard_record.read(str(tmp_path), 1, 0)
    assert found["repeated"] == {"step": event["step"], "digest": "", "same": [0, 0]}
    assert clean.events == []
    monkeypatch.setenv(paths.LAUNCH, "2")
    train(Fault("activation", "out", bit=29, step=4, steps=0), budget=1e-9)
    again = guard_record.read(str(tmp_path), 2, 0)
    assert again["events"][0]["step"] == event["step"] and "repeated" not in again
