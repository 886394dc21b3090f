"""Helsinki's MATLAB files, and stacks of TIFF pictures with a TOML file that describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import Projections, length_in_metres
from plugstream.scans.importers.formats import load_matlab
from plugstream.scans.importers.reading import Indices, read_toml, spread_angles
from plugstream.scans.importers.source import Source, first_line

_STRUCTS = ("CtDataFull", "CtDataLimited", "CtData")
_KNOWN = ("projections", "flats", "darks", "angles", "arc", "pixel", "source", "detector", "center")
_CITATION = "Meaney et al., Helsinki Tomography Challenge 2022, Zenodo, doi 10.5281/zenodo.6984868"


def read_helsinki(source: Source) -> Projections:
    """The fan-beam sinogram of a file: line integrals (views, columns), lengths in millimetres, angles in degrees.

    Its struct has `sinogram` and `parameters` with distanceSourceOrigin, distanceSourceDetector, pixelSizePost and
    angles. The rotation axis is seen in the middle of the detector.
    """
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
    angles = np.deg2rad(np.asarray(value("angles"), dtype=np.float64).reshape(-1))

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


def read_stack(source: Source) -> Projections:
    """The projections that a TOML file describes, with pictures beside it:

        projections = "proj_*.tif"        # in the order of the numbers in their names; or one file of many pages
        flats = ["before_*.tif", "after_*.tif"]   # one pattern, or one before and one after; none: line integrals
        darks = "dark_*.tif"
        angles = "angles.txt"             # degrees, a line each; or a list; or arc = 360, from 0, its end left out
        pixel = 75e-6                     # metres; all of the following may be left out
        source = 0.2                      # from the source to the rotation axis: a cone beam
        detector = 0.3                    # from the rotation axis to the detector
        center = 511.5                    # the column on which the rotation axis is seen

    Pictures are read when they are needed. Other names are refused.
    """
    table, folder = read_toml(source.path), source.path.parent
    for name in table:
        if name not in _KNOWN:
            raise InputError(f"it says {name!r}, which means nothing here; names are {', '.join(_KNOWN)}")
    numbers: dict[str, Any] = {name: _number(table, name) for name in ("arc", "pixel", "source", "detector", "center")}
    frames = _Stack(folder, table.get("projections"), "projections")
    flats, darks, field = table.get("flats"), table.get("darks"), None
    if flats is not None:
        groups = flats if isinstance(flats, list) else [flats]
        if len(groups) not in (1, 2):
            raise InputError(f"flats has {len(groups)} patterns; give one, or one before and one after the projections")
        stacks = [_Stack(folder, words, "flats").read() for words in groups]
        dark = None if darks is None else _Stack(folder, darks, "darks").read()
        field = FlatField.from_frames(stacks, dark, (0.0, float(len(frames)))[: len(stacks)])
    elif darks is not None:
        raise InputError("darks are given without flats, which they are subtracted from")
    pixel = numbers["pixel"]
    return Projections(
        "TIFF stack",
        len(frames),
        frames.shape,
        frames.read,
        _angles(table.get("angles"), numbers["arc"], folder, len(frames)),
        flat_field=field,
        pixel=None if pixel is None else (pixel, pixel),
        **{name: numbers[name] for name in ("source", "detector", "center")},
    )


class _Stack:
    """Pictures of one shape, in the order of the numbers in their names; or the pages of one file."""

    def __init__(self, folder: Path, pattern: Any, key: str) -> None:
        if not isinstance(pattern, str) or not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise InputError(
                f"{key} must be a pattern such as 'proj_*.tif' of pictures beside the file, not {pattern!r}"
            )
        files = [file for file in folder.glob(pattern) if file.suffix.lower() in (".tif", ".tiff")]
        if not files:
            raise InputError(f"no TIFF picture beside it is called {pattern}, which {key} says")
        self.files, self.key = sorted(files, key=_sort_key), key
        first = self._load(self.files[0])
        self.frames = first if len(files) == 1 and first.ndim == 3 else None
        self.shape = first.shape[-2:]
        if first.ndim != 2 and self.frames is None:
            raise InputError(f"{self.files[0].name} has shape {first.shape}, but must be a grey picture")

    def __len__(self) -> int:
        return len(self.files) if self.frames is None else len(self.frames)

    def read(self, views: Indices | None = None, rows: slice = slice(None)) -> NDArray[Any]:
        """Some pictures, in increasing order, and some of their rows; by default everything."""
        views = np.arange(len(self)) if views is None else views
        if self.frames is not None:
            return self.frames[views][:, rows]
        pictures = []
        for file in (self.files[view] for view in views):
            picture = self._load(file)
            if picture.shape != self.shape:
                raise InputError(f"{file.name} is {picture.shape}, but the first of {self.key} is {self.shape}")
            pictures.append(picture[rows])
        return np.stack(pictures)

    def _load(self, file: Path) -> NDArray[Any]:
        import tifffile

        try:
            try:  # the pages of a single file stay on the disk, unless they are compressed
                picture = tifffile.memmap(file, mode="r") if len(self.files) == 1 else tifffile.imread(file)
            except ValueError:
                picture = tifffile.imread(file)
        except Exception as error:  # damaged files raise many kinds
            raise InputError(f"{file.name} cannot be read as TIFF: {first_line(error)}") from error
        if picture.size == 0:
            raise InputError(f"{file.name} cannot be read as TIFF: there is no picture in it")
        if picture.dtype.kind not in "fiu":
            raise InputError(f"{file.name} holds {picture.dtype}, which no detector counts in")
        return np.asarray(picture)


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
    try:
        if isinstance(angles, str):
            angles = read_small(folder / angles, 64 << 20).replace(",", " ").split()
        return np.asarray(np.deg2rad(np.array(angles, dtype=np.float64).reshape(-1)))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"its angles are no list of numbers, in degrees: {error}") from None


def _sort_key(file: Path) -> tuple[Any, ...]:
    """Texts as texts and numbers as numbers, so that 2 comes before 10."""
    parts = re.split(r"(\d+)", file.name)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
