"""The errors of checkpoints, with exit codes."""

from transom_cli.core.log_lines import without_advice
from transom_cli.errors import NoCheckpoint, StateDiffers, TransomError, UsageError

DO_NOT_RESTART = 93  # exit code of a trainer that must not be restarted
CUT_OFF = "the connection to another rank broke"


class BadManifest(TransomError):
    """The manifest is missing, damaged, or of a schema that this version does not know."""

    kind = "bad_manifest"
    advice = "`transom ckpt verify` shows which checkpoints are good"


class SaveFailed(TransomError):
    """A save did not become a checkpoint. Training may continue: the previous checkpoint is untouched."""

    kind = "save_failed"


class TakenOver(TransomError):
    """A newer launch owns the checkpoints directory: this one publishes and deletes nothing more."""

    kind = "taken_over"


class StateMismatch(TransomError):
    """The checkpoint is intact, but does not match the state of this trainer."""

    kind = "state_mismatch"
    advice = "resume with the model and optimizer that were saved, or start from the beginning in another directory"


class NeedsCode(StateMismatch):
    """Part of a checkpoint names a function or class outside the known data types. Loading it could run any code."""

    exit_code = 13
    kind = "needs_code"

    name = ""  # the function or class


class WorldSizeChanged(UsageError):
    """The checkpoint has per-rank state (random numbers, data position) for another number of ranks."""

    exit_code = 19
    kind = "world_size_changed"


class RanksDiffer(UsageError, SystemExit):
    """Values that a checkpoint stores once for all ranks differ between the ranks.

    It is also a SystemExit with code 93 ("do not restart"): a trainer that does not catch it would fail again at the
    first save of each restart. `except Exception` catches it.
    """

    kind = "ranks_differ"
    code = DO_NOT_RESTART


class RanksMissing(TransomError):
    """A save waited for ranks that have not called it. No save can follow in this process."""

    kind = "ranks_missing"


class NoCheckpointRestores(NoCheckpoint, SystemExit):
    """There are checkpoints, and none of them restores.

    It is also a SystemExit: a trainer that does not catch it ends with exit code 15, not with a traceback and 1. So the
    supervisor sees that restarting does not help. `except Exception` catches it.
    """

    code = NoCheckpoint.exit_code


class RestoredStateDiffers(StateDiffers, SystemExit):
    """After a restore, the live state is not the one that was saved, and no other checkpoint restored as it was saved.

    It is also a SystemExit: a trainer that does not catch it ends with exit code 18. The supervisor then stops the run,
    since another start would restore the same. `except Exception` catches it.
    """

    code = StateDiffers.exit_code


class BadFile(TransomError):
    """A file to import is damaged or holds something that is not supported; or an export failed its check."""

    kind = "bad_file"
    advice = "use another copy of the file, or save it again"


class BadRollbacks(TransomError):
    """The record of rollbacks is damaged, or of another version."""

    kind = "bad_setbacks"


def one_line(error: BaseException) -> str:
    """Describe an exception in one line."""
    if isinstance(error, TransomError):
        return error.what
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    text = str(error).strip().splitlines()
    if text and (gloo := without_advice(text[0])) != text[0]:
        return f"{CUT_OFF}: {gloo.rstrip('.')}"
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def describe(error: BaseException) -> str:
    """Describe an exception in one line. DCP's collective exceptions name the rank that failed."""
    if type(error).__name__ == "CheckpointException" and (failures := getattr(error, "failures", None)):
        rank, failure = min(failures.items())
        return f"rank {rank}: {describe(failure[0])}"
    if isinstance(error.__context__, OSError) and not isinstance(error, OSError):
        return describe(error.__context__)  # the error of the system, which torch's serializer hides
    return one_line(error)
