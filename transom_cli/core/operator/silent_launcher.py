"""When the operator acts in place of the launcher. Pure.

A launcher that lives handles stalls and failed ranks itself. If it falls silent, or does not handle a stall in time,
the operator takes over; the records of the ranks then take the place of the launcher's outcome.
"""

from dataclasses import dataclass, replace

from transom_cli.core.clocks import first_bad
from transom_cli.core.diagnose import SILENT
from transom_cli.core.events import LaunchSeen, OutcomeSeen, RankExit, RecoverySeen, Stalled

LAUNCHER_SILENT = 5.0  # seconds without a new sign of life, which comes once a second
ABANDONED = 3.0  # seconds after a rank's bad end without an outcome, before an unseen launcher counts as gone
BEFORE_LAUNCH = 120.0  # seconds of silence before the first launch, after which the launcher counts as hanging
STUCK = 30.0  # seconds from the good end of every rank, with a silent launcher, before the launcher counts as hanging
TAKEN_UP = 15.0  # seconds for a living launcher to handle a stall, before the operator does;
PATIENCE = 2.0  # or as many limits more, if longer: the launcher may know better, having listened for longer


def handles_stall(stalled: Stalled, now: float, *, launcher_lives: bool, taken_up: bool) -> bool:
    """Whether the operator handles a stall. taken_up: the launcher handles a fault of this launch."""
    waited = now - stalled.at >= max(TAKEN_UP, PATIENCE * stalled.stall.limit)
    return not launcher_lives or (waited and not taken_up)


def lost_before_launch(silent: float, *, began: bool, first_step: float) -> str:
    """Why an attempt without a launch has failed; empty as long as its launcher may still start one.

    Args:
        silent: Seconds for which the job runs without a sign of life of the launcher.
        began: Whether the launcher gave any sign of life.
        first_step: The time allowed to the first step: a prolog, or a cold file system, delays the launcher's start.
    """
    if silent < (BEFORE_LAUNCH if began else first_step):
        return ""
    if began:
        return f"the launcher has started no training step and is silent for {silent:.0f} s"
    return f"the launcher gave no sign of life within {silent:.0f} s after the job started"


@dataclass(frozen=True)
class LaunchEnd:
    """What shows that a launch has ended.

    gone: the agents report that the process of every rank has ended; the disk may not have accepted their records.
    """

    launch: LaunchSeen
    exits: tuple[RankExit, ...]  # as the rank wrappers recorded them
    gone: bool
    fault: RecoverySeen | None = None  # the newest fault of the launch that the launcher took up

    @property
    def failed(self) -> bool:
        return any(x.bad for x in self.exits)

    @property
    def well(self) -> bool:
        return not self.failed and 0 < self.launch.world_size <= len(self.exits)

    @property
    def over(self) -> bool:
        return self.failed or self.well or self.gone

    def outcome(self, at: float, since: float, *, launcher_seen: bool, batch_host: str) -> OutcomeSeen | None:
        """The outcome that a silent launcher does not give; None as long as it may still come.

        Args:
            since: Seconds since the end was seen and the launcher was silent.
            launcher_seen: Whether the launcher gave a sign of life at any time.
            batch_host: The launcher's own node, which counts as missing.
        """
        if (not self.failed and since < STUCK) or (not launcher_seen and since < ABANDONED):
            return None
        exited = {x.node for x in self.exits}
        missing = tuple(n for n in self.launch.nodes if n not in exited or n == batch_host)
        end = OutcomeSeen(at, self.launch.attempt, "failed", "", self.exits, missing, self.launch.nodes)
        first = first_bad(self.exits)
        if self.well:
            what = "every rank ended with exit code 0"
        elif self.fault is not None and self.fault.cause == "hang":  # then the launcher has ended the ranks
            what = self.fault.words
            end = replace(end, exits=(), cause="hang", suspects=self.fault.nodes)
        else:
            what = first.words if first else "every rank is gone without a word"
        return replace(end, why=f"{what}, and {SILENT}")
