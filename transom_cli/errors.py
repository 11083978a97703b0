"""The errors that users see: what happened, why, what to do, and the exit code. Pure.

There is one class per kind of error, with its exit code. `transom --help` and docs/troubleshooting.md show the table
`EXIT_CODES`.
"""


def printable(text: str) -> str:
    """Return `text` in a form that is safe for a terminal: control characters are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


REINSTALL = "in the clone of transom: pip install --force-reinstall ."


class TransomError(Exception):
    """A failure in three parts: `what` (one line), `why` (quotes the tool), `hint` (what to do)."""

    exit_code = 1
    kind = "failed"
    advice = ""  # the hint of an error that has none of its own

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint or self.advice

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  {line}" for line in self.why.splitlines()]
        if self.hint:
            lines += [
                "",
                *(f"hint: {line}" if i == 0 else f"      {line}" for i, line in enumerate(self.hint.splitlines())),
            ]
        return "\n".join(printable(line) for line in lines)  # it quotes text of others

    def as_json(self) -> dict[str, object]:
        return {
            "schema": 1,
            "error": {"kind": self.kind, "what": self.what, "why": self.why, "hint": self.hint},
            "exit_code": self.exit_code,
        }


class UsageError(TransomError):
    exit_code = 2
    kind = "usage"


class NoSuchRun(TransomError):
    exit_code = 10
    kind = "no_such_run"


class OperatorAlive(TransomError):
    exit_code = 11
    kind = "another_operator"


class SlurmUnreachable(TransomError):
    exit_code = 12
    kind = "slurm_unreachable"


class NotPermitted(TransomError):
    exit_code = 13
    kind = "not_permitted"


class BadNodes(TransomError):
    exit_code = 14
    kind = "bad_nodes"


class Unknown(TransomError):
    """The requested action may have happened or not."""

    exit_code = 22
    kind = "unknown"


class NoCheckpoint(TransomError):
    """Checkpoints exist but none of them restores. The training never starts silently from step 0 then."""

    exit_code = 15
    kind = "no_checkpoint_restores"
    advice = "`transom ckpt ls` lists the checkpoints, `transom ckpt verify` checks them"


class StateDiffers(TransomError):
    """A checkpoint was loaded, and what the trainer would train with is not what was saved."""

    exit_code = 18
    kind = "state_differs"


EXIT_CODES: dict[int | str, str] = {
    0: "done",
    1: "failed",
    2: "usage",
    10: "no such run",
    11: "another operator is alive",
    12: "Slurm unreachable or missing",
    13: "not permitted",
    14: "bad nodes (preflight, or a run directory they cannot see)",
    15: "no checkpoint restores",
    18: "a restored state is not the one that was saved",
    19: "the checkpoint needs another number of ranks",
    20: "degraded",
    21: "held, starved, or given up (no progress, cap reached)",
    22: "unknown",
    23: "crash loop",
    75: "batch script only: left on purpose, continues in the next attempt",
    93: "the trainer's own `do not restart`",
    "128+n": "batch script only: ended by signal n",
    130: "interrupted, or stopped by `transom stop`",
}
