"""Reads what the nodes of the present attempt show of the checkpoint memory: what is in it, and what is under way."""

from __future__ import annotations

from dataclasses import dataclass, replace

from transom_cli.ckpt.memory.account import newest_whole
from transom_cli.ckpt.memory.shown import newest_attempt, read_all
from transom_cli.ckpt.pace.coming import Coming
from transom_cli.ckpt.underway import Part, joined
from transom_cli.core.state import Phase, State
from transom_cli.layout import RunDir, attempt_name
from transom_cli.ui.saving import saves_ahead, under_way
from transom_cli.ui.view import RunView


@dataclass(frozen=True)
class Memory:
    """The newest step in the nodes' memory of which all shares are there, when it was committed (wall clock), how it is
    protected; when the training saves, in words and as planned; what is written and restored, of which directory."""

    step: int = -1
    committed: float | None = None
    protection: str = ""
    rhythm: str = ""
    coming: Coming | None = None
    parts: tuple[Part, ...] = ()
    directory: str = ""

    def shown_in(self, view: RunView, stepped: float | None = None) -> RunView:
        """stepped: when the view's step was done. Of a run that does not train it is not known when it saves next."""
        age = None if self.committed is None else max(0.0, view.now - self.committed)
        view = replace(view, memory=self.step, memory_age=age, memory_protection=self.protection, rhythm=self.rhythm)
        view = replace(view, under_way=under_way(self.parts, self.directory, view.now))
        if self.coming is None or view.phase != Phase.TRAINING.value or view.step < 0:
            return view
        save, durable = saves_ahead(self.coming, view.step, view.step_time, stepped, view.now)
        return replace(view, next_save=save, next_durable=durable)


def read_memory(run: RunDir, state: State, now: float) -> Memory:
    """Of the present attempt."""
    attempt = newest_attempt(run.attempts)
    if attempt is None or attempt.name != attempt_name(state.job_id, state.restarts):
        return Memory()
    trainings = [sight.accounts for sight in read_all(attempt, now).values()]
    accounts = [account for training in trainings for account in training.values()]
    one, first = newest_whole(trainings), next((a for a in accounts if a.rhythm), None)
    step = (-1, None, "") if one is None else (one.step, one.committed, one.protection)
    plan = ("", None) if first is None else (first.rhythm, first.coming)
    parts = joined(part for account in accounts for part in account.under_way)
    return Memory(*step, *plan, parts, accounts[0].directory if accounts else "")
