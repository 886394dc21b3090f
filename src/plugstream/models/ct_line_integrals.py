"""From what an X-ray detector counts to line integrals of the attenuation, step by step.

Each step is a function of arrays whose last axes are the detector's rows and columns, takes any number of views at a
time, and knows nothing of files: an importer calls them block by block, so that scans may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

FLOOR = 1e-4
"""The least transmission that is believed by default: a line integral of 9.2, where few detectors count anything."""

Frames = NDArray[np.float32]


@dataclass(frozen=True)
class FlatField:
    """What the detector shows without the object, and without the beam.

    The flat field of view i is interpolated linearly between the groups of flat fields taken before and after it, and
    is that of the nearest group outside of them, which corrects a beam that drifts.

    Arguments:
        dark: (rows, columns), the mean of the dark fields.
        flats: (groups, rows, columns), the mean of each group of flat fields.
        places: (groups,), the view before which each group was taken, in increasing order: 0 for those before the scan,
            the number of views for those after it, 0 to n - 1 for a flat field of each view.
        darks, dark_places: what each group of dark fields adds to `dark`, and when it was taken, as of the flat fields;
            None where there is one group. `flats` are then those of a detector whose dark field is always `dark`.
    """

    dark: Frames
    flats: Frames
    places: NDArray[np.float64]
    darks: Frames | None = None
    dark_places: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.flats.ndim != 3 or not len(self.flats) or self.flats.shape[1:] != self.dark.shape:
            raise InputError(
                f"flat fields have shape {self.flats.shape}, which does not fit a dark field of {self.dark.shape}"
            )
        if self.places.shape != self.flats.shape[:1] or (np.diff(self.places) <= 0).any():
            raise InputError(f"flat fields need a place each, in increasing order, not {self.places.tolist()}")

    @classmethod
    def from_frames(
        cls,
        flats: Sequence[ArrayLike],
        darks: ArrayLike | Sequence[ArrayLike] | None,
        places: Sequence[float] = (0.0,),
        dark_places: Sequence[float] = (),
    ) -> FlatField:
        """The field from single frames.

        Arguments: flats, for each group its frames (frames, rows, columns); darks (frames, rows, columns), None where
        the detector shows nothing without the beam; places of the groups; dark_places, if darks come in groups, too.
        """
        means = [_mean("flat", frames) for frames in flats]
        if not means or any(mean.shape != means[0].shape for mean in means):
            raise InputError("flat fields must be there, and all of one shape")
        times, later = np.asarray(places, dtype=np.float64), np.asarray(dark_places, dtype=np.float64)
        taken: Any = [np.zeros_like(means[:1])] if darks is None else darks if len(later) else [darks]
        groups = np.stack([_mean("dark", frames) for frames in taken])
        if len(groups) == 1:
            return cls(groups[0], np.stack(means), times)
        dark = groups.mean(0)
        return cls(dark, np.stack(means) - _interpolate(groups - dark, later, times), times, groups - dark, later)

    def beam(self, views: ArrayLike) -> Frames:
        """What the beam adds to the dark field at these views: (views, rows, columns)."""
        return _interpolate(self.flats - self.dark, self.places, np.asarray(views, dtype=np.float64))

    def transmission(self, counts: ArrayLike, views: ArrayLike) -> Frames:
        """(counts - dark) / (flat - dark) of these views; where the beam shows nothing it is NaN."""
        beam, dark = self.beam(views), self.dark[None]
        if self.darks is not None and self.dark_places is not None:
            dark = dark + _interpolate(self.darks, self.dark_places, np.asarray(views, dtype=np.float64))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (np.asarray(counts, dtype=np.float32) - dark) / np.where(beam > 0, beam, np.nan)
        return ratio.astype(np.float32, copy=False)


def line_integrals(transmission: ArrayLike, floor: float = FLOOR) -> Frames:
    """-log(max(t, floor)): the integral of the attenuation along each ray, by the law of Beer and Lambert.

    Holds for a beam of one energy. Where less than `floor` arrives the integral is cut off at -log(floor), as it is
    where noise makes a transmission negative. NaN stays NaN.

    Arguments: transmission, of any shape; floor > 0.
    """
    if not 0 < floor < 1:
        raise InputError(f"the floor of a transmission is between 0 and 1, not {floor}")
    return -np.log(np.maximum(np.asarray(transmission, dtype=np.float32), np.float32(floor)))


def find_bad_pixels(field: FlatField, least: float = 0.25) -> NDArray[np.bool_]:
    """Pixels that do not respond to the beam like their neighbours: True in (rows, columns).

    A pixel is bad where flat - dark is not finite, not positive, below `least` times or above 1 / `least` times the
    median of the nine pixels of its row around it: a beam changes slowly from pixel to pixel.
    """
    from scipy.ndimage import median_filter

    beam = field.flats - field.dark
    sound = np.isfinite(beam) & (beam > 0)
    usual = median_filter(np.where(sound, beam, 0), size=(1, 1, 9), mode="mirror")
    odd = (beam < least * usual) | (beam * least > usual)
    bad: NDArray[np.bool_] = (~sound | odd).any(0)
    return bad


def fill_pixels(frames: ArrayLike, bad: NDArray[np.bool_]) -> Frames:
    """Frames whose bad pixels are interpolated linearly between the nearest good ones of their row.

    Arguments: frames (..., rows, columns); bad (rows, columns). A row without any good pixel takes that of the nearest
    row that has one. A step for filtered back-projection, which has no mask; iterations leave the pixels out.
    """
    values = np.array(frames, dtype=np.float32)
    if not bad.any():
        return values
    bad_rows = bad.all(1)
    if bad_rows.all():
        raise InputError("every pixel of the detector is bad; are the flat and dark fields right?")
    columns = np.arange(bad.shape[1])
    for row in np.flatnonzero(bad.any(1) & ~bad_rows):
        good = columns[~bad[row]]
        after = np.clip(np.searchsorted(good, columns[bad[row]]), 1, max(1, len(good) - 1))
        start, end = good[after - 1], good[np.minimum(after, len(good) - 1)]
        part = np.clip((columns[bad[row]] - start) / np.maximum(end - start, 1), 0.0, 1.0).astype(np.float32)
        values[..., row, bad[row]] = (1 - part) * values[..., row, start] + part * values[..., row, end]
    rows = np.flatnonzero(~bad_rows)
    for row in np.flatnonzero(bad_rows):
        values[..., row, :] = values[..., rows[np.argmin(np.abs(rows - row))], :]
    return values


def air_level(integrals: ArrayLike, margin: int, sides: tuple[bool, bool] = (True, True)) -> Frames:
    """The line integrals of rays beside the object, which should be 0: (views,), to be subtracted.

    The mean over the outermost `margin` columns at both sides of a view. It holds if the object is inside the detector,
    and corrects a beam or an exposure that differs from that of the flat field by a factor.

    Arguments: integrals (views, rows, columns); margin, columns a side; sides, whether the left and the right are air.
    """
    values = np.asarray(integrals, dtype=np.float32)
    if not 1 <= margin <= values.shape[-1] // 2:
        raise InputError(f"a margin of {margin} columns a side does not fit a detector of {values.shape[-1]}")
    ends = [end for end, air in zip((values[..., :margin], values[..., -margin:]), sides, strict=True) if air]
    return np.asarray(np.nanmean(np.concatenate(ends, axis=-1), axis=(-2, -1), dtype=np.float64), dtype=np.float32)


def shows_air(integrals: ArrayLike, margin: int, part: float = 0.03) -> bool:
    """Whether the margins of views are air, though the beam may differ from the flat field by a factor a view.

    Air is what does not change across the detector: both margins of a view show the same, and so do their outer and
    inner columns in the mean over views, to a `part` of the largest line integrals above them. A factor of more than
    exp(0.3) is not believed.

    Arguments: integrals (views, rows, columns); margin, columns a side; part.
    """
    values = np.asarray(integrals, dtype=np.float64).mean(1)
    near, far = values[:, : 2 * margin], values[:, : -2 * margin - 1 : -1]
    left, right = near[:, :margin].mean(1), far[:, :margin].mean(1)
    slopes = [abs(float((side[:, :margin] - side[:, margin:]).mean())) for side in (near, far)]
    level = (left + right) / 2
    low, high = np.quantile(values - level[:, None], (0.01, 0.99))
    worst = max(float(np.abs(left - right).mean()), *slopes)
    return bool(worst < part * high and -low < high / 2 and np.abs(level).mean() < 0.3)


def stripe_pattern(mean: ArrayLike, width: int) -> Frames:
    """What single detector pixels add to all views, causing rings in the image: (rows, columns), to be subtracted.

    s = m - S(M(m)), where m is the mean over all views, M the median of about width/2 neighbouring columns, and S the
    least-squares parabola over `width` of them. A pixel with a wrong gain adds a constant to its line integrals, which
    stands out of m, since the object itself, seen from all sides, makes m smooth; the median keeps it out of the
    parabola. Parts of the object as narrow as a ring and centred on the axis are lost too.

    Arguments: mean (rows, columns), of the line integrals over views; width, odd, four times the widest ring or more.
    Reference: M. Rivers, Tutorial introduction to X-ray computed microtomography data processing, 1998 (with a moving
    average in place of S and M).
    """
    from scipy.ndimage import median_filter
    from scipy.signal import savgol_filter

    values = np.asarray(mean, dtype=np.float32)
    if width < 5 or width % 2 == 0 or width > values.shape[-1]:
        raise InputError(f"the width of a stripe filter is odd, from 5 to {values.shape[-1]} columns, not {width}")
    middle = median_filter(values, size=(1, 2 * (width // 4) + 1), mode="nearest")
    return np.asarray(values - savgol_filter(middle, width, polyorder=2, axis=-1), dtype=np.float32)


def _interpolate(groups: Frames, places: NDArray[np.float64], times: NDArray[np.float64]) -> Frames:
    """Groups of frames between which is interpolated linearly; outside of them the nearest: (times, rows, columns)."""
    if len(groups) == 1:
        return np.broadcast_to(groups, (len(times), *groups.shape[1:]))
    after = np.clip(np.searchsorted(places, times, side="right"), 1, len(places) - 1)
    low, high = places[after - 1], places[after]
    part = np.clip((times - low) / (high - low), 0.0, 1.0).astype(np.float32)[:, None, None]
    mixed: Frames = (1 - part) * groups[after - 1] + part * groups[after]
    return mixed


def _mean(kind: str, frames: ArrayLike) -> Frames:
    values = np.asarray(frames)
    if values.ndim != 3 or values.shape[0] == 0 or values.dtype.kind not in "fiu":
        raise InputError(f"{kind} fields have shape {values.shape}, but must be (frames, rows, columns) of numbers")
    mean: Frames = values.mean(0, dtype=np.float64).astype(np.float32)
    return mean
