"""What is told of a job that Slurm does not know any more: that it is gone, and how it ended where accounting knows."""

from __future__ import annotations

import logging
from dataclasses import replace

from transom_cli.core.events import JobGone
from transom_cli.core.stepdwords import was_cancelled
from transom_cli.layout import RunDir, parse_attempt
from transom_cli.slurm.port import Slurm
from transom_cli.slurm.requeue import end_from_accounting, user_name
from transom_cli.slurm.tags import run_tag
from transom_cli.supervise.agent.logs import tail_of
from transom_cli.supervise.handed import newest_handed
from transom_cli.supervise.operator.clock import Clock

log = logging.getLogger("transom.forgotten")


class Forgotten:
    """Accounting is asked once a job: it may take until its deadline to say nothing, and then says no more later."""

    def __init__(self, run: RunDir, slurm: Slurm, clock: Clock, since: float) -> None:
        """since: when the run began, in seconds since the epoch."""
        self._run, self._slurm, self._clock, self._since = run, slurm, clock, since
        self._told: dict[int, JobGone] = {}

    def __call__(self, job_id: int) -> JobGone:
        if job_id not in self._told:
            self._told[job_id] = self._ask(job_id)
        told = self._told[job_id]
        return replace(told, at=self._clock.now())

    def _ask(self, job_id: int) -> JobGone:
        last = self._last(job_id)
        end = end_from_accounting(self._slurm, last, self._since, run_tag(self._run.run_id))
        if end is not None:
            log.info("job %s is forgotten, and accounting tells: %s", job_id, end)
            how = (end.state.value, end.exit_code, end.exit_signal, user_name(end.by), "accounting")
            return JobGone(0.0, job_id, *how)
        text, _ = tail_of(self._run.job_log(last))
        if was_cancelled(text.decode(errors="replace"), last):
            return JobGone(0.0, job_id, "CANCELLED", source="the job's log")
        return JobGone(0.0, job_id)

    def _last(self, job_id: int) -> int:
        """Its launcher, alone, may have submitted another in its place, and cancelled it for that."""
        handed = newest_handed(self._run)
        ours = handed is not None and parse_attempt(handed.attempt)[0] == job_id
        return handed.job_id if handed is not None and ours else job_id
