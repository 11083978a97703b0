"""The live state of ranks that stay: when it is whole, which one is used, and what becomes of a rank's own values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.ckpt import Checkpointer, live
from transom_cli.ckpt.live import Choice, Left, LiveState, Offer, OwnValues
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.rng import read_rng
from transom_cli.ckpt.save.saver import Saver
from transom_cli.ckpt.state import State
from transom_cli.elastic import GlobalBatches
from transom_cli.heartbeat import paths, reentry


@pytest.fixture(autouse=True)
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {paths.BEAT_DIR: str(tmp_path), paths.LAUNCH: "4", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    reentry.watch(None)
    yield
    reentry.watch_no_more()
    live._left.clear()


class Training:
    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches = GlobalBatches(100, 10, 5, rank=0, world=1)
        entries = {"model": self.model, "optimizer": self.optimizer, "data": self.batches, "lr": 0.5}
        self.state = State(entries, 0)
        self.live = LiveState(self.state)
        self.done = 0

    def forward(self) -> torch.Tensor:
        self.batches.step()
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(torch.randn(6, 4)).square().mean()
        loss.backward()
        return loss

    def step(self) -> None:
        self.forward()
        self.optimizer.step()
        self.done += 1
        self.live.mark(self.done)

    def values(self) -> dict[str, torch.Tensor]:
        held = self.model.state_dict() | {
            f"{n} {key}": one for n, kept in self.optimizer.state_dict()["state"].items() for key, one in kept.items()
        }
        return {key: one.clone() for key, one in held.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_step_in_flight_is_undone_in_new_and_in_kept_objects() -> None:
    for kept in (False, True):
        training = Training()
        training.step()
        training.step()
        then, rng, position = training.values(), read_rng(), training.batches.position
        training.forward()  # changes buffers, random numbers and the position
        assert not torch.equal(rng["torch"], read_rng()["torch"]) and training.batches.position > position
        left = training.live.leave()
        assert (left.step, left.launch, left.why) == (2, 4, "")
        live.keep(Path("/ck"), left)
        again = training if kept else Training()
        assert live.restore(Path("/ck"), again.state, Ranks(), print) == 2
        assert same(again.values(), then) and again.batches.position == position
        assert torch.equal(read_rng()["torch"], rng["torch"]) and read_rng()["python"] == rng["python"]
        assert live.restore(Path("/ck"), again.state, Ranks(), print) is None, "it is used once"


def test_step_that_was_interrupted_while_it_changed_the_state_is_torn() -> None:
    training = Training()
    training.step()
    training.forward()
    hook = register_optimizer_step_pre_hook(lambda *_: reentry.begin_step())
    try:
        training.optimizer.step()
    finally:
        hook.remove()
    assert "was interrupted" in training.live.leave().why
    training.live.mark(2)
    assert training.live.leave().step == 2


def test_parameter_that_something_else_has_changed_is_noticed() -> None:
    training = Training()
    training.step()
    with torch.no_grad():
        training.model[0].weight.add_(1)
    assert "has changed since step 1" in training.live.leave().why


def test_without_a_step_there_is_nothing_to_take_along() -> None:
    assert Training().live.leave() == Left(launch=4)


def offer(step: int, launch: int = 4, digest: str = "a", why: str = "", firsts: tuple[str, ...] = ()) -> Offer:
    return Offer(step, launch, why, digest, ((launch, step),), firsts)


FRESH = Offer(-1, -1, "", "", ())
REPLACED = Offer(-1, -1, "", "", ((4, 6), (4, 7)))


@pytest.mark.parametrize(
    ("offers", "elastic", "found"),
    [
        ([FRESH, FRESH], False, Choice()),
        ([offer(7), offer(7), REPLACED], False, Choice(7, (0, 1))),
        ([offer(6), offer(7), REPLACED], False, Choice(why="what rank 0 alone had after step 7 is not known")),
        ([offer(6), offer(7), FRESH], True, Choice(7, (1,))),
        ([offer(7), offer(7), FRESH], False, Choice(why="what rank 2 alone had after step 7 is not known")),
        ([offer(8), offer(8), REPLACED], False, Choice(why="what rank 2 alone had after step 8 is not known")),
        ([offer(7, launch=5), REPLACED], False, Choice(why="what rank 1 alone had after step 7 is not known")),
        ([offer(7), offer(7, digest="b"), FRESH], True, Choice(why="the ranks differ after step 7")),
        ([offer(-1, why="torn"), FRESH], True, Choice(why="torn")),
        ([offer(-1, why="torn"), offer(6)], False, Choice(why="what rank 0 alone had after step 6 is not known")),
        ([offer(-1, why="torn"), offer(6), FRESH], True, Choice(6, (1,))),
        ([offer(7, firsts=("mean",)), REPLACED], False, Choice(7, (0,))),
        ([REPLACED, offer(7, firsts=("mean",))], False, Choice(why="rank 0's mean counts for all ranks, and is lost")),
        ([REPLACED, offer(7, firsts=("mean",))], True, Choice(7, (1,))),
    ],
)  # fmt: skip
def test_newest_whole_state_is_chosen_if_it_is_complete(offers: list[Offer], elastic: bool, found: Choice) -> None:
    assert Choice.of(offers, elastic=elastic) == found


def test_own_values_of_two_steps_outlive_the_rank(tmp_path: Path) -> None:
    own = OwnValues(str(tmp_path), 5)
    for step in (6, 7, 8):
        own.write(step, b"x" * (100 - step))
    assert own.read() == {(4, 7): b"x" * 93, (4, 8): b"x" * 92}
    newest = tmp_path / "live-5-0"
    newest.write_bytes(newest.read_bytes()[:60] + b"-" + newest.read_bytes()[61:])  # the rank died as it wrote
    assert list(own.read()) == [(4, 7)]


def test_state_that_is_sharded_is_never_offered() -> None:
    class Sharded(torch.Tensor):
        pass

    training = Training()
    training.model[0].weight = torch.nn.Parameter(torch.randn(4, 4).as_subclass(Sharded))
    training.live.mark(1)
    assert training.live.leave().step == -1


@pytest.mark.parametrize(("steps", "saved"), [(None, [1]), (1, [1]), (2, [])])
def test_resumed_step_is_saved_again_unless_another_one_follows_at_once(
    steps: int | None, saved: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(2, 2)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0)}
    started: list[int] = []
    monkeypatch.setattr(Saver, "start", lambda self, step, *_, **__: started.append(step))
    for resumed in (None, 1):
        checkpointer = Checkpointer(state, tmp_path / "checkpoints", every=1, steps=steps)
        assert checkpointer.restore() == resumed
        if resumed is None:
            checkpointer.save(1)
            started.clear()
        reentry.close_all()
    assert started == saved
