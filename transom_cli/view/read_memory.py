"""Reads what the nodes of an attempt report of checkpoints in their memory."""

from dataclasses import dataclass, replace

from transom_cli.ckpt.progress import Part, combined
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.account import newest_whole
from transom_cli.ckpt.snapshot.status_file import newest_attempt, read_all
from transom_cli.core.operator.state import Phase, State
from transom_cli.layout import RunDir, attempt_name
from transom_cli.view.model import RunView
from transom_cli.view.outlook import operations, planned_saves


@dataclass(frozen=True)
class Memory:
    """What the nodes report of checkpoints."""

    step: int = -1  # the newest complete step in node memory; -1 if there is none
    committed: float | None = None  # when it was committed (Unix time)
    protection: str = ""
    schedule: str = ""  # when the training saves, as text
    coming: NextSaves | None = None  # when the training saves, as a plan
    parts: tuple[Part, ...] = ()  # saves and restores in progress
    directory: str = ""  # the training's checkpoint directory

    def added_to(self, view: RunView, stepped: float | None = None) -> RunView:
        """Add it to a view. stepped: when the view's step finished; planned saves need a run that trains."""
        view = replace(
            view,
            memory=self.step,
            memory_age=None if self.committed is None else max(0.0, view.now - self.committed),
            memory_protection=self.protection,
            save_schedule=self.schedule,
            steps=view.steps or (self.coming.total if self.coming is not None else 0) or None,
            operations=operations(self.parts, self.directory, view.durable, view.now),
        )
        if self.coming is None or view.phase != Phase.TRAINING.value or view.step < 0:
            return view
        save, durable = planned_saves(self.coming, view.step, view.step_time, stepped, view.now)
        return replace(view, next_save=save, next_durable=durable)


def read_memory(run: RunDir, state: State, now: float) -> Memory:
    """Read the reports of the current attempt's nodes, a file each."""
    attempt = newest_attempt(run.attempts)
    if attempt is None or attempt.name != attempt_name(state.job.id, state.job.restarts):
        return Memory()
    trainings = [sight.accounts for sight in read_all(attempt, now).values()]
    accounts = [account for training in trainings for account in training.values()]
    one, first = newest_whole(trainings), next((a for a in accounts if a.rhythm), None)
    return Memory(
        step=-1 if one is None else one.step,
        committed=None if one is None else one.committed,
        protection="" if one is None else one.protection,
        schedule="" if first is None else first.rhythm,
        coming=None if first is None else first.coming,
        parts=combined(part for account in accounts for part in account.under_way),
        directory=accounts[0].directory if accounts else "",
    )
