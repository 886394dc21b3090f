"""Numbers of data that their neighbours make impossible: dead, hot and flickering detector elements, zingers, spikes.

This knows the data alone. What an image that is fitted to the rest says of them: `plugstream.solver.outliers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_REACH, _CAMERA, _WIDE = 3, 1, 8  # neighbours on either side: of a number, of one on a camera, and of an element
_VIEWS = 16  # the fewest that tell what an element does
_FINE = 16  # elements of a detector for each step that is looked away on both sides
_AGAIN = 2  # looks at data without those that were found
_BLOCK = 1 << 20  # numbers whose neighbours are gathered at once
SIGMA = 1.4826
"""The standard deviation of white noise over the median of its size."""
FAR = 8.0
"""So many standard deviations of the noise are not noise."""
ODD = 4.0
"""An element is odd that differs so many times as much as its neighbours do,"""
_STUCK = 0.2  # or varies from view to view by less than this part of how much they do.
_ISOLATED = 2.0  # A number is off by so many times the largest deviation of its neighbours.
_ALWAYS = 0.9  # An element is beyond those beside it in this part of the views.
_NOISY, _OFF = 2.0, 0.25  # A view has so many times the noise of the others, which is that of noise but for this part.
_EMPTY = 1e-2  # A view has less than this part of its neighbours' energy.
HARMLESS = 0.05
"""An element that differs by this part of the data's root mean square does no harm."""


@dataclass(frozen=True)
class Outliers:
    """Numbers that are to have no weight, and views that are to have less.

    Arguments: bad (views, *data_shape), True for those; elements (*data_shape) and views (views,), of which no number
    counts; weights (views,), what the others count, up to 1; None if that is alike.
    """

    bad: Tensor
    elements: Tensor
    views: Tensor
    weights: Tensor | None = None

    @property
    def numbers(self) -> Tensor:
        """Those that are neither of an element nor of a view: (views, *data_shape)."""
        return self.bad & ~(self.elements | _as_data(self.views, self.elements))

    def describe(self, element: str) -> str:
        """In a line; element is the instrument's word for one, such as column."""
        counts = ((self.numbers, "number"), (self.elements, element), (self.views, "view"))
        parts = [f"{int(part.sum()):,} {name}{'s' * (int(part.sum()) != 1)}" for part, name in counts if part.any()]
        said, of = [], f"of {len(self.views):,} views"
        if parts:
            listed = " and ".join(", ".join(parts).rsplit(", ", 1))
            whole = f"{of} of {self.elements.numel():,} numbers"
            said.append(f"{listed} {whole} have no weight, since they cannot be right")
        if self.weights is not None:
            noisy = self.weights < 1
            times = float(self.weights[noisy].rsqrt().median())
            said.append(f"{int(noisy.sum()):,} {of} count less, with {times:.2g} times the noise of the others")
        return "; ".join(said)


@torch.no_grad()
def suspect_data(data: Tensor, *, camera: bool = False, least: float = 0.0, mirror: Tensor | None = None) -> Outliers:
    r"""Find numbers, elements and views that neighbours make impossible.

    With m the median of a number's neighbours on the detector, s the noise, by medians of |y - m| over views and over
    elements: a number, if |y - m| > 2 max |neighbour - m| + 8 s or, but for a camera, |y| is twice that of 16
    neighbours and 2 s more, unless one of the next views has half as much within two elements. An element, if y - m
    changes from view to view four times as much as its neighbours', if y varies a fifth as much as on both sides, or a
    25th as much as up to three away on both, or if in nine views of ten it is beyond those beside it, by more than they
    differ; but not if its mirror is, too, as of a tube about the axis, or if that is not seen. A view, if it has a
    hundredth of the energy of those around.

    Holds where neighbours on the detector see nearly the same, and views are in the order of their angles or places;
    other orders only leave more to suspect.

    Arguments: data (views, *data_shape), of which the last axis, or the last two, are the detector's; camera, whether
    the last two are rows and columns; least, a lower bound of s; mirror (columns,), the column on the other side of
    the axis of rotation, -1 for none.
    Reference: Rousseeuw and Croux, J. Am. Statist. Assoc. 88(424), 1993 (deviations by medians).
    """
    data = data if data.is_floating_point() or data.is_complex() else data.float()
    found = _suspect_once(data, camera, least, mirror)
    for _ in range(_AGAIN if bool(found.bad.any()) and data.numel() <= _BLOCK else 0):  # others are hidden beside them
        data = torch.where(found.bad, neighbour_median(data, camera), data)
        more = _suspect_once(data, camera, least, mirror)
        found = gather(found.bad | more.bad, found.elements | more.elements, found.views | more.views)
    return found


def view_weights(data: Tensor, order: Tensor) -> Tensor | None:
    r"""What views with more noise than others count in least squares: (views,), up to 1; None where all are alike.

    With s_v, the median size of the fourth differences of a view along its last axis, and s the lower quartile of all,
    w_v = (s / s_v)^2 where s_v > 2 s, and 1 elsewhere: weights by the inverse of the variance, but for small ones.
    Noise is another in each view, so that the differences of a view less the next have the size (s_v^2 + s_u^2)^(1/2),
    and second differences have (6 / 70)^(1/2) of the size of fourth ones. Where the noisy views are off by a quarter,
    it is the sample that is rough, and all count alike.

    Holds for white noise, and samples that look nearly the same in the next view. Arguments: data (views, ...,
    elements), real; order (views,), that of the angles. Reference: Rice, Ann. Statist. 12, 1984 (differences).
    """
    if len(data) < 4 or data.shape[-1] < _VIEWS:
        return None
    rough = data.diff(n=4, dim=-1)
    size = rough.abs().flatten(1).median(1).values
    usual = size.quantile(0.25)
    noisy = size > _NOISY * usual
    if not usual > 0 or not bool(noisy.any()):
        return None
    beside = rough[order].diff(dim=0).abs().flatten(1).median(1).values
    chance = (size[order][1:].square() + size[order][:-1].square()).sqrt()
    near = noisy[order][1:] | noisy[order][:-1]
    second = data[noisy].diff(n=2, dim=-1).abs().flatten(1).median(1).values * math.sqrt(70 / 6)
    white = float((second / size[noisy]).median())
    if float((beside / chance)[near].median()) < 1 - _OFF or not 1 - _OFF < white < 1 + _OFF:
        return None
    return torch.where(noisy, (usual / size).square(), 1.0)


def _suspect_once(data: Tensor, camera: bool, least: float, mirror: Tensor | None) -> Outliers:
    away, most = _deviations(data, camera)
    size = away.abs()
    noise = noise_of(size, size, least)
    far = size > _ISOLATED * most + FAR * noise
    if not camera:  # where single photons stand out
        far |= data.abs() > _ISOLATED * _neighbours(data.abs(), camera, _WIDE).amax(-1) + 2 * noise
    wide = torch.nn.functional.max_pool1d(size.reshape(len(size), -1, size.shape[-1]), 5, 1, 2).reshape(size.shape)
    near = torch.zeros_like(wide)
    near[1:], near[:-1] = wide[:-1], torch.maximum(near[:-1], wide[1:])
    far &= near < size / 2
    vary = away.diff(dim=0).abs().median(0).values if len(size) > 1 else 0 * size[0]
    harmless = HARMLESS * float((data - away).abs().square().mean().sqrt())  # of the medians
    elements = _is_odd(vary, camera, 2 * least) & (size.median(0).values > harmless)
    mean = data.mean(0)
    varying, around = (data - mean).abs().mean(0), _neighbours(mean[None], camera, 1)[0]
    excess = (mean - _median(_neighbours(mean[None], camera)[0])).abs()
    if not data.is_complex():  # whose phases have no mean
        low, high = _ends(around, camera)
        offset = torch.maximum(mean - high, low - mean).clamp_min(0)
        offset *= _by_blocks(data, lambda block: (_side(block, camera),))[0].mean(0).abs() > _ALWAYS
        beyond = offset > harmless + high - low + ODD * usual(excess, camera)
        if mirror is not None:
            mirror = mirror.to(data.device)
            twin = torch.maximum(torch.maximum(excess, excess.roll(1, -1)), excess.roll(-1, -1))[..., mirror]
            beyond &= (twin < offset / 2) & (mirror >= 0)
        elements |= beyond
    near, wider = (_beside(varying, camera, reach)[0] for reach in (1, 3))
    near, wider = (
        torch.where(vary > harmless / 50, vary, 0.0) for vary in (near, wider)
    )  # which is more than rounding
    stuck = (varying < _STUCK * near) | (varying < _STUCK**2 * wider)
    never = (varying == 0) & (not camera)  # where no photon reaches some pixels
    elements |= stuck & ((torch.maximum(wider, excess) > harmless) | never)
    elements &= (camera or data.ndim == 2) and len(data) >= _VIEWS  # axes such as coils have no neighbours
    energy = data.abs().square().flatten(1).mean(1)
    return gather(far, elements, energy <= _EMPTY * _median(_neighbours(energy[None], False, _WIDE))[0])


def gather(bad: Tensor, elements: Tensor, views: Tensor) -> Outliers:
    """These numbers, with all of the elements and of the views."""
    return Outliers(bad | elements | _as_data(views, elements), elements, views)


def _as_data(views: Tensor, elements: Tensor) -> Tensor:
    return views.reshape(-1, *(1,) * elements.ndim)


def noise_of(kept: Tensor, size: Tensor, least: float) -> Tensor:
    """The standard deviation of each number: the larger of those of its view and of its element, by medians."""
    by_view = kept.flatten(1).nanmedian(1).values.nan_to_num(0.0).reshape(-1, *(1,) * (size.ndim - 1))
    by_element = kept.nanmedian(0).values.nan_to_num(0.0)
    return (SIGMA * torch.maximum(by_view, by_element)).clamp_min(least)


def _deviations(data: Tensor, camera: bool) -> tuple[Tensor, Tensor]:
    """By what each number differs from the median of its neighbours, and the largest size of that among them."""

    def look(block: Tensor) -> tuple[Tensor, Tensor]:
        around = _neighbours(block, camera)
        middle = _median(around)
        return block - middle, (around - middle[..., None]).abs().amax(-1)

    away, most = _by_blocks(data, look)
    return away, most


def _side(data: Tensor, camera: bool) -> Tensor:
    """1 for numbers above those beside them, -1 below, 0 between."""
    low, high = _ends(_neighbours(data, camera, 1), camera)
    return (data > high).to(torch.float32) - (data < low).to(torch.float32)


def _ends(around: Tensor, camera: bool) -> tuple[Tensor, Tensor]:
    """The least and the most of neighbours; on a camera but for one on each side, which may be as wrong."""
    ordered = around.sort(-1).values
    return ordered[..., int(camera)], ordered[..., -1 - int(camera)]


def neighbour_median(data: Tensor, camera: bool = False) -> Tensor:
    """The median of each number's neighbours in its view, itself left out: six in a row, or eight on a camera.

    Of complex numbers that of the real and of the imaginary part.

    Arguments: data (views, ..., samples), or (views, ..., rows, columns) of a camera.
    """
    return _by_blocks(data, lambda block: (_median(_neighbours(block, camera)),))[0]


def _by_blocks(data: Tensor, work: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    blocks = [work(block) for block in data.split(max(1, _BLOCK // max(1, data[0].numel())))]
    return tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))


def _neighbours(data: Tensor, camera: bool, reach: int | None = None) -> Tensor:
    """The neighbours of each number along the last axis, or the last two, mirrored at the ends: (..., neighbours)."""
    along = range(-(reach or (_CAMERA if camera else _REACH)), (reach or (_CAMERA if camera else _REACH)) + 1)
    parts = []
    for across in along if camera else (0,):
        rows = data.index_select(-2, _mirrored(data, -2, across)) if across else data
        parts += [rows.index_select(-1, _mirrored(data, -1, step)) for step in along if step or across]
    return torch.stack(parts, -1)


def _mirrored(data: Tensor, axis: int, step: int) -> Tensor:
    count = data.shape[axis]
    index = (torch.arange(count, device=data.device) + step).abs()
    return torch.where(index < count, index, 2 * (count - 1) - index).clamp(0, count - 1)


def _median(values: Tensor) -> Tensor:
    if values.is_complex():
        return torch.complex(values.real.median(-1).values, values.imag.median(-1).values)
    return values.median(-1).values


def _is_odd(values: Tensor, camera: bool, least: float) -> Tensor:
    """Which elements have far more than those around, and than those on both sides: an edge is wider than one."""
    return values > ODD * torch.maximum(usual(values, camera), _beside(values, camera, 1)[1]) + least


def _beside(values: Tensor, camera: bool, reach: int) -> tuple[Tensor, Tensor]:
    """What elements on both sides have, at the distance up to `reach` and along the axis that suit each element best.

    The most that both sides have at least, and the least that both have at most: (*shape) to the same twice.
    """
    pairs = [
        [values.index_select(axis, _mirrored(values, axis, sign * step)) for sign in (-1, 1)]
        for axis in ((-2, -1) if camera else (-1,))
        for step in range(1, min(reach, max(1, values.shape[axis] // _FINE)) + 1)
    ]
    both = torch.stack([torch.minimum(*pair) for pair in pairs]), torch.stack([torch.maximum(*pair) for pair in pairs])
    return both[0].amax(0), both[1].amin(0)


def usual(values: Tensor, camera: bool) -> Tensor:
    """The median of what elements around each have: (*data_shape) to the same."""
    return _median(_neighbours(values[None], camera, 3 if camera else _WIDE)[0])
