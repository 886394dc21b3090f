"""Which prior when: TV, ridge, BM3D, TNRD, two networks and nothing set, on images unlike each other.

    python benchmarks/which_prior.py FOLDER ../shared/data --scans             only make the scans
    python benchmarks/which_prior.py FOLDER --processes 8                      run, two threads each; or --device cuda
    python benchmarks/which_prior.py FOLDER --tables --pictures docs/images    print the tables, draw

Simulated tomography of a photograph (BSD68), a test chart drawn here and cells (a stained section of scikit-image),
from many views, few, and a low dose; a tooth and a brain that were measured; and two volumes, with BM4D. Nobody chose a
setting on any of them. Each scan has another of the same object with other views and noise, which no run sees: its
relative residual is "left". Where the truth is known, "shown" is the energy of the image's fine detail (what a Gaussian
of two pixels takes away) as a part of the truth's, and "false" the part of it that is uncorrelated with the truth's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from plugstream.cli import main as command

SIZE = 192
SCANS = {"low dose": (60, 1e3), "few views": (30, 1e5), "many views": (120, 1e5)}
PRIORS = {
    "tv": ["--denoiser", "tv"],
    "ridge": ["--denoiser", "ridge"],
    "bm3d": ["--denoiser", "bm3d"],
    "tnrd": ["--denoiser", "tnrd"],
    "safe": ["--denoiser", "unet"],
    "free": ["--denoiser", "unet", "--profile", "free"],
    "nothing set": [],
}
VOLUME_PRIORS = {
    "tv": ["--denoiser", "tv"],
    "bm3d": ["--denoiser", "bm3d"],
    "bm4d": ["--denoiser", "bm4d"],
    "safe": ["--denoiser", "unet"],
    "free": ["--denoiser", "unet", "--profile", "free"],
    "nothing set": [],
}
ORDER = ("tv", "ridge", "bm3d", "bm4d", "tnrd", "safe", "free", "nothing set")
VOLUMES = ("ellipsoids-parallel", "foam-cone")  # of volume_priors
# Those that are there are drawn.
PICTURES = (
    ("photograph", "few views"), ("chart", "low dose"), ("cells", "low dose"), ("tooth", "30 views"),
    ("brain", "an eighth of k-space"), ("ellipsoids-parallel", "volume"), ("foam-cone", "volume"),
)  # fmt: skip
Image = NDArray[Any]


def run(*words: object) -> str:
    """What a command of plugstream prints."""
    told, progress = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(progress):
        if main_code := command([str(word) for word in words]):
            raise RuntimeError(f"{main_code}: {progress.getvalue()}")
    return told.getvalue()


def draw_chart(size: int) -> Image:
    """A star of 36 spokes, bars of five widths in both directions, and a wedge of greys, from 0 to 1."""
    y, x = np.mgrid[:size, :size] / size
    chart = np.full((size, size), 0.1)
    angle, radius = np.arctan2(y - 0.36, x - 0.36), np.hypot(y - 0.36, x - 0.36)
    chart[radius < 0.3] = np.where(np.cos(36 * angle) > 0, 0.9, 0.1)[radius < 0.3]
    for n, width in enumerate((8, 6, 4, 3, 2)):
        top, left = int((0.06 + 0.125 * n) * size), int(0.72 * size)
        for bar in range(3):
            chart[top : top + 5 * width, left + 2 * bar * width : left + (2 * bar + 1) * width] = 0.9
            chart[
                top + 2 * bar * width : top + (2 * bar + 1) * width,
                left + 6 * width + 2 : left + 6 * width + 2 + 2 * width,
            ] = 0.9
    for n in range(8):
        chart[int(0.76 * size) : int(0.88 * size), int((0.08 + 0.1 * n) * size) : int((0.18 + 0.1 * n) * size)] = n / 7
    return chart


def make_scans(folder: Path, data: Path, size: int) -> None:
    """All scans, unless they are there."""
    import ct_tooth
    import mri_real
    import volume_priors
    from PIL import Image as Pictures
    from skimage.data import immunohistochemistry

    photograph = np.asarray(Pictures.open(data / "images/BSD68/test047.png").convert("L"))[32:288, 112:368]
    cells = np.asarray(Pictures.fromarray(immunohistochemistry()).convert("L"))[128:384, 128:384]
    pictures = {"photograph": photograph / 255, "chart": draw_chart(size), "cells": cells / 255}
    for n, (name, pixels) in enumerate(pictures.items()):
        grey = Pictures.fromarray(np.round(255 * pixels).astype(np.uint8))
        file = folder / f"{name}.png"
        grey.resize((size, size), Pictures.Resampling.LANCZOS).save(file)
        for what, (views, photons) in SCANS.items():
            for part, count, seed in (("scan", views, n), ("judge", 61, 100 + n)):
                place = folder / f"{name}, {what}, {part}.zarr"
                if not place.exists():
                    shape = ["--instrument", "ct", "--picture", file, "--size", size, "--views", count]
                    run("simulate", place, *shape, "--photons", f"{photons:g}", "--noise-seed", seed)
    if not (folder / "tooth, 30 views, scan.zarr").exists():
        with tempfile.TemporaryDirectory() as made:
            ct_tooth.import_views(data / "ct/tooth.h5", Path(made), (30, 163))
            run("baseline", Path(made) / "163.zarr", folder / "tooth", "--filter", "hann", "--cutoff", 0.5)
            (Path(made) / "held.zarr").rename(folder / "tooth, 30 views, judge.zarr")
            (Path(made) / "30.zarr").rename(folder / "tooth, 30 views, scan.zarr")
    if not (folder / "brain, an eighth of k-space, scan.zarr").exists():
        kspace = np.load(data / "mri/cartesian_ksp.npy")
        fit, choose, judge = mri_real.split_samples((kspace != 0).any(0), 7)
        mri_real.Trial(kspace, fit | choose, judge, "0", folder / "brain")
        (folder / "brain/judge.zarr").rename(folder / "brain, an eighth of k-space, judge.zarr")
        (folder / "brain/fit.zarr").rename(folder / "brain, an eighth of k-space, scan.zarr")
    for name in VOLUMES:
        for part, changes in (("scan", {}), ("judge", {"views": 61, "seed": 9})):
            place = folder / f"{name}, volume, {part}.zarr"
            if not place.exists():
                volume_priors.make_scan(folder, name, None, **changes).rename(place)


def compare_detail(image: Image, truth: Image) -> tuple[float, float]:
    """The energy of fine detail as a part of the truth's, and the part of it that is not in the truth's."""
    shown, known = (x - ndimage.gaussian_filter(x, 2.0) for x in (np.abs(image), np.abs(truth)))
    energy, same = (shown**2).sum(), (shown * known).sum()
    return float(energy / (known**2).sum()), float(1 - same**2 / (energy * (known**2).sum()))


def snr(image: Image, truth: Image) -> float:
    """In dB; of magnitudes."""
    return float(10 * np.log10((np.abs(truth) ** 2).sum() / ((np.abs(image) - np.abs(truth)) ** 2).sum()))


def reconstruct(job: tuple[Path, Path, str, list[str]]) -> dict[str, Any]:
    """A row of what one run ends with."""
    from plugstream import open_scan

    folder, scan, prior, words = job
    name, what, _ = scan.stem.split(", ")
    out = folder / f"{name}, {what}, {prior}"
    usual = ["--checkpoint", "0", "--report", "none", "--preview", "0"]
    row: dict[str, Any] = {"image": name, "scan": what, "prior": prior}
    try:
        run("reconstruct", scan, "--out", out, *usual, *words)
    except (Exception, SystemExit) as error:  # a run that fails is a row of the table
        row["failed"] = str(error)[-300:]
    if not (out / "result.npy").exists():
        return row
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    end = next(line for line in reversed(lines) if line.get("event") == "stop")
    row |= {"steps": end["step"], "seconds": end["wall"], "trusted": end["trusted"], "answers": end["answers"]}
    image = np.load(out / "result.npy")
    judge, truth = scan.with_name(f"{name}, {what}, judge.zarr"), open_scan(scan).truth
    if judge.exists():
        row["left"] = float(run("residual", judge, out).split()[0])
    if truth is not None:
        row |= {"snr": snr(image, truth), "detail": compare_detail(image, truth)}
        if judge.exists():
            np.save(out / "truth.npy", truth)
            row["left by the truth"] = float(run("residual", judge, out / "truth.npy").split()[0])
    return row


def reconstruct_all(folder: Path, asked: argparse.Namespace) -> None:
    """Run what has no row in results.jsonl yet: measured objects and a low dose first, many views last."""
    file = folder / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["image"], row["scan"], row["prior"]) for row in rows}
    jobs = []
    for scan in sorted(folder.glob("*, scan.zarr")):
        name, what, _ = scan.stem.split(", ")
        priors = VOLUME_PRIORS if what == "volume" else PRIORS
        jobs += [
            (folder, scan, prior, [*words, "--threads", f"{asked.threads}", "--device", asked.device])
            for prior, words in priors.items()
            if (name, what, prior) not in known and (not asked.only or any(word in scan.stem for word in asked.only))
        ]
    order = ["tooth", "brain", "low dose", "few views", "volume", "many views"]
    jobs.sort(key=lambda job: next(place for place, word in enumerate(order) if word in job[1].stem))
    os.environ["OMP_NUM_THREADS"] = f"{asked.threads}"
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool, file.open("a") as out:
        for future in as_completed([pool.submit(reconstruct, job) for job in jobs]):
            row = future.result()
            out.write(json.dumps(row) + "\n")
            out.flush()
            print({key: value for key, value in row.items() if key != "answers"}, flush=True)


def show_tables(rows: list[dict[str, Any]]) -> None:
    """Print SNR, residual, false detail, verdicts and seconds by image and scan, a column for each prior."""

    def cell(row: dict[str, Any], key: str) -> str:
        if key == "left":
            return f"{row['left'] / row.get('left by the truth', 1):.4g}" if "left" in row else ""
        if key == "detail":
            return f"{100 * row['detail'][0]:.0f}, {100 * row['detail'][1]:.0f}" if "detail" in row else ""
        if key == "trusted":
            return (
                "yes"
                if row["trusted"]
                else "; ".join(one["word"] for one in row["answers"].values() if not one["good"])
            )
        return f"{row[key]:.2f}" if key == "snr" and key in row else f"{row[key]:.0f}" if key in row else ""

    titles = {
        "snr": "SNR in dB", "left": "residual of the views that judge (over the truth's, where it is known)",
        "detail": "fine detail: shown, false, in per cent", "trusted": "trusted by its own verdict", "steps": "steps",
        "seconds": "seconds",
    }  # fmt: skip
    for key, title in titles.items():
        print(f"\n{title}\n| | {' | '.join(ORDER)} |\n|{' --- |' * (len(ORDER) + 1)}")
        for place in dict.fromkeys((row["image"], row["scan"]) for row in rows):
            found = {row["prior"]: row for row in rows if (row["image"], row["scan"]) == place and "steps" in row}
            cells = (cell(found[name], key) if name in found else "" for name in ORDER)
            print(f"| {', '.join(place)} | {' | '.join(cells)} |")


def show_choice(rows: list[dict[str, Any]]) -> None:
    """How far, in dB, the image that leaves least of the judging views is below the best, of scans with a truth."""
    lost, rank = [], []
    for place in dict.fromkeys((row["image"], row["scan"]) for row in rows if "snr" in row and "left" in row):
        named = [row for row in rows if row["prior"] != "nothing set"]
        found = [row for row in named if (row["image"], row["scan"]) == place and "snr" in row]
        best, liked = max(found, key=lambda row: row["snr"]), min(found, key=lambda row: row["left"])
        lost.append(best["snr"] - liked["snr"])
        order = [np.argsort(np.argsort([sign * row[key] for row in found])) for sign, key in ((1, "left"), (-1, "snr"))]
        rank.append(float(np.corrcoef(order[0], order[1])[0, 1]))
        print(f"{', '.join(place)}: best {best['prior']}, least residual {liked['prior']}, {lost[-1]:.2f} dB below it")
    print(f"mean loss {np.mean(lost):.2f} dB, worst {max(lost):.2f}; mean rank correlation {np.mean(rank):.2f}")


def draw_images(folder: Path, name: str, what: str, rows: list[dict[str, Any]], file: Path) -> None:
    """The middle of the truth and of each image, and below its errors, grey where there are none.

    Of a volume one slice. Without a truth the first is the filtered image of all views, or TV's, of which the second
    row has the differences.
    """
    from matplotlib.figure import Figure
    from PIL import Image as Pictures

    from plugstream import open_scan

    def middle(image: Image) -> Image:
        image = np.abs(image)
        image = image[image.shape[0] // 2] if image.ndim == 3 else image
        return image[tuple(slice(size // 6, size - size // 6) for size in image.shape)]

    found = {row["prior"]: row for row in rows if (row["image"], row["scan"]) == (name, what) and "steps" in row}
    names = [prior for prior in ORDER[:-1] if prior in found]  # what a run chooses by itself is one of them
    images = {prior: middle(np.load(folder / f"{name}, {what}, {prior}" / "result.npy")) for prior in names}
    known, filtered, first = open_scan(folder / f"{name}, {what}, scan.zarr").truth, folder / f"{name}.npy", "truth"
    if known is not None:
        truth = middle(np.asarray(known))
    elif filtered.exists():
        truth, first = middle(np.load(filtered)), "all views, filtered"
    else:
        truth, first = images.pop("tv"), "tv"
    figure = Figure(figsize=(1.55 * (len(images) + 1), 3.45), layout="constrained")
    axes = figure.subplots(2, len(images) + 1)
    low, high = (float(np.percentile(truth, share)) for share in (0.5, 99.5))
    for column, (prior, image) in enumerate({first: truth, **images}.items()):
        axes[0, column].imshow(image, cmap="gray", vmin=low, vmax=high)
        row, title = found.get(prior, {}), prior
        if column:
            half = 0.4 * (high - low)
            axes[1, column].imshow(image - truth, cmap="gray", vmin=-half, vmax=half)
        if row:
            title += f" {row['snr']:.1f} dB" if "snr" in row else ""
            title += f"\n{row['left'] / row.get('left by the truth', 1):.4g} left" if "left" in row else ""
        axes[0, column].set_title(title, fontsize=8)
    for axis in axes.flat:
        axis.set_axis_off()
    with tempfile.NamedTemporaryFile(suffix=".png") as drawn:
        figure.savefig(drawn.name, dpi=100)
        grey = Pictures.open(drawn.name).convert("L")
        grey.point([min(255, 4 * round(value / 4)) for value in range(256)]).save(file, optimize=True)


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path, nargs="?", help="to make scans of: BSD68, the tooth, the brain")
    parser.add_argument("--scans", action="store_true", help="make the scans, no more")
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=[], help="scans with one of these words in their names")
    parser.add_argument("--tables", action="store_true", help="print what was found, and run nothing")
    parser.add_argument("--pictures", type=Path, help="draw into this folder, and run nothing")
    asked = parser.parse_args()
    asked.folder.mkdir(exist_ok=True, parents=True)
    if asked.data is not None:
        make_scans(asked.folder, asked.data, asked.size)
    if asked.tables or asked.pictures:
        rows = [json.loads(line) for line in (asked.folder / "results.jsonl").read_text().splitlines()]
        if asked.tables:
            show_tables(rows)
            show_choice(rows)
        if asked.pictures:
            for name, what in PICTURES:
                if any((row["image"], row["scan"]) == (name, what) for row in rows):
                    draw_images(asked.folder, name, what, rows, asked.pictures / f"which-{name}.png")
    elif not asked.scans:
        reconstruct_all(asked.folder, asked)


if __name__ == "__main__":
    main()
