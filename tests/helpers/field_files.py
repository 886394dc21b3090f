"""Small recordings as users of each field have them, made without our models: by the field's own package where it is
installed (nexusformat, ismrmrd, qpimage), otherwise in its layout. Each function writes a file and gives the truth."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import tifffile
from numpy.typing import NDArray
from scipy.io import savemat
from scipy.special import hankel1

import ismrmrd_files
from cylinders import exact_field

Array = NDArray[Any]
DISCS = ((1.0, -2.0, 20.0, 0.04), (6.0, 4.0, 5.0, 0.03), (-8.0, 3.0, 4.0, -0.03))  # x, y, radius in pixels, value
AXIS = 29.4  # the column of the rotation axis; the middle is 31.5


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _grid(shape: tuple[int, int]) -> Array:
    """Rows and columns from the middle (N - 1) / 2."""
    return np.stack(np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in shape), indexing="ij"))


def discs(size: int = 64) -> Array:
    y, x = _grid((size, size))
    return sum((value * (np.hypot(x - cx, y - cy) < radius) for cx, cy, radius, value in DISCS), np.zeros((size, size)))


def _xray_counts(views: int, columns: int = 64) -> tuple[Array, Array, Array, Array]:
    """Counts (views, 2, columns) of the discs about an axis off the middle; flat and dark fields; degrees."""
    draw, degrees = np.random.default_rng(0), np.arange(views) * 180 / views
    turn, place = np.deg2rad(degrees)[:, None], np.arange(columns) - AXIS
    p = sum(
        value * 2 * np.sqrt(np.maximum(radius**2 - (place - x * np.cos(turn) - y * np.sin(turn)) ** 2, 0))
        for x, y, radius, value in DISCS
    )
    beam = 20_000 * (1 + 0.2 * np.sin(np.arange(columns) / 9)) * np.ones((2, 1))
    counts = 100 + draw.poisson(beam * np.exp(-np.asarray(p))[:, None])
    flats = 100 + draw.poisson(np.broadcast_to(beam, (10, *beam.shape)))
    darks = np.full((4, *beam.shape), 100)
    return counts.astype(np.uint16), flats.astype(np.uint16), darks.astype(np.uint16), degrees


def write_nexus(path: Path, views: int = 60) -> Array:
    """NXtomo, by nexusformat where it is installed."""
    counts, flats, darks, degrees = _xray_counts(views)
    frames = np.concatenate([darks, flats, counts])
    key = np.repeat([2, 1, 0], [len(darks), len(flats), views])
    angles = np.concatenate([np.zeros(len(darks) + len(flats)), degrees])
    if has("nexusformat"):
        nx = importlib.import_module("nexusformat.nexus")
        pixels = {f"{axis}_pixel_size": nx.NXfield(6.5, units="um") for axis in "xy"}
        detector = nx.NXdetector(data=nx.NXfield(frames), image_key=nx.NXfield(key), **pixels)
        entry = nx.NXentry(
            definition="NXtomo",
            instrument=nx.NXinstrument(detector=detector),
            sample=nx.NXsample(rotation_angle=nx.NXfield(angles, units="degrees")),
        )
        nx.NXroot(entry=entry).save(str(path), "w")
        return discs() / 6.5e-6
    with h5py.File(path, "w") as file:
        file["entry/definition"] = "NXtomo"
        file["entry/instrument/detector/data"], file["entry/instrument/detector/image_key"] = frames, key
        file["entry/sample/rotation_angle"] = angles
        file["entry/sample/rotation_angle"].attrs["units"] = "degrees"
        for axis in "xy":
            file[f"entry/instrument/detector/{axis}_pixel_size"] = 6.5
            file[f"entry/instrument/detector/{axis}_pixel_size"].attrs["units"] = "um"
    return discs() / 6.5e-6


def write_tiffs(folder: Path, description: str, views: int = 60) -> Array:
    """A folder of pictures, and scan.toml with this text."""
    counts, flats, darks, _ = _xray_counts(views)
    folder.mkdir()
    for kind, frames in (("proj", counts), ("flat", flats), ("dark", darks)):
        for number, frame in enumerate(frames):
            tifffile.imwrite(folder / f"{kind}_{number:04d}.tif", frame)
    (folder / "scan.toml").write_text(description)
    return discs() / 6.5e-6


def _coils(size: int, coils: int = 4) -> tuple[Array, Array]:
    """The discs as an image of 1 at most, and the image that each coil sees: (coils, size, size)."""
    image, (y, x) = discs(size) / 0.07, _grid((size, size)) / size
    angles = 2 * np.pi * np.arange(coils) / coils
    maps = [np.exp(-1.5 * ((x - 0.6 * np.cos(a)) ** 2 + (y - 0.6 * np.sin(a)) ** 2) + 1j * a) for a in angles]
    return image, image * np.stack(maps)


def _to_kspace(images: Array) -> Array:
    """The unitary FFT, zero in the middle on both sides, with noise."""
    draw, axes = np.random.default_rng(1), (-2, -1)
    shifted = np.fft.fft2(np.fft.ifftshift(images, axes=axes), norm="ortho")
    noise = draw.standard_normal((2, *images.shape)) * 0.005
    return np.fft.fftshift(shifted, axes=axes) + noise[0] + 1j * noise[1]


def write_ismrmrd(path: Path, size: int = 64) -> Array:
    """Every other line and the middle 16, with acquisitions of noise, by the package ismrmrd where it is installed."""
    image, seen = _coils(size)
    kspace, draw = _to_kspace(seen), np.random.default_rng(2)
    noise = 0.005 * (draw.standard_normal((len(seen), 256)) + 1j * draw.standard_normal((len(seen), 256)))
    rows: list[ismrmrd_files.Row] = [({"flags": ["noise"]}, None, noise)]
    for line in range(size):
        if line % 2 == 0 or abs(line - size // 2) < 8:
            rows.append(({"kspace_encode_step_1": line}, None, kspace[:, line]))
    matrix, width = (size, size, 1), (200.0, 200.0, 5.0)
    xml = ismrmrd_files.header(matrix, width, matrix, width, centers=(size // 2, 0), calibration="embedded")
    writer = "official" if ismrmrd_files.official_is_here() else "ours"
    ismrmrd_files.write(path, rows, xml, writer=writer)
    return image


def write_kspace(path: Path, size: int = 64) -> Array:
    """A third of k-space at random and its middle, zero elsewhere: (coils, size, size)."""
    image, seen = _coils(size)
    y, x = _grid((size, size))
    kept = (np.random.default_rng(3).random((size, size)) < 0.3) | (np.maximum(abs(x), abs(y)) < 10)
    np.save(path, (_to_kspace(seen) * kept).astype(np.complex64))
    return image


FRAME, ACROSS, STEP = 32, 10, 4  # pixels of a frame, positions a side, pixels from one to the next
WAVELENGTH, DISTANCE, DETECTOR = 1.5e-10, 2.0, 1e-4
OBJECT_PIXEL = WAVELENGTH * DISTANCE / (FRAME * DETECTOR)


def _diffraction() -> tuple[Array, Array, Array]:
    """Counts (views, n, n), zero frequency in the middle; the first pixel of each frame; what the object does."""
    draw, side = np.random.default_rng(4), FRAME + STEP * ACROSS
    y, x = _grid((side, side))
    bars = (np.sin(9 * np.arctan2(y, x)) > 0) & (np.hypot(x, y) < 26)
    thing = np.exp((0.5j - 0.1) * bars)
    (v, u), waist = _grid((FRAME, FRAME)), 6.0
    probe = np.exp(-(u**2 + v**2) / (2 * waist**2) * (1 + 0.5j))
    probe *= np.sqrt(1e5 / (np.abs(probe) ** 2).sum())
    raster = np.stack(np.meshgrid(*[np.arange(ACROSS) * STEP] * 2, indexing="ij"), -1).reshape(-1, 2)
    places = raster + draw.integers(0, 3, raster.shape)
    waves = [np.fft.fft2(probe * thing[r : r + FRAME, c : c + FRAME], norm="ortho") for r, c in places]
    counts = draw.poisson(np.abs(np.fft.fftshift(waves, axes=(1, 2))) ** 2)
    return counts.astype(np.uint16), places, thing


def write_cxi(path: Path) -> Array:
    counts, places, thing = _diffraction()
    metres = places * OBJECT_PIXEL
    with h5py.File(path, "w") as file:
        file["cxi_version"] = 160
        entry = file.create_group("entry_1")
        entry["data_1/data"] = counts
        entry["sample_1/geometry_1/translation"] = np.stack([metres[:, 1], metres[:, 0], 0 * metres[:, 0]], 1)
        entry["instrument_1/source_1/energy"] = 1.98644586e-25 / WAVELENGTH
        entry["instrument_1/detector_1/distance"] = DISTANCE
        entry["instrument_1/detector_1/x_pixel_size"] = entry["instrument_1/detector_1/y_pixel_size"] = DETECTOR
    return thing


def write_ptyd(path: Path) -> Array:
    """As ptypy saves prepared data: chunks of frames, and `meta` in metres and keV."""
    counts, places, thing = _diffraction()
    with h5py.File(path, "w") as file:
        for chunk, rows in enumerate(np.array_split(np.arange(len(counts)), 3)):
            file[f"chunks/{chunk}/data"], file[f"chunks/{chunk}/positions"] = counts[rows], places[rows] * OBJECT_PIXEL
        file["meta/energy"] = 1.98644586e-25 / WAVELENGTH / 1.602176634e-16
        file["meta/distance"], file["meta/psize"] = DISTANCE, [DETECTOR, DETECTOR]
    return thing


def write_own_hdf5(path: Path) -> Array:
    """Names of somebody's own; frames with zero frequency at the corner, places in pixels, no probe."""
    counts, places, thing = _diffraction()
    with h5py.File(path, "w") as file:
        file["scan/frames"], file["scan/corner"] = np.fft.ifftshift(counts, axes=(1, 2)), places.astype(float)
    return thing


def write_leds(path: Path, camera: int = 32, across: int = 7) -> Array:
    """MATLAB as the public recordings of Fourier ptychography: LEDs in a square spiral, spherical waves, a small lens.

    Waves are summed on a field twice as wide as the camera's, three points to its pixel; the truth is on these points.
    """
    pixel, wavelength, height, fine = 1.845e-6, 6.3e-7, 90.88e-3 + 1e-3 / 1.52, 3
    side, step = 2 * fine * camera, pixel / fine
    y, x = _grid((side, side)) + 0.5
    draw = np.random.default_rng(5)
    cells = [np.hypot(x - a, y - b) < r for a, b, r in draw.uniform([-25, -25, 3], [25, 25, 6], (14, 3))]
    thing = np.exp((0.6j - 0.3) * np.any(cells, axis=0))
    frequency = np.fft.fftfreq(side, step)
    lens = np.hypot(*np.meshgrid(frequency, frequency)) <= 0.1 / wavelength
    pictures, first = [], side // 4
    for column, row in _spiral(across):
        way = np.sqrt((x * step - 4e-3 * column) ** 2 + (y * step - 4e-3 * row) ** 2 + height**2)
        wave = np.fft.ifft2(lens * np.fft.fft2(thing * np.exp(2j * np.pi / wavelength * way)))
        pictures.append(np.abs(wave[first : side - first : fine, first : side - first : fine]) ** 2)
    content = {"imlow_HDR": np.stack(pictures, -1).astype(np.float32), "wlength": wavelength, "z": 0.0}
    savemat(path, content | {"theta": 0, "xint": 0, "yint": 0, "aberration": 0})
    return thing[first : side - first, first : side - first]


def _spiral(across: int) -> list[tuple[int, int]]:
    """Columns and rows of a square from its middle: right, down, left, left, up, up, ..."""
    column = row = 0
    found, (right, down), run = [(0, 0)], (1, 0), 1
    while len(found) < across**2:
        for _ in range(2):
            for _ in range(run):
                column, row = column + right, row + down
                found.append((column, row))
            right, down = -down, right
        run += 1
    return found[: across**2]


def write_shots(path: Path, views: int = 16) -> Array:
    """Photographs by a camera with pixels of 2 x 2, each moved by halves of its pixels, with noise."""
    draw, image = np.random.default_rng(6), discs() / 0.07
    steps = draw.integers(0, 8, (views, 2))
    moved = np.stack([np.roll(image, tuple(step), (0, 1)) for step in steps])
    frames = moved.reshape(views, 32, 2, 32, 2).mean((2, 4))
    np.savez(path, frames=frames + 0.01 * draw.standard_normal(frames.shape), shifts=steps / 2)
    return image


CELL = {"wavelength": 6.47e-7, "pixel size": 2.5e-7, "medium index": 1.335}
CELL_RADIUS, CELL_INDEX = 2.5e-6, 1.345


def write_series(folder: Path, views: int = 24, size: int = 32) -> Array:
    """Phases of a ball off the axis of rotation, as qpimage saves a series, by qpimage where it is installed.

    A ball of little contrast delays light by its chords. The truth is whether a voxel is inside of it, (z, y, x).
    """
    folder.mkdir()
    angles = np.arange(views) * 2 * np.pi / views
    pixel, off = CELL["pixel size"], 4 * CELL["pixel size"]
    y, x = _grid((size, size)) * pixel
    fields = []
    for angle in angles:
        chord = 2 * np.sqrt(np.maximum(CELL_RADIUS**2 - (x - off * np.cos(angle)) ** 2 - y**2, 0))
        fields.append(2 * np.pi / CELL["wavelength"] * (CELL_INDEX - CELL["medium index"]) * chord)
    if has("qpimage"):
        qpimage = importlib.import_module("qpimage")
        with qpimage.QPSeries(h5file=str(folder / "series.h5"), h5mode="w") as series:
            for phase in fields:
                image = qpimage.QPImage(data=(phase, np.ones_like(phase)), which_data="phase,amplitude", meta_data=CELL)
                series.add_qpimage(image)
    else:
        with h5py.File(folder / "series.h5", "w") as file:
            for number, phase in enumerate(fields):
                group = file.create_group(f"qpi_{number}")
                group.attrs.update(CELL)
                group["phase/raw"], group["amplitude/raw"] = phase, np.ones_like(phase)
                group.create_group("phase/bg_data")
                group.create_group("amplitude/bg_data")
    np.savetxt(folder / "angles.txt", angles, header="rotational positions [rad]")
    axis = (np.arange(size) - (size - 1) / 2) * pixel
    z, y, x = np.meshgrid(axis, axis, axis, indexing="ij")
    return (x - off) ** 2 + y**2 + z**2 < CELL_RADIUS**2


def write_scattering(path: Path) -> Array:
    """An NPZ of the total and incident field of two weak cylinders, exact, with the names of a laboratory's own."""

    def ring(count: int, radius: float) -> Array:
        angles = 2 * np.pi * np.arange(count) / count
        return radius * np.stack([np.cos(angles), np.sin(angles)], 1)

    antennas = SimpleNamespace(
        wavenumber=2 * np.pi / 0.03, n_views=16, transmitters=ring(16, 0.5), receivers=ring(48, 0.6)
    )
    cylinders = [(-12.0, 10.0, 12.0, 1.05), (18.0, -8.0, 8.0, 1.08)]
    scattered = exact_field(antennas, cylinders)
    apart = np.linalg.norm(antennas.receivers - antennas.transmitters[:, None], axis=-1)
    incident = 0.25j * hankel1(0, antennas.wavenumber * apart)
    gain = 3.0 - 1.0j
    places = {"rx": antennas.receivers, "tx": antennas.transmitters}
    np.savez(path, E_tot=gain * (incident + scattered), E_inc=gain * incident, **places)
    axis = (np.arange(64) - 32) * 0.1 / 64
    y, x = np.meshgrid(axis, axis, indexing="ij")
    inside = [(eps - 1) * (np.hypot(x - 1e-3 * a, y - 1e-3 * b) < 1e-3 * r) for a, b, r, eps in cylinders]
    return sum(inside, np.zeros((64, 64)))
