"""Which flat and dark fields of a tomograph's recording count: all of them, some, or those of another file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.reading import Indices, pick_rows

_SLICE = re.compile(r"[-+\d: ]*:[-+\d: ]*")


@dataclass(frozen=True)
class FrameChoice:
    """What of a recording counts besides its projections.

    Arguments: flats: all, START:STOP of them, in the order of the file, or the path of another file; darks: all, none,
    or START:STOP of them; angles, whether its angles do.
    """

    flats: str = "all"
    darks: str = "all"
    angles: bool = True

    @property
    def file(self) -> Path | None:
        """The other file whose fields are taken."""
        return None if self.flats == "all" or _SLICE.fullmatch(self.flats) else Path(self.flats)


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


def make_field(choice: FrameChoice, flats: Frames, darks: Frames | None, places: Indices | None = None) -> FlatField:
    """The flat field of a recording.

    Arguments: choice; flats, at least one; darks, None where there are none; places, for each of the flats how many
    projections came before it; None for one group.
    """
    chosen = choose_frames(choice.flats, len(flats.numbers), "flat fields")
    dark = None
    if darks is not None and len(darks.numbers) and choice.darks != "none":
        dark = darks.mean(choose_frames(choice.darks, len(darks.numbers), "dark fields"))
    if places is None:
        return FlatField.from_frames([flats.mean(chosen)], dark)
    groups = np.unique(places[chosen])
    means = [flats.mean(chosen[places[chosen] == place]) for place in groups]
    return FlatField.from_frames(means, dark, groups.astype(float).tolist())


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
