"""ISMRMRD files, the raw data format of the MR community, read as the HDF5 that they are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError
from plugstream.importers.lookup import Source, read_rows
from plugstream.progress import report

__all__ = ["is_ismrmrd", "read_ismrmrd"]

# Flags of acquisitions, counted from 1: those that are no part of the image, and lines that were read backwards.
_APART = {19: "noise", 20: "calibration", 23: "navigation", 24: "phase correction", 26: "feedback", 27: "dummy"}
_REVERSE = 22
_LONGEST = 1 << 24  # characters of a header


def is_ismrmrd(source: Source) -> bool:
    """Whether an HDF5 file has acquisitions as ISMRMRD stores them."""
    found = source.find("/dataset/data")
    names = getattr(getattr(found, "dtype", None), "names", None) or ()
    return {"head", "data"} <= set(names) and source.find("/dataset/xml") is not None


def read_ismrmrd(source: Source, *, repetition: int = 0) -> dict[str, Any]:
    """What `plugstream.importers.mri_recordings.Recording` takes, of the first encoding: one line or spoke a view.

    Samples of lines lie on the grid of the encoded field of view, which is often twice the image's along the readout;
    those of other paths where the file says. Noise, navigators and the like are left out. Slices that were all measured
    along the same paths make a stack. Of several repetitions one is taken, of contrasts, phases and sets the first.

    Arguments: source, open; repetition.
    """
    header = _read_header(source)
    dataset = source.find("/dataset/data")
    heads = read_rows(dataset, slice(None), "dataset/data", source)
    if len(heads) == 0:
        raise InputError(f"{source.path} has no acquisitions")
    kept, left = [], dict.fromkeys(_APART.values(), 0)
    for n, record in enumerate(heads):
        head = record["head"]
        flags, index = int(head["flags"]), head["idx"]
        apart = next((what for bit, what in _APART.items() if flags >> (bit - 1) & 1), None)
        if apart is not None:
            left[apart] += 1
            continue
        first = not any(int(index[name]) for name in ("contrast", "phase", "set"))
        if first and int(head["encoding_space_ref"]) == 0 and int(index["repetition"]) == repetition:
            kept.append(n)
    if not kept:
        raise InputError(f"{source.path} has no acquisitions of repetition {repetition} that are part of an image")
    path, data, slices, density = _read_views(heads, kept, header)
    remarks = [f"{count} acquisitions of {what} were left out" for what, count in left.items() if count]
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
        "remarks": tuple(remarks),
    }


class _Header:
    """The first encoding of the XML header: matrices and fields of view along x, y and z, in metres."""

    def __init__(self, text: str) -> None:
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
        self.encoded, self.wide = _space(encoding, "encodedSpace")
        self.matrix, self.field = _space(encoding, "reconSpace")
        self.trajectory = (encoding.findtext("trajectory") or "cartesian").strip().lower()
        self.thickness = self.field[2] / max(1, self.matrix[2])
        limits = "encodingLimits/kspace_encoding_step_{}/center"
        centers = [encoding.findtext(limits.format(n)) for n in (1, 2)]
        self.centers = [int(text) if text else size // 2 for text, size in zip(centers, self.encoded[1:], strict=True)]

    def image(self, axes: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Shape and spacing along (z,) y, x."""
        steps = [width / size for width, size in zip(self.field, self.matrix, strict=True)]
        return tuple(self.matrix[:axes][::-1]), tuple(steps[:axes][::-1])


def _space(encoding: Any, name: str) -> tuple[list[int], list[float]]:
    try:
        sizes = [int(encoding.find(f"{name}/matrixSize").findtext(axis)) for axis in "xyz"]
        widths = [1e-3 * float(encoding.find(f"{name}/fieldOfView_mm").findtext(axis)) for axis in "xyz"]
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"the ISMRMRD header does not tell the {name}'s matrix and field of view") from None
    if min(sizes) < 1 or not all(0 < width < 1e3 for width in widths):
        raise InputError(f"the ISMRMRD header has a {name} of {sizes} in {widths} m, which is none")
    return sizes, widths


def _read_header(source: Source) -> _Header:
    stored = read_rows(source.find("/dataset/xml"), (), "dataset/xml", source)
    while isinstance(stored, np.ndarray):
        if stored.size != 1:
            raise InputError(f"{source.path} has {stored.size} headers; one is read")
        stored = stored.ravel()[0]
    text = stored.decode("utf-8", errors="replace") if isinstance(stored, bytes) else str(stored)
    if len(text) > _LONGEST:
        raise InputError(f"{source.path} has a header of {len(text):,} characters, which none has")
    return _Header(text)


def _read_views(
    heads: Any, kept: list[int], header: _Header
) -> tuple[NDArray[np.float64], NDArray[np.complex64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Paths (views, samples, axes) in 1/m, data (views, coils, samples), the slice of each view, and densities."""
    volume = header.encoded[2] > 1
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
        path, weight = _path(record, head, samples, header, volume)
        if n and (int(head["trajectory_dimensions"]) > 0) != (int(heads[kept[0]]["head"]["trajectory_dimensions"]) > 0):
            raise InputError("some acquisitions tell where their samples are, and others do not")
        if int(head["flags"]) >> (_REVERSE - 1) & 1:
            data = data[:, ::-1] if weight is None and int(head["trajectory_dimensions"]) == 0 else data
        paths.append(path[begin:end])
        rows.append(data[:, begin:end])
        slices.append(int(head["idx"]["slice"]))
        weights.append(None if weight is None else weight[begin:end])
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise InputError(f"acquisitions have different numbers of coils and samples, {sorted(shapes)[:3]} and so on")
    path = np.stack(paths)
    if int(heads[kept[0]]["head"]["trajectory_dimensions"]) > 0:
        # In parts of the encoded matrix, from -1/2 to 1/2, or in its steps.
        axes = path.shape[2]
        sizes = np.array(header.encoded[:axes][::-1]) if np.abs(path).max() <= 1 else np.ones(axes)
        path = path * sizes / np.array(header.wide[:axes][::-1])
    density = None if any(w is None for w in weights) else np.stack(weights).astype(np.float32)  # type: ignore[arg-type]
    return path, np.stack(rows).astype(np.complex64), np.array(slices), density


def _path(
    record: Any, head: Any, samples: int, header: _Header, volume: bool
) -> tuple[NDArray[np.float64], NDArray[np.float32] | None]:
    """Where the samples of an acquisition are, (samples, axes) along (z,) y, x, and their density where it tells.

    Those of lines are in 1/m, others in whatever unit the file has.
    """
    dims = int(head["trajectory_dimensions"])
    axes = 3 if volume else 2
    if dims == 0:
        if header.trajectory != "cartesian":
            raise InputError(f"the path is {header.trajectory}, but acquisitions do not tell where their samples are")
        along = (np.arange(samples) - int(head["center_sample"])) / header.wide[0]
        # Half of a line that is read twice as fine has the same step; center_sample says which is the middle.
        index = head["idx"]
        places = [(int(index[f"kspace_encode_step_{n}"]) - header.centers[n - 1]) / header.wide[n] for n in (1, 2)]
        columns = [np.full(samples, places[1]), np.full(samples, places[0]), along]
        return np.stack(columns[-axes:], 1), None
    values = np.asarray(record["traj"], np.float64)
    if values.size != samples * dims or dims < axes:
        raise InputError(f"an acquisition has {values.size} numbers of its path for {samples} samples in {axes}D")
    values = values.reshape(samples, dims)
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
    """Views of several slices as views of a stack, where all slices have the same paths in the same order."""
    names = np.unique(slices)
    if len(names) == 1:
        return data, path, density
    groups = [np.flatnonzero(slices == name) for name in names]
    first = groups[0]
    for name, group in zip(names, groups, strict=True):
        if len(group) != len(first) or not np.allclose(
            path[group], path[first], rtol=0, atol=1e-6 * np.abs(path).max()
        ):
            raise InputError(f"slice {name} was measured along other paths than slice {names[0]}; split the file")
    stacked = np.stack([data[group] for group in groups], 1)
    return stacked, path[first], None if density is None else density[first]
