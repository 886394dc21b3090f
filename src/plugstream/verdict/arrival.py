"""How far an image still has to go, from how its steps shrink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.verdict.trace import Trace

__all__ = ["ARRIVED", "FEWEST", "Arrival", "estimate_arrival"]

ARRIVED = 0.01
"""An image that ten times as many steps would change by less than this part has arrived. The estimate is within a
factor of 2 in most runs (docs/verdict.md), so that it is less than 2 % then."""

FEWEST = 16
"""Steps that it takes before anything can be said."""

# Means over the last fifth of the steps up to k stand for the image at k, so that the noise of batches averages out.
_MEAN = 0.2
# Moves over a factor of sqrt(2) in steps are compared, the last three of them, and so many more come until 10 k.
_FACTOR, _MOVES, _TENFOLD = math.sqrt(2), 3, 10.0
# By how much moves shrink from one to the next where the image comes nearer as 1/k, and how much that counts beside
# what was seen: three moves tell a rate badly. Moves that grow are taken for ones that hardly shrink.
_USUAL, _PRIOR, _LEAST, _MOST = math.log(1 / math.sqrt(2)), 0.4, math.log(0.05), math.log(0.98)
# Moves point the same way to some degree, though random parts of them hide it.
_ALIKE = 0.3
# Of a move no more than this part is the noise of batches, in squares.
_SEEN = 0.04


@dataclass(frozen=True)
class Arrival:
    """How far an image has to go: what ten times as many steps would change, as a part of the image's norm.

    Arguments: to_go, the whole, sqrt(drift^2 + 2 hover^2); drift, of the mean over steps, which goes on in one
    direction; hover, by how much the image of a step differs from that mean, since each step sees other views.
    """

    to_go: float
    drift: float
    hover: float

    @property
    def arrived(self) -> bool:
        """Whether it has."""
        return self.to_go <= ARRIVED

    @property
    def hovers(self) -> bool:
        """Whether it is the views of single steps that keep it from being there."""
        return 2 * self.hover**2 > self.drift**2


def estimate_arrival(trace: Trace) -> list[Arrival]:
    r"""How far each image of a run has to go, none where there were fewer than 16 steps, or in a search for sigma.

    With z(k) the mean of the images over the last fifth of the steps up to k, K the last step and r^2 = 2, the moves

        m_j = ||z(K / r^j) - z(K / r^(j+1))||,    j = 0, 1, 2

    shrink by a factor q = exp(g) from each to the next, g being the slope of a line through log m_j, drawn towards
    that of an image which comes nearer as 1/k. Moves to come, q m_0, q^2 m_0 .. until ten times as many steps were
    taken, add up to the drift,

        drift^2 = sum_ij q^i q^j m_0^2 c^|i - j|,

    where c, the cosine between the last two moves, says how far they go in one direction. Short moves along the slowest
    directions, which a distance ||x - P(x)|| hides, add up here. The hover is what is left of the last quarter of the
    steps after a parabola through each of its random sums.

    Where it holds: moves shrink by about the same factor while steps double, as they do where the image comes nearer
    as a power of k; where it comes nearer exponentially the estimate is too large, and soon tiny. A step that lies
    ahead, such as another sigma, is not known to it. Where another problem began on the way, moves are counted from
    there, and ten times as many steps from the start. docs/verdict.md has what was measured.

    Arguments: trace, of images (..., *image_shape). Returns a list with an entry for each image.
    """
    if trace.phase is None or not trace.steps or trace.steps[-1] < FEWEST:
        return []
    steps = np.array(trace.steps)
    ahead = (_TENFOLD * (trace.first + steps[-1]) - trace.first) / steps[-1]
    return [_estimate(steps, _aligned(sums), ahead) for sums in trace.values()]


def _estimate(steps: NDArray[np.int64], z: NDArray[np.float64], ahead: float) -> Arrival:
    """Of one image, with z (steps, n) its random sums; ahead, how many times as many steps are thought of."""
    last = int(steps[-1])
    scale = float(np.linalg.norm(z[-1]))
    if not math.isfinite(scale):
        return Arrival(math.inf, math.inf, math.inf)
    if scale == 0:
        return Arrival(0.0, 0.0, 0.0) if not z.any() else Arrival(math.inf, math.inf, 0.0)
    hover2 = _hover(steps, z)
    points = [_mean(steps, z, last / _FACTOR**j) for j in range(_MOVES + 1)]
    moves = [one - before for one, before in pairwise(points)]
    noise = 2 * hover2 / int(np.count_nonzero(steps > (1 - _MEAN) * last))  # the last step is one of them
    lengths = np.array([float(np.linalg.norm(move)) for move in moves])
    lengths = np.sqrt(np.maximum(lengths**2 - noise, _SEEN * lengths**2))
    tiny = np.finfo(float).tiny
    logs = np.log(np.maximum(lengths, tiny))
    slope = -float(np.polyfit(np.arange(_MOVES), logs, 1)[0])
    slope = min(_MOST, max(_LEAST, (1 - _PRIOR) * slope + _PRIOR * _USUAL))
    cosine = float(moves[0] @ moves[1]) / max(tiny, float(np.linalg.norm(moves[0]) * np.linalg.norm(moves[1])))
    count = math.log(ahead) / math.log(_FACTOR)
    number = np.arange(math.ceil(count))
    coming = np.exp(slope * (number + 1)) * lengths[0]
    coming[-1] *= count - number[-1]
    alike = min(1.0, max(_ALIKE, cosine)) ** np.abs(np.subtract.outer(number, number))
    drift2 = float(coming @ alike @ coming)
    found = (math.sqrt(drift2 + 2 * hover2), math.sqrt(drift2), math.sqrt(hover2))
    to_go, drift, hover = (value / scale for value in found)
    return Arrival(to_go, drift, hover)


def _mean(steps: NDArray[np.int64], z: NDArray[np.float64], k: float) -> NDArray[np.float64]:
    """The mean over the last fifth of the steps up to k."""
    chosen = (steps <= round(k)) & (steps > (1 - _MEAN) * round(k))
    found: NDArray[np.float64] = z[chosen].mean(0)
    return found


def _hover(steps: NDArray[np.int64], z: NDArray[np.float64]) -> float:
    """The mean square of what the last quarter of the steps, at least eight, leaves beside parabolas."""
    chosen = np.flatnonzero(steps >= 0.75 * steps[-1])
    chosen = chosen if len(chosen) > 8 else np.arange(max(0, len(steps) - 9), len(steps))
    t = (steps[chosen] - steps[-1]) / steps[-1]
    powers = np.stack([np.ones_like(t), t, t**2], 1)
    rest = z[chosen] - powers @ np.linalg.lstsq(powers, z[chosen], rcond=None)[0]
    return float((rest**2).sum() / (len(chosen) - 3))


def _aligned(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Real sums; complex ones as pairs, each turned to the phase of the last, which data may leave free."""
    if not np.iscomplexobj(sums):
        return np.asarray(sums, dtype=np.float64)
    turns = sums.conj() @ sums[-1]
    turns = np.where(turns == 0, 1, turns)
    turned = sums * (turns / np.abs(turns))[:, None]
    return np.concatenate([turned.real, turned.imag], -1)
