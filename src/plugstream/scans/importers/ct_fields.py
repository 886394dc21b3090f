"""Which flat and dark fields of a tomograph's recording count: all of them, some, or those of another file."""

from __future__ import annotations

import re
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

NO_FILES = ("air", "none")
_LOOK = 32  # views that are looked at
_BRIGHT_DARK, _BELOW = 0.05, -0.05  # parts of the flat field
_NO_AIR = (
    "it has no flat fields, and no air at the edges of its projections to stand for them; --flats FILE takes those of "
    "another file, and --flats none takes its numbers for line integrals"
)
_AIR = (
    "it has no flat fields: air at the edges of its projections stands for them, which leaves the gains of single "
    "pixels; --flats FILE takes those of another file, and --flats none takes its numbers for line integrals"
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
        return None if self.flats in ("all", *NO_FILES) or _SLICE.fullmatch(self.flats) else Path(self.flats)


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
    """The flat field of a recording.

    Arguments: choice; flats, at least one; darks, None where there are none; places and dark_places, for each of them
    how many projections came before it; None for one group.
    """
    bright, times = _groups(flats, choose_frames(choice.flats, len(flats.numbers), "flat fields"), places)
    if darks is None or not len(darks.numbers) or choice.darks == "none":
        return FlatField.from_frames(bright, None, times)
    chosen = choose_frames(choice.darks, len(darks.numbers), "dark fields")
    dark, dark_times = _groups(darks, chosen, dark_places)
    return FlatField.from_frames(bright, dark, times, dark_times)


def _groups(frames: Frames, chosen: Indices, places: Indices | None) -> tuple[list[NDArray[np.float64]], list[float]]:
    """The mean of each group of frames that were taken together, and when."""
    if places is None:
        return [frames.mean(chosen)], [0.0]  # when does not matter
    times = np.unique(places[chosen])
    return [frames.mean(chosen[places[chosen] == time]) for time in times], times.astype(float).tolist()


def settle_field(projections: Projections, choice: FrameChoice, growth: Growth | None = None) -> Projections:
    """The projections with a flat field that fits them, or none for line integrals, and remarks on it.

    Without flat fields, what a detector measured (integers, or what the file says to be so) is turned into line
    integrals by the air at the edges of the projections: of each row the mean of its edges over views, interpolated
    across the detector; what a view differs by is the air step's. Floats are what a detector measured where they are
    positive, and brighter at the edges than in the middle; otherwise they are line integrals. Dark fields that more
    than a hundredth of the counts are far below are left out.
    """
    field, told = projections.flat_field, list(projections.remarks)
    if field is None:
        raw = projections.raw
        if raw is None and projections.read(np.arange(1), slice(0, 1)).dtype.kind in "iu":
            raw = True
        if choice.flats == "none" or raw is False or (growth is not None and raw is None and choice.flats != "air"):
            return projections
        if growth is not None and "field" in growth.memory:
            return replace(projections, flat_field=growth.memory["field"])
        dark = np.zeros(projections.shape, np.float32) if projections.dark is None else projections.dark
        margin = max(1, min(max(4, projections.shape[1] // 32), projections.shape[1] // 8))
        edges, means = _look(projections, dark, margin)
        quarter = projections.shape[1] // 4
        darker = 1.05 * means[:, quarter : len(means[0]) - quarter].mean() < edges.mean() and means.min() >= 0
        if choice.flats != "air" and raw is None and not darker:
            return projections
        across = (np.arange(len(means[0])) - (margin - 1) / 2) / max(1, len(means[0]) - margin)
        beam = edges[0][:, None] * (1 - across) + edges[1][:, None] * across
        with np.errstate(divide="ignore", invalid="ignore"):
            integrals = -np.log(np.maximum(means / beam.mean(0), 1e-4))
        if choice.flats != "air" and not shows_air(integrals[:, None], margin):
            raise InputError(_NO_AIR)
        field = FlatField.from_frames([(dark + beam)[None]], dark[None])
        if growth is not None:
            growth.memory["field"] = field
        return replace(projections, flat_field=field, remarks=[*told, _AIR])
    if choice.darks != "all" or growth is not None:
        return projections
    part = float(np.median(field.dark) / max(1e-9, np.median(field.flats)))
    if not field.dark.any():
        told.append("it has no dark fields: the detector is taken to show nothing without the beam")
    elif part > _BRIGHT_DARK:
        told.append(
            f"its dark fields show {part:.0%} of what its flat fields do; if they saw the beam, use --darks none"
        )
        row = projections.shape[0] // 2
        counts = projections.read(_views(projections), slice(row, row + 1))
        from scipy.ndimage import uniform_filter1d

        seen = uniform_filter1d(np.nan_to_num(counts[:, 0] - field.dark[row]), 5) / np.median(field.flats - field.dark)
        if np.quantile(seen, 0.01) < _BELOW:
            field = FlatField(np.zeros_like(field.dark), field.flats, field.places)
            told[-1] = "its dark fields are brighter than its projections, and are left out; --darks 0: takes them"
    return replace(projections, flat_field=field, remarks=told)


def _views(projections: Projections) -> Indices:
    """Views to look at, over all of the scan."""
    return np.unique(np.linspace(0, projections.views - 1, _LOOK).astype(int))


def _look(projections: Projections, dark: Any, margin: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of some projections less the dark field: left and right edges, (2, rows), and means over rows (views, columns)."""
    edges, means = [], []
    for view in _views(projections):
        frame = projections.read(np.array([view]), slice(None))[0] - dark.astype(np.float64)
        if np.isfinite(frame).all():
            edges.append([frame[:, :margin].mean(1), frame[:, -margin:].mean(1)])
            means.append(frame.mean(0))
    if not means:
        raise InputError("its projections hold NaN or infinity, all of those that were looked at")
    return np.mean(edges, axis=0), np.stack(means)


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
