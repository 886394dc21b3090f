"""Small files under the names that README, docs/ and --help use; each is made once and copied where it is wanted."""

from __future__ import annotations

import bz2
import functools
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import numpy as np
import tifffile
from PIL import Image
from scipy.io import savemat

import field_files
from fresnel_files import write_fresnel
from growing_files import Writer
from plugstream import open_scan, ring
from printed import PAGES, ROOT, shrink
from small_run import main

_DRAW = np.random.default_rng(0)
_TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
_NETWORKS = ROOT / "src" / "plugstream" / "denoisers" / "networks" / "weights"


def _picture(path: Path) -> None:
    noise = 10 * _DRAW.standard_normal((48, 48))
    Image.fromarray((2000 * field_files.discs(48) + 100 + noise).clip(0, 255).astype(np.uint8)).save(path)


def _pictures(folder: Path) -> None:
    folder.mkdir()
    for name in ("one.png", "two.png"):
        Image.fromarray(_DRAW.integers(255, size=(100, 100), dtype=np.uint8)).save(folder / name)


def _volume(path: Path) -> None:
    tifffile.imwrite(path, _DRAW.random((6, 16, 16)).astype(np.float32))


def _counts(path: Path) -> None:
    tifffile.imwrite(path, _DRAW.poisson(50, (24, 24)).astype(np.uint16))


def _grown(layout: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        writer = Writer(path, layout)
        writer.fields("darks")
        writer.fields("flats")
        for n in range(20):
            writer.view(n)
        writer.file.close()

    return write


def _area_detector(path: Path) -> None:
    _grown("nexus")(path)
    with h5py.File(path, "r+") as file:
        for name in ("SampleRotary", "ImageKey"):
            place = "sample/rotation_angle" if name == "SampleRotary" else "instrument/detector/image_key"
            file[f"entry/instrument/NDAttributes/{name}"] = file[f"entry/{place}"][:]
        file["entry/data/data"] = file["entry/instrument/detector/data"][:]


def _played(instrument: str, **names: str) -> Callable[[Path], None]:
    """As play.py of docs/lab-ptychography.md writes a simulated scan, under these names."""

    def write(path: Path) -> None:
        scan = open_scan(made(f"{instrument}.zarr"))
        parts = {part.name: getattr(scan.instrument, part.name) for part in scan.instrument.arrays}
        with h5py.File(path, "w") as file:
            for name, value in {"data": scan.read().numpy(), **parts, **scan.columns}.items():
                if value is not None:
                    file[names.get(name, name)] = np.asarray(value[:])
            file.attrs.update(scan.instrument.values())

    return write


def _fresnel(path: Path) -> None:
    image = np.zeros((8, 8))
    image[3:5, 2:5] = 0.5
    write_fresnel(path, image, year=2001, sources=8, frequencies=[2, 3, 4, 6])


def _antennas(path: Path) -> None:
    """Scattered fields with the names of docs/importing.md, in HDF5 or NPZ."""
    data = _DRAW.standard_normal((6, 12, 2)).view(np.complex128)[..., 0]
    if path.suffix == ".npz":
        np.savez(path, data=data, receivers=ring(12, 0.6), transmitters=ring(6, 0.6))
        return
    with h5py.File(path, "w") as file:
        file["entry/data"], file["geometry/rx"], file["geometry/tx"] = data, ring(12, 0.6), ring(6, 0.6)
        file["entry"].attrs["wavelength"] = 0.03


def _camera(path: Path) -> None:
    """Frames for the instrument of docs/instruments.md, which stands there as dither.py."""
    frames, moves = _DRAW.random((8, 6, 6)).astype(np.float32), _DRAW.integers(0, 3, (8, 2))
    np.savez(path, data=frames, shift=moves, gains=np.ones((6, 6)), factor=2)


def _tike(path: Path) -> None:
    counts, places, _ = field_files._diffraction()
    y, x = field_files._grid((32, 32))
    probe = np.exp(-(x**2 + y**2) / 72).astype(np.complex64)
    few = slice(0, 40)
    plain = path.with_suffix(".plain.npz")
    rows = {"data": np.fft.ifftshift(counts[few], axes=(1, 2))[None].astype(np.float32), "scan": places[few][None] + 0.0}
    np.savez(plain, **rows, probe=probe[None, None, None, None])
    path.write_bytes(bz2.compress(plain.read_bytes()))


def _helsinki(path: Path) -> None:
    counts, flats, _, degrees = field_files._xray_counts(20)
    lines = -np.log((counts[:, 0] - 100.0) / (flats.mean((0, 1)) - 100))
    about = {"distanceSourceOrigin": 410.66, "distanceSourceDetector": 553.74, "pixelSizePost": 0.2, "angles": degrees}
    savemat(path, {"CtDataLimited": {"sinogram": np.maximum(lines, 0), "parameters": about}})


def _tiffs(folder: Path) -> None:
    lines = re.findall(r"^    (\w+ = .*)$", _TEXTS["tomography.md"].partition("`tiffs/scan.toml`")[2], re.MULTILINE)
    field_files.write_tiffs(folder, "\n".join(lines[:5]), views=20)


def _spokes(path: Path) -> None:
    """Radial k-space of the discs, cycles a pixel, from a simulated scan."""
    scan = open_scan(made("mri.zarr"))
    places = np.asarray(scan.columns["trajectory"][:])
    np.savez(path, data=scan.read().numpy(), trajectory=places / np.abs(places).max() / 2)


def _files_of(page: str) -> Callable[[Path], None]:
    """The Python files that a page shows, by the names in their first lines."""

    def write(path: Path) -> None:
        shown = dict(re.findall(r"```python\n# (?:\S*/)?(\w+\.py)\b.*?\n(.*?)```", _TEXTS[page], re.DOTALL))
        path.write_text(shown[path.name])

    return write


def _network(path: Path) -> None:
    if path.suffix == ".py":
        (code,) = re.findall(r"```python\n(import sys\n.*?)```", _TEXTS["networks.md"], re.DOTALL)
        path.write_text(code)
        return
    import runpy

    import torch
    from safetensors.torch import save_file

    weights = runpy.run_path(str(made("net.py")))["Net"]().state_dict()
    torch.save(weights, path) if path.suffix == ".pt" else save_file(weights, path)


_CT = "simulate {} --instrument ct --size 24 --views 12 --photons 1e6"
_WAVES = "simulate {} --instrument scattering-2d --size 12 --views 6 --frequencies "
# The name, or a word of the command or its page, a blank and the name: what makes it, a command or a function.
FILES: dict[str, str | Callable[[Path], object]] = {
    "scan.zarr": "simulate {}",
    "held.zarr": "simulate {} --noise-seed 5",
    "held-out.zarr": "simulate {} --noise-seed 5",
    **{f"{name}.zarr": f"simulate {{}} --instrument {name}" for name in ("ct", "fpm", "mri", "ptychography")},
    **{f"{flag} scan.zarr": _WAVES + "2,4,6,8,10GHz" for flag in ("--hop", "--stages")},
    "command-line.md held.zarr": "import ct tooth.h5 {} --center 11.5",
    "tomography.md held.zarr": f"{_CT} --noise-seed 5",
    **{f"{name}.zarr": _CT for name in ("slice", "tooth", "all", "disc", "found", "phantom")},
    "a.zarr": "simulate {} --instrument fpm",
    "true.zarr": _CT,
    "--along scan.zarr": "import ct scan.nxs {}",
    "kept.zarr": "simulate {} --instrument mri",
    **{name: "reconstruct scan.zarr --sigma 0.02 --iterations 20 --out {}" for name in (
        *("run", "RUN", "RUN1", "RUN2", "RUN3", "FOLDER", "other-run", "OTHER-RUN", "scan-run", "first-run"),
        *("live-run", "plugstream-demo"),
    )},
    "tomography.md run": "reconstruct tooth.zarr --sigma 1% --iterations 20 --out {}",
    "phantom-run": "reconstruct phantom.zarr --sigma 1% --iterations 20 --out {}",
    "baseline scan.zarr": _CT,
    "first.npy": lambda path: np.save(path, np.zeros((24, 24), np.float32)),
    **{f"{name}.npy": "baseline tooth.zarr {}" for name in ("slow", "filtered", "tomography.md first")},
    "keys": "keys {}",
    **{name: _picture for name in ("photo.png", "noisy.png", "in.png")},
    **{name: _pictures for name in ("pictures", "PICTURES", "Train400", "BSD68")},
    "--images FOLDER": _pictures,
    "noisy.npy": lambda path: np.save(path, _DRAW.random((24, 24))),
    "energies.npy": lambda path: np.save(path, _DRAW.random((4, 24, 24))),
    "beam.npy": lambda path: np.save(path, np.load(made("probe.npy"))),
    "probe.npy": lambda path: np.save(path, np.exp(-(field_files._grid((32, 32)) ** 2).sum(0) / 72) + 0j),
    "stack.tif": _volume,
    "counts.tif": _counts,
    "my.toml": lambda path: path.write_text("[algorithm]\niterations = 20\n"),
    "new": lambda path: shutil.copytree(made("scan.zarr"), path / "scan.zarr"),
    "RUNS": lambda path: shutil.copytree(made("run"), path / "run"),
    "scan.nxs": field_files.write_nexus,
    "tiffs": _tiffs,
    "scan.toml": _tiffs,  # with its pictures beside it
    "tooth.h5": _grown("exchange"),
    "scan.h5": _grown("exchange"),
    "FILE": _grown("exchange"),
    "mri FILE": field_files.write_ismrmrd,
    "odt FILE": lambda path: field_files.write_series(path, 24, 16),
    "lab-tomography.md scan.h5": _area_detector,
    "mri.md scan.h5": lambda path: field_files.write_ismrmrd(path, 32),
    **{name: lambda path: field_files.write_kspace(path, 32) for name in ("kspace.npy", "cartesian_ksp.npy")},
    "spokes.npz": _spokes,
    "scan.cxi": field_files.write_cxi,
    "scan.ptyd": field_files.write_ptyd,
    "own.h5": field_files.write_own_hdf5,
    "siemens-star-small.npz.bz2": _tike,
    "lab-ptychography.md scan.h5": _played("ptychography", data="entry/data/data", positions="entry/positions", probe="entry/probe"),
    "ptychography.h5": _played("ptychography"),
    "fpm.h5": _played("fpm"),
    "pictures.h5": _played("fpm", data="camera/frames", leds="camera/led"),
    **{name: lambda path: field_files.write_leds(path, 24, 5) for name in ("leds.mat", "bloodsmear_red.mat")},
    **{name: lambda path: field_files.write_series(path, 24, 16) for name in ("cell", "hl60")},
    "lab.npz": field_files.write_scattering,
    "FoamDielExtTM.txt": _fresnel,
    "run7.h5": _antennas,
    "scan.npz": _antennas,
    "frames.npz": _camera,
    "htc2022_tb_90deg.mat": _helsinki,
    "table.txt": lambda path: np.savetxt(path, _DRAW.random((5, 14))),
    "net.py": _network,
    "net.pt": _network,
    "net.safetensors": _network,
    "safe.safetensors": lambda path: shutil.copy(_NETWORKS / "unet-safe.safetensors", path),
    "free.safetensors": lambda path: shutil.copy(_NETWORKS / "unet-free.safetensors", path),
    **{f"{name}.py": _files_of("extending.md") for name in ("median", "sweep", "relaxed", "roughness", "charbonnier")},
    **{f"{name}.py": _files_of("extending.md") for name in ("lazy", "capped")},
    "average.py": _files_of("CONTRIBUTING.md"),
    "dither.py": _files_of("instruments.md"),
    "lines.py": _files_of("importing.md"),
}  # fmt: skip
for _kind, _name in (("ptychography", "scan.cxi"), ("fpm", "leds.mat"), ("fresnel", "FoamDielExtTM.txt")):
    FILES[f"{_kind} FILE"] = FILES[_name]


@functools.cache
def _store() -> Path:
    return Path(tempfile.mkdtemp(prefix="printed-"))


@functools.cache
def made(key: str) -> Path:
    """The file of an entry, made at the first call."""
    place = _store() / str(len(list(_store().iterdir()))) / key.rpartition(" ")[2]
    place.parent.mkdir()
    how = FILES[key]
    if callable(how):
        how(place)
    else:
        command, *words = shlex.split(how.format(place))
        assert main(shrink([command, *(str(made(word)) if word in FILES else word for word in words)])) == 0, how
    return place


def provide(words: Iterable[str], page: str, folder: Path) -> None:
    """Put what a command names into the folder where it runs, unless it is there."""
    words = list(words)
    for word in words:
        name = re.split(r"/|(?<=\.py):", word)[0]
        if (folder / name).exists() and name != "FILE":
            continue
        key = next((key for key in (*(f"{other} {name}" for other in (*words, page)), name) if key in FILES), None)
        if key is not None:
            source = made(key)
            if source.is_dir():
                shutil.copytree(source, folder / (name if "." not in name.removesuffix(".zarr") else ""), dirs_exist_ok=True)
            else:
                shutil.copy(source, folder / name)
