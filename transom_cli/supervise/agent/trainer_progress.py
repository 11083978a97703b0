"""The training's own step, loss, learning rate and epoch, as its framework logs them, for an unchanged trainer.

Automatic heartbeats count optimizer steps since the start of a process. If the log on this node shows the training's
own step, the node's heartbeat table shows that one. The logs' thread writes here; the agent's main thread reads.
"""

from collections.abc import Callable

from transom_cli.diagnose.logs.trainer_lines import NOTHING, StepOffset, TrainerReport
from transom_cli.heartbeat.table import RankBeat


class TrainerProgress:
    def __init__(self) -> None:
        self._offset = StepOffset()
        self._known: tuple[int, int | None, TrainerReport] = (-1, None, NOTHING)  # launch, offset, newest values

    def see(self, launch: int, report: TrainerReport, counted: Callable[[], int]) -> None:
        """Note what a log of this launch has shown since the last look.

        counted: returns the optimizer steps that any rank of this node has made by now; -1 if none counts them.
        """
        if launch != self._known[0]:
            self._offset, self._known = StepOffset(), (launch, None, NOTHING)
        if report == NOTHING:
            return
        steps = counted() if (report.step, report.bar) != (None, None) else -1
        if steps >= 0:
            self._offset.see(report, steps)
        self._known = launch, self._offset.offset, self._known[2].newer(report)

    def of(self, launch: int) -> TrainerReport:
        """The newest values that were logged in this launch."""
        return self._known[2] if launch == self._known[0] else NOTHING

    def apply(self, rows: tuple[RankBeat, ...]) -> tuple[RankBeat, ...]:
        """Return the rows with the training's own step and loss where only the log shows them."""
        launch, offset, report = self._known
        if report == NOTHING:
            return rows
        return tuple(_with_log(row, offset, report.loss) if row.launch == launch else row for row in rows)


def _with_log(row: RankBeat, offset: int | None, loss: float | None) -> RankBeat:
    if offset is not None and row.since_start and row.step >= 0:
        row = row._replace(step=row.step + offset, since_start=False)
    return row._replace(loss=loss) if row.loss is None and loss is not None else row
