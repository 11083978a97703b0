"""What a checkpoint's directory says about keeping it: the metrics of its step, and a mark. No torch.

Neither file is part of the checkpoint's content, so the manifest does not list them. Without them the checkpoint is as
good as before, and only retention treats it differently.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from transom_cli.ckpt import files

METRICS = "metrics.json"
BAD_LOSS = "_bad_loss"  # among the metrics: the loss of the step was NaN or infinite
KEPT = ".keep"
_AUTOMATIC = b"set by transom: the newest checkpoint before the loss became NaN or infinite\n"
_LIMIT = 1 << 16  # bytes of the metrics that are read


def usable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics: a NaN is never the best. A loss that is not finite is noted."""
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return finite | ({BAD_LOSS: 1.0} if "loss" in metrics and "loss" not in finite else {})


def write_metrics(work: Path, metrics: Mapping[str, float]) -> None:
    """Write the metrics into a checkpoint that is not published yet. Raises OSError."""
    if metrics:
        files.write_new(work / METRICS, (json.dumps(dict(metrics), sort_keys=True) + "\n").encode("ascii"))


def read_metrics(checkpoint: Path) -> dict[str, float]:
    """Return the metrics of a checkpoint; none if it has none, or they cannot be read."""
    try:
        with (checkpoint / METRICS).open("rb") as file:
            data = json.loads(file.read(_LIMIT))
        return usable({str(name): float(value) for name, value in data.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def is_kept(checkpoint: Path) -> bool:
    """Whether this checkpoint is not to be deleted, as a person or transom has said."""
    return (checkpoint / KEPT).exists()


def is_automatic(checkpoint: Path) -> bool:
    """Whether transom has set the mark, and may remove it."""
    try:
        with (checkpoint / KEPT).open("rb") as file:
            return file.read(_LIMIT) == _AUTOMATIC
    except OSError:
        return False


def keep(checkpoint: Path, *, kept: bool = True, automatic: bool = False) -> None:
    """Set or remove the mark. A person's mark replaces one of transom's own. Raises OSError."""
    if not kept:
        (checkpoint / KEPT).unlink(missing_ok=True)
    elif not is_kept(checkpoint):
        files.write_new(checkpoint / KEPT, _AUTOMATIC if automatic else b"")
    elif not automatic and is_automatic(checkpoint):
        (checkpoint / KEPT).write_bytes(b"")
