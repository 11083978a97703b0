"""What a training framework's own log lines say about progress: the table `FORMS`. Pure.

A line can only report. Steps of a named logger are optimizer steps. A progress bar may count micro-batches, or the
batches of an evaluation, so it counts only if it moves with the optimizer's steps (`StepOffset`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 2000  # characters of a line
_TAIL = 16 * 1024  # characters of new output that are read
_BEHIND, _LEAST = 2, 0.6  # by how many steps, or to which share, a logger may be behind the optimizer
_FEW, _SAME = 5, 0.25  # optimizer steps before a progress bar counts; how far its pace may differ from theirs
_BARS = 8
_DIGITS = 12  # of a step


@dataclass(frozen=True)
class Form:
    """One kind of line.

    Args:
        pattern: has the groups `step`, `loss`, `lr`, `epoch`, `speed`, or `at` and `total` of a progress bar.
        unit: of `speed`.
    """

    framework: str
    pattern: re.Pattern[str]
    unit: str = ""


def _form(framework: str, pattern: str, unit: str = "") -> Form:
    """`<loss>` and the like are numbers."""
    pattern = re.sub(r"(?<!P)<(\w+)>", lambda name: f"(?P<{name[1]}>{NUMBER})", pattern)
    return Form(framework, re.compile(pattern, re.IGNORECASE), unit)


FORMS = (
    _form(
        "torchtitan", r"(?<!validate )\bstep: +(?P<step>\d+) +loss: +<loss> .*?\btps: +(?P<speed>[\d,]+)", "tokens/s"
    ),
    _form(
        "Megatron", r"^.{0,80}\biteration +(?P<step>\d+)/ *\d+ \|(?:.*?\blearning rate: <lr> \|)?.*?\bloss: <loss> \|"
    ),
    _form("DeepSpeed", r"\bsteps: (?P<step>\d+) loss: <loss> .*?samples/sec: <speed>", "samples/s"),
    _form("DeepSpeed", r"\[Rank 0\] step=(?P<step>\d+), skipped=\d+, lr=\[<lr>"),
    _form("", r"\biter (?P<step>\d+): loss <loss>, time\b"),  # nanoGPT
    _form(
        "Hugging Face",
        r"^\W*\{[^{}]*?'loss': '?<loss>'?[,}](?:[^{}]*'learning_rate': '?<lr>'?[,}])?"
        r"(?:[^{}]*'epoch': '?<epoch>'?[,}])?",
    ),
    _form("Lightning", r"^Epoch (?P<epoch>\d+)(?:/-?\d+)?: .*?\bv_num=\d+(?:[^\]]*?loss(?:_step)?=<loss>)?"),
    # tqdm over the whole training, and not over an epoch, whose length may change
    _form("", r"^(?!Epoch)(?:[\w -]{1,30}: *)? *\d{1,3}%\|[^|]{0,200}\| *(?P<at>\d+)/(?P<total>\d+) \["),
)
_HINTS = ("loss", "%|", "step=")


@dataclass(frozen=True)
class TrainerReport:
    """The newest values that a trainer has logged; None: not logged. bar: position and length of a progress bar."""

    framework: str = ""
    step: int | None = None
    loss: float | None = None
    lr: float | None = None
    epoch: float | None = None
    speed: str = ""
    bar: tuple[int, int] | None = None

    def newer(self, other: TrainerReport) -> TrainerReport:
        """Take what `other`, which is newer, has logged. A position is only that of the newest lines."""
        known = {name: value for name, value in vars(other).items() if value not in (None, "")}
        return replace(self, **{"step": None, "bar": None, **known})

    @property
    def values(self) -> dict[str, float | str]:
        """What a screen shows of it, besides the step."""
        shown = {name: value for name, value in vars(self).items() if name not in ("step", "bar") and value}
        return {name: value for name, value in shown.items() if isinstance(value, str) or math.isfinite(value)}


NOTHING = TrainerReport()


def read_lines(text: str) -> TrainerReport:
    """Read the end of new output, whose last line may be incomplete. Progress bars separate their lines by CR."""
    found = NOTHING
    for line in re.split(r"[\r\n]+", text[-_TAIL:]):
        if len(line) <= _LONGEST and any(hint in line for hint in _HINTS):
            one = _read_line(_ANSI.sub("", line))
            found = replace(found.newer(one), step=_or(one.step, found.step), bar=one.bar or found.bar)
    return found


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _read_line(line: str) -> TrainerReport:
    for form in FORMS:
        match = form.pattern.search(line)
        if match is not None:
            got = match.groupdict()
            at, total = _whole(got.get("at")), _whole(got.get("total"))
            return TrainerReport(
                framework=form.framework,
                step=_whole(got.get("step")),
                loss=_float(got.get("loss")),
                lr=_float(got.get("lr")),
                epoch=_float(got.get("epoch")),
                speed=f"{got['speed']} {form.unit}" if got.get("speed") else "",
                bar=(at, total) if at is not None and total else None,
            )
    return NOTHING


def _whole(text: str | None) -> int | None:
    return int(text) if text and len(text) <= _DIGITS else None


def _float(text: str | None) -> float | None:
    return float(text) if text else None


@dataclass
class StepOffset:
    """How far the training's own step is ahead of the optimizer steps that this launch has made; None: unknown.

    A line is read a moment after it was written, when the optimizer may have gone further. So each line gives a lower
    bound, and the largest is right.
    """

    offset: int | None = None
    _first: dict[int, tuple[int, int]] = field(default_factory=dict)  # a bar's length -> its position, counted steps
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def see(self, report: TrainerReport, counted: int) -> None:
        """Compare a report with the optimizer steps that were counted when it was read."""
        step, least = report.step, counted - _BEHIND
        if step is not None:
            least = min(least, int(_LEAST * counted))  # if it is further behind, it logs one of several optimizer steps
        elif report.bar is not None and self._moves_along(*report.bar, counted):
            step = report.bar[0]
        if step is not None and step >= least:
            self.offset = max(step - counted, self.offset or 0)

    def _moves_along(self, at: int, total: int, counted: int) -> bool:
        if total not in self._first and len(self._first) >= _BARS:
            return False
        first = self._first.setdefault(total, (at, counted))
        last, self._last[total] = self._last.get(total, (at, counted)), (at, counted)
        moved, made = at - first[0], counted - first[1]
        if moved < 0:  # another bar of this length
            self._first[total] = at, counted
        together = at > last[0] and counted > last[1]  # a bar of an evaluation moves while the optimizer rests
        return together and made >= _FEW and abs(moved - made) <= _SAME * made
