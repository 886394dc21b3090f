"""From settings to objects: the model, fidelity, denoiser, sampler and algorithm that a person asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream import loss_fidelity
from plugstream.algorithms import ADMM, ProximalGradient
from plugstream.choices import Choice
from plugstream.denoisers import Denoiser
from plugstream.denoisers.base import Wrapper
from plugstream.denoisers.by_name import make
from plugstream.denoisers.shapes import adapt
from plugstream.errors import InputError
from plugstream.instruments.base import Columns, Instrument, find_instrument
from plugstream.loss_fidelity import DataFidelity
from plugstream.model_fidelity import Measurements
from plugstream.models.base import Model
from plugstream.progress import report
from plugstream.registry import Options, entries
from plugstream.rows import first_rows
from plugstream.sampling import Sampler
from plugstream.schedules import LONGEST_STEP, Geometric, OverL, parse_step, value_at
from plugstream.settings import AlgorithmSettings, ComputeSettings, DenoiserSettings, SamplerSettings, Settings

__all__ = [
    "check",
    "check_precision",
    "check_settings",
    "make_algorithm",
    "make_denoiser",
    "make_fidelity",
    "make_model",
    "make_sampler",
    "prepare_device",
]


_SINGLE = (1e-17, 1e17)  # a square of these, times what is summed, is within the range of single precision


def prepare_device(compute: ComputeSettings) -> tuple[torch.device, torch.dtype]:
    """The device and dtype asked for; a GPU that is not there is refused."""
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
    for name, value in {**values, "low": None if d.low == "auto" else d.low, "high": d.high}.items():
        if value is not None and value != 0 and not _SINGLE[0] <= abs(value) <= _SINGLE[1]:
            raise InputError(
                f"{name} = {value:g} is beyond what float32 can compute with, {_SINGLE[0]:g} to {_SINGLE[1]:g}; use "
                "--dtype float64, or scale the data"
            )


def model_options(settings: Settings, instrument: Instrument) -> Options:
    """What a person says of an instrument's model; settings of another instrument are refused."""
    asked = find_instrument(settings.instrument.name).name
    if asked != instrument.name:
        raise InputError(
            f"the scan is of {instrument.name}, but {asked} was asked for; leave --instrument, or [instrument] of the "
            "settings, out"
        )
    return settings.instrument.options


def make_model(
    instrument: Instrument,
    columns: Columns,
    n_views: int,
    settings: Settings,
    previous: Model | None = None,
) -> Model:
    """The forward model of the first views on the device asked for; `previous` is that of fewer of them."""
    device, dtype = prepare_device(settings.compute)
    columns, options = first_rows(columns, n_views), model_options(settings, instrument)
    if previous is None:
        report(f"building the model of {n_views} views")
        instrument.check_model(columns, n_views, options, device=device, dtype=dtype)
    return instrument.build_model(columns, n_views, options, device=device, dtype=dtype, previous=previous)


def make_denoiser(settings: DenoiserSettings) -> Denoiser:
    """The denoiser, within its bounds, damped if asked for."""
    return make(
        settings.name,
        low=-math.inf if settings.least is None else settings.least,
        high=math.inf if settings.high is None else settings.high,
        damping=settings.damping,
        **dict(settings.options),
    )


def make_fidelity(
    settings: Settings, model: Model, data: Tensor | Measurements, *, available: Tensor | None = None
) -> DataFidelity:
    """How far an image is from the data, by the loss that was asked for; least squares where it is that."""
    return loss_fidelity.make_fidelity(model, data, settings.loss.build(), available=available)


def make_sampler(settings: SamplerSettings, fidelity: DataFidelity) -> Sampler:
    """The sampler."""
    made: Sampler = settings.build(fidelity)
    return made


def check_settings(settings: Settings) -> None:
    """Refuse what can be known to fail whatever the scan is, before there is one."""
    a, d = settings.algorithm, settings.denoiser
    _check_algorithm(a)
    prepare_device(settings.compute)
    check_precision(settings, sigma=a.sigma, sigma_end=a.sigma_end, lam=a.lam)
    make_denoiser(d)
    if _says(a, "prox") and not _says(settings.loss, "prox"):
        raise InputError(
            f"{a.name} needs the prox of the loss, which only {_those('loss', 'prox')} has; use --algorithm "
            f"{_those('algorithm', 'prox', False)}, or --loss {_those('loss', 'prox')}"
        )
    if settings.scan.follow:
        if not _says(settings.loss, "grows"):
            raise InputError(
                f"a scan is followed with the loss {_those('loss', 'grows')} only, not with {settings.loss.name}"
            )
        for choice, what in ((a, "algorithm"), (settings.sampler, "sampler")):
            if not _says(choice, "grows"):
                raise InputError(
                    f"the {what} {choice.name} cannot take views that are still to come; follow with "
                    f"{_those(what, 'grows')}"
                )
        if "gradient" in a.entry.facts.get("uses", ()) and not _says(settings.gradient, "grows"):
            raise InputError(
                f"{settings.gradient.name} remembers the gradients of all views, so it cannot follow a scan that "
                f"grows; follow with --gradient {_those('gradient', 'grows')}"
            )


def _says(choice: Choice, fact: str) -> bool:
    """Whether the chosen entry says this of itself."""
    return bool(choice.entry.facts.get(fact, False))


def _those(kind: str, fact: str, value: bool = True) -> str:
    """The entries of a kind that say this of themselves, or that do not, in words."""
    names = [e.name for e in entries(kind).values() if bool(e.facts.get(fact, False)) == value and ":" not in e.name]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def check(settings: Settings, instrument: Instrument, columns: Columns | None = None, n_views: int = 1) -> None:
    """Refuse everything that can be known to fail, before the model is built and before anything is written.

    Arguments: columns of the views, None before the first of them.
    """
    check_settings(settings)
    instrument.check_plausible()
    if columns is not None:
        instrument.check_plausible(columns)
        _check_mask(instrument, columns)
    device, dtype = prepare_device(settings.compute)
    instrument.check_model(columns, n_views, model_options(settings, instrument), device=device, dtype=dtype)
    denoiser, shape = make_denoiser(settings.denoiser), instrument.image.spatial
    inner = denoiser
    while isinstance(inner, Wrapper):
        inner = inner.denoiser
    guide = getattr(inner, "guide", None)
    if guide is not None and tuple(guide.shape) != tuple(shape):
        raise InputError(f"the guide is {guide.shape[0]} x {guide.shape[1]}, but the image {shape[0]} x {shape[1]}")
    space = instrument.image
    adapt(denoiser, space.shape, complex=space.is_complex, channels=space.channels)  # refused where it is too small
    batch = settings.sampler.views
    if not settings.scan.follow and batch is not None and batch > n_views:
        raise InputError(f"a batch of {batch} views was asked for, but the scan has {n_views}; use a smaller --batch")


def _check_mask(instrument: Instrument, columns: Columns) -> None:
    """Refuse a scan of which no data counts; a mask that lies on a disk is not read for it."""
    mask = instrument.covering(columns)
    if isinstance(mask, np.ndarray) and not mask.any():
        axes = instrument.data.shape
        what = axes[0] if len(axes) == 1 and isinstance(axes[0], str) else "datum"
        raise InputError(f"every {what} of every view is masked, so there is nothing to reconstruct from")


def _check_algorithm(settings: AlgorithmSettings) -> None:
    if settings.sigma is None and settings.lam is None:
        raise InputError(
            "how strongly to denoise is not given; use --sigma (for TV and values from 0 to 1, 0.01 to 0.03 is a "
            "good start) or --lam"
        )
    if settings.sigma is not None and settings.lam is not None:
        raise InputError("both sigma and lam are given; leave one out")
    if settings.sigma_end is not None and not settings.sigma:
        raise InputError("sigma_end needs a sigma > 0 to start from")
    for name, step in (("step_size", settings.step_size), ("step_size_end", settings.step_size_end)):
        if isinstance(step, str):
            parse_step(step)
        elif step is not None and not 0 < step <= LONGEST_STEP:
            raise InputError(f"{name} must be more than 0 and finite, not {step:g}; write a number, or 0.5/L")
    if settings.step_size_end is not None and isinstance(settings.step_size, str) != isinstance(
        settings.step_size_end, str
    ):
        raise InputError(
            f"step_size {settings.step_size} and step_size_end {settings.step_size_end} must both be numbers or "
            "multiples of 1/L"
        )


def make_algorithm(settings: Settings, fidelity: DataFidelity) -> ProximalGradient | ADMM:
    """The algorithm with its step, noise level and sampler."""
    a = settings.algorithm
    _check_algorithm(a)
    steps = a.sigma_steps or a.iterations
    sigma = Geometric(a.sigma, a.sigma_end, steps) if a.sigma is not None and a.sigma_end is not None else a.sigma
    common: dict[str, Any] = {
        "sigma": sigma,
        "lam": a.lam,
        "step_size": _falling_step(a.step_size, a.step_size_end, steps),
        "sampler": make_sampler(settings.sampler, fidelity),
    }
    denoiser = make_denoiser(settings.denoiser)
    made: ProximalGradient | ADMM = a.assemble(
        fidelity, denoiser, settings.momentum, settings.gradient, settings.sampler.seed, **common
    )
    return made


def _falling_step(start: float | str, end: float | str | None, steps: int) -> float | str | Geometric | OverL:
    if end is None:
        return start
    if isinstance(start, str) and isinstance(end, str):
        first, last = parse_step(start).multiple, parse_step(end).multiple
        return OverL(Geometric(value_at(first, 1), value_at(last, 1), steps))
    return Geometric(float(start), float(end), steps)
