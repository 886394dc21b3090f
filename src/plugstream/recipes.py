"""From settings to objects: the model, fidelity, denoiser, sampler and algorithm that a person asked for."""

from __future__ import annotations

import math
from typing import Any

import torch

from plugstream.algorithms import ADMM, ProximalGradient
from plugstream.denoisers import BM3D, NLM, TNRD, TV, Box, Clipped, Damped, Denoiser, Identity, SoftThreshold
from plugstream.errors import InputError
from plugstream.fidelity import LeastSquares
from plugstream.models.born import BornModel, choose_method
from plugstream.sampling import All, Epochs, Fixed, Importance, Sampler, Shifted, Uniform, evenly_spaced
from plugstream.scans.geometry import BornGeometry, Grid
from plugstream.schedules import Geometric, parse_step
from plugstream.settings import AlgorithmSettings, ComputeSettings, DenoiserSettings, SamplerSettings, Settings

__all__ = ["check", "make_algorithm", "make_denoiser", "make_geometry", "make_model", "make_sampler", "prepare_device"]


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


def make_geometry(settings: Settings) -> BornGeometry:
    """The simulated experiment: transmitters and receivers on one circle."""
    s = settings.simulate
    if s.radius <= s.width / math.sqrt(2):
        raise InputError(
            f"a circle of radius {s.radius} m cuts the image, whose corners are at {s.width / math.sqrt(2):.4g} m; "
            "use a larger radius or a smaller width"
        )
    grid = Grid((s.size, s.size), s.width / s.size)
    return BornGeometry.rings(
        grid,
        s.wavelength,
        views=s.views,
        receivers=s.receivers,
        radius=s.radius,
        arc=s.arc,
        background=s.background,
    )


def make_model(geometry: BornGeometry, compute: ComputeSettings) -> BornModel:
    """The forward model on the device asked for."""
    device, dtype = prepare_device(compute)
    return BornModel(geometry, method=compute.method, eps=compute.eps, device=device, dtype=dtype)


def make_denoiser(settings: DenoiserSettings) -> Denoiser:
    """The denoiser, within its bounds, damped if asked for."""
    low = -math.inf if settings.low is None else settings.low
    high = math.inf if settings.high is None else settings.high
    if not low < high:
        raise InputError(f"denoiser.low = {low} must be below denoiser.high = {high}")
    bounded = math.isfinite(low) or math.isfinite(high)
    denoiser: Denoiser
    if settings.name in ("tv", "tv-anisotropic"):  # TV minimises within the bounds instead of clipping before
        denoiser = TV(
            isotropic=settings.name == "tv",
            low=low,
            high=high,
            tol=settings.tol,
            max_iterations=settings.max_iterations,
        )
    elif settings.name == "box":
        denoiser = Box(low, high)
    elif settings.name == "tnrd":
        white = settings.white
        denoiser = TNRD(white=white) if settings.weights is None else TNRD.load(settings.weights, white=white)
        denoiser = Clipped(denoiser, low, high) if bounded else denoiser
    else:
        simple = {"bm3d": BM3D(settings.profile), "nlm": NLM(), "soft": SoftThreshold(), "identity": Identity()}
        denoiser = simple[settings.name]
        denoiser = Clipped(denoiser, low, high) if bounded else denoiser
    return denoiser if settings.damping is None else Damped(denoiser, settings.damping)


def make_sampler(settings: SamplerSettings, fidelity: LeastSquares) -> Sampler:
    """The sampler."""
    batch, views = settings.batch, fidelity.n_views
    if settings.name == "all":
        return All()
    if settings.name == "fixed":
        return Fixed(tuple(evenly_spaced(batch, views).tolist()))
    if settings.name == "shifted":
        return Shifted(batch)
    if settings.name == "importance":
        return Importance(batch, fidelity.lipschitz_views, settings.seed)
    return Epochs(batch, settings.seed) if settings.name == "epochs" else Uniform(batch, settings.seed)


def check(settings: Settings, geometry: BornGeometry) -> None:
    """Refuse everything that can be known to fail, before the model is built and before anything is written."""
    _check_algorithm(settings.algorithm)
    device, dtype = prepare_device(settings.compute)
    choose_method(geometry, method=settings.compute.method, eps=settings.compute.eps, device=device, dtype=dtype)
    denoiser, shape = make_denoiser(settings.denoiser), geometry.grid.shape
    if min(shape) < denoiser.min_size:
        name, least = settings.denoiser.name, denoiser.min_size
        raise InputError(f"the image is {shape[0]} x {shape[1]}, but {name} needs at least {least} pixels a side")
    batch, views = settings.sampler.batch, geometry.n_views
    if settings.scan.follow:
        if settings.sampler.name in ("fixed", "importance"):
            raise InputError(
                f"the sampler {settings.sampler.name} cannot take views that are still to come; follow with uniform, "
                "epochs, shifted or all"
            )
        return
    if settings.sampler.name != "all" and batch > views:
        raise InputError(f"a batch of {batch} views was asked for, but the scan has {views}; use a smaller --batch")


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
    if isinstance(settings.step, str):
        parse_step(settings.step)


def make_algorithm(settings: Settings, fidelity: LeastSquares) -> ProximalGradient | ADMM:
    """The algorithm with its step, noise level and sampler."""
    a = settings.algorithm
    _check_algorithm(a)
    sigma = (
        Geometric(a.sigma, a.sigma_end, a.iterations) if a.sigma is not None and a.sigma_end is not None else a.sigma
    )
    common: dict[str, Any] = {
        "sigma": sigma,
        "lam": a.lam,
        "step_size": a.step,
        "sampler": make_sampler(settings.sampler, fidelity),
    }
    denoiser = make_denoiser(settings.denoiser)
    if a.name == "admm":
        return ADMM(fidelity, denoiser, **common)
    return ProximalGradient(fidelity, denoiser, momentum=a.momentum, **common)
