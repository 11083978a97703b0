"""What can go wrong with a checkpoint, as errors with words and an exit code."""

from __future__ import annotations

from transom_cli.errors import NoCheckpoint, TransomError, UsageError

DO_NOT_RESTART = 93  # exit code of a trainer that must not be restarted


class BadManifest(TransomError):
    """The manifest is missing, damaged, or of a schema that this version does not know."""

    kind = "bad_manifest"


class SaveFailed(TransomError):
    """A save did not become a checkpoint. Training may go on: the checkpoint before it is untouched."""

    kind = "save_failed"


class TakenOver(TransomError):
    """A newer launch was started over the same checkpoints: an older one publishes and deletes nothing more."""

    kind = "taken_over"


class StateMismatch(TransomError):
    """The checkpoint's bytes are good, but they are not the state that this trainer holds."""

    kind = "state_mismatch"


class NeedsCode(StateMismatch):
    """Part of a checkpoint names a function or class outside the known data types. Loading it could run any program."""

    exit_code = 13
    kind = "needs_code"

    name = ""  # the function or class


class WorldSizeChanged(UsageError):
    """The checkpoint has per-rank state (random numbers, data position) for another number of ranks."""

    kind = "world_size_changed"


class RanksDiffer(UsageError, SystemExit):
    """Values that a checkpoint stores once for all ranks differ between the ranks.

    It is also a SystemExit with code 93 ("do not restart"): a trainer that does not catch it would fail again at the
    first save of each restart. `except Exception` catches it.
    """

    kind = "ranks_differ"

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.code = DO_NOT_RESTART


class NoCheckpointRestores(NoCheckpoint, SystemExit):
    """There are checkpoints, and none of them restores.

    It is a SystemExit too, so that a trainer that does not catch it ends with exit code 15 and not with a
    traceback and 1: the supervisor must see that restarting will not help. `except Exception` catches it.
    """

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.code = self.exit_code


class BadFile(TransomError):
    """A file that was to be imported is damaged, or holds what is not taken; or an export came out wrong."""

    kind = "bad_file"


class BadSetbacks(TransomError):
    """The record of how often the training was set back is damaged, or of another version."""

    kind = "bad_setbacks"
