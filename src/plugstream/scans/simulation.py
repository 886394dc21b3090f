"""Make the scan that a model would measure of a known image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch

from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.images.simulated import add_noise
from plugstream.instruments.base import Experiment, Instrument
from plugstream.instruments.born import instrument_parts
from plugstream.models.base import Model
from plugstream.models.views import check_shape
from plugstream.scans.scan import MemoryScan


def simulate(
    model: Model,
    image: Array,
    *,
    instrument: Instrument | None = None,
    columns: Mapping[str, Any] | None = None,
    snr: float = 40.0,
    seed: int = 0,
    y_axis: Literal["up", "down"] = "up",
) -> MemoryScan:
    """Measure a known image: y_i = H_i x + e_i, with white Gaussian noise at an exact input SNR.

    Arguments: model; image, the truth, which the scan keeps; instrument and columns that the model was built from,
    which a Born model has with it; snr in dB, infinity for no noise; seed of the noise; y_axis, which way y points in
    pictures of it: "down" if the image is a photograph, whose first row is its top.
    """
    if y_axis not in ("up", "down"):
        raise InputError(f"the y axis points up or down, not {y_axis!r}")
    device, rows = instrument_parts(model if instrument is None else instrument)
    rows = {**rows, **(columns or {})}
    image = as_tensor("image", image, dtype=model.dtype)
    check_shape("image", image, model.image_shape)
    if image.ndim != len(model.image_shape):
        raise InputError(f"simulate takes one image {model.image_shape}, not a stack of shape {tuple(image.shape)}")
    if not bool(torch.isfinite(image).all()):
        raise InputError("the image holds NaN or infinity")
    report(f"simulating {model.n_views} views")
    clean = model.forward(image.to(device=model.device, dtype=model.dtype)).cpu()
    mask = device.find_mask(rows)
    data = add_noise(clean, snr, seed=seed, mask=None if mask is None else torch.from_numpy(mask[:]))
    usual = getattr(torch, device.data.dtypes[0])
    settings = {"snr_db": snr if math.isfinite(snr) else None, "seed": seed, "y_axis": y_axis}
    data = data.to(usual) if usual.is_floating_point or usual.is_complex else data
    return MemoryScan(data, device, image.detach(), {"made_by": "plugstream simulate", **settings}, rows)


def measure(experiment: Experiment, model: Model, options: Any) -> MemoryScan:
    """The scan of a simulated experiment, with noise by the options of its instrument's `simulation`."""
    report(f"simulating {experiment.n_views} views")
    image = torch.from_numpy(experiment.truth).to(device=model.device, dtype=model.dtype)
    clean, columns = experiment.instrument.bring_to_scale(model.forward(image).cpu(), experiment.columns)
    data = experiment.instrument.add_noise(clean, columns, options)
    provenance = {"made_by": "plugstream simulate", **experiment.provenance}
    return MemoryScan(data, experiment.instrument, experiment.truth, provenance, columns)
