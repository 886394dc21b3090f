"""The steps from the projections of a file to the line integrals of a scan, recorded so that they can be redone."""

from __future__ import annotations

import math
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
    shows_air,
    stripe_pattern,
)
from plugstream.scans.importers.ct_field_of_view import (
    ends_in_air,
    in_fan,
    limit_by_memory,
    sample_reach,
    seen_reach,
    view_ends,
)
from plugstream.scans.importers.ct_hardening import Hardening, find_hardening
from plugstream.scans.importers.ct_projections import Projections
from plugstream.scans.importers.ct_rotation_axis import (
    NOT_FOUND,
    covers_turn,
    find_center,
    find_fan_center,
)
from plugstream.scans.importers.reading import Indices, ViewOptions, choose_views, pick_rows, read_blocks

# Of the detector's columns at each side that are looked at for air, the part, and the least number.
_MARGIN, _LEAST_MARGIN = 1 / 32, 4
# Margins are air where they show less than this part of the largest line integrals.
_AIR_PART = 0.03
# A change of the line integrals of rays that were seen twice, above which the beam is said to have drifted.
_DRIFT = 0.02
# A projection in which nothing is brighter than this power of the least transmission was taken without the beam.
_NO_BEAM = 0.5
# Rows of a volume in which the width of the sample is looked for, and the part of the detector by which the axis of a
# recording that grows is off its middle where a whole turn will follow.
_ROWS, _OFF = 5, 0.25
# Views over a wider angle show the object without help, and are left as they are.
_WIDE = np.deg2rad(150)


class StepOptions(ViewOptions):
    """Options for the steps from counts to line integrals."""

    rows: str | None = Field(None, description="detector rows to take: one, for an image, or START:STOP:STEP")
    floor: float = Field(FLOOR, gt=0, lt=1, description="least transmission, below which the logarithm is cut off")
    least_response: float = Field(
        0.25, ge=0, lt=1, description="a pixel is bad if its response is below this part of its neighbours'"
    )
    air: int | Literal["auto"] = Field(
        "auto",
        description="columns at each side to subtract the mean of from each view; 0 for none; auto if they are air",
    )
    field: float | None = Field(
        None, gt=0, le=65_536, description="width of the sample in columns; estimated where views do not end in air"
    )
    stripes: int = Field(0, ge=0, description="width of the filter against rings, in columns, odd; 0 for none")
    center: float | Literal["auto", "middle"] = Field(
        "auto", description="detector column of the rotation axis, from 0; auto finds it, for a fan from half a turn on"
    )
    hardening: Literal["auto", "none"] = Field(
        "auto",
        description="correct the beam's hardening in one material: auto, if angles are missing, the object is a disc "
        "and its rays show the effect; or none",
    )


class Preparation:
    """The steps from the projections of a file to line integrals.

    In this order: flat and dark fields, logarithm with a floor, bad pixels filled from their neighbours, air
    subtracted, stripes subtracted. Whatever depends on all projections (whether the margins are air, the stripes, the
    rotation axis) is found in one pass over them, some at a time, before any is written.

    Arguments: projections; options; angles (views,), radians, of all of them; fan, the width of a detector pixel in
    distances of the detector from the source, None for a parallel beam; growing, whether more projections will come, so
    that nothing can depend on all of them.
    Attributes: views; rows; flat_image, whether the rows make an image rather than a volume; good (rows, columns), None
    where all pixels are; center, a column; axis_found, how, in words; air, whether views end in air at the left and at
    the right; width, columns at the axis that the image needs, None for those of the detector; seen, the radius about
    the axis that was seen of a sample which is wider, in the same unit, otherwise 0; steps, as JSON; remarks, the same
    for a person.
    """

    def __init__(
        self,
        projections: Projections,
        options: StepOptions,
        angles: NDArray[np.float64],
        fan: float | None = None,
        *,
        growing: bool = False,
    ) -> None:
        self._options, self.fan, self._growing = options, fan, growing
        self.grow_to(projections)
        self.rows, self.flat_image = slice(0, projections.shape[0]), projections.flat_image or projections.shape[0] == 1
        if options.rows is not None:
            chosen = pick_rows(options.rows, projections.shape[0], "detector rows")
            self.flat_image = isinstance(chosen, int)
            self.rows = slice(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        self._row_numbers = range(projections.shape[0])[self.rows]
        self.steps: list[dict[str, Any]] = []
        self.remarks: list[str] = []
        self._air: NDArray[np.float32] | None = None
        self._stripes: NDArray[np.float32] | None = None
        self._hardening: Hardening | None = None
        self._counts: str | None = None
        self.good: NDArray[np.bool_] | None = None
        counts = {} if growing else {"taken": len(self.views), "of": projections.views}
        self._note("projections", file=projections.kind, **counts)
        self._find_bad()
        columns = projections.shape[1]
        usual = min(max(_LEAST_MARGIN, int(_MARGIN * columns)), columns // 2)
        self._margin = usual if options.air == "auto" else int(options.air)
        self._air_sides = self.air = (True, True)
        if growing and self._margin:
            self._note("air", columns=self._margin)
        elif not growing:
            self._find_air_and_stripes(angles, usual)
        elif options.center == "auto" and projections.center is None:  # otherwise frames of a stream may be gone
            one = self._sinogram()
            self.air = ends_in_air(view_ends(one[:, None], usual), angles, float(np.quantile(one, 0.99)))
        self.center = self._find_center(angles)
        self.width, self.seen = self._find_field(angles)

    def grow_to(self, projections: Projections) -> None:
        """Go over to the projections that are there by now."""
        self._source = projections
        self.views = choose_views(self._options, projections.views, growing=self._growing)

    def read(self, views: slice) -> NDArray[np.float32]:
        """The line integrals of some of `views`: (views, rows, columns)."""
        integrals = self._integrals(self.views[views])
        if self._growing and self._margin:
            if not (sound := self._sound(integrals)).all():
                raise InputError(f"projection {self.views[views][~sound][0]} shows no beam at all")
            integrals -= air_level(integrals, self._margin)[:, None, None]
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
        blocks = read_blocks(len(self.views), self._view_bytes)
        hardening = find_hardening(rays, np.concatenate([self.read(views)[:, 0] for views in blocks]))
        if hardening is not None:
            self._hardening = hardening
            self._note("hardening", a=hardening.a, b=hardening.b, c=hardening.c)
            self.remarks.append(
                f"the beam hardens: long paths through the material show {hardening.part:.0%} less than short ones, "
                "which is corrected (not with --hardening none)"
            )

    def keep_counts(self) -> str:
        """Keep the counts in place of line integrals: the dtype to store them in.

        Air and stripes change line integrals alone: they are refused if given, and left out of the steps otherwise.
        """
        field, options = self._source.flat_field, self._options
        if self._counts is not None:  # of a recording that grows, which is looked at again
            return self._counts
        if field is None:
            raise InputError("it has line integrals, or no flat fields, and so no counts to keep; leave --counts out")
        if options.stripes or options.air not in ("auto", 0):
            raise InputError("--air and --stripes change line integrals, which --counts does not store; leave them out")
        kind = self._source.read(self.views[:1], self.rows).dtype
        if kind.kind not in "iu" or kind.itemsize > 4:
            raise InputError(f"its counts are {kind}, and not integers of 32 bits or fewer; leave --counts out")
        self.steps = [step for step in self.steps if step["step"] not in ("logarithm", "air")]
        self.remarks = [text for text in self.remarks if "columns of air" not in text]
        if self._source.exposure is not None or field.darks is not None:
            self.remarks.append("scans of counts use the mean dark field, and no monitor")
        self._note("counts", kept=str(kind))
        self._counts = "uint16" if kind in (np.uint8, np.uint16) else "int32"
        return self._counts

    @property
    def field(self) -> FlatField:
        """The flat and dark fields of the chosen rows."""
        return self._field(self.rows)

    def _field(self, rows: slice) -> FlatField:
        field = self._source.flat_field
        assert field is not None
        darks = None if field.darks is None else field.darks[:, rows]
        return FlatField(field.dark[rows], field.flats[:, rows], field.places, darks, field.dark_places)

    def read_counts(self, views: slice) -> NDArray[Any]:
        """The detector's counts in some of `views`: (views, rows, columns)."""
        counts = self._source.read(self.views[views], self.rows)
        if counts.dtype == np.uint32 and counts.size and int(counts.max()) > np.iinfo(np.int32).max:
            raise InputError("its counts are larger than 2^31 - 1; leave --counts out")
        return counts.astype(np.uint16 if counts.dtype in (np.uint8, np.uint16) else np.int32)

    @property
    def _view_bytes(self) -> int:
        return 16 * len(self._row_numbers) * self._source.shape[1]

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
            self.good = ~bad
            self._note("bad pixels", count=int(bad.sum()), least_response=options.least_response)
            self.remarks.append(f"{int(bad.sum())} pixels of the detector are bad, and do not count")

    def _integrals(self, views: Indices, row: int | None = None) -> NDArray[np.float32]:
        """Line integrals before air and stripes are subtracted, of the chosen rows or of one row.

        The chosen views must be finite; the others, which are only looked at, may hold NaN.
        """
        rows = self.rows if row is None else slice(row, row + 1)
        counts = self._source.read(views, rows)
        bad = None if self.good is None else ~self.good
        if self._source.flat_field is None:
            integrals = np.array(counts, dtype=np.float32)
        else:
            field = self._field(rows)
            integrals = line_integrals(field.transmission(counts, views), self._options.floor)
            if self._source.exposure is not None:
                integrals += np.log(self._source.exposure[views], dtype=np.float32)[:, None, None]
            if bad is not None and row is not None:
                bad = find_bad_pixels(field, self._options.least_response)
        if bad is not None:
            integrals = fill_pixels(integrals, bad)
        wrong = ~np.isfinite(integrals).all((1, 2)) & np.isin(views, self.views)
        if wrong.any():
            raise InputError(f"projection {views[wrong.argmax()]} holds NaN or infinity; leave it out with --omit")
        return integrals

    def _sound(self, integrals: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which projections are finite, and show the beam somewhere: (views,)."""
        least = integrals.min((1, 2))
        sound: NDArray[np.bool_] = np.isfinite(least)
        if self._source.flat_field is not None:
            sound &= ~(least > -_NO_BEAM * math.log(self._options.floor))
        return sound

    def _find_air_and_stripes(self, angles: NDArray[np.float64], usual: int) -> None:
        """One pass; over all of the file's projections where stripes are found, since all its scans share them."""
        options, ends = self._options, []
        views = np.arange(self._source.views) if options.stripes else self.views
        levels, largest = np.zeros(len(views), dtype=np.float32), 0.0
        sides = np.zeros((2, len(views)), dtype=np.float32)
        mean, sound = np.zeros((len(self._row_numbers), self._source.shape[1])), np.ones(len(views), dtype=bool)
        for block in read_blocks(len(views), self._view_bytes):
            report("looking at the projections", block.start, len(views))
            integrals = self._integrals(views[block])
            sound[block] = usable = self._sound(integrals)
            if not usable.any():
                continue
            if len(self._row_numbers) == 1:
                integrals[usable, 0] = _without_outliers(integrals[usable, 0])
            if self._margin:
                levels[block][usable] = air_level(integrals[usable], self._margin)
                for side, which in zip(sides, ((True, False), (False, True)), strict=True):
                    side[block][usable] = air_level(integrals[usable], self._margin, which)
            ends.append(view_ends(integrals[usable], usual))
            mean += (integrals - levels[block, None, None])[usable].sum(0, dtype=np.float64) / len(views)
            largest = max(largest, float(np.quantile(integrals[usable], 0.99)))
        if not sound.all():
            dark = np.flatnonzero(~sound & np.isin(views, self.views))
            if len(dark) and sound.any():
                more = f", nor do {len(dark) - 1} others" if len(dark) > 1 else ""
                raise InputError(f"projection {views[dark[0]]} shows no beam at all{more}; leave it out with --omit")
            mean *= len(views) / max(1, int(sound.sum()))
        if ends and (options.air in ("auto", 0)):
            self.air = ends_in_air(np.concatenate(ends, axis=1), angles[views[sound]], largest)
        chosen, both = np.searchsorted(views, self.views), levels
        if sum(self.air) == 1 and options.air == "auto":
            levels, self._air_sides = sides[0 if self.air[0] else 1], self.air
        air = levels[chosen]
        low = any(self.air) and float(np.abs(air).mean()) < _AIR_PART * largest
        if not low and options.air == "auto" and self._margin and self._beam_drifts():
            low, self.air, self._air_sides, air = True, (True, True), (True, True), both[chosen]
        if self._margin and (options.air != "auto" or low):
            self._air = air
            where = "a side" if all(self._air_sides) else f"at the {'left' if self._air_sides[0] else 'right'}"
            self._note("air", columns=self._margin, mean=round(float(air.mean()), 6))
            self.remarks.append(
                f"{self._margin} columns {where} are air: their mean, {air.mean():.4g}, is subtracted from each view"
            )
        if options.stripes:
            self._stripes = stripe_pattern(mean, options.stripes)
            self._note("stripes", width=options.stripes, largest=round(float(np.abs(self._stripes).max()), 6))

    def _beam_drifts(self) -> bool:
        """Whether what the margins show is a beam that changed, by some of the views."""
        views = self.views[:: -(-len(self.views) // 32)]
        return self._source.flat_field is not None and shows_air(self._integrals(views), self._margin)

    def tell_drift(self, angles: NDArray[np.float64]) -> None:
        """Say so where the beam changed between two views of the same rays, and nothing corrects it."""
        turn = np.abs(np.angle(-np.exp(1j * (angles - angles[0]))))
        last, step = int(turn.argmin()), float(np.abs(np.diff(angles, append=angles[-1])).max())
        if self.fan is not None or self._air is not None or self._source.flat_field is None or turn[last] > 1.5 * step:
            return
        first, other = (self._integrals(np.array([view]))[0].mean(0) for view in (0, last))
        mirrored = np.interp(2 * self.center - np.arange(len(first)), np.arange(len(first)), other, np.nan, np.nan)
        if (off := abs(float(np.nanmedian(mirrored - first)))) > _DRIFT:
            self.remarks.append(
                f"views 0 and {last} see the same rays, and differ by {off:.1%}: the beam drifted. Take flat "
                "fields before and after the scan, or give --air COLUMNS that the sample leaves free"
            )

    def _find_center(self, angles: NDArray[np.float64]) -> float:
        """The column of the rotation axis: by hand, by the file or by the projections themselves."""
        center_option, columns = self._options.center, self._source.shape[1]
        if isinstance(center_option, float):
            center, how = center_option, "by hand"
        elif center_option == "middle":
            center, how = (columns - 1) / 2, NOT_FOUND
        elif self._source.center is not None:
            center, how = self._source.center, "by the file"
        elif self.fan is None:
            moves = self._growing and all(self.air)  # whether it moved is told by half turns
            center, how = find_center(self._sinogram(), angles, opposite=not moves)
        else:
            center, how = find_fan_center(self._sinogram(), angles, self.fan)
        if not 0 <= center <= columns - 1:
            raise InputError(f"the rotation axis would be at column {center:g}, but there are 0 to {columns - 1}")
        self.axis_found = how
        self._note("rotation axis", column=round(center, 3), found=how)
        self.remarks.append(f"the rotation axis is seen at column {center:.2f} of {columns}, {how}")
        return center

    def _find_field(self, angles: NDArray[np.float64]) -> tuple[float | None, float]:
        """How wide the image has to be, in columns at the axis, and the radius of what was seen: `width` and `seen`."""
        columns, field = self._source.shape[1], self._options.field
        if field is None and all(self.air):
            return None, 0.0
        middle = (columns - 1) / 2
        turned = covers_turn(angles) or (self._growing and abs(self.center - middle) > _OFF * columns)
        seen = seen_reach(columns, self.center, turned)
        outer = self.air[0] if self.center > middle else self.air[1]  # the end of the longer side
        reach, whole = seen, field is None and turned and outer
        if field is not None:
            reach = field / 2
            whole = reach <= in_fan(max(seen, columns / 2), self.fan) + 1
        elif not whole:
            rows = self._row_numbers if self.fan is None else range(self._source.shape[0])
            chosen = sorted({rows[int(n)] for n in np.linspace(0, len(rows) - 1, min(len(rows), _ROWS))})
            reach = max(seen, *(sample_reach(self._sinogram(row), self.center) for row in chosen))
        size = 2 * (in_fan(reach, self.fan) if field is None else reach)
        seen = in_fan(seen, self.fan)
        wide = math.ceil(limit_by_memory(size, seen, len(self._row_numbers)) - 1e-9)
        self._note("field of view", seen=0.0 if whole else round(2 * seen, 3), width=wide)
        if whole and field is None:
            self.remarks.append(f"opposite views show both sides of the sample: the image is {wide} columns wide")
        elif not whole:
            told = "" if wide >= size - 1 else f", where memory has no room for {math.ceil(size)}"
            self.remarks.append(
                "the views do not end in air: the detector saw part of the sample, a field of view of "
                f"{2 * seen:.4g} columns; the image is {wide} columns wide{told}, and says something of the field of "
                "view alone (--field WIDTH, if you know how wide the sample is)"
            )
        return float(wide), 0.0 if whole else seen

    def _sinogram(self, row: int | None = None) -> NDArray[np.float32]:
        """The line integrals of all of the file's projections in a row, the middle one of the chosen if not given.

        All of them, whichever are chosen, so that scans of different views of one file have the same rotation axis.
        Projections that hold NaN, or were taken without the beam, are interpolated between their neighbours.
        """
        # Of a cone the row at the height of the source, which alone is a fan; of parallel beams any chosen row.
        if row is None:
            row = self._row_numbers[len(self._row_numbers) // 2] if self.fan is None else self._source.shape[0] // 2
        parts, sound = [], []
        for views in read_blocks(self._source.views, 16 * self._source.shape[1]):
            integrals = self._integrals(np.arange(views.start, views.stop), row)
            sound.append(self._sound(integrals))
            integrals[~np.isfinite(integrals)] = 0.0
            air = air_level(integrals, self._margin, self._air_sides)[:, None] if self._air is not None else 0.0
            parts.append(integrals[:, 0] - air)
        sinogram, good = np.concatenate(parts), np.flatnonzero(np.concatenate(sound))
        if len(good):
            for view in np.setdiff1d(np.arange(len(sinogram)), good):
                after = int(np.clip(np.searchsorted(good, view), 1, max(1, len(good) - 1)))
                sinogram[view] = (sinogram[good[after - 1]] + sinogram[good[min(after, len(good) - 1)]]) / 2
        return _without_outliers(sinogram)


def _without_outliers(sinogram: NDArray[np.float32]) -> NDArray[np.float32]:
    """A sinogram (views, columns) in which numbers that their neighbours make impossible are the median of these."""
    import torch

    from plugstream.models.outliers import neighbour_median, suspect_data

    values = torch.from_numpy(np.ascontiguousarray(sinogram))
    bad = suspect_data(values).bad
    return torch.where(bad, neighbour_median(values), values).numpy()
