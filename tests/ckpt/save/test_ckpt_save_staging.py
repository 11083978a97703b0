"""The copy of the state is complete when save() returns: training may change everything after that."""

from __future__ import annotations

from pathlib import Path

from ckpt_made import Training

from transom_cli.ckpt.checkpointer import Checkpointer


def test_state_may_change_as_soon_as_save_returns(tmp_path: Path) -> None:
    training = Training(1)
    checkpointer = Checkpointer(training.state, tmp_path, every=1, keep=50)
    states = {}
    for step in range(1, 6):
        training.step()
        checkpointer.save(step)
        states[step] = training.digest()
        training.model[0].weight.data.mul_(0.5)  # a write that torch does not count
        checkpointer.wait()  # a write that has not begun is dropped for a newer one
    checkpointer.close(strict=True)
    for step, state in sorted(states.items(), reverse=True):
        again = Training(9)
        other = Checkpointer(again.state, tmp_path, every=1)
        assert (other.restore(), again.digest()) == (step, state)
        other.close()
        (tmp_path / f"step-{step}" / "manifest.json").rename(tmp_path / f"step-{step}" / "gone")
