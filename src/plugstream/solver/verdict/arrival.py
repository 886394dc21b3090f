"""How far an image still has to go, from how its steps shrink."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.solver.verdict.trace import Trace

ARRIVED = 0.01
"""An image has arrived if ten times as many steps would change it by less than this part, and by less than twice that
even if the estimated drift is three times too short."""

FEWEST = 16
"""Steps before anything can be said."""

# Means over the last fifth of the steps up to k stand for the image at k, so that the noise of batches averages out.
_MEAN = 0.2
# The last four moves over a factor of sqrt(2) in steps are compared, to predict those until 10 k.
_FACTOR, _MOVES, _TENFOLD = math.sqrt(2), 4, 10.0
# The usual change of log(move) from one to the next, its weight beside the change of the last three, the part of that
# change which lasts from one move to the next, and the range of changes. Fitted to 27 runs (docs/verdict.md).
_USUAL, _PRIOR, _LASTING, _LEAST, _MOST = -0.15, 0.2, 0.7, -1.5, 0.0
# A move counts as at least this part of the one before; the second number decides whether an image has arrived. After
# a restart of momentum an image stands almost still, and then moves on.
_LULL, _LONG_LULL = 0.45, 0.65
_DOUBT = 3.0  # by what factor the drift may be estimated too short
_SIGNAL = 0.2  # at least this part of a squared move is not the noise of batches
# An image is on its way elsewhere if it has so many times farther to go than it had, and than one that has arrived.
_RISEN, _AWAY = 2.0, 4.0
# A new problem, with another sigma say, is judged after this part of the steps before it: its first moves are short
# because momentum restarts.
_AGE = 0.25


@dataclass(frozen=True)
class Arrival:
    """How far an image has to go: what ten times as many steps would change, as a part of the image's norm.

    Arguments: to_go, sqrt(drift^2 + 2 hover^2); drift, of the mean over steps, in one direction; hover, by how much the
    image of a step differs from that mean, since each step uses other views; lull, the drift if the image only pauses;
    least, the least `to_go` that was estimated earlier, infinite if nobody asked.
    """

    to_go: float
    drift: float
    hover: float
    lull: float = 0.0
    least: float = math.inf

    @property
    def arrived(self) -> bool:
        """Whether it is within 1 % of where ten times as many steps would bring it."""
        return self.within(ARRIVED)

    def within(self, limit: float) -> bool:
        """Whether it has no farther to go, and no more than twice as far if the drift is three times the estimate."""
        longest = _DOUBT * max(self.drift, self.lull)
        return self.to_go <= limit and math.hypot(longest, math.sqrt(2) * self.hover) <= 2 * limit

    def excess(self, limit: float) -> float:
        """How many times too far it has to go: at 1 a run with this limit ends. Of one that hovers drift counts."""
        if math.sqrt(2) * self.hover > limit:
            return self.drift / limit
        return max(self.to_go, math.hypot(_DOUBT * max(self.drift, self.lull), math.sqrt(2) * self.hover) / 2) / limit

    @property
    def rises(self) -> bool:
        """Whether it has come to have twice as far to go as it had, and more than the noise of batches."""
        return not self.hovers and self.to_go > max(_AWAY * ARRIVED, _RISEN * self.least)

    @property
    def hovers(self) -> bool:
        """Whether most of the rest is due to the views of single steps."""
        return 2 * self.hover**2 > self.drift**2


def estimate_arrival(trace: Trace) -> list[Arrival]:
    r"""How far each image of a run has to go; empty after too few steps, or in a search for sigma.

    Too few are fewer than 16, or than a quarter of those before the present problem began.

    With z(k) the mean of the images over the last fifth of the steps up to k, K the last step and r^2 = 2, the moves

        m_j = ||z(K / r^j) - z(K / r^(j+1))||,    j = 0, .., 3

    change by a factor exp(g) from each to the next, where g is the mean slope of the last three log m_j, drawn a little
    towards the usual one u = -0.15, to which it tends. So of the moves until ten times as many steps the i-th is

        n_i = m exp(g_1 + .. + g_i),    g_i = u + 0.7^i (g - u),    m = max_j 0.45^j m_j,

    and they add up to the drift,

        drift^2 = sum_ij n_i n_j c^|i - j|,

    where c is the cosine between moves. Short moves along the slowest directions, which a distance ||x - P(x)|| hides,
    add up here. The hover is what is left of the last quarter of the steps after a parabola through each of its random
    sums; its effect on moves and cosines is subtracted.

    Condition: slow directions have begun to move. If the image converges exponentially the estimate is too large, and
    soon tiny. A change that lies ahead, such as another sigma, is not foreseen. If another problem began on the way,
    moves are counted from there, and ten times as many steps from the start. docs/verdict.md has measurements.

    Arguments: trace, of images (..., *image_shape). Returns a list with an entry for each image.
    """
    first_look = max(FEWEST, _AGE * trace.first)
    return [] if trace.phase is None or not trace.steps or trace.steps[-1] < first_look else _estimates(trace)


def compare_arrival(trace: Trace) -> list[Arrival]:
    """As `estimate_arrival`, with the least of what was still to go at three earlier times, by `Arrival.least`."""
    now = estimate_arrival(trace)
    for part in (0.25, 0.5, 0.75) if now else ():
        count = sum(step <= part * trace.steps[-1] for step in trace.steps)
        past = estimate_arrival(Trace(trace.first, trace.steps[:count], trace.sums[:count], trace.phase))
        now = [replace(one, least=min(one.least, earlier.to_go)) for one, earlier in zip(now, past or now, strict=True)]
    return now


def forecast_end(trace: Trace, most: int, limit: float, every: int, *, near: bool = False) -> int | None:
    r"""The step at which a run ends that ends on arrival, None where nothing can be said of that yet.

    The excess e, by which images have too far to go, is taken to fall on as it did from half of the steps to all k:

        K = k e(k)^(1 / p),    p = log2(e(k / 2) / e(k)).

    Condition: it falls. The slower it falls, the more an image that converges exponentially is before its time.

    Arguments: trace, of the steps so far; most steps of the run; limit, the part of the image that ten times as many
    steps may change in the end; every, steps between two looks at that; near, whether the problem began close to its
    end, so that the first look is expected to be the last.
    """
    k, judged = trace.steps[-1], bool(estimate_arrival(trace))
    half = sum(step <= k // 2 for step in trace.steps)
    if near and not judged:
        return min(most, math.ceil((trace.first + max(FEWEST, _AGE * trace.first)) / every) * every)
    if not judged or trace.steps[half - 1] < FEWEST:
        return None
    parts = (trace, Trace(trace.first, trace.steps[:half], trace.sums[:half], trace.phase))
    now, before = (max(one.excess(limit) for one in _estimates(part)) for part in parts)
    if not 0 < now < before < math.inf:
        return None
    power = math.log(before / now) / math.log(k / trace.steps[half - 1])
    times = math.exp(min(math.log(now) / power, math.log(1 + most)))  # not infinite either
    return min(most, max(trace.first + k + every, math.ceil((trace.first + k * times) / every) * every))


def _estimates(trace: Trace) -> list[Arrival]:
    """As `estimate_arrival`, whatever the number of steps."""
    steps = np.array(trace.steps)
    ahead = (_TENFOLD * (trace.first + steps[-1]) - trace.first) / steps[-1]
    ends = [round(int(steps[-1]) / _FACTOR**j) for j in range(_MOVES + 1)]
    windows = [np.flatnonzero((steps <= end) & (steps > (1 - _MEAN) * end)) for end in ends]
    late = np.flatnonzero(steps >= 0.75 * steps[-1])
    late = late if len(late) > 8 else np.arange(max(0, len(steps) - 9), len(steps))
    last = trace.values([-1])
    rests, parts = trace.values(late), [trace.values(window) for window in windows]
    found = []
    for image in range(len(last)):
        end = last[image, 0]
        means = np.array([_aligned(part[image], end).mean(0) for part in parts])
        counts, scale = [part.shape[1] for part in parts], float(np.linalg.norm(end))
        hover = _hover((steps[late] - steps[-1]) / steps[-1], _aligned(rests[image], end))
        found.append(_estimate(means, counts, scale, hover, ahead))
    return found


def _estimate(
    means: NDArray[np.float64], counts: list[int], scale: float, hovering: tuple[float, float], ahead: float
) -> Arrival:
    """The arrival of one image.

    Arguments: means of its sums over so many entries, the last ones first; scale, its norm; hovering, as of `_hover`;
    ahead, up to how many times as many steps.
    """
    if not math.isfinite(scale):
        return Arrival(math.inf, math.inf, math.inf)
    hover2, memory = hovering
    if scale == 0:
        return Arrival(math.inf, math.inf, 0.0) if means.any() or hover2 > 0 else Arrival(0.0, 0.0, 0.0)
    moves = -np.diff(means, axis=0)
    noise = np.array([hover2 * min(1.0, memory / count) for count in counts])
    products = moves @ moves.T
    squares = products.diagonal()
    lengths = np.sqrt(np.maximum(squares - noise[1:] - noise[:-1], _SIGNAL * squares)).clip(1e-100)
    slope = math.log(lengths[0] / lengths[2]) / 2
    slope = min(_MOST, max(_LEAST, (1 - _PRIOR) * slope + _PRIOR * _USUAL))
    next_one = (products[0, 1] + noise[1]) / (lengths[0] * lengths[1])  # they have a point in common, and its noise
    after = products[0, 2] / (lengths[0] * lengths[2])
    cosine = min(1.0, max(0.0, next_one, math.sqrt(max(0.0, after))))
    count = math.log(ahead) / math.log(_FACTOR)
    number = np.arange(math.ceil(count))
    length, longer = (float((lengths * lull ** np.arange(_MOVES)).max()) for lull in (_LULL, _LONG_LULL))
    coming = length * np.exp(np.cumsum(_USUAL + (slope - _USUAL) * _LASTING ** (number + 1)))
    coming[-1] *= count - number[-1]
    drift2 = float(coming @ cosine ** np.abs(np.subtract.outer(number, number)) @ coming)
    drift, hover = math.sqrt(drift2) / scale, math.sqrt(hover2) / scale
    return Arrival(math.hypot(drift, math.sqrt(2) * hover), drift, hover, drift * longer / length)


def _hover(t: NDArray[np.float64], z: NDArray[np.float64]) -> tuple[float, float]:
    """The mean squared distance of late sums z (n, 256), at times t (n,), from a parabola.

    And how many steps count as one since the rest is correlated from step to step: (1 + rho) / (1 - rho).
    """
    powers = np.stack([np.ones_like(t), t, t**2], 1)
    rest = z - powers @ np.linalg.lstsq(powers, z, rcond=None)[0] if np.isfinite(z).all() else z
    energy = float((rest**2).sum())
    rho = min(0.8, max(0.0, float((rest[1:] * rest[:-1]).sum()) / energy)) if energy > 0 else 0.0
    return energy / (len(t) - 3), (1 + rho) / (1 - rho)


def _aligned(sums: NDArray[Any], last: NDArray[Any]) -> NDArray[np.float64]:
    """Real sums; complex ones as pairs, each turned to the phase of the last, which data may leave free."""
    if not np.iscomplexobj(sums):
        return np.asarray(sums, dtype=np.float64)
    turns = sums.conj() @ last
    turns = np.where(turns == 0, 1, turns)
    turned = sums * (turns / np.abs(turns))[:, None]
    return np.concatenate([turned.real, turned.imag], -1)
