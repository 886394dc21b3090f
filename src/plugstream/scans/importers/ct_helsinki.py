"""The MATLAB files of the University of Helsinki's tomography laboratory, such as those of its challenge of 2022."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.arrays import open_error
from plugstream.scans.importers.ct_projections import Indices, Projections, length_in_metres

__all__ = ["is_helsinki", "read_helsinki"]

_NAMES = ("CtDataFull", "CtDataLimited", "CtData")
_CITATION = "Meaney et al., Helsinki Tomography Challenge 2022, Zenodo, doi 10.5281/zenodo.6984868"


def is_helsinki(path: Path) -> bool:
    """Whether a file is MATLAB's, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(6) == b"MATLAB"
    except OSError:
        return False


def read_helsinki(path: Path) -> Projections:
    """The fan-beam sinogram of a file: line integrals (views, columns), distances and pixels in millimetres, degrees.

    Its struct has `sinogram` and `parameters`, of which distanceSourceOrigin, distanceSourceDetector, pixelSizePost and
    angles are used. The rotation axis is seen in the middle of the detector.
    """
    content = _load(path)
    names = [name for name in content if not name.startswith("__")]
    chosen = next((name for name in (*_NAMES, *names) if hasattr(content.get(name), "parameters")), None)
    if chosen is None:
        raise InputError(f"it has {', '.join(names) or 'nothing'}, and no struct with sinogram and parameters")
    about = content[chosen].parameters
    sinogram = np.atleast_2d(np.asarray(getattr(content[chosen], "sinogram", np.zeros((0, 0)))))
    if sinogram.ndim != 2 or sinogram.dtype.kind not in "fiu":
        raise InputError(f"its sinogram has shape {sinogram.shape}, but must be (views, columns)")
    unit = str(_value(about, "distanceUnit", "mm"))
    source = length_in_metres(_value(about, "distanceSourceOrigin"), unit, "distance from source to axis")
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
        source=source,
        detector=whole - source,
        flat_image=True,
        provenance=said | {"citation": _CITATION},
    )


def _value(about: Any, name: str, usual: Any = None) -> Any:
    found = getattr(about, name, usual)
    if found is None:
        raise InputError(f"its parameters have no {name}")
    return found


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, squeeze_me=True, struct_as_record=False)
    except NotImplementedError:
        raise InputError(f"{path} is of MATLAB 7.3, which is HDF5; save it with save(..., '-v7')") from None
    except Exception as error:  # a damaged file raises many kinds
        raise open_error(path, error, "a MATLAB file") from error
    return content
