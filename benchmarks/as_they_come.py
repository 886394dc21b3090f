"""Scans as they come: each fault at three sizes, on small scans of five instruments, beside the clean scan.

    python benchmarks/as_they_come.py [--only ct mri] [--faults zingers] [--seed 0] [--folder FOLDER]
    python benchmarks/as_they_come.py --pictures docs/images    those of docs/what-is-wrong.md

Runs with defaults (mri: with TV) of the clean scan, of the scan with the fault, of the same as it is (`--outliers
none`; of coils `import mri --keep-noise`; a detector that sees part as if it saw all, axes as if in the middle), and
with the fault known: numbers and elements masked, views or the coil left out, the field or the axis given, rings with
`import ct --stripes 9`. A run that leaves nothing out is not repeated with `--outliers none`, which changes nothing.

Each row is a JSON file of FOLDER, beside its runs, so that the work can be interrupted. SNR in dB, of complex images
after the best complex factor; where the detector sees part of the sample, by standard deviations inside 95 % of what it
sees, and so for its clean scan.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from verdicts import answers_of, replace_scan, simulated

from plugstream.base.errors import InputError
from plugstream.base.files import write_whole
from plugstream.cli import main as plugstream_main
from plugstream.instruments.mri import MRI
from plugstream.runs.replay import replay
from plugstream.scans import MemoryScan, open_scan, save_scan
from plugstream.scans.importers import import_file
from plugstream.scans.outliers import mask_column

QUIET = ["--report", "none", "--threads", "1", "--checkpoint", "0"]
PHOTONS, SIZE, VIEWS, COLUMNS, BODY = 3e4, 64, 60, 104, 60  # of ct; the body is as wide as so many of the columns
PRIOR = {"mri": ("--denoiser", "tv")}  # else the choice between this and the U-Net adds 8 dB, or not
Draw = np.random.Generator
KINDS = ("clean", "nothing", "taken", "known")


@dataclass(frozen=True)
class Spoilt:
    """A scan with a fault, and the same with the fault known; of one that the import refuses, what it says.

    Arguments: taken, where it is not `nothing` with `--outliers none`; clean, where it is not the instrument's; inside,
    the radius in pixels within which images are compared, by standard deviations; 0 for all.
    """

    nothing: MemoryScan | str
    known: MemoryScan | str
    taken: MemoryScan | str | None = None
    clean: MemoryScan | str | None = None
    inside: float = 0.0


@dataclass(frozen=True)
class Fault:
    instrument: str
    name: str
    sizes: tuple[float, ...]
    label: str
    spoil: Callable[[MemoryScan, float, Draw], Spoilt]


CLEAN: dict[str, Callable[[int], MemoryScan]] = {
    "ct": lambda seed: simulated("ct", size=SIZE, views=VIEWS, columns=COLUMNS, photons=PHOTONS, seed=seed),
    "ct volume": lambda seed: simulated("ct", size=24, slices=24, views=30, photons=PHOTONS, seed=seed),
    "mri": lambda seed: simulated("mri", size=64, coils=6, acceleration=2.0, seed=seed),
    "ptychography": lambda seed: simulated("ptychography", frame=32, across=8, seed=seed),
    "born-2d": lambda seed: simulated("born-2d", size=48, wavelength=0.0225, views=24, receivers=96, seed=seed),
    "fpm": lambda seed: simulated("fpm", size=96, camera=32, leds=9, seed=seed),
}


def numbers(scan: MemoryScan) -> NDArray[Any]:
    return scan.data.resolve_conj().numpy().copy()


def with_data(scan: MemoryScan, data: NDArray[Any]) -> MemoryScan:
    return replace_scan(scan, data=torch.from_numpy(np.ascontiguousarray(data, numbers(scan).dtype)))


def masked(scan: MemoryScan, data: NDArray[Any], bad: NDArray[np.bool_]) -> Spoilt:
    """Data with wrong numbers, and a mask that leaves these out."""
    faulty, mask = with_data(scan, data), mask_column(scan.instrument, scan.columns, torch.from_numpy(bad.copy()))
    return Spoilt(faulty, replace_scan(faulty, columns={**scan.columns, **mask}))


def wrong_elements(
    change: Callable[[NDArray[Any], Draw], Any], *, bright: bool = False
) -> Callable[[MemoryScan, float, Draw], Spoilt]:
    """So many elements of the middle of the detector, or of its bright parts, in all views.

    Arguments: change, what their data (views, elements) become.
    """

    def spoil(scan: MemoryScan, size: float, draw: Draw) -> Spoilt:
        data = numbers(scan)
        middle: NDArray[Any] = np.zeros(data.shape[1:], bool)
        middle[tuple(slice(n // 5, n - n // 5) for n in middle.shape)] = True
        if bright:
            mean = np.abs(data).mean(0)
            middle = mean > np.quantile(mean, 0.8)
        bad = np.zeros(middle.size, bool)
        bad[draw.choice(np.flatnonzero(middle), int(size), replace=False)] = True
        bad = np.broadcast_to(bad.reshape(middle.shape), data.shape)
        data[bad] = np.ravel(change(data[bad].reshape(len(data), -1), draw))
        return masked(scan, data, bad)

    return spoil


def wrong_numbers(factor: float, *, percent: bool = True) -> Callable[[MemoryScan, float, Draw], Spoilt]:
    """So many numbers, or per cent of them, times a factor."""

    def spoil(scan: MemoryScan, size: float, draw: Draw) -> Spoilt:
        data = numbers(scan)
        count = round(size / 100 * data.size) if percent else int(size)
        bad: NDArray[Any] = np.zeros(data.size, bool)
        bad[draw.choice(data.size, count, replace=False)] = True
        bad = bad.reshape(data.shape)
        return masked(scan, np.where(bad, factor * data, data), bad)

    return spoil


def empty_views(scan: MemoryScan, size: float, draw: Draw) -> Spoilt:
    data = numbers(scan)
    views = np.sort(draw.choice(len(data), int(size), replace=False))
    data[views] = 0
    kept = {name: np.delete(np.asarray(column), views, 0) for name, column in scan.columns.items()}
    seen = torch.from_numpy(np.delete(data, views, 0))
    return Spoilt(with_data(scan, data), replace_scan(scan, data=seen, columns=kept))


def dead(data: NDArray[Any], _: Draw) -> NDArray[Any]:
    """Elements that always say the same: 0, and of float32 every other 10.3, a line integral that no light gives."""
    most = np.log(PHOTONS) if data.dtype == np.float32 else 0
    return np.broadcast_to(most * (np.arange(data.shape[1]) % 2), data.shape)


def hot(data: NDArray[Any], draw: Draw) -> NDArray[Any]:
    """Elements with a thousand counts more, and their noise."""
    return data + draw.poisson(1000, data.shape)


def read_ct(data: NDArray[Any], degrees: float, scan: MemoryScan, **options: Any) -> MemoryScan | str:
    """Line integrals (views, columns), imported from the counts of a Data Exchange file; or why they are not.

    A grid of an odd number of pixels gets one more, so that its pixels are those of the truth.
    """
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(f"{folder}/a.h5", "w") as file:
            file["exchange/data"] = (PHOTONS * np.exp(-data[:, None])).astype(np.float32)
            file["exchange/data_white"] = np.full((1, 1, data.shape[1]), PHOTONS, np.float32)
            file["exchange/theta"] = np.arange(len(data)) * degrees / len(data)
        options = {"pixel": scan.instrument.voxels.spacing[0], **options}  # type: ignore[attr-defined]
        for number in range(2):
            try:
                import_file("ct", Path(folder) / "a.h5", Path(folder) / f"{number}.zarr", options)
            except InputError as error:
                return str(error).partition("a.h5: ")[2]
            found: Any = replace_scan(open_scan(Path(folder) / f"{number}.zarr").load(), truth=None)
            if found.instrument.voxels.shape[0] % 2 == 0:
                break
            options["size"] = found.instrument.voxels.shape[0] + 1
        return found  # type: ignore[no-any-return]


def rings(scan: MemoryScan, size: float, draw: Draw) -> Spoilt:
    data = numbers(scan)
    faulty = data - np.log1p(size / 100 * draw.standard_normal(data.shape[1:]))
    if data.ndim > 2:  # for the filter is one of the import
        return Spoilt(with_data(scan, faulty), scan)
    return Spoilt(read_ct(faulty, 180, scan), read_ct(faulty, 180, scan, stripes=9), clean=read_ct(data, 180, scan))


def imported(
    data: NDArray[Any],
    degrees: float,
    scan: MemoryScan,
    known: dict[str, Any],
    taken: dict[str, Any],
    inside: float = 0,
) -> Spoilt:
    """By the import without options, and with those that say what it has to find, or say it wrong."""
    nothing, right, wrong = (read_ct(data, degrees, scan, **words) for words in ({}, known, taken))
    return Spoilt(nothing, right, wrong, inside=inside)


def part_seen(scan: MemoryScan, size: float, _: Draw) -> Spoilt:
    half = round(size / 200 * BODY)
    part = numbers(scan)[:, COLUMNS // 2 - half : COLUMNS // 2 + half]
    return imported(part, 180, scan, {"field": BODY + 2}, {"field": 2 * half}, 0.95 * half)


def axis_off(scan: MemoryScan, size: float, _: Draw) -> Spoilt:
    """The axis so many columns from the middle of a detector that sees all."""
    center = (COLUMNS - 1) / 2 - 2 * size
    return imported(numbers(scan)[:, 2 * int(size) :], 180, scan, {"center": center}, {"center": "middle"})


def axis_at_side(scan: MemoryScan, size: float, draw: Draw, odd: int = 0) -> Spoilt:
    """A whole turn, of which the detector sees the axis so many columns from its edge, with as many rays."""
    views, seed = 2 * round(VIEWS / 2 * COLUMNS / (COLUMNS // 2 + size)) + odd, int(draw.integers(1 << 30))
    full = simulated("ct", size=SIZE, views=views, columns=COLUMNS, arc=360.0, photons=PHOTONS, seed=seed)
    side = numbers(full)[:, COLUMNS // 2 - int(size) :]
    return imported(side, 360, scan, {"center": size - 0.5}, {"center": "middle"})


def noisy_coil(scan: MemoryScan, size: float, draw: Draw) -> Spoilt:
    data, place, coil = numbers(scan), cast("MRI", scan.instrument), 2
    faulty, rms = data.copy(), np.sqrt(np.mean(np.abs(data[:, coil]) ** 2) / 2)
    faulty[:, coil] += size * rms * draw.standard_normal((*data[:, coil].shape, 2)).view(complex)[..., 0]

    def read(values: NDArray[Any], kept: NDArray[Any], **options: Any) -> MemoryScan:
        with tempfile.TemporaryDirectory() as folder:
            file, path = Path(folder) / "a.npz", np.asarray(scan.columns["trajectory"])
            maps = place.coil_maps[kept, 0]  # type: ignore[index]
            np.savez(file, data=values[:, kept], coil_maps=maps, trajectory=path, pixel=place.voxels.spacing[0])
            import_file("mri", file, file.with_suffix(".zarr"), {"size": place.voxels.shape, "unit": "1/m", **options})
            return open_scan(file.with_suffix(".zarr")).load()

    coils = np.arange(place.coils)
    known = read(faulty, np.delete(coils, coil))
    return Spoilt(read(faulty, coils), known, read(faulty, coils, keep_noise=True), read(data, coils))


FAULTS = (
    Fault("ct", "dead columns", (2, 5, 9), "{} dead columns", wrong_elements(dead)),
    Fault("ct", "zingers", (0.3, 1.3, 3), "{}% zingers", wrong_numbers(4)),
    Fault("ct", "rings", (0.5, 1, 2), "rings: gains {}%", rings),
    Fault("ct", "part seen", (80, 60, 40), "{}% seen", part_seen),
    Fault("ct", "axis off the middle", (1, 3, 8), "axis {} off", axis_off),
    Fault("ct", "axis at the side", (20, 10, 4), "axis on column {}", axis_at_side),
    Fault("ct", "axis at the side, odd number of views", (20,), "same, odd views", partial(axis_at_side, odd=1)),
    Fault("ct volume", "dead pixels", (2, 8, 24), "{} dead pixels", wrong_elements(dead)),
    Fault("ct volume", "zingers", (0.3, 1.3, 3), "{}% zingers", wrong_numbers(4)),
    Fault("ct volume", "rings", (0.5, 1, 2), "rings: gains {}%", rings),
    Fault("mri", "spikes", (4, 12, 36), "{} spikes", wrong_numbers(60, percent=False)),
    Fault("mri", "noisy coil", (0.1, 0.3, 1), "coil noise {}", noisy_coil),
    Fault("mri", "zero spokes", (1, 2, 5), "{} zero spokes", empty_views),
    Fault("ptychography", "hot pixels", (2, 5, 10), "{} hot pixels", wrong_elements(hot)),
    Fault("ptychography", "dead pixels", (4, 12, 36), "{} dead pixels", wrong_elements(dead, bright=True)),
    Fault("ptychography", "dark frames", (1, 3, 6), "{} dark frames", empty_views),
    Fault("born-2d", "dead receivers", (2, 5, 9), "{} dead receivers", wrong_elements(dead)),
    Fault("born-2d", "wrong numbers", (0.3, 1.3, 3), "{}% wrong numbers", wrong_numbers(10)),
    Fault("born-2d", "zero views", (1, 2, 4), "{} zero views", empty_views),
    Fault("fpm", "hot pixels", (2, 5, 10), "{} hot pixels", wrong_elements(hot)),
    Fault("fpm", "dead pixels", (4, 12, 36), "{} dead pixels", wrong_elements(dead)),
    Fault("fpm", "dark LEDs", (1, 3, 6), "{} dark LEDs", empty_views),
)


def fit(image: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The middle of an image, or zeros about it."""
    more = [max(0, wanted - count) for wanted, count in zip(shape, image.shape, strict=True)]
    image = np.pad(image, [(count // 2, count - count // 2) for count in more])
    starts = [(count - wanted) // 2 for wanted, count in zip(shape, image.shape, strict=True)]
    return image[tuple(slice(start, start + wanted) for start, wanted in zip(starts, shape, strict=True))]


def snr_of(image: NDArray[Any], truth: NDArray[Any], inside: float = 0.0) -> float:
    image = fit(image, truth.shape)
    if np.iscomplexobj(image):
        image = image * (np.vdot(image, truth) / np.vdot(image, image).real)
    if inside:
        axes = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in truth.shape), indexing="ij")
        disc = sum(axis**2 for axis in axes) < inside**2
        return float(20 * np.log10(truth[disc].std() / (image - truth)[disc].std()))
    return float(20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(image - truth)))


Outcome = tuple[NDArray[Any] | None, str, str]  # image, what the run said of it, and what it left out


def run_scan(scan: MemoryScan | str, place: Path, *words: str) -> Outcome:
    """A run with defaults, which is kept at `place`."""
    if isinstance(scan, str):
        return None, f"import refused: {scan}", ""
    run, failed = place / "run", place / "failed.txt"
    if not (run / "result.npy").exists() and not failed.exists():
        shutil.rmtree(place, ignore_errors=True)  # of a run that was interrupted
        place.mkdir(parents=True)
        save_scan(scan, place / "scan.zarr")
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(heard):
            words = (*PRIOR.get(scan.instrument.name, ()), *words)
            plugstream_main(["reconstruct", str(place / "scan.zarr"), "--out", str(run), *QUIET, *words])
        if not (run / "result.npy").exists():
            failed.write_text(heard.getvalue().strip().rpartition("\n")[2])
    if failed.exists():
        return None, f"no image: {failed.read_text()}", ""
    answer = (answers_of(run) or [{"word": "not asked", "text": ""}] * 2)[1]
    cause = re.search(r"likely (.+?)(?: \(x|[:;]|$)", answer["text"])
    notes = [note.text for note in replay(run / "events.jsonl").notes if "have no weight" in note.text]
    left_out = notes[0].partition(" of ")[0] if notes else ""
    said = answer["word"] + (f": {cause[1]}" if cause and answer["word"] != "explained" else "")
    return np.load(run / "result.npy"), said, left_out


def run_fault(fault: Fault, size: float, seed: int, folder: Path) -> dict[str, Any]:
    """A row of the table."""
    began, name = time.process_time(), f"{fault.instrument} {fault.name}".replace(" ", "-")
    scan, place = CLEAN[fault.instrument](seed), folder / f"{name}-{size:g}-{seed}"
    spoilt = fault.spoil(scan, size, np.random.default_rng([seed, round(100 * size)]))
    usual = name if spoilt.clean else fault.instrument.replace(" ", "-")
    clean = run_scan(spoilt.clean or scan, folder / f"{usual}-clean-{seed}")
    nothing = taken = run_scan(spoilt.nothing, place / "nothing")
    if spoilt.taken or nothing[2]:
        words = () if spoilt.taken else ("--outliers", "none")
        taken = run_scan(spoilt.taken or spoilt.nothing, place / "taken", *words)
    known = clean if spoilt.known is scan else run_scan(spoilt.known, place / "known")
    images = {kind: run[0] for kind, run in zip(KINDS, (clean, nothing, taken, known), strict=True)}
    truth = cast("NDArray[Any]", scan.truth)
    quality = {kind: i if i is None else round(snr_of(i, truth, spoilt.inside), 1) for kind, i in images.items()}
    row = {"instrument": fault.instrument, "fault": fault.name, "size": size, **quality}
    more = {"left out": nothing[2], "said of clean": clean[1], "seed": seed}
    return row | {"said": nothing[1], **more, "seconds": round(time.process_time() - began)}


def line_of(fault: Fault, rows: list[dict[str, Any]], *, first: bool) -> str:
    """The line of a fault, with its sizes one after the other, and the last cause that a run named."""

    def join(cells: list[str]) -> str:
        return cells[0] if len({*cells}) == 1 else "/".join(cells)

    said = [row["said"] for row in rows]
    words = ["in part" if "but for" in one else "yes" if one.startswith("explained") else "no" for one in said]
    causes = [re.split(r" \(|, |;| that | of ", one.partition(": ")[2])[0] for one in said if ": " in one]
    told = join(words) + (f": {causes[-1]}" if causes else "")
    values = (join(["none" if row[kind] is None else f"{row[kind] + 0.0:.1f}" for row in rows]) for kind in KINDS)
    label = fault.label.format("/".join(f"{row['size']:g}" for row in rows))
    return f"| {fault.instrument if first else ''} | {label} | {' | '.join(values)} | {told} |"


HEAD = "| | fault | clean | defaults | as it is | known | explained? |\n| --- | --- | --- | --- | --- | --- | --- |"
# Pictures of docs/what-is-wrong.md: fault, size, and the runs whose images they show.
PICTURES = {
    "rings": ("ct", "rings", 2, "nothing", "known"),
    "zingers": ("ct", "zingers", 1.3, "taken", "nothing"),
    "columns": ("ct", "dead columns", 9, "taken", "nothing"),
    "part": ("ct", "part seen", 60, "taken", "nothing"),
    "axis": ("ct", "axis off the middle", 3, "taken", "nothing"),
    "spikes": ("mri", "spikes", 12, "taken", "nothing"),
    "coil": ("mri", "noisy coil", 1, "taken", "nothing"),
    "frames": ("ptychography", "dark frames", 6, "taken", "nothing"),
    "pixels": ("fpm", "hot pixels", 5, "taken", "nothing"),
}


def panel(values: NDArray[Any], like: NDArray[Any]) -> NDArray[np.uint8]:
    """128 x 128 pixels of 32 greys, black and white as they suit other values."""
    low, high = np.quantile(like, (0.005, 0.995))
    grey = 8 * np.round(31 * np.clip((values - low) / max(high - low, 1e-30), 0, 1))
    return np.asarray(grey[np.ix_(*(np.arange(128) * n // 128 for n in grey.shape))], np.uint8)


def draw_picture(folder: Path, seed: int, instrument: str, name: str, size: float, *kinds: str) -> Image.Image:
    """The data, and two images; phases of ptychography and fpm."""
    place = folder / f"{instrument}-{name}-{size:g}-{seed}".replace(" ", "-")
    data = np.abs(numbers(open_scan(place / kinds[1] / "scan.zarr").load()))
    images = [np.load(place / kind / "run" / "result.npy") for kind in kinds]
    if instrument in ("fpm", "ptychography"):
        if instrument == "ptychography":  # frames beside each other, zero frequency in the middle of each
            side, n = math.isqrt(len(data)), data.shape[-1]
            tiles = np.fft.fftshift(data, (1, 2)).reshape(side, side, n, n).swapaxes(1, 2)
            data = tiles.reshape(side * n // 2, 2, side * n // 2, 2).mean((1, 3)) ** 0.25
        else:
            data = data[data.sum((1, 2)).argmax()]
        one, other = (np.angle(image / image.mean()) for image in images)
    else:
        data = data if instrument == "ct" else np.log(data[:, 2] + 1e-3)
        one, other = (fit(np.abs(image), (SIZE, SIZE)) for image in images)
    gap = np.full((128, 8), 255, np.uint8)
    return Image.fromarray(np.hstack([panel(data, data), gap, panel(one, other), gap, panel(other, other)]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[], choices=CLEAN, help="instruments")
    parser.add_argument("--faults", nargs="*", default=[], choices=sorted({fault.name for fault in FAULTS}))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("results/as-they-come"))
    parser.add_argument("--pictures", type=Path, help="write pictures of faults into this folder")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    parsed.folder.mkdir(parents=True, exist_ok=True)
    shown = ""
    print(HEAD)
    for fault in FAULTS:
        if (parsed.only and fault.instrument not in parsed.only) or (parsed.faults and fault.name not in parsed.faults):
            continue
        rows = []
        for size in fault.sizes:
            file = parsed.folder / f"{fault.instrument}-{fault.name}-{size:g}-{parsed.seed}.json".replace(" ", "-")
            if not file.exists():
                write_whole(file, [json.dumps(run_fault(fault, size, parsed.seed, parsed.folder), indent=1).encode()])
            rows.append(json.loads(file.read_text()))
        print(line_of(fault, rows, first=fault.instrument != shown), flush=True)
        shown = fault.instrument
    for name, chosen in PICTURES.items() if parsed.pictures else ():
        draw_picture(parsed.folder, parsed.seed, *chosen).save(parsed.pictures / f"wrong-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
