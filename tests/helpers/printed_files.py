"""Small files under the names that README, docs/ and --help use; each is made once and copied where it is wanted."""

from __future__ import annotations

import bz2
import functools
import io
import re
import runpy
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
import tifffile
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat

import field_files
from fresnel_files import write_fresnel
from growing_files import Writer
from plugstream import open_scan, ring
from printed import PAGES, ROOT, shrink
from small_run import main

_ROOM = tempfile.TemporaryDirectory(prefix="printed-")
_DRAW = np.random.default_rng(0)
_TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
_PYTHON = [block for text in _TEXTS.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
# Python files that pages show under their names, and net.py, which stands there without it.
_SHOWN = {Path(line[1]).name: block for block in _PYTHON if (line := re.match(r"# (\S+\.py)\b", block))}
_SHOWN["net.py"] = next(block for block in _PYTHON if "class Net(" in block)
_WEIGHTS = ROOT / "src" / "plugstream" / "denoisers" / "networks" / "weights"


def _pictures(folder: Path) -> None:
    folder.mkdir()
    for name in ("one.png", "two.png"):
        Image.fromarray(_DRAW.integers(255, size=(100, 100), dtype=np.uint8)).save(folder / name)


def _exchange(path: Path) -> None:
    writer = Writer(path, "exchange")
    for kind in ("darks", "flats"):
        writer.fields(kind)
    for n in range(20):
        writer.view(n)
    writer.file.close()


def _program(page: str, *words: str, **names: str) -> Callable[[Path], None]:
    """What the Python of a page writes that is no block of its own; arrays get other names."""

    def write(path: Path) -> None:
        (code,) = re.findall(r"^    import .*\n(?:(?:    .*)?\n)*", _TEXTS[page], re.MULTILINE)
        code = re.split(r"^\$ ", textwrap.dedent(code), maxsplit=1, flags=re.M)[0]
        given = [str(made(word)) if word in FILES else word for word in words]
        code = code.replace('"true.zarr"', f'"{made("true.zarr")}"').replace('"scan.h5"', f'"{path}"')
        with patch("sys.argv", ["play.py", *given, str(path), "1000"]), patch("time.sleep"):
            exec(compile(code, page, "exec"), {})
        with h5py.File(path, "r+") as file:
            for name, other in names.items():
                file[other] = file[name]

    return write


def _antennas(path: Path) -> None:
    """Scattered fields with the names of docs/importing.md, in HDF5 or NPZ."""
    data, rings = _DRAW.standard_normal((20, 24, 2)).view(complex)[..., 0], (ring(24, 0.6), ring(20, 0.6))
    if path.suffix == ".npz":
        np.savez(path, data=data, receivers=rings[0], transmitters=rings[1])
        return
    with h5py.File(path, "w") as file:
        file["entry/data"], file["geometry/rx"], file["geometry/tx"] = data, *rings
        file["entry"].attrs["wavelength"] = 0.03


def _camera(path: Path) -> None:
    """Frames for the instrument of docs/instruments.md."""
    frames, moves = _DRAW.random((8, 6, 6)).astype(np.float32), _DRAW.integers(0, 3, (8, 2))
    np.savez(path, data=frames, shift=moves, gains=np.ones((6, 6)), factor=2)


def _tike(path: Path) -> None:
    counts, places, _ = field_files._diffraction()
    probe = np.load(made("probe.npy"))[None, None, None, None]
    with io.BytesIO() as plain:
        data = np.fft.ifftshift(counts, (1, 2))[None] + np.float32(0)
        np.savez(plain, data=data, scan=places[None] + 0.0, probe=probe)
        path.write_bytes(bz2.compress(plain.getvalue()))


def _helsinki(path: Path) -> None:
    counts, flats, _, degrees = field_files._xray_counts(20)
    lines = np.log((flats.mean((0, 1)) - 100) / (counts[:, 0] - 100.0))
    about = {"distanceSourceOrigin": 410.66, "distanceSourceDetector": 553.74, "pixelSizePost": 0.2, "angles": degrees}
    savemat(path, {"CtDataLimited": {"sinogram": lines, "parameters": about}})


def _tiffs(folder: Path) -> None:
    lines = re.findall(r"^    (\w+ = .*)$", _TEXTS["tomography.md"].partition("`tiffs/scan.toml`")[2], re.MULTILINE)
    field_files.write_tiffs(folder, "\n".join(lines[:5]), views=20)


def _spokes(path: Path) -> None:
    """Radial k-space in cycles a pixel."""
    scan = open_scan(made("mri.zarr"))
    places = np.asarray(scan.columns["trajectory"][:])
    np.savez(path, data=scan.read().numpy(), trajectory=places / np.abs(places).max() / 2)


def _weights(path: Path) -> None:
    weights = runpy.run_path(str(made("net.py")))["Net"]().state_dict()
    torch.save(weights, path) if path.suffix == ".pt" else save_file(weights, path)


_CT = "simulate {} --instrument ct --size 24 --views 12 --photons 1e6"
_WAVES = "simulate {} --instrument scattering-2d"
_RUN = "reconstruct scan.zarr --sigma 0.02 --iterations 20 --out {}"
_TOOTH = "reconstruct tooth.zarr --sigma 1% --iterations 20 --out {}"
_OWN = {"data": "entry/data/data", "positions": "entry/positions", "probe": "entry/probe"}
# Names, some after a word of the command or its page: how each is made, by a command or a function.
FILES: dict[str, str | Callable[[Path], object]] = {
    "scan.zarr": "simulate {}",
    "held.zarr|held-out.zarr": "simulate {} --noise-seed 5",
    "baseline scan.zarr|true.zarr|ct.zarr|slice.zarr|tooth.zarr|all.zarr|disc.zarr|found.zarr|phantom.zarr": _CT,
    "tomography.md held.zarr": f"{_CT} --noise-seed 5",
    "mri.zarr|kept.zarr": "simulate {} --instrument mri",
    "ptychography.zarr": "simulate {} --instrument ptychography",
    "fpm.zarr|a.zarr": "simulate {} --instrument fpm",
    "--hop scan.zarr|--stages scan.zarr": f"{_WAVES} --size 12 --views 6 --frequencies 2,4,6,8,10GHz",
    "--along scan.zarr": "import ct scan.nxs {}",
    "run|RUN|RUN1|RUN2|RUN3|FOLDER|other-run|OTHER-RUN|scan-run|first-run|live-run|plugstream-demo": _RUN,
    "tomography.md run|phantom-run|--like RUN|--like run|earlier-run": _TOOTH,
    "RUNS": lambda path: shutil.copytree(made("run"), path / "run"),
    "new": lambda path: shutil.copytree(made("scan.zarr"), path / "scan.zarr"),
    "my.toml": lambda path: path.write_text("[algorithm]\niterations = 20\n"),
    "first.npy": lambda path: np.save(path, np.zeros((24, 24), np.float32)),
    "tomography.md first.npy|slow.npy|filtered.npy": "baseline tooth.zarr {}",
    "keys": "keys {}",
    "photo.png|noisy.png|in.png": lambda path: shutil.copy(made("pictures") / "one.png", path),
    "pictures|PICTURES|Train400|BSD68|--images FOLDER": _pictures,
    "noisy.npy": lambda path: np.save(path, _DRAW.random((24, 24))),
    "energies.npy": lambda path: np.save(path, _DRAW.random((3, 24, 24))),
    "probe.npy|beam.npy": lambda path: np.save(path, np.exp(-(field_files._grid((32, 32)) ** 2).sum(0) / 72) + 0j),
    "stack.tif": lambda path: tifffile.imwrite(path, _DRAW.random((6, 16, 16)).astype(np.float32)),
    "counts.tif": lambda path: tifffile.imwrite(path, _DRAW.poisson(50, (24, 24)).astype(np.uint16)),
    "scan.nxs": field_files.write_nexus,
    "htc2022_tb_90deg.mat": _helsinki,
    "tiffs|scan.toml": _tiffs,
    "tooth.h5|scan.h5|roi.h5|earlier.h5|FILE": _exchange,
    "lab-tomography.md scan.h5": _program("lab-tomography.md"),
    "mri.md scan.h5|mri FILE": lambda path: field_files.write_ismrmrd(path, 32),
    "kspace.npy|cartesian_ksp.npy": lambda path: field_files.write_kspace(path, 32),
    "spokes.npz": _spokes,
    "scan.cxi|ptychography FILE": field_files.write_cxi,
    "siemens-star-small.npz.bz2": _tike,
    "scan.ptyd": field_files.write_ptyd,
    "own.h5": field_files.write_own_hdf5,
    "ptychography.h5": _program("lab-ptychography.md", "ptychography.zarr"),
    "lab-ptychography.md scan.h5": _program("lab-ptychography.md", "ptychography.zarr", **_OWN),
    "fpm.h5": _program("lab-ptychography.md", "fpm.zarr"),
    "pictures.h5": _program("lab-ptychography.md", "fpm.zarr", data="camera/frames", leds="camera/led"),
    "leds.mat|bloodsmear_red.mat|fpm FILE": lambda path: field_files.write_leds(path, 24, 5),
    "cell|hl60|odt FILE": lambda path: field_files.write_series(path, 24, 16),
    "cell.npz": lambda path: np.savez(path, fields=np.exp(0.1j * _DRAW.random((8, 16, 16))), angles=np.arange(8) / 2),
    "lab.npz": field_files.write_scattering,
    "shots.npz": field_files.write_shots,
    "FoamDielExtTM.txt": lambda path: write_fresnel(
        path, np.pad(np.full((2, 3), 0.5), ((3, 3), (2, 3))), year=2001, sources=8, frequencies=[2, 3, 4, 6]
    ),
    "examples": lambda path: shutil.copytree(ROOT / "examples", path),
    "run7.h5|scan.npz": _antennas,
    "frames.npz": _camera,
    "table.txt": lambda path: np.savetxt(path, _DRAW.random((20, 34))),
    "|".join(_SHOWN): lambda path: path.write_text(_SHOWN[path.name]),
    "net.pt|net.safetensors": _weights,
    "safe.safetensors": lambda path: shutil.copy(_WEIGHTS / "unet-safe.safetensors", path),
    "free.safetensors": lambda path: shutil.copy(_WEIGHTS / "unet-free.safetensors", path),
}
FILES = {name: how for names, how in FILES.items() for name in names.split("|")}


@functools.cache
def made(key: str) -> Path:
    """The file of an entry, made at the first call."""
    how, place = FILES[key], Path(tempfile.mkdtemp(dir=_ROOM.name)) / key.rpartition(" ")[2]
    if callable(how):
        how(place)
    else:
        command, *words = shlex.split(how.format(place))
        assert main(shrink([command, *(str(made(word)) if word in FILES else word for word in words)])) == 0, how
    return place


def provide(words: Iterable[str], page: str, folder: Path) -> None:
    """Put what a command names into the folder where it runs, unless it is there."""
    words = list(words)
    for name in [re.split(r"/|(?<=\.py):", word)[0] for word in words]:
        key = next((key for key in (*(f"{other} {name}" for other in (*words, page)), name) if key in FILES), None)
        if key is None or ((folder / name).exists() and name != "FILE"):
            continue
        if (source := made(key)).is_dir():  # that of scan.toml has its pictures beside it
            shutil.copytree(source, folder / name if name != "scan.toml" else folder, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / name)
