"""Which checkpoints a loss that is NaN or infinite makes doubtful, and from which one a run should continue. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BadLoss:
    """The loss is NaN or infinite, and has been so in every sample since.

    Args:
        since: the first such step that was seen.
        good: the last step with a good loss before it; -1 if none is known.
        infinite: the loss of that step was infinite, not NaN.
    """

    since: int
    good: int = -1
    infinite: bool = False

    @property
    def kind(self) -> str:
        return "infinite" if self.infinite else "NaN"

    @property
    def proven(self) -> int:
        """The newest step whose state is known to be good; -1 if none is.

        The loss of step s is computed with the weights that step s - 1 produced, so it confirms step s - 1 only.
        """
        return max(-1, min(self.good, self.since) - 1)

    @property
    def words(self) -> str:
        latest = " at the latest" if 0 <= self.good < self.since - 1 else ""  # not every loss is seen
        return f"the loss is {self.kind} since step {self.since:,}{latest}"

    def mark(self, step: int) -> str:
        """Say what is wrong with the checkpoint of a step; "" if it is known to be good."""
        if step <= self.proven:
            return ""
        if step >= self.since:
            return f"after {self.kind} loss at step {self.since:,}"
        return f"may be bad: {self.kind} loss at step {self.since:,}"


@dataclass(frozen=True)
class BadResume:
    """The newest checkpoint of a run is doubtful. instead: the newest good one; -1 if there is none."""

    loss: BadLoss
    newest: int
    instead: int

    @property
    def words(self) -> str:
        when = "was saved after that" if self.newest >= self.loss.since else "is not known to be from before that"
        good = f"{self.instead:,} is the newest from before it" if self.instead >= 0 else "none is from before it"
        return f"{self.loss.words}: checkpoint {self.newest:,} {when}, and {good}"


def bad_resume(loss: BadLoss | None, newest: int, instead: int) -> BadResume | None:
    """Judge a plain resume. None if it continues from a good checkpoint, or if there is no checkpoint.

    Args:
        newest: the newest checkpoint.
        instead: the newest one up to `loss.proven`.
    """
    if loss is None or newest < 0 or newest <= loss.proven:
        return None
    return BadResume(loss, newest, instead)
