"""Helsinki's MATLAB files, and stacks of TIFF or CBF pictures with a TOML file that describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_fields import FrameChoice, choose_frames, no_flats, settle_fields, wait_for_fields
from plugstream.scans.importers.ct_hdf5 import read_field
from plugstream.scans.importers.ct_projections import Projections, length_in_metres
from plugstream.scans.importers.formats import load_matlab
from plugstream.scans.importers.growth import Growth
from plugstream.scans.importers.picture_stack import Stack
from plugstream.scans.importers.reading import Indices, read_toml, spread_angles
from plugstream.scans.importers.source import Source, as_numbers

_STRUCTS = ("CtDataFull", "CtDataLimited", "CtData")
_KNOWN = ("projections", "flats", "darks", "angles", "arc", "pixel", "source", "detector", "center", "first")
_CITATION = "Meaney et al., Helsinki Tomography Challenge 2022, Zenodo, doi 10.5281/zenodo.6984868"


def read_helsinki(source: Source, choice: FrameChoice = FrameChoice()) -> Projections:  # noqa: B008 - frozen
    """The fan-beam sinogram of a file: line integrals (views, columns), lengths in millimetres, angles in degrees.

    Its struct has `sinogram` and `parameters` with distanceSourceOrigin, distanceSourceDetector, pixelSizePost and
    angles. The rotation axis is seen in the middle of the detector.
    """
    if choice.flats != "all" or choice.darks != "all":
        raise InputError("it has line integrals, and so no flat or dark fields to choose from")
    content = load_matlab(source.path, squeeze_me=True, struct_as_record=False)
    chosen = next((name for name in (*_STRUCTS, *content) if hasattr(content.get(name), "parameters")), None)
    if chosen is None:
        raise InputError(f"it has {', '.join(content) or 'nothing'}, and no struct with sinogram and parameters")
    parameters = content[chosen].parameters
    sinogram = np.atleast_2d(np.asarray(getattr(content[chosen], "sinogram", np.zeros((0, 0)))))
    if sinogram.ndim != 2 or sinogram.dtype.kind not in "fiu":
        raise InputError(f"its sinogram has shape {sinogram.shape}, but must be (views, columns)")

    def value(*names: str) -> Any:
        values = [getattr(parameters, name) for name in names if getattr(parameters, name, None) is not None]
        if not values:
            raise InputError(f"its parameters have no {names[-1]}")
        return values[0]

    unit = str(getattr(parameters, "distanceUnit", "mm"))
    source_to_axis = length_in_metres(value("distanceSourceOrigin"), unit, "distance from source to axis")
    source_to_detector = length_in_metres(value("distanceSourceDetector"), unit, "distance from source to detector")
    pixel = length_in_metres(value("pixelSizePost", "pixelSize"), unit, "pixel size")
    angles = np.deg2rad(as_numbers("angles", value("angles")).reshape(-1))

    def read(views: Indices, rows: slice) -> NDArray[Any]:
        return sinogram[views][:, None][:, rows]

    words = ((key, getattr(parameters, key, None)) for key in ("projectName", "scanner", "date"))
    return Projections(
        "Helsinki fan beam",
        sinogram.shape[0],
        (1, sinogram.shape[1]),
        read,
        angles,
        pixel=(pixel, pixel),
        source=source_to_axis,
        detector=source_to_detector - source_to_axis,
        flat_image=True,
        provenance={key: str(word) for key, word in words if word} | {"citation": _CITATION},
    )


def is_stack(source: Source) -> bool:
    """Whether a file is TOML, by its name, with `projections`."""
    try:
        is_toml = source.path.suffix.lower() == ".toml"
        return is_toml and re.search(r"(?m)^\s*projections\s*=", read_small(source.path)) is not None
    except (OSError, ValueError):
        return False


def read_stack(source: Source, choice: FrameChoice = FrameChoice()) -> Projections:  # noqa: B008 - frozen
    """The projections that a TOML file describes, with pictures beside it, TIFF or CBF:

        projections = "proj_*.tif"        # in the order of the numbers in their names; or one file of many pages
        flats = ["before_*.tif", "after_*.tif"]   # one pattern, or one before and one after; darks, too
        darks = "dark_*.tif"
        angles = "angles.txt"             # degrees, a line each; or a list; or arc = 360, from 0, its end left out
        pixel = 75e-6                     # metres; all of the following may be left out
        source = 0.2                      # from the source to the rotation axis: a cone beam
        detector = 0.3                    # from the rotation axis to the detector
        center = 511.5                    # the column on which the rotation axis is seen
        first = 7                         # of a folder that still fills: its least number, if that is above 1

    Pictures are read when they are needed. Other names are refused.
    """
    table, folder = read_toml(source.path), source.path.parent
    for name in table:
        if name not in _KNOWN:
            raise InputError(f"it says {name!r}, which means nothing here; names are {', '.join(_KNOWN)}")
    numbers: dict[str, Any] = {name: _number(table, name) for name in ("arc", "pixel", "source", "detector", "center")}
    growth = source.growth
    if type(first := table.get("first", 0)) is not int:
        raise InputError(f"first must be a whole number, not {first!r}")
    frames = Stack(folder, table.get("projections"), "projections", growth, numbered=True, first=table.get("first"))
    views, angles = len(frames), None
    if choice.angles:
        count = views if growth is None else growth.expected or 0
        angles = _angles(table.get("angles"), numbers["arc"], folder, count)
    if growth is not None:
        if table.get("angles") is not None and angles is not None:
            growth.expected = growth.expected or len(angles)
        if numbers["arc"] is not None and growth.expected is None:
            raise InputError("its arc is divided among all projections; say how many to --expect, or list the angles")
        views = growth.turn_to(views, "projection")
        angles = None if angles is None else angles[:views]
    pixel = numbers["pixel"]
    return Projections(
        "TIFF stack",
        views,
        frames.shape,
        frames.read,
        angles,
        flat_field=_field(table, folder, choice, growth, views, frames.shape),
        pixel=None if pixel is None else (pixel, pixel),
        remarks=frames.remarks,
        **{name: numbers[name] for name in ("source", "detector", "center")},
    )


def _field(
    table: Mapping[str, Any],
    folder: Path,
    choice: FrameChoice,
    growth: Growth | None,
    views: int,
    shape: tuple[int, int],
) -> FlatField:
    """The flat field of a stack; of a folder that fills, the one that is there before its projections."""
    if growth is not None and "field" in growth.memory:
        return cast("FlatField", growth.memory["field"])
    flats, darks = table.get("flats"), table.get("darks")
    if choice.file is not None:
        field = read_field(choice.file)
    elif flats is None or choice.flats in ("air", "none"):
        stacks = [] if darks is None or choice.darks == "none" else _stacks(folder, darks, "darks", None)
        return no_flats([stack.read(np.arange(len(stack))) for stack in stacks], shape)
    else:
        stacks = _stacks(folder, flats, "flats", growth)
        dark = None if darks is None or choice.darks == "none" else _stacks(folder, darks, "darks", growth)
        counts = (len(stacks[0]), 0 if dark is None else len(dark[0]))
        if growth is not None:
            wait_for_fields(growth, counts, views)
        choice = settle_fields(choice, growth, *counts, there=counts)
        field = FlatField.from_frames(
            [stack.read(choose_frames(choice.flats, len(stack), "flat fields")) for stack in stacks],
            None if dark is None else [one.read(choose_frames(choice.darks, len(one), "dark fields")) for one in dark],
            (0.0, float(views))[: len(stacks)],
            (0.0, float(views))[: len(dark or ())],
        )
    if growth is not None:
        growth.memory["field"] = field
    return field


def _stacks(folder: Path, words: Any, name: str, growth: Growth | None) -> list[Stack]:
    """The pictures of one pattern, or of one before and one after the projections."""
    groups = words if isinstance(words, list) else [words]
    if len(groups) not in (1, 2):
        raise InputError(f"{name} has {len(groups)} patterns; give one, or one before and one after the projections")
    if growth is not None and len(groups) == 2:
        raise InputError(f"{name} after the projections cannot be used while these come; give one pattern")
    return [Stack(folder, pattern, name, growth) for pattern in groups]


def _number(table: Mapping[str, Any], name: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not np.isfinite(value) or value < 0 or (value == 0 and name == "pixel"):
        raise InputError(f"{name} must be a number, in metres where it is a length, not {value!r}")
    return float(value)


def _angles(angles: Any, arc: float | None, folder: Path, count: int) -> NDArray[np.float64] | None:
    """Angles of a list or a text file, in degrees, or over an arc, in radians; None if unknown."""
    if angles is not None and arc is not None:
        raise InputError("angles and arc are both given; one is enough")
    if angles is None:
        return None if arc is None else spread_angles(arc, count)
    return read_angles(folder / angles if isinstance(angles, str) else angles)


def read_angles(place: Path | list[Any]) -> NDArray[np.float64]:
    """Angles of a text file, or of a list, in degrees; given in radians."""
    try:
        words = read_small(place, 64 << 20).replace(",", " ").split() if isinstance(place, Path) else place
        return np.asarray(np.deg2rad(np.array(words, dtype=np.float64).reshape(-1)))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"its angles are no list of numbers, in degrees: {error}") from None
