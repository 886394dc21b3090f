"""Where a command computes, and in which precision."""

from __future__ import annotations

import torch

from plugstream.base.errors import InputError
from plugstream.settings import ComputeSettings, Settings

__all__ = ["check_precision", "prepare_device"]

_SINGLE = (1e-17, 1e17)  # a square of these, times what is summed, is within the range of single precision


def prepare_device(compute: ComputeSettings) -> tuple[torch.device, torch.dtype]:
    """The device and dtype asked for; a GPU that is not there is refused. The number of threads is set, too."""
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    try:
        device = torch.device(compute.device)
    except RuntimeError:
        raise InputError(f"there is no device {compute.device!r}; choose cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"the device {compute.device!r} is not supported; choose cpu, cuda or cuda:N")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InputError("torch sees no GPU on this machine; use --device cpu, or install torch with CUDA")
        if device.index is not None and device.index >= count:
            raise InputError(f"there is no GPU {device.index}: torch sees {count}, numbered from 0")
    return device, {"float32": torch.float32, "float64": torch.float64}[compute.dtype]


def check_precision(settings: Settings, **values: float | None) -> None:
    """Refuse numbers, and bounds of the image, whose squares leave the range of single precision, if that is used."""
    if settings.compute.dtype == "float64":
        return
    d = settings.denoiser
    for name, value in {**values, "low": None if d.low == "auto" else d.low, "high": d.upper}.items():
        if value is not None and value != 0 and not _SINGLE[0] <= abs(value) <= _SINGLE[1]:
            raise InputError(
                f"{name} = {value:g} is beyond what float32 can compute with, {_SINGLE[0]:g} to {_SINGLE[1]:g}; use "
                "--dtype float64, or scale the data"
            )
