"""The steps from the projections of a file to the line integrals of a scan, each recorded so that it can be redone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.registry import Field
from plugstream.models.ct_geometry import Rays
from plugstream.models.ct_line_integrals import (
    FLOOR,
    FlatField,
    air_level,
    fill_pixels,
    find_bad_pixels,
    line_integrals,
    stripe_pattern,
)
from plugstream.scans.importers.ct_hardening import Hardening, find_hardening
from plugstream.scans.importers.ct_projections import Projections
from plugstream.scans.importers.ct_rotation_axis import find_center, find_fan_center
from plugstream.scans.importers.reading import Indices, ViewOptions, choose_views, pick_rows, read_blocks

__all__ = ["Preparation", "StepOptions", "choose_rows"]

# Of the detector's columns at each side that are looked at for air, the part, and the least number.
_MARGIN, _LEAST_MARGIN = 1 / 32, 4
# Margins are air where they show less than this part of the largest line integrals.
_AIR_PART = 0.03
# A projection in which nothing is brighter than this power of the least transmission was taken without the beam.
_NO_BEAM = 0.5
_LARGE = 1e15
# Views over a wider angle show the object without help, and are left as they are.
_WIDE = np.deg2rad(150)


class StepOptions(ViewOptions):
    """What can be said of the steps from counts to line integrals."""

    rows: str | None = Field(None, description="detector rows to take: one, for an image, or START:STOP:STEP")
    floor: float = Field(FLOOR, gt=0, lt=1, description="least transmission, below which the logarithm is cut off")
    least_response: float = Field(
        0.25, ge=0, lt=1, description="a pixel is bad if its response is below this part of its neighbours'"
    )
    air: int | Literal["auto"] = Field(
        "auto",
        description="columns at each side to subtract the mean of from each view; 0 for none; auto if they are air",
    )
    stripes: int = Field(0, ge=0, description="width of the filter against rings, in columns, odd; 0 for none")
    center: float | Literal["auto", "middle"] = Field(
        "auto",
        description="detector column of the rotation axis, from 0; auto finds it, for a fan from half a turn on",
    )
    hardening: Literal["auto", "none"] = Field(
        "auto",
        description="correct the beam's hardening in one material: auto, if angles are missing, the object is a disc "
        "and its rays show the effect; or none",
    )


def choose_rows(options: StepOptions, projections: Projections) -> tuple[slice, bool]:
    """The rows of the detector that the options take, and whether they make an image rather than a volume."""
    count = projections.shape[0]
    if options.rows is None:
        return slice(0, count), projections.flat_image or count == 1
    chosen = pick_rows(options.rows, count, "detector rows")
    if isinstance(chosen, int):
        return slice(chosen, chosen + 1), True
    return chosen, False


@dataclass
class _Sums:
    """What one pass over the projections tells of all of them."""

    air: NDArray[np.float32]  # (views,), what the margins show
    mean: NDArray[np.float64]  # (rows, columns), without air
    largest: float


class Preparation:
    """How the projections of a file become line integrals.

    In this order: flat and dark fields, logarithm with a floor, bad pixels filled from their neighbours, air
    subtracted, stripes subtracted. What has to be known of all projections (whether the margins are air, the stripes,
    the rotation axis) is found in one pass over them, some at a time, before any is written.

    Arguments: projections; options; angles (views,), radians, of all of them; fan, the width of a detector pixel in
    distances of the detector from the source, None for a parallel beam.
    Attributes: views; rows; good (rows, columns), None where all pixels are; center, a column; steps, what was done, as
    JSON has it; remarks, the same for a person.
    """

    def __init__(
        self,
        projections: Projections,
        options: StepOptions,
        angles: NDArray[np.float64],
        fan: float | None = None,
    ) -> None:
        self._source, self._options, self.fan = projections, options, fan
        self.views = choose_views(options, projections.views)
        self.rows, self.flat_image = choose_rows(options, projections)
        self.steps: list[dict[str, Any]] = []
        self.remarks: list[str] = []
        self._air: NDArray[np.float32] | None = None
        self._stripes: NDArray[np.float32] | None = None
        self._hardening: Hardening | None = None
        self._margin = 0
        self.good: NDArray[np.bool_] | None = None
        self._bad: NDArray[np.bool_] | None = None
        self._note("projections", file=projections.kind, taken=len(self.views), of=projections.views)
        self._find_bad()
        self.center = self._decide(angles)

    def read(self, views: slice) -> NDArray[np.float32]:
        """The line integrals of some of `views`: (views, rows, columns)."""
        integrals = self._integrals(self.views[views])
        if self._air is not None:
            integrals -= self._air[views, None, None]
        if self._stripes is not None:
            integrals -= self._stripes
        return integrals if self._hardening is None else self._hardening.correct(integrals)

    def find_hardening(self, rays: Rays) -> None:
        """Find the beam's hardening, where rays of an image over less than 150 degrees show it."""
        angles = np.unwrap(np.arctan2(*(rays.vectors[:, 1 if not rays.parallel else 0, axis] for axis in (1, 0))))
        if self._options.hardening == "none" or not self.flat_image or np.ptp(angles) >= _WIDE:
            return
        found = find_hardening(rays, np.concatenate([self.read(views)[:, 0] for views in self.blocks()]))
        if found is not None:
            self._hardening = found
            self._note("hardening", a=found.a, b=found.b, c=found.c)
            self.remarks.append(
                f"long ways through the material show {found.part:.0%} less than short ones, as the beam hardens, "
                "which is taken out (--hardening none)"
            )

    def keep_counts(self) -> str:
        """Say that counts stay as they are: the dtype to store them in; steps that line integrals had are not recorded.

        Air and stripes change line integrals alone, and are refused by hand, and left out otherwise.
        """
        field, options = self._source.flat_field, self._options
        if field is None:
            raise InputError("it has line integrals, or no flat fields, and so no counts to keep; leave --counts out")
        if options.stripes or options.air not in ("auto", 0):
            raise InputError("--air and --stripes change line integrals, which --counts does not store; leave them out")
        kind = self._source.read(self.views[:1], self.rows).dtype
        if kind.kind not in "iu" or kind.itemsize > 4:
            raise InputError(f"its counts are {kind}, and not integers of 32 bits or fewer; leave --counts out")
        self.steps = [one for one in self.steps if one["step"] not in ("logarithm", "air")]
        self.remarks = [text for text in self.remarks if "columns of air" not in text]
        self._note("counts", kept=str(kind))
        return "uint16" if kind in (np.uint8, np.uint16) else "int32"

    @property
    def field(self) -> FlatField:
        """The flat and dark fields of the rows that are taken."""
        field = self._source.flat_field
        assert field is not None
        return FlatField(field.dark[self.rows], field.flats[:, self.rows], field.places)

    def read_counts(self, views: slice) -> NDArray[Any]:
        """What the detector counted in some of `views`: (views, rows, columns)."""
        counts = self._source.read(self.views[views], self.rows)
        if counts.dtype == np.uint32 and counts.size and int(counts.max()) > np.iinfo(np.int32).max:
            raise InputError("its counts are larger than 2^31 - 1; leave --counts out")
        return counts.astype(np.uint16 if counts.dtype in (np.uint8, np.uint16) else np.int32)

    def blocks(self) -> Iterator[slice]:
        """The views some at a time, so that a few megabytes are in memory."""
        rows = len(range(self._source.shape[0])[self.rows])
        yield from read_blocks(len(self.views), 16 * rows * self._source.shape[1])

    def _note(self, step: str, **values: Any) -> None:
        self.steps.append({"step": step, **values})

    def _find_bad(self) -> None:
        field, options = self._source.flat_field, self._options
        if field is None:
            return
        self._note("flat and dark fields", groups=len(field.flats), at=field.places.tolist())
        self._note("logarithm", floor=options.floor)
        if not options.least_response:
            return
        bad = find_bad_pixels(field, options.least_response)[self.rows]
        if bad.all():
            raise InputError("every pixel of the detector is bad: its flat fields are no brighter than its dark ones")
        if bad.any():
            self._bad, self.good = bad, ~bad
            self._note("bad pixels", count=int(bad.sum()), least_response=options.least_response)
            self.remarks.append(f"{int(bad.sum())} pixels of the detector are bad, and do not count")

    def _integrals(self, views: Indices, rows: slice | None = None) -> NDArray[np.float32]:
        """Before air and stripes are subtracted; of one row where that is given.

        Those that are taken must be numbers; of the others, which may be looked at, too, what is not one stays NaN.
        """
        rows, bad = (self.rows, self._bad) if rows is None else (rows, None)
        counts = self._source.read(views, rows)
        field = self._source.flat_field
        if field is None:
            found = np.array(counts, dtype=np.float32)
        else:
            part = type(field)(field.dark[rows], field.flats[:, rows], field.places)
            found = line_integrals(part.transmission(counts, views), self._options.floor)
            if bad is None and self._bad is not None:
                bad = find_bad_pixels(part, self._options.least_response)
        if bad is not None:
            found = fill_pixels(found, bad)
        wrong = ~np.isfinite(found).all((1, 2)) & np.isin(views, self.views)
        if wrong.any():
            raise InputError(f"projection {views[wrong.argmax()]} holds NaN or infinity; leave it out with --omit")
        return found

    def _decide(self, angles: NDArray[np.float64]) -> float:
        """Air, stripes and rotation axis, by hand or by what the projections tell; returns the axis."""
        options, columns = self._options, self._source.shape[1]
        self._margin = max(_LEAST_MARGIN, int(_MARGIN * columns)) if options.air == "auto" else options.air
        self._margin = min(self._margin, columns // 2) if options.air == "auto" else self._margin
        find = options.center == "auto" and self._source.center is None
        sums = self._sum_up() if self._margin or options.stripes else None
        if sums is not None and self._margin:
            level = float(np.abs(sums.air).mean())
            if options.air != "auto" or level < _AIR_PART * sums.largest:
                self._air = sums.air
                self._note("air", columns=self._margin, mean=round(float(sums.air.mean()), 6))
                self.remarks.append(
                    f"{sums.air.mean():.4g} on average is what {self._margin} columns of air a side show"
                )
        if sums is not None and options.stripes:
            self._stripes = stripe_pattern(sums.mean, options.stripes)
            self._note("stripes", width=options.stripes, largest=round(float(np.abs(self._stripes).max()), 6))
        if isinstance(options.center, float):
            center, how = options.center, "by hand"
        elif find:
            center, how = self._find_center(angles)
        elif self._source.center is not None and options.center == "auto":
            center, how = self._source.center, "by the file"
        else:
            center, how = (columns - 1) / 2, "the middle of the detector"
        if not 0 <= center <= columns - 1:
            raise InputError(f"the rotation axis would be at column {center:g}, but there are 0 to {columns - 1}")
        self._note("rotation axis", column=round(center, 3), found=how)
        self.remarks.append(f"the rotation axis is seen at column {center:.2f} of {columns}, {how}")
        return center

    def _sound(self, integrals: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which projections are numbers, and show the beam somewhere: (views,)."""
        least = integrals.min((1, 2))
        sound: NDArray[np.bool_] = np.isfinite(least)
        if self._source.flat_field is not None:
            sound &= ~(least > -_NO_BEAM * math.log(self._options.floor))
        return sound

    def _sum_up(self) -> _Sums:
        """One pass; over all of the file's projections if stripes are looked for: all scans of it share them."""
        chosen = range(self._source.shape[0])[self.rows]
        shape = (len(chosen), self._source.shape[1])
        every = np.arange(self._source.views) if self._options.stripes else self.views
        air, mean, largest = np.zeros(len(every), dtype=np.float32), np.zeros(shape), 0.0
        sound = np.ones(len(every), dtype=bool)
        for some in read_blocks(len(every), 16 * math.prod(shape)):
            report("looking at the projections", some.start, len(every))
            found = self._integrals(every[some])
            sound[some] = here = self._sound(found)
            if not here.any():
                continue
            if self._margin:
                air[some][here] = air_level(found[here], self._margin)
            mean += (found - air[some, None, None])[here].sum(0, dtype=np.float64) / len(every)
            largest = max(largest, float(np.quantile(found[here], 0.99)))
        if not sound.all():
            dark = np.flatnonzero(~sound & np.isin(every, self.views))
            if len(dark) and sound.any():
                more = f", nor do {len(dark) - 1} others" if len(dark) > 1 else ""
                raise InputError(f"projection {every[dark[0]]} shows no beam at all{more}; leave it out with --omit")
            mean *= len(every) / max(1, int(sound.sum()))
        return _Sums(air[np.searchsorted(every, self.views)], mean, largest)

    def _find_center(self, angles: NDArray[np.float64]) -> tuple[float, str]:
        """The rotation axis by the projections themselves."""
        if self.fan is None:
            return find_center(self._sinogram(), angles)
        return find_fan_center(self._sinogram(), angles, self.fan)

    def _sinogram(self) -> NDArray[np.float32]:
        """The line integrals of all of the file's projections in the middle one of the rows.

        Of all, whichever are taken: so scans of different views of one file have the same rotation axis. Projections
        that hold NaN, or were taken without the beam, are interpolated between their neighbours.
        """
        rows = range(self._source.shape[0])[self.rows]
        # Of a cone the row at the height of the source, which alone is a fan; of parallel beams any row taken.
        middle = rows[len(rows) // 2] if self.fan is None else self._source.shape[0] // 2
        parts, sound = [], []
        for views in read_blocks(self._source.views, 16 * self._source.shape[1]):
            found = self._integrals(np.arange(views.start, views.stop), slice(middle, middle + 1))
            sound.append(self._sound(found))
            found[~np.isfinite(found)] = 0.0
            air = air_level(found, self._margin)[:, None] if self._air is not None else 0.0
            parts.append(found[:, 0] - air)
        whole, bad = np.concatenate(parts), ~np.concatenate(sound)
        if bad.any() and not bad.all():
            good = np.flatnonzero(~bad)
            for view in np.flatnonzero(bad):
                at = int(np.clip(np.searchsorted(good, view), 1, max(1, len(good) - 1)))
                whole[view] = (whole[good[at - 1]] + whole[good[min(at, len(good) - 1)]]) / 2
        return whole
