"""Which flat and dark fields of a tomograph's recording count: all of them, some, or those of another file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField, shows_air
from plugstream.scans.importers.ct_projections import Projections
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.reading import Indices, pick_rows

_LOOK = 32  # views that are looked at
_BRIGHT_DARK, _BELOW = 0.05, -0.05  # parts of the flat field
_NO_AIR = (
    "it has no flat fields, and no air at the edges of its projections to stand for them; --flats FILE takes those of "
    "another file, and --flats none takes its numbers for line integrals"
)
_NO_DARKS = "it has no dark fields: the detector is taken to show nothing without the beam"
_AIR = (
    "it has no flat fields: air at the edges of its projections stands for them, which leaves an uneven beam and "
    "the gains of pixels; --flats FILE takes those of another file, --flats none takes its numbers for line integrals"
)
_SLICE = re.compile(r"[-+\d: ]*:[-+\d: ]*")


@dataclass(frozen=True)
class FrameChoice:
    """What of a recording counts besides its projections.

    Arguments: flats: all, START:STOP of them, in the order of the file, air or none in place of them, or the path of
    another file; darks: all, none, or START:STOP of them; angles, whether its angles do.
    """

    flats: str = "all"
    darks: str = "all"
    angles: bool = True

    @property
    def file(self) -> Path | None:
        """The other file whose fields are taken."""
        return None if self.flats in ("all", "air", "none") or _SLICE.fullmatch(self.flats) else Path(self.flats)


@dataclass(frozen=True)
class Frames:
    """Frames of one kind in a dataset. Arguments: array, (frames, rows, columns), read by index; numbers of theirs."""

    array: Any
    numbers: Indices

    def mean(self, chosen: Indices) -> NDArray[np.float64]:
        """The mean of some of them, (1, rows, columns); read one by one, since there may be many."""
        total = np.zeros(self.array.shape[1:])
        for frame in self.numbers[chosen]:
            total += self.array[int(frame)]
        return (total / len(chosen))[None]


def make_field(
    choice: FrameChoice,
    flats: Frames,
    darks: Frames | None,
    places: Indices | None = None,
    dark_places: Indices | None = None,
) -> FlatField:
    """The flat field of a recording; where there are no flat fields, or none is to be used, they are the dark field.

    Arguments: choice; flats; darks, None where there are none; places and dark_places, for each of them how many
    projections came before it; None for one group.
    """
    dark, dark_times = None, list[float]()
    if darks is not None and len(darks.numbers) and choice.darks != "none":
        chosen = choose_frames(choice.darks, len(darks.numbers), "dark fields")
        dark, dark_times = _groups(darks, chosen, dark_places)
    if not len(flats.numbers) or choice.flats in ("air", "none"):
        return no_flats([] if dark is None else dark, flats.array.shape[1:])
    bright, times = _groups(flats, choose_frames(choice.flats, len(flats.numbers), "flat fields"), places)
    return FlatField.from_frames(bright, dark, times, dark_times)


def no_flats(darks: Sequence[NDArray[Any]], shape: tuple[int, ...]) -> FlatField:
    """What stands for flat fields until `settle_field` has seen the projections: a beam of nothing."""
    dark = np.mean([frames.mean(0) for frames in darks], axis=0)[None] if len(darks) else np.zeros((1, *shape))
    return FlatField.from_frames([dark], dark)


def _groups(frames: Frames, chosen: Indices, places: Indices | None) -> tuple[list[NDArray[np.float64]], list[float]]:
    """The mean of each group of frames that were taken together, and when."""
    if places is None:
        return [frames.mean(chosen)], [0.0]  # when does not matter
    times = np.unique(places[chosen])
    return [frames.mean(chosen[places[chosen] == time]) for time in times], times.astype(float).tolist()


def settle_field(projections: Projections, choice: FrameChoice, growth: Growth | None = None) -> Projections:
    """The projections with a flat field that fits them, or none for line integrals, and remarks on it.

    Without flat fields, integers are turned into line integrals by the air at the edges of the projections: of each row
    the mean of its edges over views, interpolated across the detector; what a view differs by is the air step's. So are
    floats that are positive, and brighter at the edges than in the middle; others are line integrals. Dark fields that
    more than a hundredth of the counts are far below are left out.
    """
    field, told = projections.flat_field, list(projections.remarks)
    if field is None or choice.flats == "none":
        return replace(projections, flat_field=None)
    row, columns = projections.shape[0] // 2, projections.shape[1]
    views = np.unique(np.linspace(0, projections.views - 1, _LOOK).astype(int))
    if (field.flats == field.dark).all():
        if growth is not None and "air" in growth.memory:
            return replace(projections, flat_field=growth.memory["air"])
        sure = choice.flats == "air" or projections.read(views[:1], slice(0, 1)).dtype.kind in "iu"
        if growth is not None and not sure:
            return replace(projections, flat_field=None)
        margin, quarter = max(1, min(max(4, columns // 32), columns // 8)), columns // 4
        frames = (projections.read(views[n : n + 1], slice(None))[0] - field.dark for n in range(len(views)))
        seen = [(f[:, :margin].mean(1), f[:, -margin:].mean(1), f.mean(0)) for f in frames if np.isfinite(f).all()]
        if not seen:
            raise InputError(_NO_AIR)
        left, right, means = (np.stack(part) for part in zip(*seen, strict=True))
        if not sure and (1.05 * means[:, quarter:-quarter].mean() >= means[:, :margin].mean() or means.min() < 0):
            return replace(projections, flat_field=None)
        across = (np.arange(columns) - (margin - 1) / 2) / max(1, columns - margin)
        beam = left.mean(0)[:, None] * (1 - across) + right.mean(0)[:, None] * across
        with np.errstate(divide="ignore", invalid="ignore"):
            integrals = -np.log(np.maximum(means / beam.mean(0), 1e-4))
        if choice.flats != "air" and not shows_air(integrals[:, None], margin):
            raise InputError(_NO_AIR)
        field = FlatField.from_frames([(field.dark + beam)[None]], field.dark[None])
        if growth is not None:
            growth.memory["air"] = field
        told += [_NO_DARKS] * (choice.darks == "all" and not field.dark.any())
        return replace(projections, flat_field=field, remarks=[*told, _AIR])
    if choice.darks != "all" or growth is not None:
        return projections
    beam, part = np.median(field.flats - field.dark), float(np.median(field.dark) / np.median(field.flats))
    if not field.dark.any():
        told.append(_NO_DARKS)
    elif part > _BRIGHT_DARK:
        from scipy.ndimage import uniform_filter1d

        told.append(
            f"its dark fields show {part:.0%} of what its flat fields do; if they saw the beam, use --darks none"
        )
        counts = np.nan_to_num(projections.read(views, slice(row, row + 1))[:, 0] - field.dark[row])
        if np.quantile(uniform_filter1d(counts, 5), 0.01) < _BELOW * beam:
            field = FlatField(np.zeros_like(field.dark), field.flats, field.places)
            told[-1] = "its dark fields are brighter than its projections, and are left out; --darks 0: takes them"
    return replace(projections, flat_field=field, remarks=told)


def wait_for_fields(growth: Growth, counts: tuple[int, int], views: int) -> None:
    """Wait until projections came after flat and dark fields, of which there may be more until then.

    Arguments: growth; counts of flat and of dark fields; views, how many projections there are.
    """
    before, earlier = growth.memory.get("fields", (None, views))
    growth.memory["fields"] = (counts, earlier if counts == before else views)
    done = growth.final or (growth.expected is not None and views >= growth.expected)
    if counts[0] and not done and not (counts == before and views > earlier):
        growth.wait(f"{views} projections are there, and {counts[0]} flat fields, which may become more")


def settle_fields(
    choice: FrameChoice, growth: Growth | None, flats: int, darks: int, there: tuple[int, int]
) -> FrameChoice:
    """Of a recording that grows, fix the choice `all`, since later fields cannot change the views before them.

    Arguments: choice; growth; flats, darks, how many came first; there, how many of both there are.
    """
    if growth is None:
        return choice
    for words, count, noun in zip((choice.flats, choice.darks), there, ("flat", "dark"), strict=True):
        stop = words.split(":")[1].strip() if ":" in words else ""
        if stop.isdigit() and int(stop) > count:
            growth.wait(f"{count} {noun} fields are there, and {words} are to be used")
    if choice.flats == "all":
        choice = replace(choice, flats=f"0:{flats}")
    if choice.darks == "all":
        choice = replace(choice, darks=f"0:{darks}" if darks else "none")
    growth.settings |= {"flats": choice.flats, "darks": choice.darks}
    return choice


def choose_frames(words: str, count: int, noun: str) -> Indices:
    """The numbers of the frames that the words choose."""
    if words == "all":
        return np.arange(count)
    if not _SLICE.fullmatch(words):
        raise InputError(f"cannot read {words!r} as {noun}; write all, or START:STOP such as 0:20")
    return np.arange(count)[pick_rows(words, count, noun)]
