"""The image of a scan by the usual methods, and the residual of any image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.progress import report
from plugstream.base.transfers import Target
from plugstream.base.volume_file import VolumeFile
from plugstream.fidelity.misfit import magnitudes
from plugstream.instruments.ct import CT, ct_rays
from plugstream.instruments.ct_counts import CTCounts
from plugstream.instruments.mri import MRI, MRIOptions
from plugstream.models.base import Model, as_model
from plugstream.models.ct_geometry import Voxels
from plugstream.models.ct_line_integrals import fill_pixels
from plugstream.models.views import check_shape
from plugstream.scans.baselines.filtered import Filter, filtered_back_projection, is_circular
from plugstream.scans.baselines.sense import cg_sense, grid_image
from plugstream.scans.baselines.sirt import read_views, sirt, split_views
from plugstream.scans.blocks import read_block, sum_rows
from plugstream.scans.outliers import without_suspects
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan

Method = Literal["filtered", "sirt", "gridding", "cg-sense"]

# Bytes of a volume that are in memory at once, where not all of it has to be.
_SLICES_BYTES = 128 << 20
# The range of an image leaves out this part of its values at each end, which noise and streaks stretch; it is found
# from at most so many views and slices.
_OUTSIDE, _VIEWS, _SLICES = 0.005, 180, 16
_WINDOW: Filter = "cosine"


def form_image(
    scan: Scan,
    method: Method = "filtered",
    *,
    filter: Filter = "ram-lak",
    cutoff: float = 1.0,
    iterations: int | None = None,
    low: float | None = None,
    damping: float = 0.0,
    look: Callable[[int, Tensor, float], None] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    target: Target | None = None,
) -> Tensor:
    """The image of a scan: of ct by filtered back-projection or SIRT, of mri by gridding or CG-SENSE: (*image_shape).

    Views are read some at a time, so that a scan may be larger than memory.

    Arguments: scan; method; filter and cutoff of `plugstream.scans.baselines.filtered`; iterations, by default 100 and
    10, low, damping and look of `plugstream.scans.baselines.sirt` and `plugstream.scans.baselines.sense`; device and
    dtype to compute with; target, where the slices of a volume of ct go instead, if it is larger than memory.
    """
    if method == "filtered":
        return _filter_and_project(scan, filter=filter, cutoff=cutoff, device=device, dtype=dtype, target=target)
    if method in ("gridding", "cg-sense"):
        if not isinstance(scan.instrument, MRI):
            raise InputError(f"{method} is for scans of mri, and this is one of {scan.instrument.name}")
        if method == "gridding":
            return _grid(scan, device=device, dtype=dtype)
        model = scan_model(scan, device=device, dtype=dtype)
        return cg_sense(model, scan.read, 10 if iterations is None else iterations, damping=damping, look=look)
    if method != "sirt":
        raise InputError(f"there is no method {method!r}; there are filtered, sirt, gridding and cg-sense")
    model = scan_model(scan, device=device, dtype=dtype)
    return sirt(model, _integrals(scan), 100 if iterations is None else iterations, low=low, look=look)


def _filter_and_project(scan: Scan, views: Tensor | None = None, voxels: Voxels | None = None, **more: Any) -> Tensor:
    """Filtered back-projection of these views, by default all, onto these voxels, by default the instrument's."""
    if not isinstance(scan.instrument, CT):
        raise InputError(f"filtered back-projection is for scans of ct, and this is one of {scan.instrument.name}")
    rays, read = ct_rays(scan), _filled_integrals(scan)
    voxels = scan.instrument.voxels if voxels is None else voxels
    if views is None:
        return filtered_back_projection(read, rays, voxels, **more)
    return filtered_back_projection(lambda rows: read(views[rows]), rays.select(views.numpy()), voxels, **more)


def usual_method(scan: Scan) -> Method | None:
    """The usual method for such a scan, as its instrument declares it; None where there is none for its views."""
    method: Any = scan.instrument.baseline
    if isinstance(scan.instrument, CT) and not is_circular(ct_rays(scan), scan.instrument.voxels):
        return None  # a helix, or laminography
    return method or None


def form_baseline(
    scan: Scan,
    method: Method,
    views: Tensor | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The image to compare a result with, by the usual method of its field (`usual_method`): (*image_shape).

    It takes about as long as one gradient of these views. Filtered back-projection has the window `cosine`: of three
    pictures with 300 to 1e6 photons and 30 or 180 views it is at most 2.9 dB below the best window, ram-lak 7.7.

    Arguments: scan; method; views to form it from, by default all, which other methods than filtered back-projection
    always use; device and dtype to compute with.
    """
    if method != "filtered":
        return form_image(scan, method, device=device, dtype=dtype)
    return _filter_and_project(scan, views, filter=_WINDOW, device=device, dtype=dtype)


def _grid(scan: Scan, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """The image of a scan of mri whose samples are weighed by density."""
    model: Any = scan_model(scan, MRIOptions(density=1.0), device=device, dtype=dtype)

    def read(views: Tensor) -> Tensor:
        data: Tensor = model.convert(scan.read(views).to(device=model.device, dtype=model.data_dtype), views)
        return data

    return grid_image(model, read)


def _integrals(scan: Scan) -> Callable[[Tensor], Tensor]:
    """A function that reads line integrals of some views, of a scan that stores them or counts."""
    if not isinstance(scan.instrument, CTCounts):
        return scan.read
    instrument = scan.instrument
    return lambda views: instrument.integrals(scan.read(views), scan.columns, views)


def _filled_integrals(scan: Scan) -> Callable[[Tensor], Tensor]:
    """As `_integrals`, with masked pixels interpolated: filtered back-projection knows no mask."""
    read, instrument, mask = _integrals(scan), scan.instrument, scan.instrument.find_mask(scan.columns)
    good = getattr(instrument, "good", None)
    if mask is None and good is None:
        return read

    def fill(views: Tensor) -> Tensor:
        rows = read(views).numpy()
        frames = rows.reshape(len(rows), -1, rows.shape[-1]).copy()
        counts = np.ones(frames.shape, bool) if mask is None else np.asarray(mask[views.numpy()]).reshape(frames.shape)
        counts = counts if good is None else counts & good
        for frame, good_pixels in zip(frames, counts, strict=True):
            frame[:] = fill_pixels(frame, ~good_pixels) if good_pixels.any() else 0.0
        return torch.from_numpy(frames.reshape(rows.shape))

    return fill


def image_range(scan: Scan) -> float:
    r"""From the least to the largest value of a scan's first image, without the outermost 0.5 % at each end.

    The first image is that of filtered back-projection where there is one (ct; of a cone the middle slices are
    right, and the others near enough), smoothed by the filter `hann`, and that of gridding for mri. Otherwise it is
    the first step of steepest descent on 1/2 ||H x - y||^2 from zero, t H^T y with t = ||H^T y||^2 / ||H H^T y||^2,
    H the derivative at zero of a nonlinear model; or the start image of a model that has one. At most 180 views are
    read, evenly spaced, except for mri, none of the numbers that their neighbours make impossible, and for a volume
    of ct only the 16 slices in the middle are formed. A noise level can be a share of this range.

    Arguments: scan, with a view or more.
    """
    views = torch.linspace(0, scan.n_views - 1, min(scan.n_views, _VIEWS)).round().long()
    report("looking at the first image")
    image = _quick_image(without_suspects(scan), views)
    values = (image.abs() if scan.instrument.image.is_complex else image).flatten().double()
    outside = min(int(_OUTSIDE * len(values)) + 1, len(values))
    low, high = (float(values.kthvalue(k).values) for k in (outside, len(values) + 1 - outside))
    if not (math.isfinite(high - low) and high > low):
        raise InputError("the first image of the scan is of one value, so nothing can be a share of its range")
    return high - low


def _quick_image(scan: Scan, views: Tensor) -> Tensor:
    """An image of some views at once."""
    if isinstance(scan.instrument, CT):
        voxels = scan.instrument.voxels
        if len(voxels.shape) == 3 and voxels.shape[0] > _SLICES:  # those in the middle of a volume tell enough
            first = (voxels.shape[0] - _SLICES) // 2
            start = voxels.origin[0] + first * voxels.spacing[0]
            voxels = Voxels((_SLICES, *voxels.shape[1:]), voxels.spacing, (start, *voxels.origin[1:]))
        try:
            return _filter_and_project(scan, views, voxels, filter="hann")
        except InputError:  # a helix, or laminography
            pass
    if isinstance(scan.instrument, MRI):
        return _grid(scan)
    model = scan_model(scan)
    first_guess = model.start_image()
    if first_guess is not None:
        return torch.stack([torch.zeros_like(first_guess), first_guess])
    near, data = as_model(model.linearized()), read_views(model, _integrals(scan), views)
    if not model.linear:
        data = data - model.forward(torch.zeros(model.image_shape, device=model.device, dtype=model.dtype), views)
    direction = near.adjoint(data, views)
    curvature = _energy(near.forward(direction, views))
    if not curvature > 0:
        raise InputError("the scan's data is all zero, so there is no first image")
    return direction * (_energy(direction) / curvature)


def relative_residual(
    scan: Scan, image: Tensor, model: Model | None = None, views: Tensor | None = None, *, fit_scale: bool = False
) -> float:
    """||y - H x|| / ||y|| over the unmasked data of a scan.

    For intensities of waves it compares roots, || sqrt(y) - |H x| || / || sqrt(y) ||. On held-out views it measures how
    well the image predicts, on its own views how well it fits. It rewards images that look too smooth, so look at the
    picture, too.

    Arguments: scan; image (*image_shape); model of the scan, by default built in float32 on the CPU; views to compare
    on, by default all; fit_scale, whether to multiply all predictions by the one number that fits best, as for an image
    of another exposure.
    """
    model = scan_model(scan) if model is None else model
    check_shape("image", image, model.image_shape)
    misfit, energy, common, predicted = _energies(scan, image, model, views)
    if fit_scale and predicted > 0:
        misfit = max(0.0, energy - common**2 / predicted)
    return _relative(misfit, energy)


def volume_residual(
    scan: StoredScan,
    volume: VolumeFile,
    options: Any = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> float:
    """The `relative_residual` of a volume in a file, with only a part of it in memory.

    Holds for scans whose views fall apart into slices (`Instrument.block`); others are refused. The scan is read twice:
    once with its checksums, and then block of slices by block.

    Arguments: scan; volume, of the scan's image; options of its model; device and dtype to compute with.
    """
    size = max(1, _SLICES_BYTES // (math.prod(volume.shape[1:]) * dtype.itemsize))
    edges = [*range(0, volume.shape[0], size), volume.shape[0]]
    blocks = []
    for first, last in itertools.pairwise(edges):
        block = scan.instrument.block(scan.columns, first, last)
        if block is None:
            raise InputError(f"views of {scan.path} cannot be split into slices, so the volume must be in memory")
        blocks.append((first, last, block))
    views = torch.arange(scan.n_views)
    sums, bad = sum_rows(scan, [block.rows for *_, block in blocks], views)
    if bad:
        raise DamagedError(scan.path, bad)
    misfit = energy = 0.0
    for number, (first, last, block) in enumerate(blocks):
        part = read_block(scan, block, sums[:, number], views)
        model = scan_model(part, options, device=device, dtype=dtype)
        energies = _energies(part, torch.from_numpy(volume.read(first, last)), model)
        misfit, energy = misfit + energies[0], energy + energies[1]
    return _relative(misfit, energy)


def _energies(
    scan: Scan, image: Tensor, model: Model, views: Tensor | None = None
) -> tuple[float, float, float, float]:
    """||y - H x||^2, ||y||^2, <y, H x> and ||H x||^2 over all views and all unmasked data."""
    image = image.to(device=model.device, dtype=model.dtype)
    misfit = energy = predicted_energy = 0.0
    read = _integrals(scan)
    for block in split_views(model, views):
        report("comparing", int(block[0]), scan.n_views)
        predicted = model.forward(image, block)
        if model.intensities:
            counts = read(block).to(device=model.device, dtype=model.data_dtype.to_real())
            counts = model.restrict(model.convert(counts, block), block)
            rows, predicted = counts.sqrt(), model.restrict(magnitudes(predicted, model, counts, block), block)
        else:
            rows = read_views(model, read, block)
        misfit += _energy(rows - predicted)
        energy += _energy(rows)
        predicted_energy += _energy(predicted)
    return misfit, energy, (energy + predicted_energy - misfit) / 2, predicted_energy


def _energy(values: Tensor) -> float:
    return float(values.abs().double().square().sum())


def _relative(misfit: float, energy: float) -> float:
    if energy == 0:
        raise InputError("the scan's data is all zero, so no residual is relative to it")
    return math.sqrt(misfit / energy)


def scan_model(
    scan: Scan, options: Any = None, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Model:
    """The model of a scan's views, as its instrument builds it."""
    where = torch.device(device)
    scan.instrument.check_model(scan.columns, scan.n_views, options, device=where, dtype=dtype)
    return as_model(scan.instrument.build_model(scan.columns, scan.n_views, options, device=where, dtype=dtype))
