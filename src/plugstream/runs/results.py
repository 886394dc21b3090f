"""What a run leaves when it is over: its images, and its measurements as a table.

The results of a volume that goes by blocks are made from its file, a few slices at a time.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream.algorithms import State
from plugstream.base.errors import InputError
from plugstream.base.files import sync_folder, write_whole
from plugstream.base.progress import report
from plugstream.base.volume_file import VolumeFile
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.sign_test import on_bounds
from plugstream.images.pictures import save_image, tiff_tags, write_grey
from plugstream.images.space import ImageSpace
from plugstream.runs.folder import write_text
from plugstream.runs.parts import Parts
from plugstream.runs.refined import save_refined
from plugstream.runs.replay import replay
from plugstream.scans.scan import Scan
from plugstream.settings import DenoiserSettings, Settings, resolve
from plugstream.solver.result import Result, write_record

# An image is said to sit on a bound where at least this part of it does.
_SUBSTANTIAL = 0.2
METHODS = {
    "filtered": "filtered back-projection",
    "gridding": "gridding",
    "backprojection": "first back-projection",
    "sirt": "SIRT",
    "cg-sense": "CG-SENSE",
}
"""What images are called that a result is compared with, by the file that one is in, without its ending."""
Compared: TypeAlias = tuple[torch.Tensor, str] | None
"""An image that a result is compared with, and its file, without its ending; None where there is none."""
_MOST_TIFF = 3 << 30  # bytes of ImageJ's TIFF, which has 32 bits for places


def form_comparison(scan: Scan, fidelity: DataFidelity, parts: Parts, views: torch.Tensor | None = None) -> Compared:
    """The image by the instrument's usual method, or else the back-projection, and its file; None without either.

    Of several processes all call it, and the first alone has an image by the usual method.
    """
    from plugstream.scans.baselines.first_image import form_baseline, usual_method

    method = usual_method(scan)
    if method == "filtered" or (method is not None and views is None):
        if not parts.group.leads:
            return None
        report(f"forming the image by {METHODS[method]}")
        device = parts.device if parts.worker is None else parts.worker.device
        image = form_baseline(scan, method, views, device=device, dtype=parts.dtype).to(parts.device)
        return image, method
    if fidelity.model.intensities:  # whose waves have no phase to go back with
        return None
    report("forming the back-projection")
    image = fidelity.backprojection(views)
    if not fidelity.linear and not bool(image.any()):  # the derivative at zero is zero
        return None
    return image, "backprojection"


def write_known(folder: Path, scan: Scan, start: torch.Tensor) -> None:
    """Write what is known before the first step, unless it is there: the first image, and the truth if there is one."""
    if not (folder / "start.npy").exists():
        file = io.BytesIO()
        np.save(file, _single(start))
        write_whole(folder / "start.npy", [file.getvalue()])
    if scan.truth is not None and not (folder / "truth.npy").exists():
        save_image(torch.from_numpy(scan.truth), folder / "truth", ImageSpace.of(scan))


def write_results(folder: Path, scan: Scan, result: Result[State], compared: Compared) -> None:
    """Write result, what it is compared with, what was refined, and history.csv, each whole or not at all."""
    report("writing the results")
    space = ImageSpace.of(scan)
    save_image(result.image, folder / "result", space)
    write_field(folder, space)
    write_record(result, folder)
    if compared is not None:
        save_image(compared[0], folder / compared[1], space)
    if result.parameters:
        save_refined(folder, result.parameters)
    series = {name: zip(s.step, s.time, s.value, strict=True) for name, s in result.history.items()}
    write_history(folder, ((name, *row) for name, rows in series.items() for row in rows))
    sync_folder(folder)


def write_field(folder: Path, space: ImageSpace) -> None:
    """Write field.npy, (H, W), True in the field of view, where the detector saw only part of the sample."""
    if (seen := space.field_of_view()) is not None:
        file = io.BytesIO()
        np.save(file, seen)
        write_whole(folder / "field.npy", [file.getvalue()])


def _single(image: torch.Tensor) -> NDArray[Any]:
    """An image in single precision, complex where it is."""
    image = image.detach().cpu().resolve_conj()
    return image.to(torch.complex64 if image.is_complex() else torch.float32).numpy()


def bound_notes(image: torch.Tensor, denoiser: DenoiserSettings) -> list[str]:
    """What to say of an image that sits on its bounds; nothing where no substantial part of it does."""
    return [
        f"{_percent(part)} of the image sits on its {'lower' if name == 'low' else 'upper'} bound {bound:g}: that is "
        f"background, or values that the bound hides, which --{name} none would show"
        for name, bound, part in on_bounds(image, denoiser.least, denoiser.upper)
        if part >= _SUBSTANTIAL
    ]


def _percent(part: float) -> str:
    return "all" if part == 1 else f"{min(99.9, 100 * part):.3g} %"


def write_history(folder: Path, rows: Iterable[tuple[str, int, float, float]]) -> None:
    """Write history.csv, of rows of a quantity's name, step, seconds and value."""
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["quantity", "step", "time", "value"])
    writer.writerows([name, int(step), f"{time:.6f}", repr(float(value))] for name, step, time, value in rows)
    write_text(folder / "history.csv", file.getvalue())


def title_of(settings: Settings) -> str:
    """What a run does: algorithm, denoiser, and how many views a step."""
    s, a = settings.sampler, settings.algorithm
    title = a.entry.facts.get("title", Path(a.name).name)
    name = title(settings) if callable(title) else title
    draws_all = s.entry.facts.get("draws") == "all"
    views = "all views" if draws_all else f"{s.views or 'some'} views a step ({Path(s.name).name})"
    return f"{name}, {Path(settings.denoiser.name).name}, {views}"


def title_of_folder(folder: Path) -> str:
    """What the run in a folder does; nothing where its settings cannot be read, or need a file that is gone."""
    with contextlib.suppress(InputError):
        return title_of(resolve(folder / "settings.toml", used=()))
    return ""


def write_volume_results(folder: Path, volume: VolumeFile, space: ImageSpace) -> None:
    """Write result.tif, a PNG of the middle slice and history.csv, each whole or not at all."""
    report("writing the results")
    show_volume(volume, space)
    write_field(folder, space)
    history = replay(folder / "events.jsonl")
    names = dict.fromkeys(name for event in history.measured for name in event.values)
    rows = [(name, e.step, e.time, e.values.get(name)) for name in names for e in history.measured]
    write_history(folder, ((name, step, time, value) for name, step, time, value in rows if value is not None))
    sync_folder(folder)


def show_volume(volume: VolumeFile, space: ImageSpace) -> tuple[list[NDArray[Any]], tuple[float, float]]:
    """Write a PNG of the middle slice beside a volume's file, and a TIFF; return `middle_planes`.

    A TIFF is written of volumes up to 3 GB, which is what programs that read ImageJ's take; the NPY is all of them.
    """
    planes, span = middle_planes(volume)
    write_grey(volume.path.with_suffix(".png"), planes[0][:: -1 if space.upwards else 1], span, space.section(0))
    if math.prod(volume.shape) * volume.dtype.itemsize <= _MOST_TIFF:
        _write_tiff(volume.path.with_suffix(".tif"), volume, space)
    return planes, span


def middle_planes(volume: VolumeFile) -> tuple[list[NDArray[Any]], tuple[float, float]]:
    """The slices through the middle across each axis, and the least (or 0, if none is negative) and largest value."""
    depth, height, width = volume.shape
    rows, columns = np.empty((depth, width), volume.dtype), np.empty((depth, height), volume.dtype)
    middle = volume.read(depth // 2, depth // 2 + 1)[0]
    low, high = 0.0, -math.inf
    for first, part in volume.portions():
        report("reading the volume", first, depth)
        rows[first : first + len(part)] = part[:, height // 2]
        columns[first : first + len(part)] = part[:, :, width // 2]
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    return [middle, rows, columns], (low, high if high > low else low + 1.0)


def volume_snr(volume: VolumeFile, truth: NDArray[Any]) -> float:
    """20 log10(||x|| / ||x - y||) of the volume y in a file against the truth x, in dB."""
    energy = error = 0.0
    for first, part in volume.portions():
        exact = truth[first : first + len(part)].astype(np.float64)
        energy += float((exact**2).sum())
        error += float(((exact - part) ** 2).sum())
    return 10 * math.log10(energy / error) if energy > 0 and error > 0 else math.inf


def _write_tiff(path: Path, volume: VolumeFile, space: ImageSpace) -> None:
    """A stack of slices, written one by one."""
    import tifffile

    order = -1 if space.upwards else 1

    def slices() -> Iterator[NDArray[Any]]:
        for _, part in volume.portions():
            yield from np.ascontiguousarray(part[:, ::order].astype(np.float32))

    temporary = path.with_name(f".{path.name}.new")
    try:
        tifffile.imwrite(temporary, slices(), shape=volume.shape, dtype=np.float32, **tiff_tags(space))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
