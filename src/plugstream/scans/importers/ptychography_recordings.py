"""Recordings of ptychography: tike's NPZ, CXI, and the HDF5 of PtychoShelves and ptypy, as frames and positions."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.scans.importers.formats import Format, Formats
from plugstream.scans.importers.hdf5 import open_hdf5
from plugstream.scans.importers.source import Source, as_numbers, check_array, read_complex

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
    """The content of a file.

    Arguments: kind, in words; data (views, rows, columns), counts, read by slicing; positions (views, 2), row and
    column, in metres, or in pixels of the object where `in_pixels`; probe (modes, n, n) at the object, centred;
    centred, whether zero frequency is in the middle of a frame, at n // 2, rather than at its corner; good
    (rows, columns), False where a pixel is bad; wavelength, distance to the detector and size of its pixels, in
    metres; pixel, of the object.
    """

    kind: str
    data: Any
    positions: NDArray[np.float64]
    probe: NDArray[np.complex128] | None = None
    in_pixels: bool = False
    centred: bool = True
    good: NDArray[np.bool_] | None = None
    wavelength: float | None = None
    distance: float | None = None
    detector_pixel: float | None = None
    pixel: float | None = None

    @property
    def views(self) -> int:
        return len(self.positions)


def _refuse_near_field(source: Source) -> None:
    """Refuse a recording of the near field, whose patterns are no Fourier transforms.

    ptypy has `propagation` in meta or info, others have similar names, as text or as a switch.
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
    """The NPZ of tike's tests: data (1, views, n, n), scan (1, views, 2), optionally probe (1, 1, 1, modes, n, n).

    Positions are row and column in pixels, and zero frequency is at the corner of frames.
    """
    data, scan = source.find("data"), source.find("scan")
    for name, array in (("data", data), ("scan", scan)):
        if array is None:
            raise InputError(f"{source.path} has no {name}, as tike's recordings have")
    frames, positions = data.reshape(-1, *data.shape[-2:]), as_numbers("scan", scan).reshape(-1, 2)
    return _record(source, "tike's NPZ", frames, positions, source.find("probe"), in_pixels=True, centred=False)


def _read_cxi(source: Source) -> Recording:
    """A CXI file: frames (views, n, n), translations (views, 3) x, y and z in metres, all in SI units."""
    _refuse_near_field(source)
    data = check_array(source.path, "data", source.find(_CXI))
    moves = _first(source, _TRANSLATIONS)
    if moves is None:
        raise InputError(f"{source.path} has no translations, such as {_TRANSLATIONS[2]}")
    moves = as_numbers("translations", check_array(source.path, "translations", moves)[()])
    if moves.ndim != 2 or moves.shape[1] < 2:
        raise InputError(f"translations of {source.path} have shape {moves.shape}, but must be (views, 3)")
    energy = source.first_number(f"{_SOURCE}/energy")
    wavelength = source.first_number(f"{_SOURCE}/wavelength")
    mask = source.read(f"{_DETECTOR}/mask")
    one_mask = np.shape(mask) == tuple(data.shape[1:])  # not of each frame, nor of another detector
    return _record(
        source,
        "CXI",
        data,
        moves[:, 1::-1],
        _first(source, _PROBES),
        good=np.asarray(mask) == 0 if one_mask else None,  # CXI has flags of what is wrong
        wavelength=_PLANCK / energy if wavelength is None and energy else wavelength,  # joules, as CXI has them
        distance=source.first_number(f"{_DETECTOR}/distance"),
        detector_pixel=source.first_number(f"{_DETECTOR}/x_pixel_size"),
    )


def _read_shelves(source: Source) -> Recording:
    """The HDF5 of PtychoShelves: dp (views, n, n), and ppX and ppY in metres, with lambda and dx.

    All but dp may be in a file beside it, with _para in its name in place of _dp.
    """
    _refuse_near_field(source)
    companion = source.path.with_name(re.sub(r"_dp(?=\.\w+$)", "_para", source.path.name))
    with ExitStack() as stack:
        other = source
        if source.find("ppX") is None and companion != source.path and companion.is_file():
            other = stack.enter_context(open_hdf5(companion))
        axes = [other.read(name) for name in ("ppY", "ppX")]
        if any(axis is None for axis in axes):
            raise InputError(f"{source.path} has no ppX and ppY, and neither has {companion.name} beside it")
        positions = np.stack([as_numbers("ppX and ppY", axis).ravel() for axis in axes], 1)
        lengths = {"wavelength": other.first_number("lambda"), "pixel": other.first_number("dx")}
        return _record(source, "PtychoShelves", source.find("dp"), positions, other.read("probe"), **lengths)


def _read_ptypy(source: Source) -> Recording:
    """The HDF5 of ptypy (.ptyd): chunks with data (M, n, n) and positions (M, 2) in metres, and meta."""
    _refuse_near_field(source)
    matches = (re.fullmatch(r"/chunks/(\d+)/data", name) for name in source.name_set())
    chunks = sorted(int(match[1]) for match in matches if match)
    data, positions = (_join_chunks(source, chunks, part) for part in ("data", "positions"))
    energy, weights = source.first_number("meta/energy"), source.read("meta/weight2d")
    return _record(
        source,
        "ptypy",
        data,
        positions.astype(float),
        good=None if weights is None or np.shape(weights) != data.shape[1:] else np.asarray(weights) > 0,
        wavelength=None if not energy else _PLANCK / (energy * _KEV),
        distance=source.first_number("meta/distance"),
        detector_pixel=source.first_number("meta/psize"),
    )


def _join_chunks(source: Source, chunks: list[int], part: str) -> NDArray[Any]:
    """The rows of all chunks."""
    arrays = [as_numbers(part, source.read(f"chunks/{n}/{part}"), None) for n in chunks]
    if not all(array.ndim and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
        raise InputError(f"{part} of {source.path} differ in shape from chunk to chunk")
    return np.concatenate(arrays)


def _first(source: Source, names: tuple[str, ...]) -> Any:
    """The first array that the file has of these names, or None."""
    return next((array for name in names if (array := source.find(name)) is not None), None)


def _modes(source: Source, probe: Any) -> NDArray[np.complex128]:
    """A probe as (modes, n, n), without the axes of one before them."""
    values = read_complex(source.path, "probe", probe)[:]
    if values.ndim < 2:
        raise InputError(f"probe of {source.path} has shape {values.shape}, but must be (modes, n, n)")
    return values.reshape(-1, *values.shape[-2:]).astype(np.complex128)


def _record(
    source: Source, kind: str, data: Any, positions: NDArray[np.float64], probe: Any = None, **more: Any
) -> Recording:
    """The recording, by default of frames with zero frequency in the middle and positions in metres."""
    shape = tuple(check_array(source.path, "data", data).shape)
    if len(shape) != 3 or 0 in shape:
        raise InputError(f"the frames of {source.path} have shape {shape}, but must be (views, rows, columns)")
    if positions.shape != (shape[0], 2):
        raise InputError(f"{source.path} has {shape[0]} frames, but positions of shape {positions.shape}")
    if not np.isfinite(positions).all():
        raise InputError(f"positions of {source.path} hold NaN or infinity")
    return Recording(kind, data, positions, None if probe is None else _modes(source, probe), **more)


FORMATS = Formats(
    Format("HDF5", lambda source: source.find(_CXI) is not None, _read_cxi),
    Format("HDF5", lambda source: source.find("dp") is not None, _read_shelves),
    Format("HDF5", lambda source: source.find("chunks/0/data") is not None, _read_ptypy),
    Format("NPZ", lambda source: {"data", "scan"} <= source.name_set(), _read_tike),
    unknown="not a recording of ptychography that we know: CXI has entry_1/data_1/data, PtychoShelves dp with ppX and "
    "ppY, ptypy chunks/0/data, and tike's NPZ data and scan",
    packed=True,
)
