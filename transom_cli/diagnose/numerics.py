"""Watch the loss and the gradient norm for NaN, spikes and a training that is stuck. Pure.

Samples may be sparse: a training with short steps reports one every few seconds. All values are compared with the last
good samples (`WINDOW`), and a problem must last for some samples in a row:

- not finite: NaN or infinite for 3 samples. A single one is common, since a loss scaler skips that step. For the norm,
  16 samples, since a scaler that starts high skips many steps at once.
- spike: 4 samples that exceed the median by half of it, by 8 robust deviations (MAD) and by twice as much as any sample
  of the window; or 2 that are five times the median and exceed it by four times as much as any sample (ByteRobust,
  SOSP '25, has the factor 5). If nothing has changed, the 4 newest of 68 samples are the 4 largest once in 814,385
  tests, for any distribution. The distances exclude slow waves and warm-ups, where samples are not exchangeable.
- exploding: the same for the norm, with a factor of 10.
- stuck: 100 samples equal to the last bit; 1000 if bfloat16 can hold the value (it may be rounded).
- scale at its minimum: a loss scale of 1 or less for 8 samples, after it was larger.

Each problem is reported once when it begins and once when it is over.
"""

import math
import struct
from dataclasses import dataclass, field, replace
from statistics import median

from transom_cli.diagnose.clue import Category, Clue, Trouble

WINDOW = 64
KNOWN = 16  # fewest good samples for a spike
STAND = {"loss": 3, "norm": 16}  # samples that are not finite
SPIKE, JUMP = 4, 2  # samples
RISE, DEVIATIONS, BEYOND = 0.5, 8.0, 2.0
JUMP_FACTOR, JUMP_BEYOND = {"loss": 5.0, "norm": 10.0}, 4.0
STUCK, ROUNDED = 100, 10
SCALE, SCALE_STAND = 1.0, 8
_MAD = 1.4826  # standard deviations in a median absolute deviation, for a normal distribution


@dataclass(frozen=True)
class Found:
    """A problem that began.

    Args:
        since: the first bad step seen.
        good: the last good step seen before it; -1 for none.
        value: of the loss, norm or scale at `step`.
        usual: its median before, or None.
    """

    trouble: Trouble
    step: int
    since: int
    good: int
    value: float
    usual: float | None = None

    @property
    def words(self) -> str:
        what = _WORDS[self.trouble].format(value=self.value, usual=self.usual)
        last = f"; last good at step {self.good}" if self.good >= 0 else ""
        latest = " at the latest" if 0 <= self.good < self.since - 1 else ""  # not every loss is seen
        return f"{what} since step {self.since}{latest}{last}"

    @property
    def clue(self) -> Clue:
        confidence = 0.9 if self.trouble in (Trouble.NAN, Trouble.INF, Trouble.SCALE) else 0.6
        return Clue("loss", Category.NUMERIC_DIVERGENCE, confidence, (self.words,))


@dataclass(frozen=True)
class Over:
    step: int
    found: Found


_WORDS = {
    Trouble.NAN: "the loss is NaN",
    Trouble.INF: "the loss is infinite",
    Trouble.SPIKE: "the loss is {value:.4g}, the median before was {usual:.4g},",
    Trouble.STUCK: "the loss is {value!r} to the last bit",
    Trouble.NORM: "the gradient norm is not finite",
    Trouble.EXPLODING: "the gradient norm is {value:.4g}, the median before was {usual:.4g},",
    Trouble.SCALE: "the loss scale is at its minimum, {value:.4g},",
}


@dataclass(frozen=True)
class Track:
    """Samples of the loss or of the norm.

    Args:
        good: the last good samples.
        last: the step of the last good sample.
        bad: the samples since then that are not finite or too high.
        since: the step of the first of them.
    """

    name: str
    good: tuple[float, ...] = ()
    last: int = -1
    bad: tuple[float, ...] = ()
    since: int = -1


@dataclass(frozen=True)
class NumericsState:
    """same: how many samples in a row had the same loss. low: the scale at its minimum. top: its largest value."""

    step: int = -1
    loss: Track = field(default_factory=lambda: Track("loss"))
    norm: Track = field(default_factory=lambda: Track("norm"))
    norm_before: float | None = None
    same: int = 0
    same_since: int = -1
    low: int = 0
    low_since: int = -1
    top: float = 0.0
    standing: tuple[Found, ...] = ()


def watch(
    state: NumericsState, step: int, loss: float, grad_norm: float | None = None, loss_scale: float | None = None
) -> tuple[NumericsState, tuple[Found | Over, ...]]:
    """Add one sample: the loss reported at `step`, with the norm of all gradients and the loss scale if known.

    A step that is not after the last one means that the training was rolled back. The usual values are kept; later
    samples show whether a problem is over.
    """
    if step <= state.step:
        state = _set_back(state)
    state = replace(state, step=step)
    before = state.loss.good[-1] if state.loss.good and not state.loss.bad else None
    state = replace(state, loss=sample(state.loss, step, loss))
    found = [_not_finite(state.loss, step), _high(state.loss, step)]
    state, stuck = _stuck(state, step, loss, before)
    found.append(stuck)
    if grad_norm is not None and grad_norm != state.norm_before:  # else it was not fetched again: see beats.client
        state = replace(state, norm=sample(state.norm, step, grad_norm), norm_before=grad_norm)
    found += [_not_finite(state.norm, step), _high(state.norm, step)]
    state, scale = _scale(state, step, loss_scale)
    return _edges(state, step, [one for one in (*found, scale) if one is not None])


def last_step_before(found: Found) -> int:
    """Return the newest step whose checkpoint precedes the problem; -1 if none is known.

    The loss of step s is computed with the weights that step s - 1 produced, so it confirms step s - 1 only.
    """
    return max(-1, found.good - 1)


def relaunched(state: NumericsState) -> NumericsState:
    """Start another launch: keep the usual values, and report new problems again."""
    loss, norm = (replace(track, last=-1, bad=(), since=-1) for track in (state.loss, state.norm))
    return replace(state, step=-1, loss=loss, norm=norm, same=0, low=0, standing=())


def _set_back(state: NumericsState) -> NumericsState:
    loss, norm = (replace(track, last=-1) for track in (state.loss, state.norm))
    return replace(state, loss=loss, norm=norm, same=0, low=0)


def sample(track: Track, step: int, value: float) -> Track:
    """Add a sample to the good ones, or to those that may begin a problem. A good sample clears the latter."""
    if not math.isfinite(value) or _suspicious(track, value):
        bad = (*track.bad, value)[-WINDOW:]
        if len(bad) == WINDOW and all(map(math.isfinite, bad)):  # the new normal, from which a spike is reported again
            return replace(track, good=bad, last=step, bad=(), since=-1)
        return replace(track, bad=bad, since=track.since if track.bad else step)
    return replace(track, good=(*track.good, value)[-WINDOW:], last=step, bad=(), since=-1)


def _suspicious(track: Track, value: float) -> bool:
    return len(track.good) >= KNOWN and value > _limit(track, RISE, BEYOND)


def _limit(track: Track, rise: float, beyond: float) -> float:
    """Return the median plus the largest of: `rise` of it, the noise, `beyond` times the highest sample's distance."""
    middle = median(track.good)
    deviation = _MAD * median(abs(x - middle) for x in track.good)
    return middle + max(rise * abs(middle), DEVIATIONS * deviation, beyond * (max(track.good) - middle))


def _not_finite(track: Track, step: int) -> Found | None:
    bad = track.bad[-STAND[track.name] :]
    if len(bad) < STAND[track.name] or any(math.isfinite(x) for x in bad):
        return None
    trouble = Trouble.NORM if track.name == "norm" else Trouble.NAN if math.isnan(bad[-1]) else Trouble.INF
    return Found(trouble, step, track.since, track.last, bad[-1])


def _high(track: Track, step: int) -> Found | None:
    """Find a spike: all of the last samples are finite and far above the median."""
    if len(track.good) < KNOWN:
        return None
    factor = JUMP_FACTOR[track.name]
    for count, least in ((JUMP, _limit(track, factor - 1, JUMP_BEYOND)), (SPIKE, _limit(track, RISE, BEYOND))):
        if track.name == "norm" and count == SPIKE:
            break  # gradients may be somewhat larger for a while
        newest = track.bad[-count:]
        if len(newest) == count and all(math.isfinite(x) and x > least for x in newest):
            trouble = Trouble.EXPLODING if track.name == "norm" else Trouble.SPIKE
            return Found(trouble, step, track.since, track.last, newest[-1], median(track.good))
    return None


def _stuck(state: NumericsState, step: int, loss: float, before: float | None) -> tuple[NumericsState, Found | None]:
    if loss != before:
        return replace(state, same=0, same_since=step), None
    state = replace(state, same=state.same + 1)
    needed = STUCK * (ROUNDED if _is_rounded(loss) else 1)
    if state.same < needed:
        return state, None
    return state, Found(Trouble.STUCK, step, state.same_since, state.same_since, loss)


def _is_rounded(value: float) -> bool:
    """Whether bfloat16 can hold the value: seven bits after the leading one."""
    return not struct.unpack("<Q", struct.pack("<d", value))[0] & ((1 << 45) - 1)


def _scale(state: NumericsState, step: int, scale: float | None) -> tuple[NumericsState, Found | None]:
    if scale is None:
        return state, None
    if scale > SCALE or state.top <= SCALE:  # a scale that is always 1 is not in use
        return replace(state, low=0, top=max(state.top, scale)), None
    state = replace(state, low=state.low + 1, low_since=state.low_since if state.low else step)
    good = min(state.low_since - 1, state.loss.last)
    return state, Found(Trouble.SCALE, step, state.low_since, good, scale) if state.low >= SCALE_STAND else None


def _edges(state: NumericsState, step: int, found: list[Found]) -> tuple[NumericsState, tuple[Found | Over, ...]]:
    """Return the problems that began and those that are over."""
    known = {one.trouble for one in state.standing}
    begun = [one for one in found if one.trouble not in known]
    now = {one.trouble for one in found}
    over = [one for one in state.standing if one.trouble not in now and _is_over(state, one)]
    standing = tuple(one for one in state.standing if one not in over) + tuple(begun)
    return replace(state, standing=standing), (*begun, *(Over(step, one) for one in over))


def _is_over(state: NumericsState, found: Found) -> bool:
    """Whether a high value has come halfway down, or a value that was not finite is followed by a good sample."""
    track = state.norm if found.trouble in (Trouble.NORM, Trouble.EXPLODING) else state.loss
    if found.trouble in (Trouble.STUCK, Trouble.SCALE):
        return True
    return not track.bad and (found.usual is None or track.good[-1] < (found.usual + found.value) / 2)
