"""Data Exchange: the HDF5 files of synchrotron tomography, such as those of the Advanced Photon Source."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.models.ct_line_integrals import FlatField
from plugstream.scans.importers.ct_projections import (
    Indices,
    Projections,
    angles_in_radians,
    length_in_metres,
    mean_frame,
    pick_views,
)
from plugstream.scans.importers.lookup import Source, read_rows, unit_of

__all__ = ["is_exchange", "read_exchange"]

# Where files of the APS, TomoBank and others say how large a pixel is; behind a lens the camera's own are larger.
_PIXEL = (
    "/measurement/instrument/detection_system/objective/resolution",
    "/measurement/instrument/detector/pixel_size_x",
    "/measurement/instrument/detector/x_pixel_size",
    "/measurement/instrument/detector/pixel_size",
)


def is_exchange(source: Source) -> bool:
    """Whether an HDF5 file has projections where Data Exchange has them."""
    return getattr(source.find("/exchange/data"), "ndim", 0) == 3


def read_exchange(source: Source) -> Projections:
    """The projections of a Data Exchange file: a parallel beam, its flat and dark fields, and angles in degrees.

    /exchange/data (views, rows, columns), data_white and data_dark (frames, rows, columns), theta (views,). Frames of
    flat fields are averaged, whenever they were taken, since the format does not say when. Without flat fields the
    projections must be line integrals already, which a file says by the description of its data, "sinogram" or
    "attenuation"; otherwise it is refused.

    Reference: De Carlo et al., Scientific data exchange, J. Synchrotron Rad. 21, 2014.
    """
    data = source.find("/exchange/data")
    axes = _text(source.attribute("axes", "/exchange/data"))
    if axes and not axes.startswith("theta"):
        raise InputError(f"its data has the axes {axes}; only theta:y:x is read")
    whites, darks = (source.find(f"/exchange/{name}") for name in ("data_white", "data_dark"))
    field = None
    if whites is not None and np.prod(whites.shape) > 0:
        flats = _frames(whites, source, "data_white")
        field = FlatField.from_frames([flats], None if darks is None else _frames(darks, source, "data_dark"))
    elif "transmission" in _text(source.attribute("description", "/exchange/data")) or data.dtype.kind in "iu":
        raise InputError("it has no flat fields, /exchange/data_white, to turn counts into line integrals with")
    theta = source.find("/exchange/theta")
    angles = None
    if theta is not None:
        told = angles_in_radians(read_rows(theta, slice(None), "theta", source), unit_of(theta))
        angles = told if len(told) == data.shape[0] else None  # of other frames too, or of none

    def read(views: Indices, rows: slice) -> NDArray[Any]:
        try:
            return pick_views(data, views, rows)
        except (OSError, RuntimeError) as error:
            raise InputError(f"projections {views[0]} to {views[-1]} cannot be read: {error}") from error

    pixel = None
    for place in _PIXEL:
        if (found := source.find(place)) is not None:
            size = length_in_metres(read_rows(found, (), place, source), unit_of(found), "pixel size")
            pixel = (size, size)
            break
    name = source.find("/measurement/sample/name")
    said = {} if name is None else {"sample": _text(read_rows(name, (), "name", source))}
    return Projections(
        "Data Exchange", data.shape[0], data.shape[1:], read, angles, flat_field=field, pixel=pixel, provenance=said
    )


def _frames(array: Any, source: Source, name: str) -> NDArray[Any]:
    """The mean of the frames, as one."""
    if array.ndim == 2:
        return np.asarray(read_rows(array, slice(None), name, source))[None]
    if array.ndim != 3 or array.shape[0] == 0:
        raise InputError(f"its {name} has shape {array.shape}, but must be (frames, rows, columns)")
    try:
        return mean_frame(array, np.arange(array.shape[0]))
    except (OSError, RuntimeError) as error:
        raise InputError(f"its {name} cannot be read: {error}") from error


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)
