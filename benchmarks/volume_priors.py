"""Which prior a volume wants, and whether a run with nothing set finds it: TV, BM3D on slices, BM4D, and the choice.

    python benchmarks/volume_priors.py FOLDER                                  all scans, TV and nothing set
    python benchmarks/volume_priors.py FOLDER --only head-cone --priors tv bm3d-z bm3d bm4d nothing
    python benchmarks/volume_priors.py FOLDER --scan hl60.zarr --hold-out 10 --priors tv bm3d-z bm3d bm4d nothing

Scans are made in FOLDER unless they are there, and runs beside them, as `plugstream reconstruct SCAN` does with nothing
set but the denoiser. What is known of both on the average was chosen on the first eight scans (`CHOSEN`), and is judged
on the others. Prints a line for each run: SNR where the truth is known, the last misfit of the data that judged, sigma,
steps, processor seconds, and what was chosen; --curve adds held-out misfit and SNR against these seconds. --brain is
example4d.nii.gz of nibabel's tests.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage

from plugstream import open_scan
from plugstream.cli import main as command
from plugstream.images.simulated import shepp_logan
from plugstream.instruments.ct import CT
from plugstream.instruments.mri import MRI
from plugstream.instruments.odt import ODT3D
from plugstream.runs.replay import replay
from plugstream.scans.simulation import measure
from plugstream.scans.writer import save_scan

Recipe = tuple[str, str, tuple[int, ...], dict[str, Any]]
FLAT, CUBE, STACK = (24, 32, 32), (28, 28, 28), (16, 32, 32)
INSTRUMENTS: dict[str, Any] = {"ct": CT, "odt-3d": ODT3D, "mri": MRI}
# Name: what it is of, instrument, shape, options of its simulation; seeds are numbers in the list.
CHOSEN: dict[str, Recipe] = {
    "head-cone": ("head", "ct", FLAT, {"beam": "cone", "views": 60, "photons": 1e4}),
    "grains-parallel": ("grains", "ct", FLAT, {"beam": "parallel", "views": 48, "photons": 1e3}),
    "fibres-cone": ("fibres", "ct", FLAT, {"beam": "cone", "views": 36, "photons": 1e5}),
    "smooth-parallel": ("smooth", "ct", FLAT, {"beam": "parallel", "views": 60, "photons": 1e4}),
    "cell-odt": ("cell", "odt-3d", CUBE, {"views": 40, "snr": 20.0}),
    "grains-odt": ("grains", "odt-3d", CUBE, {"views": 40, "snr": 30.0}),
    "brain-mri": ("brain", "mri", STACK, {"snr": 20.0, "coils": 4}),
    "head-mri": ("head", "mri", STACK, {"snr": 10.0, "coils": 4}),
}
JUDGED: dict[str, Recipe] = {
    "foam-cone": ("foam", "ct", FLAT, {"beam": "cone", "views": 50, "photons": 3e3}),
    "ellipsoids-parallel": ("ellipsoids", "ct", (20, 36, 36), {"beam": "parallel", "views": 40, "photons": 1e5}),
    "brain-cone": ("brain", "ct", FLAT, {"beam": "cone", "views": 45, "photons": 1e4}),
    "foam-mri": ("foam", "mri", (12, 32, 32), {"snr": 15.0, "coils": 3}),
    "smooth-odt": ("smooth", "odt-3d", CUBE, {"views": 36, "snr": 25.0}),
}
PRIORS = {
    "tv": ["--denoiser", "tv"],
    "bm3d-z": ["--denoiser", "bm3d", "--along", "z"],
    "bm3d": ["--denoiser", "bm3d"],
    "bm4d": ["--denoiser", "bm4d"],
    "nothing": [],
}


def phantom(kind: str, shape: tuple[int, ...], seed: int, brain: Path | None) -> Any:
    """A volume from 0 to 1, as an array."""
    if kind == "head":
        return shepp_logan(shape)
    if kind == "brain":
        if brain is None:
            raise SystemExit("a brain needs --brain example4d.nii.gz, of nibabel's tests")
        values = np.frombuffer(gzip.decompress(brain.read_bytes()), "<i2")[-2 * 24 * 96 * 128 :].reshape(
            2, 24, 96, 128
        )[0]
        volume = ndimage.zoom(values.astype(float), [n / m for n, m in zip(shape, values.shape, strict=True)], order=1)
        return np.clip(volume / np.percentile(volume, 99.7), 0, 1)
    draw = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    body = ((x / 0.85) ** 2 + (y / 0.8) ** 2 + (z / 0.95) ** 4) < 1
    volume = {"ellipsoids": 0.3, "fibres": 0.1, "foam": 0.8}.get(kind, 0.0) * body
    if kind == "ellipsoids":
        for _ in range(14):
            c, a = draw.uniform(-0.6, 0.6, 3), draw.uniform(0.08, 0.35, 3)
            inside = ((x - c[0]) / a[0]) ** 2 + ((y - c[1]) / a[1]) ** 2 + ((z - c[2]) / a[2]) ** 2 < 1
            volume = volume + body * draw.uniform(-0.2, 0.5) * inside
        return np.clip(volume, 0, 1)
    if kind == "fibres":
        for _ in range(25):
            place, along = draw.uniform(-0.7, 0.7, 3), draw.normal(size=3)
            along /= np.linalg.norm(along)
            way = np.stack([x - place[0], y - place[1], z - place[2]], -1)
            away = np.linalg.norm(way - (way @ along)[..., None] * along, axis=-1)
            volume = np.maximum(volume, body * np.clip(1.5 - away / 0.07, 0, 1) * draw.uniform(0.5, 1))
        return volume
    if kind == "grains":
        seeds, greys = draw.uniform(-1, 1, (40, 3)), draw.uniform(0.2, 0.9, 40)
        away = np.sum([(axis[..., None] - seeds[:, n]) ** 2 for n, axis in enumerate((x, y, z))], 0)
        texture = ndimage.gaussian_filter(draw.normal(size=shape), 1.2)
        return body * np.clip(greys[away.argmin(-1)] + 0.05 * texture / texture.std(), 0, 1)
    if kind == "smooth":
        field = ndimage.gaussian_filter(draw.normal(size=shape), 2.5)
        return body * (field - field.min()) / (field.max() - field.min())
    for _ in range(60):  # foam
        c, radius = draw.uniform(-0.85, 0.85, 3), draw.uniform(0.06, 0.25)
        volume = np.where((x - c[0]) ** 2 + (y - c[1]) ** 2 + (z - c[2]) ** 2 < radius * radius, 0.02, volume)
    return volume * body


def make_scan(folder: Path, name: str, brain: Path | None, **changes: Any) -> Path:
    """The scan of this name, made unless it is there; changes, of the options of its simulation."""
    place = folder / f"{name}.zarr"
    if place.exists():
        return place
    kind, kin, shape, options = {**CHOSEN, **JUDGED}[name]
    seed = [*CHOSEN].index(name) if name in CHOSEN else 100 + [*JUDGED].index(name)
    instrument = INSTRUMENTS[kin]
    side = {"size": shape[-1], "seed": seed} | ({} if kin == "odt-3d" else {"slices": shape[0]})
    chosen = instrument.simulation(**side | options | changes)
    experiment = instrument.simulate_views(chosen)
    truth = experiment.truth
    if kin == "ct":
        truth = (chosen.attenuation * phantom(kind, shape, seed, brain)).astype(np.float32)
    elif kin == "mri" and kind != "head":
        truth = (phantom(kind, shape, seed, brain) * np.exp(1j * np.angle(truth + 1e-9))).astype(truth.dtype)
    elif kin == "odt-3d" and kind != "cell":
        axes = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
        ball = ndimage.gaussian_filter((np.sum(np.square(axes), 0) < 0.55).astype(float), 0.6)
        truth = (0.04 * phantom(kind, shape, seed, brain) * ball).astype(np.float32)
    experiment = replace(experiment, truth=truth)
    how = {"device": torch.device("cpu"), "dtype": torch.float32}
    model = experiment.instrument.build_model(experiment.columns, experiment.n_views, **how)
    save_scan(measure(experiment, model, chosen), place)
    return place


def reconstruct(scan: Path, out: Path, words: list[str]) -> dict[str, Any]:
    """What a run ends with, and its curve: processor seconds, held-out misfit, SNR."""
    shutil.rmtree(out, ignore_errors=True)
    usual = ["--threads", "1", "--checkpoint", "0", "--report", "none", "--preview", "0"]
    told, begin, clock = io.StringIO(), time.process_time(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(told):
        if command(["reconstruct", str(scan), "--out", str(out), *usual, *words]) != 0:
            raise RuntimeError(told.getvalue())
    seconds, share = time.process_time() - begin, (time.process_time() - begin) / (time.perf_counter() - clock)
    history, truth = replay(out / "events.jsonl"), open_scan(scan).truth
    image: Any = np.load(out / "result.npy")
    row: dict[str, Any] = {"steps": history.step, "seconds": round(seconds, 1)}
    if truth is not None:
        known = np.asarray(truth)
        turn = np.vdot(image, known)
        image = image * (turn / abs(turn)) if np.iscomplexobj(image) else image
        row["snr"] = round(10 * float(np.log10((abs(known) ** 2).sum() / (abs(known - image) ** 2).sum())), 2)
    if history.trials:
        row |= {"sigma": history.trials[-1].sigma, "misfit": history.trials[-1].misfit}
    if history.chosen:
        row |= {"chosen": history.chosen[-1].denoiser, "heat": history.chosen[-1].misfits}
    keys = ("held_out", "snr")
    row["curve"] = [[round(one.time * share, 1), *(one.values.get(key) for key in keys)] for one in history.measured]
    return row


def draw(scan: Path, runs: dict[str, Path], file: Path) -> None:
    """The middle slices across z and y of the truth and of runs, each titled with its name and SNR."""
    from matplotlib.figure import Figure

    truth = np.abs(np.asarray(open_scan(scan).truth))
    volumes = {"truth": truth} | {name: np.abs(np.load(place / "result.npy")) for name, place in runs.items()}
    figure = Figure(figsize=(2.2 * len(volumes), 4), layout="constrained")
    axes = figure.subplots(2, len(volumes), height_ratios=(truth.shape[1], truth.shape[0]))
    for column, (name, volume) in enumerate(volumes.items()):
        error = np.sum((volume - truth) ** 2)
        title = name if name == "truth" else f"{name}, {10 * np.log10(np.sum(truth**2) / error):.1f} dB"
        for row, plane in enumerate((volume[len(volume) // 2], volume[:, volume.shape[1] // 2])):
            axes[row, column].imshow(plane, cmap="gray", vmin=0, vmax=np.percentile(truth, 99.5), origin="lower")
            axes[row, column].set_axis_off()
        axes[0, column].set_title(title, fontsize=9)
    figure.savefig(file, dpi=100)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*CHOSEN, *JUDGED], default=[*CHOSEN, *JUDGED])
    parser.add_argument("--scan", type=Path, help="a scan of yours instead")
    parser.add_argument("--priors", nargs="+", choices=list(PRIORS), default=["tv", "nothing"])
    parser.add_argument("--hold-out", help="every so many-th view is held out to the end")
    parser.add_argument("--brain", type=Path)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw the last scan's truth and runs")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    asked.folder.mkdir(exist_ok=True)
    more = [] if asked.hold_out is None else ["--hold-out", asked.hold_out]
    for name in [asked.scan.stem] if asked.scan else asked.only:
        scan = asked.scan or make_scan(asked.folder, name, asked.brain)
        for prior in asked.priors:
            row = reconstruct(scan, asked.folder / f"{name}-{prior}", [*PRIORS[prior], *more])
            told = row if asked.curve else {key: value for key, value in row.items() if key != "curve"}
            print(json.dumps({"scan": name, "prior": prior, **told}), flush=True)
    if asked.picture is not None:
        draw(scan, {prior: asked.folder / f"{name}-{prior}" for prior in asked.priors}, asked.picture)


if __name__ == "__main__":
    main()
