"""Helsinki's MATLAB files, and stacks of TIFF pictures with a text file that says how they were taken."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import Projections, length_in_metres
from plugstream.scans.importers.formats import load_matlab
from plugstream.scans.importers.reading import Indices
from plugstream.scans.importers.source import Source, first_line

__all__ = ["is_stack", "read_helsinki", "read_stack"]

_STRUCTS = ("CtDataFull", "CtDataLimited", "CtData")
_CITATION = "Meaney et al., Helsinki Tomography Challenge 2022, Zenodo, doi 10.5281/zenodo.6984868"


def read_helsinki(source: Source) -> Projections:
    """The fan-beam sinogram of a file: line integrals (views, columns), distances and pixels in millimetres, degrees.

    Its struct has `sinogram` and `parameters`, of which distanceSourceOrigin, distanceSourceDetector, pixelSizePost and
    angles are used. The rotation axis is seen in the middle of the detector.
    """
    content = load_matlab(source.path, squeeze_me=True, struct_as_record=False)
    chosen = next((name for name in (*_STRUCTS, *content) if hasattr(content.get(name), "parameters")), None)
    if chosen is None:
        raise InputError(f"it has {', '.join(content) or 'nothing'}, and no struct with sinogram and parameters")
    about = content[chosen].parameters
    sinogram = np.atleast_2d(np.asarray(getattr(content[chosen], "sinogram", np.zeros((0, 0)))))
    if sinogram.ndim != 2 or sinogram.dtype.kind not in "fiu":
        raise InputError(f"its sinogram has shape {sinogram.shape}, but must be (views, columns)")
    unit = str(_value(about, "distanceUnit", "mm"))
    near = length_in_metres(_value(about, "distanceSourceOrigin"), unit, "distance from source to axis")
    whole = length_in_metres(_value(about, "distanceSourceDetector"), unit, "distance from source to detector")
    size = getattr(about, "pixelSizePost", None)
    pixel = length_in_metres(_value(about, "pixelSize") if size is None else size, unit, "pixel size")
    angles = np.deg2rad(np.asarray(_value(about, "angles"), dtype=np.float64).reshape(-1))

    def read(views: Indices, rows: slice) -> NDArray[Any]:
        return sinogram[views][:, None][:, rows]

    said = {key: str(value) for key in ("projectName", "scanner", "date") if (value := getattr(about, key, None))}
    return Projections(
        "Helsinki fan beam",
        sinogram.shape[0],
        (1, sinogram.shape[1]),
        read,
        angles,
        pixel=(pixel, pixel),
        source=near,
        detector=whole - near,
        flat_image=True,
        provenance=said | {"citation": _CITATION},
    )


def _value(about: Any, name: str, usual: Any = None) -> Any:
    found = getattr(about, name, usual)
    if found is None:
        raise InputError(f"its parameters have no {name}")
    return found


def is_stack(source: Source) -> bool:
    """Whether a file is TOML, by its name, that says where projections are."""
    path = source.path
    if path.suffix.lower() != ".toml":
        return False
    try:
        return re.search(r"(?m)^\s*projections\s*=", read_small(path)) is not None
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

    Pictures are read when they are needed. A name that is none of these is refused.
    """
    said, folder = _read_toml(source.path), source.path.parent
    frames = _Stack(folder, said.get("projections"), "projections")
    flats, darks = said.get("flats"), said.get("darks")
    field = None
    if flats is not None:
        groups = flats if isinstance(flats, list) else [flats]
        if len(groups) not in (1, 2):
            raise InputError(f"flats has {len(groups)} patterns; give one, or one before and one after the projections")
        stacks = [_Stack(folder, words, "flats").whole() for words in groups]
        dark = None if darks is None else _Stack(folder, darks, "darks").whole()
        field = FlatField.from_frames(stacks, dark, (0.0, float(len(frames)))[: len(stacks)])
    elif darks is not None:
        raise InputError("darks are given without flats, which they are subtracted from")
    pixel = _number(said, "pixel")
    return Projections(
        "TIFF stack",
        len(frames),
        frames.shape,
        frames.read,
        _angles(said, folder, len(frames)),
        flat_field=field,
        pixel=None if pixel is None else (pixel, pixel),
        source=_number(said, "source"),
        detector=_number(said, "detector"),
        center=_number(said, "center"),
    )


class _Stack:
    """Pictures of one shape, in the order of the numbers in their names; or the pages of one file."""

    names: ClassVar[tuple[str, ...]] = (".tif", ".tiff")

    def __init__(self, folder: Path, pattern: Any, what: str) -> None:
        if not isinstance(pattern, str) or not pattern or Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise InputError(
                f"{what} must be a pattern such as 'proj_*.tif' of pictures beside the file, not {pattern!r}"
            )
        files = [file for file in folder.glob(pattern) if file.suffix.lower() in self.names]
        if not files:
            raise InputError(f"no TIFF picture beside it is called {pattern}, which {what} says")
        self.files, self.what = sorted(files, key=_numbers_in), what
        self.pages = len(files) == 1
        first = self._load(self.files[0])
        self.frames: NDArray[Any] | None = None
        if self.pages and first.ndim == 3:
            self.frames, self.shape = first, first.shape[1:]
        elif first.ndim == 2:
            self.shape = first.shape
        else:
            raise InputError(f"{self.files[0].name} has shape {first.shape}, but must be a grey picture")

    def __len__(self) -> int:
        return len(self.files) if self.frames is None else len(self.frames)

    def read(self, views: Indices, rows: slice) -> NDArray[Any]:
        """Some pictures, in increasing order, and of them some rows."""
        if self.frames is not None:
            return self.frames[views][:, rows]
        return np.stack([self._picture(int(view))[rows] for view in views])

    def whole(self) -> NDArray[Any]:
        """All of them."""
        return self.read(np.arange(len(self)), slice(None))

    def _picture(self, view: int) -> NDArray[Any]:
        picture = self._load(self.files[view])
        if picture.shape != self.shape:
            raise InputError(
                f"{self.files[view].name} is {picture.shape}, but the first of {self.what} is {self.shape}"
            )
        return picture

    def _load(self, file: Path) -> NDArray[Any]:
        import tifffile

        try:
            # Pages that lie one after the other are not read before they are needed.
            picture = _map_pages(file) if self.pages else tifffile.imread(file)
        except Exception as error:  # damaged files raise many kinds
            raise InputError(f"{file.name} cannot be read as TIFF: {first_line(error)}") from error
        if picture.size == 0:
            raise InputError(f"{file.name} cannot be read as TIFF: there is no picture in it")
        if picture.dtype.kind not in "fiu":
            raise InputError(f"{file.name} holds {picture.dtype}, which no detector counts in")
        return np.asarray(picture)


def _map_pages(file: Path) -> NDArray[Any]:
    """The pages of a file, left on the disk where they are not compressed."""
    import tifffile

    try:
        return np.asarray(tifffile.memmap(file, mode="r"))
    except ValueError:
        return np.asarray(tifffile.imread(file))


_KNOWN = ("projections", "flats", "darks", "angles", "arc", "pixel", "source", "detector", "center")


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        said = tomllib.loads(read_small(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    for name in said:
        if name not in _KNOWN:
            raise InputError(f"it says {name!r}, which means nothing here; names are {', '.join(_KNOWN)}")
    return said


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not np.isfinite(value) or value < 0 or (value == 0 and name == "pixel"):
        raise InputError(f"{name} must be a number, in metres where it is a length, not {value!r}")
    return float(value)


def _angles(said: Mapping[str, Any], folder: Path, count: int) -> NDArray[np.float64] | None:
    angles, arc = said.get("angles"), _number(said, "arc")
    if angles is not None and arc is not None:
        raise InputError("angles and arc are both given; one is enough")
    if arc is not None:
        return np.asarray(np.deg2rad(arc) * np.arange(count) / count)
    if angles is None:
        return None
    try:
        if isinstance(angles, str):
            angles = read_small(folder / angles, 64 << 20).replace(",", " ").split()
        degrees: NDArray[np.float64] = np.array(angles, dtype=np.float64).reshape(-1)
        return np.deg2rad(degrees)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"its angles are no list of numbers, in degrees: {error}") from None


def _numbers_in(file: Path) -> tuple[Any, ...]:
    """What to sort by: texts as texts and numbers as numbers, so that 2 comes before 10."""
    parts = re.split(r"(\d+)", file.name)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
