"""ISMRMRD files, the raw data format of the MR community, read as the HDF5 that they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.scans.importers.source import Source, read_rows

__all__ = ["is_ismrmrd", "read_ismrmrd"]

# Flags of acquisitions, counted from 1: those that are no part of the image, and lines that were read backwards.
_APART = {
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
_LONGEST = 1 << 24  # characters of a header


def is_ismrmrd(source: Source) -> bool:
    """Whether an HDF5 file has acquisitions as ISMRMRD stores them."""
    return _find_group(source) is not None


def read_ismrmrd(source: Source, *, repetition: int = 0, pixel: float | None = None) -> dict[str, Any]:
    """What `plugstream.scans.importers.mri_recordings.Recording` takes, of the first encoding: one line or spoke a
    view.

    Samples of lines lie on the grid of the encoded field of view, which is often twice the image's along the readout;
    those of other paths where the file says, and along z, where that tells of x and y alone, at the partition. Noise,
    navigators and the like are left out, and so are calibration lines, unless the header calls them embedded: then they
    are lines of the same image. Slices that were all measured along the same paths make a stack. Of several repetitions
    one is taken, of contrasts, phases and sets the first; averages are views of their own.

    Arguments: source, open; repetition; pixel in metres, for fields of view that the header does not tell: the encoded
    one has the same pixels then, more of them where it is wider.
    """
    group = _find_group(source)
    if group is None:
        raise InputError(f"{source.path} is HDF5, but not of ISMRMRD, which has dataset/xml and dataset/data")
    header = _read_header(source, f"{group}/xml", pixel)
    heads = read_rows(source.find(f"{group}/data"), slice(None), f"{group}/data", source)
    if len(heads) == 0:
        raise InputError(f"{source.path} has no acquisitions")
    kept, left = [], dict[str, int]()
    for n, record in enumerate(heads):
        why = _why_apart(record["head"], header, repetition)
        if why is None:
            kept.append(n)
        else:
            left[why] = left.get(why, 0) + 1
    if not kept:
        raise InputError(f"{source.path} has no acquisitions of repetition {repetition} that are part of an image")
    path, data, slices, density = _read_views(heads, kept, header)
    if not np.isfinite(data).all():
        raise InputError(f"acquisitions of {source.path} hold NaN or infinity")
    remarks = [f"{count} acquisitions of {what} are no views" for what, count in left.items()]
    data, path, density = _stack_slices(data, path, density, slices)
    shape, spacing = header.image(3 if path.shape[2] == 3 else 2)
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
        "noise": _read_noise(heads, data.shape[-2]),
        "remarks": tuple(remarks),
    }


def _find_group(source: Source) -> str | None:
    """The group with a header and acquisitions: "dataset" as a rule, or any other; None where there is none."""
    names = (name.rpartition("/")[0] for name, _, _ in source.names() if name.rpartition("/")[2] == "xml")
    for group in ("/dataset", *(f"/{name.strip('/')}" for name in names)):
        kind = getattr(getattr(source.find(f"{group}/data"), "dtype", None), "names", None) or ()
        if {"head", "data"} <= set(kind) and source.find(f"{group}/xml") is not None:
            return group
    return None


def _why_apart(head: Any, header: _Header, repetition: int) -> str | None:
    """What an acquisition is of, in words, where it is no part of the image; None where it is."""
    flags, index = int(head["flags"]), head["idx"]
    for bit, what in _APART.items():
        if flags >> (bit - 1) & 1 and not (bit == _CALIBRATION and header.embedded):
            return what
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
            raise InputError("the ISMRMRD header declares entities, which none needs")
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
        limits = "encodingLimits/kspace_encoding_step_{}/center"
        centers = [encoding.findtext(limits.format(n)) for n in (1, 2)]
        try:
            pairs = zip(centers, self.encoded[1:], strict=True)
            self.centers = [int(text) if text else size // 2 for text, size in pairs]
        except ValueError:
            raise InputError(f"the ISMRMRD header has encoding centers {centers}, which are no numbers") from None

    def image(self, axes: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Shape and spacing along (z,) y, x."""
        steps = [width / size for width, size in zip(self.field, self.matrix, strict=True)]
        return tuple(self.matrix[:axes][::-1]), tuple(steps[:axes][::-1])


def _space(encoding: Any, name: str, pixel: float | None) -> tuple[list[int], list[float]]:
    """Matrix and field of view in metres along x, y and z; a field of 0 is one that nobody filled in."""
    try:
        sizes = [int(encoding.find(f"{name}/matrixSize").findtext(axis)) for axis in "xyz"]
        widths = [1e-3 * float(encoding.find(f"{name}/fieldOfView_mm").findtext(axis)) for axis in "xyz"]
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"the ISMRMRD header does not tell the {name}'s matrix and field of view") from None
    if min(sizes) < 1 or not all(0 <= width < 1e3 for width in widths):
        raise InputError(f"the ISMRMRD header has a {name} of {sizes} in {widths} m, which is none")
    if pixel is not None:
        return sizes, [width or pixel * size for size, width in zip(sizes, widths, strict=True)]
    if not all(widths):
        raise InputError(f"the ISMRMRD header has a {name} of {sizes} in {widths} m; give --pixel, in metres")
    return sizes, widths


def _read_header(source: Source, name: str, pixel: float | None) -> _Header:
    stored = read_rows(source.find(name), (), name, source)
    while isinstance(stored, np.ndarray):
        if stored.size != 1:
            raise InputError(f"{source.path} has {stored.size} headers; one is read")
        stored = stored.ravel()[0]
    text = stored.decode("utf-8", errors="replace") if isinstance(stored, bytes) else str(stored)
    if len(text) > _LONGEST:
        raise InputError(f"{source.path} has a header of {len(text):,} characters, which none has")
    return _Header(text, pixel)


def _read_views(
    heads: Any, kept: list[int], header: _Header
) -> tuple[NDArray[np.float64], NDArray[np.complex64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Paths (views, samples, axes) in 1/m, data (views, coils, samples), the slice of each view, and densities."""
    volume = header.encoded[2] > 1
    dims = int(heads[kept[0]]["head"]["trajectory_dimensions"])
    paths, rows, slices, weights = [], [], [], []
    for n, number in enumerate(kept):
        report("reading acquisitions", n, len(kept))
        record = heads[number]
        head = record["head"]
        samples, coils = int(head["number_of_samples"]), int(head["active_channels"])
        values = np.asarray(record["data"], np.float32)
        if samples < 1 or coils < 1 or values.size != 2 * samples * coils:
            raise InputError(f"acquisition {number} holds {values.size} numbers for {coils} coils of {samples} samples")
        data = values.view(np.complex64).reshape(coils, samples)
        begin, end = int(head["discard_pre"]), samples - int(head["discard_post"])
        if end <= begin:
            raise InputError(f"acquisition {number} discards all of its {samples} samples")
        if int(head["trajectory_dimensions"]) != dims:
            raise InputError("some acquisitions tell where their samples are, and others do not, or otherwise")
        path, weight = _path(record, head, samples, header, volume)
        # What is discarded is so in the order in which it was read; then all lines go the same way, as slices compare.
        step = -1 if int(head["flags"]) >> (_REVERSE - 1) & 1 and dims == 0 else 1
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


def _read_noise(heads: Any, coils: int) -> NDArray[np.complex64] | None:
    """(coils, n) of all acquisitions of noise with as many coils as the image's; None for none."""
    found = []
    for record in heads:
        head = record["head"]
        values = np.asarray(record["data"], np.float32)
        shape = (int(head["active_channels"]), int(head["number_of_samples"]))
        if int(head["flags"]) >> (_NOISE - 1) & 1 and shape[0] == coils and values.size == 2 * shape[0] * shape[1]:
            found.append(values.view(np.complex64).reshape(shape))
    return np.concatenate(found, 1) if found else None


def _path(
    record: Any, head: Any, samples: int, header: _Header, volume: bool
) -> tuple[NDArray[np.float64], NDArray[np.float32] | None]:
    """Where the samples of an acquisition are, (samples, axes) along (z,) y, x, and their density where it tells.

    Those of lines are in 1/m, others in whatever unit the file has.
    """
    dims = int(head["trajectory_dimensions"])
    axes = 3 if volume else 2
    steps = [int(head["idx"][f"kspace_encode_step_{n}"]) - header.centers[n - 1] for n in (1, 2)]
    if dims == 0:
        if header.trajectory != "cartesian":
            raise InputError(f"the path is {header.trajectory}, but acquisitions do not tell where their samples are")
        # Half of a line that is read twice as fine has the same step; center_sample says which is the middle. Scanners
        # turn lines that were read backwards round before they count from it, and so is it here.
        along = (np.arange(samples) - int(head["center_sample"])) / header.wide[0]
        if int(head["flags"]) >> (_REVERSE - 1) & 1:
            along = along[::-1]
        columns = [np.full(samples, steps[1] / header.wide[2]), np.full(samples, steps[0] / header.wide[1]), along]
        return np.stack(columns[-axes:], 1), None
    values = np.asarray(record["traj"], np.float64)
    if values.size != samples * dims or dims < 2:
        raise InputError(f"an acquisition has {values.size} numbers of its path for {samples} samples in {axes}D")
    values = values.reshape(samples, dims)
    if volume and dims == 2:  # the same spokes or spirals in each partition
        return np.concatenate([np.full((samples, 1), float(steps[1])), values[:, ::-1]], 1), None
    weight = values[:, axes].astype(np.float32) if dims > axes and values[:, axes].min() >= 0 else None
    if weight is not None and not weight.any():
        weight = None
    return values[:, :axes][:, ::-1], weight


def _stack_slices(
    data: NDArray[np.complex64],
    path: NDArray[np.float64],
    density: NDArray[np.float32] | None,
    slices: NDArray[np.int64],
) -> tuple[NDArray[np.complex64], NDArray[np.float64], NDArray[np.float32] | None]:
    """Views of several slices as views of a stack, where all slices have the same paths, in any order."""
    names = np.unique(slices)
    if len(names) == 1:
        return data, path, density
    groups = [np.flatnonzero(slices == name) for name in names]
    if _other_path(path, groups) is not None:  # interleaved slices may have their lines in another order
        groups = [_in_order(path, group) for group in groups]
    other = _other_path(path, groups)
    if other is not None:
        raise InputError(f"slice {names[other]} was measured along other paths than slice {names[0]}; split the file")
    first = groups[0]
    stacked = np.stack([data[group] for group in groups], 1)
    return stacked, path[first], None if density is None else density[first]


def _other_path(path: NDArray[np.float64], groups: list[NDArray[np.intp]]) -> int | None:
    """The first of some groups of views whose paths are not those of group 0, or None."""
    first, near = path[groups[0]], 1e-6 * np.abs(path).max()
    for n, group in enumerate(groups):
        if len(group) != len(first) or not np.allclose(path[group], first, rtol=0, atol=near):
            return n
    return None


def _in_order(path: NDArray[np.float64], views: NDArray[np.intp]) -> NDArray[np.intp]:
    """Views by where they begin and end; those that do so in the same places stay as they are."""
    ends = path[views][:, [0, -1]].reshape(len(views), -1)
    steps = np.round(ends / max(float(np.abs(path).max()), 1e-30), 6)  # single precision tells no more
    return views[np.lexsort(steps.T[::-1])]
