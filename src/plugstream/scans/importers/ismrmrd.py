"""ISMRMRD files, the raw data format of the MR community, read as the HDF5 that they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.scans.importers.source import Source, as_numbers

Real = NDArray[np.float64]
Complex = NDArray[np.complex64]
Density = NDArray[np.float32]

# Flags of acquisitions, counted from 1: those that are no part of the image, and lines that were read backwards.
_OTHER_KINDS = {
    19: "noise",
    20: "calibration",
    23: "navigation",
    24: "phase correction",
    26: "feedback",
    27: "dummy",
    28: "feedback",
    29: "surface coil correction",
    30: "phase stabilization",
    31: "phase stabilization",
}
_NOISE, _CALIBRATION, _REVERSE = 19, 20, 22
_HEAD = {"flags", "encoding_space_ref", "active_channels", "number_of_samples", "trajectory_dimensions", "idx"}
_HEAD |= {"discard_pre", "discard_post", "center_sample"}
_INDEX = ("kspace_encode_step_1", "kspace_encode_step_2", "contrast", "phase", "set", "repetition", "slice")
_LONGEST = 1 << 24  # characters of a header


def is_ismrmrd(source: Source) -> bool:
    """Whether an HDF5 file has acquisitions as ISMRMRD stores them."""
    return _find_group(source) is not None


def read_ismrmrd(source: Source, *, repetition: int = 0, pixel: float | None = None) -> dict[str, Any]:
    """The arguments of `plugstream.scans.importers.mri_recordings.Recording`, with one line or spoke a view.

    Only the first encoding is read. Samples of lines lie on the grid of the encoded field of view, which is often twice
    the image's along the readout; those of other paths where the file says, and along z, if it gives x and y alone, at
    the partition. Noise, navigators and the like are left out, and so are calibration lines, unless the header calls
    them embedded: then they are lines of the same image. Slices that were all measured along the same paths make a
    stack. One repetition is taken, and the first of contrasts, phases and sets; averages are separate views.

    Arguments: source, open; repetition; pixel in metres, for fields of view that the header does not tell: the encoded
    one then has the same pixels, and more of them where it is wider.
    """
    group = _find_group(source)
    if group is None:
        raise InputError(f"{source.path} is HDF5, but not of ISMRMRD, which has dataset/xml and dataset/data")
    header = _read_header(source, f"{group}/xml", pixel)
    records = source.read(f"{group}/data")
    if len(records) == 0:
        raise InputError(f"{source.path} has no acquisitions")
    head = records.dtype["head"]
    names = {*(head.names or ()), *(head["idx"].names or () if "idx" in (head.names or ()) else ())}
    if lacking := sorted({*_HEAD, *_INDEX} - names) + ["traj"] * ("traj" not in records.dtype.names):
        raise InputError(f"acquisitions of {source.path} lack {', '.join(lacking)}, which those of ISMRMRD have")
    kinds = [_other_kind(record["head"], header, repetition) for record in records]
    views = [n for n, kind in enumerate(kinds) if kind is None]
    if not views:
        raise InputError(f"{source.path} has no acquisitions of repetition {repetition} that are part of an image")
    path, data, slices, density = _read_views(records, views, header)
    if not np.isfinite(data).all():
        raise InputError(f"acquisitions of {source.path} hold NaN or infinity")
    counts = Counter(kind for kind in kinds if kind is not None)
    data, path, density = _stack_slices(data, path, density, slices)
    axes = path.shape[2]
    shape = tuple(header.matrix[:axes][::-1])
    spacing = tuple(width / size for width, size in zip(header.field[:axes][::-1], shape, strict=True))
    stack = data.ndim == 4
    if stack:
        shape, spacing = (data.shape[1], *shape), (header.thickness, *spacing)
    return {
        "kind": f"ISMRMRD, {header.trajectory}",
        "data": data,
        "trajectory": path,
        "unit": "1/m",
        "stack": stack,
        "shape": shape,
        "spacing": spacing,
        "density": density,
        "noise": _read_noise(records, data.shape[-2]),
        "remarks": tuple(f"{count} acquisitions of {kind} are no views" for kind, count in counts.items()),
    }


def _find_group(source: Source) -> str | None:
    """The group with a header and acquisitions: "dataset" as a rule, or any other; None where there is none."""
    names = (name.rpartition("/")[0] for name, _, _ in source.names() if name.rpartition("/")[2] == "xml")
    for group in ("/dataset", *(f"/{name.strip('/')}" for name in names)):
        fields = getattr(getattr(source.find(f"{group}/data"), "dtype", None), "names", None) or ()
        if {"head", "data"} <= set(fields) and source.find(f"{group}/xml") is not None:
            return group
    return None


def _has_flag(head: Any, bit: int) -> bool:
    return bool(int(head["flags"]) >> (bit - 1) & 1)


def _other_kind(head: Any, header: _Header, repetition: int) -> str | None:
    """What an acquisition that is no part of the image is, in words; None where it is a part."""
    index = head["idx"]
    for bit, kind in _OTHER_KINDS.items():
        if _has_flag(head, bit) and not (bit == _CALIBRATION and header.embedded):
            return kind
    if int(head["encoding_space_ref"]) != 0:
        return "other encodings"
    for name in ("contrast", "phase", "set"):
        if int(index[name]):
            return f"other {name}s"
    return None if int(index["repetition"]) == repetition else "other repetitions (--repetition)"


class _Header:
    """The first encoding of the XML header: matrices and fields of view along x, y and z, in metres."""

    def __init__(self, text: str, pixel: float | None = None) -> None:
        if "<!DOCTYPE" in text or "<!ENTITY" in text:  # none has one, and they may be made to grow without end
            raise InputError("the ISMRMRD header declares entities, which it must not")
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            raise InputError(f"the ISMRMRD header is not XML: {error}") from None
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        encoding = root.find("encoding")
        if encoding is None:
            raise InputError("the ISMRMRD header has no encoding")
        self.encoded, self.wide = _space(encoding, "encodedSpace", pixel)
        self.matrix, self.field = _space(encoding, "reconSpace", pixel)
        self.trajectory = (encoding.findtext("trajectory") or "cartesian").strip().lower()
        self.thickness = self.field[2] / max(1, self.matrix[2])
        mode = encoding.findtext("parallelImaging/calibrationMode") or ""
        self.embedded = mode.strip().lower() == "embedded"
        centers = [encoding.findtext(f"encodingLimits/kspace_encoding_step_{n}/center") for n in (1, 2)]
        try:
            pairs = zip(centers, self.encoded[1:], strict=True)
            self.centers = [int(text) if text else size // 2 for text, size in pairs]
        except ValueError:
            raise InputError(f"the ISMRMRD header has encoding centers {centers}, which are no numbers") from None


def _space(encoding: Any, name: str, pixel: float | None) -> tuple[list[int], list[float]]:
    """Matrix and field of view in metres along x, y and z; a field of 0 is unknown."""
    try:
        sizes = [int(encoding.find(f"{name}/matrixSize").findtext(axis)) for axis in "xyz"]
        widths = [1e-3 * float(encoding.find(f"{name}/fieldOfView_mm").findtext(axis)) for axis in "xyz"]
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"the ISMRMRD header lacks the {name}'s matrix and field of view") from None
    if min(sizes) < 1 or not all(0 <= width < 1e3 for width in widths):
        raise InputError(f"the ISMRMRD header has a {name} of {sizes} in {widths} m, which is impossible")
    if pixel is not None:
        return sizes, [width or pixel * size for size, width in zip(sizes, widths, strict=True)]
    if not all(widths):
        raise InputError(f"the ISMRMRD header has a {name} of {sizes} in {widths} m; give --pixel, in metres")
    return sizes, widths


def _read_header(source: Source, name: str, pixel: float | None) -> _Header:
    stored = source.read(name)
    while isinstance(stored, np.ndarray):
        if stored.size != 1:
            raise InputError(f"{source.path} has {stored.size} headers; one is read")
        stored = stored.ravel()[0]
    text = stored.decode("utf-8", errors="replace") if isinstance(stored, bytes) else str(stored)
    if len(text) > _LONGEST:
        raise InputError(f"{source.path} has a header of {len(text):,} characters, which is too long")
    return _Header(text, pixel)


def _samples(record: Any) -> Complex | None:
    """The data of an acquisition, (coils, samples), None where it has not as many numbers as its head says."""
    coils, samples = (int(record["head"][name]) for name in ("active_channels", "number_of_samples"))
    values = as_numbers("data", record["data"], np.float32)
    if samples < 1 or coils < 1 or values.size != 2 * samples * coils:
        return None
    return values.view(np.complex64).reshape(coils, samples)


def _read_views(
    records: Any, views: list[int], header: _Header
) -> tuple[Real, Complex, NDArray[np.int64], Density | None]:
    """Paths (views, samples, axes) in 1/m, data (views, coils, samples), the slice of each view, and densities."""
    volume = header.encoded[2] > 1
    dims = int(records[views[0]]["head"]["trajectory_dimensions"])
    paths, rows, slices, weights = [], [], [], []
    for n, number in enumerate(views):
        report("reading acquisitions", n, len(views))
        record = records[number]
        head, data = record["head"], _samples(record)
        samples, coils = int(head["number_of_samples"]), int(head["active_channels"])
        if data is None:
            size = np.size(record["data"])
            raise InputError(f"acquisition {number} holds {size} numbers for {coils} coils of {samples} samples")
        begin, end = int(head["discard_pre"]), samples - int(head["discard_post"])
        if end <= begin:
            raise InputError(f"acquisition {number} discards all of its {samples} samples")
        if int(head["trajectory_dimensions"]) != dims:
            raise InputError("some acquisitions say where their samples are, and others do not, or not in the same way")
        path, weight = _path(record, samples, header, volume)
        # Samples are discarded in the order in which they were read; then all lines go the same way.
        step = -1 if _has_flag(head, _REVERSE) and dims == 0 else 1
        paths.append(path[begin:end][::step])
        rows.append(data[:, begin:end][:, ::step])
        slices.append(int(head["idx"]["slice"]))
        weights.append(None if weight is None else weight[begin:end])
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise InputError(f"acquisitions have different numbers of coils and samples, {sorted(shapes)[:3]} and so on")
    path = np.stack(paths)
    if dims > 0:
        # In parts of the encoded matrix, from -1/2 to 1/2, or in its steps; partitions are in steps anyway.
        axes = path.shape[2]
        sizes = np.array(header.encoded[:axes][::-1], np.float64)
        partitions = 1 if volume and dims == 2 else 0
        if np.abs(path[..., partitions:]).max() > 1:
            sizes[:] = 1
        sizes[:partitions] = 1
        path = path * sizes / np.array(header.wide[:axes][::-1])
    density = None if any(w is None for w in weights) else np.stack(weights).astype(np.float32)  # type: ignore[arg-type]
    return path, np.stack(rows).astype(np.complex64), np.array(slices), density


def _read_noise(records: Any, coils: int) -> Complex | None:
    """(coils, n) of all acquisitions of noise with as many coils as the image's; None for none."""
    noise = [_samples(record) for record in records if _has_flag(record["head"], _NOISE)]
    usable = [samples for samples in noise if samples is not None and len(samples) == coils]
    return np.concatenate(usable, 1) if usable else None


def _path(record: Any, samples: int, header: _Header, volume: bool) -> tuple[Real, Density | None]:
    """The places of an acquisition's samples, (samples, axes) along (z,) y, x, and their density or None.

    Lines are in 1/m, other paths in the unit of the file.
    """
    head, axes = record["head"], 3 if volume else 2
    dims = int(head["trajectory_dimensions"])
    steps = [int(head["idx"][f"kspace_encode_step_{n}"]) - header.centers[n - 1] for n in (1, 2)]
    if dims == 0:
        if header.trajectory != "cartesian":
            raise InputError(f"the path is {header.trajectory}, but acquisitions do not say where their samples are")
        # Half of a line that is read twice as fine has the same step; center_sample is the middle. Scanners reverse
        # lines that were read backwards before they count from it.
        along = (np.arange(samples) - int(head["center_sample"])) / header.wide[0]
        if _has_flag(head, _REVERSE):
            along = along[::-1]
        columns = [np.full(samples, steps[1] / header.wide[2]), np.full(samples, steps[0] / header.wide[1]), along]
        return np.stack(columns[-axes:], 1), None
    values = as_numbers("traj", record["traj"])
    if values.size != samples * dims or dims < 2:
        raise InputError(f"an acquisition has {values.size} numbers of its path for {samples} samples in {axes}D")
    values = values.reshape(samples, dims)
    if volume and dims == 2:  # the same spokes or spirals in each partition
        return np.concatenate([np.full((samples, 1), float(steps[1])), values[:, ::-1]], 1), None
    weight = values[:, axes] if dims > axes else np.zeros(samples)
    usable = weight.min() >= 0 and weight.any()
    return values[:, :axes][:, ::-1], weight.astype(np.float32) if usable else None


def _stack_slices(
    data: Complex, path: Real, density: Density | None, slices: NDArray[np.int64]
) -> tuple[Complex, Real, Density | None]:
    """Views of several slices as views of a stack, where all slices have the same paths, in any order."""
    numbers, largest = np.unique(slices), float(np.abs(path).max())
    if len(numbers) == 1:
        return data, path, density
    groups = [np.flatnonzero(slices == number) for number in numbers]

    def find_other(groups: list[NDArray[np.intp]]) -> int | None:
        """The first group whose paths differ from those of group 0, or None."""
        first = path[groups[0]]
        for n, group in enumerate(groups):
            if len(group) != len(first) or not np.allclose(path[group], first, rtol=0, atol=1e-6 * largest):
                return n
        return None

    if find_other(groups) is not None:  # interleaved slices may have their lines in another order
        ends = np.round(path[:, [0, -1]].reshape(len(path), -1) / max(largest, 1e-30), 6)  # in single precision
        groups = [group[np.lexsort(ends[group].T[::-1])] for group in groups]
    if (n := find_other(groups)) is not None:
        raise InputError(f"slice {numbers[n]} was measured along other paths than slice {numbers[0]}; split the file")
    stack = np.stack([data[group] for group in groups], 1)
    return stack, path[groups[0]], None if density is None else density[groups[0]]
