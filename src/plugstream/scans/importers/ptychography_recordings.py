"""Recordings of ptychography: tike's NPZ, CXI, and the HDF5 of PtychoShelves and ptypy, as frames and positions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.hdf5 import open_hdf5
from plugstream.scans.importers.source import Source, read_complex, read_rows

__all__ = ["FORMATS", "Recording"]

_CXI = "/entry_1/data_1/data"
_DETECTOR, _SOURCE = "/entry_1/instrument_1/detector_1", "/entry_1/instrument_1/source_1"
_TRANSLATIONS = (
    "/entry_1/data_1/translation",
    f"{_DETECTOR}/translation",
    "/entry_1/sample_1/geometry_1/translation",
    "/entry_1/sample_1/geometry/translation",
)
_PROBES = (f"{_SOURCE}/illumination", f"{_SOURCE}/probe", f"{_DETECTOR}/probe", f"{_DETECTOR}/Probe")
_SWITCHES = {"near_field", "nearfield", "is_near_field"}
_REGIMES = {"propagation", "propagation_type", "propagator", "prop_regime", *_SWITCHES}
_PLANCK = 1.98644586e-25  # joules times metres: energy = this / wavelength
_KEV = 1.602176634e-16


@dataclass(frozen=True)
class Recording:
    """What a file tells.

    Arguments: kind, in words; frames, rows and columns of the detector; views; read, which gives the counts of some
    views, (B, rows, columns); positions (views, 2), row and column, in metres, or in pixels of the object where
    `in_pixels`; centred, whether zero frequency is in the middle of a frame, at n // 2, rather than at its corner;
    probe (modes, n, n) at the object, its middle in the middle; good (rows, columns), False where a pixel is bad;
    wavelength, distance to the detector and size of its pixels, in metres; pixel, of the object.
    """

    kind: str
    frames: tuple[int, int]
    views: int
    read: Callable[[slice], NDArray[Any]]
    positions: NDArray[np.float64]
    in_pixels: bool = False
    centred: bool = True
    probe: NDArray[np.complex128] | None = None
    good: NDArray[np.bool_] | None = None
    wavelength: float | None = None
    distance: float | None = None
    detector_pixel: float | None = None
    pixel: float | None = None


def _refuse_near_field(source: Source) -> None:
    """Refuse what a file says was recorded in the near field, whose patterns are no Fourier transforms.

    ptypy says so by `propagation` in meta or info, others by names alike, as text or as a switch.
    """
    for name, shape, _ in source.names():
        last = re.split("[/@]", name)[-1].lower()
        if last not in _REGIMES or math.prod(shape) != 1:
            continue
        value = np.ravel(np.asarray(source.read(name), dtype=object))[0]
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if "near" in text.lower() or "fresnel" in text.lower() or (last in _SWITCHES and text.lower() in ("1", "true")):
            raise InputError(
                f"{source.path} was recorded in the near field ({name} is {text}), and the model here is that of the "
                "far field, in which a frame is a Fourier transform"
            )


def _read_tike(source: Source) -> Recording:
    """The NPZ of tike's tests: data (1, views, n, n), scan (1, views, 2), and may be probe (1, 1, 1, modes, n, n).

    Positions are row and column in pixels, and zero frequency is at the corner of frames.
    """
    arrays = {name: source.find(name) for name in ("data", "scan", "probe")}
    for name, value in arrays.items():
        if value is None and name != "probe":
            raise InputError(f"{source.path} has no {name}, as tike's recordings have")
    data = np.asarray(arrays["data"])
    data = data.reshape(-1, *data.shape[-2:])
    scan = np.asarray(arrays["scan"], dtype=np.float64).reshape(-1, 2)
    return _record(source, "tike's NPZ", data, scan, arrays["probe"], in_pixels=True, centred=False)


def _read_cxi(source: Source) -> Recording:
    """A CXI file: frames (views, n, n), translations (views, 3) x, y and z in metres, all in SI units."""
    _refuse_near_field(source)
    data = source.find(_CXI)
    place = next((name for name in _TRANSLATIONS if source.find(name) is not None), None)
    if place is None:
        raise InputError(f"{source.path} has no translations, such as {_TRANSLATIONS[2]}")
    moved = np.asarray(source.read(place), dtype=np.float64)
    if moved.ndim != 2 or moved.shape[1] < 2:
        raise InputError(f"translations of {source.path} have shape {moved.shape}, but must be (views, 3)")
    energy = source.first_number(f"{_SOURCE}/energy")
    wavelength = source.first_number(f"{_SOURCE}/wavelength")
    if wavelength is None and energy:
        wavelength = _PLANCK / energy  # joules, as CXI has them
    probe = next((source.find(name) for name in _PROBES if source.find(name) is not None), None)
    mask = source.read(f"{_DETECTOR}/mask")
    if np.shape(mask) != tuple(data.shape[1:]):
        mask = None  # of each frame, or of another detector
    return _record(
        source,
        "CXI",
        data,
        moved[:, 1::-1],
        probe,
        good=None if mask is None else np.asarray(mask) == 0,  # CXI has flags of what is wrong
        wavelength=wavelength,
        distance=source.first_number(f"{_DETECTOR}/distance"),
        detector_pixel=source.first_number(f"{_DETECTOR}/x_pixel_size"),
    )


def _read_shelves(source: Source) -> Recording:
    """The HDF5 of PtychoShelves: dp (views, n, n), and ppX and ppY in metres, with lambda and dx, in it or beside it.

    What is beside it is a file of the same name with _para in place of _dp.
    """
    _refuse_near_field(source)
    data, names = source.find("dp"), ("ppX", "ppY", "lambda", "dx", "probe")
    found = {name: source.read(name) for name in names}
    beside = source.path.with_name(re.sub(r"_dp(?=\.\w+$)", "_para", source.path.name))
    if found["ppX"] is None and beside != source.path and beside.is_file():
        with open_hdf5(beside) as other:
            found = {name: other.read(name) for name in names}
    if found["ppX"] is None or found["ppY"] is None:
        raise InputError(f"{source.path} has no ppX and ppY, and neither has {beside.name} beside it")
    positions = np.stack([np.asarray(found[name], dtype=np.float64).ravel() for name in ("ppY", "ppX")], 1)
    wave, pixel = (None if found[name] is None else float(np.ravel(found[name])[0]) for name in ("lambda", "dx"))
    return _record(source, "PtychoShelves", data, positions, found["probe"], wavelength=wave, pixel=pixel)


def _read_ptypy(source: Source) -> Recording:
    """The HDF5 of ptypy (.ptyd): chunks with data (M, n, n) and positions (M, 2) in metres, and meta."""
    _refuse_near_field(source)
    names = sorted(
        (int(match[1]) for name, _, _ in source.names() if (match := re.fullmatch(r"/chunks/(\d+)/data", name))),
    )
    data = np.concatenate([np.asarray(source.read(f"chunks/{n}/data")) for n in names])
    positions = np.concatenate([np.asarray(source.read(f"chunks/{n}/positions")) for n in names]).astype(float)
    energy, weights = source.first_number("meta/energy"), source.read("meta/weight2d")
    return _record(
        source,
        "ptypy",
        data,
        positions,
        good=None if weights is None or np.shape(weights) != data.shape[1:] else np.asarray(weights) > 0,
        wavelength=None if not energy else _PLANCK / (energy * _KEV),
        distance=source.first_number("meta/distance"),
        detector_pixel=source.first_number("meta/psize"),
    )


def _modes(source: Source, name: str, probe: Any) -> NDArray[np.complex128]:
    """A probe as (modes, n, n), whatever axes of one are before them."""
    whole = read_complex(source.path, name, probe) if not np.iscomplexobj(probe) else probe
    values = np.asarray(whole[:] if hasattr(whole, "shape") else whole)
    if values.ndim < 2:
        raise InputError(f"{name} of {source.path} has shape {values.shape}, but must be (modes, n, n)")
    return values.reshape(-1, *values.shape[-2:]).astype(np.complex128)


def _record(
    source: Source, kind: str, data: Any, positions: NDArray[np.float64], probe: Any = None, **more: Any
) -> Recording:
    """The recording, by default of frames with zero frequency in the middle and positions in metres."""
    shape = tuple(data.shape)
    if len(shape) != 3 or 0 in shape:
        raise InputError(f"the frames of {source.path} have shape {shape}, but must be (views, rows, columns)")
    if positions.shape != (shape[0], 2):
        raise InputError(f"{source.path} has {shape[0]} frames, but positions of shape {positions.shape}")
    if not np.isfinite(positions).all():
        raise InputError(f"positions of {source.path} hold NaN or infinity")
    modes = None if probe is None else _modes(source, "probe", probe)

    def read(views: slice) -> NDArray[Any]:
        return np.asarray(read_rows(data, views, "data", source))

    return Recording(kind, (shape[1], shape[2]), shape[0], read, positions, probe=modes, **more)


FORMATS = Formats(
    Format("HDF5", lambda source: source.find(_CXI) is not None, _read_cxi),
    Format("HDF5", lambda source: source.find("dp") is not None, _read_shelves),
    Format("HDF5", lambda source: source.find("chunks/0/data") is not None, _read_ptypy),
    Format("NPZ", lambda source: {"data", "scan"} <= source.name_set(), _read_tike),
    unknown="no recording of ptychography that is known: CXI has entry_1/data_1/data, PtychoShelves dp with ppX and "
    "ppY, ptypy chunks/0/data, and tike's NPZ data and scan",
    packed=True,
)
