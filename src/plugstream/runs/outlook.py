"""What `plugstream reconstruct` would do with a scan, before it does it, with the flag that changes each part."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import torch
from torch import Tensor

from plugstream.algorithms.sampling import All
from plugstream.base.capacity import format_size
from plugstream.base.display.frame import duration
from plugstream.base.errors import InputError
from plugstream.denoisers import Denoiser
from plugstream.denoisers.simple import Identity
from plugstream.runs.footprint import Footprint
from plugstream.runs.parts import find_lipschitz
from plugstream.runs.plan import Plan, advised_plan
from plugstream.runs.search import count_judges
from plugstream.scans.scan import Scan
from plugstream.settings import Draft, Settings

# The flags by which the reasons of settings are told apart, by what they are about, the one that is always there first.
_ABOUT = {
    "prior": ("denoiser", "rivals", "white", "damping"),
    "strength": ("sigma", "search", "fall"),
    "a step": ("batch", "sampler", "momentum"),
}
# Seconds that a round of timing is expected to take at most, and pixels that are denoised in it at most.
_SECONDS, _PIXELS = 2.0, 1 << 20


def describe_outlook(scan: Scan, instrument: str | None = None) -> dict[str, str]:
    """Prior, strength, views, memory and time of a run with nothing set, and by which rule: names and texts, in order.

    A step on as many views as take about a second, and a call of each denoiser, are carried out and timed.

    Arguments: scan; instrument, FILE.py:NAME of one's own.
    """
    typed = [] if instrument is None else [("instrument", "name", instrument)]
    origin: dict[str, Any] = {"trust": True, "used": Settings.model_fields.keys() - {"simulate"}}
    try:
        plan = advised_plan(Draft.of(None, typed, instrument=scan.instrument.name, **origin), scan)
    except InputError as error:
        return {"run": f"'plugstream reconstruct' refuses it: {error}"}
    s, n_views = plan.settings, scan.n_views
    names = [s.denoiser.name, *s.denoiser.rival_names]
    usable = n_views - count_judges(s, n_views)
    batch = min(usable, s.sampler.views or usable)
    held = f"; {n_views - usable} are held out to choose by" if usable < n_views else ""
    searched = s.algorithm.search is not None
    rows = {
        "prior": " or ".join(names),
        "strength": "found by a search on held-out data" if searched else f"sigma {s.algorithm.sigma}",
        "a step": f"{batch} of {n_views} views{held}",
        "memory": f"about {format_size(_memory(plan, scan))} (--dtype, --device)",
        "time": _time(plan, scan, names, batch),
    }
    for reason in plan.advice:
        flags = re.findall(r"--([a-z-]+)", reason)
        if flags[-1:] != ["iterations"]:
            usual = "also" if flags else "strength"
            about = next((row for row, some in _ABOUT.items() if set(some) & set(flags)), usual)
            rows[about] = "; ".join(filter(None, (rows.get(about), reason)))
    return rows | {row: f"{rows[row]} (--{flags[0]})" for row, flags in _ABOUT.items() if "(--" not in rows[row]}


def _memory(plan: Plan, scan: Scan) -> float:
    """Bytes at the peak of a run."""
    shape, parts = plan.instrument.image.shape, plan.parts
    data = scan.n_views * math.prod(plan.instrument.data_shape) * parts.dtype.itemsize
    dtype = parts.dtype.to_complex() if plan.instrument.image.is_complex else parts.dtype
    in_memory = data <= plan.settings.scan.in_memory * 1e6
    first, last = (0, shape[0]) if plan.partition is None else plan.partition.blocks[0]
    each = data / shape[0]
    size = Footprint.of(plan.denoiser, shape, dtype, each, in_memory=in_memory, device=parts.device)
    return size.bytes(last - first)


def _time(plan: Plan, scan: Scan, names: list[str], batch: int) -> str:
    steps = plan.settings.algorithm.iterations
    try:
        seconds, image, sigma = _time_data(plan, scan, batch)
        denoisers = [plan.denoiser, *(plan.with_denoiser(name).denoiser for name in names[1:])]
        times = [seconds + _time_prior(denoiser, image, sigma, plan) for denoiser in denoisers]
    except (InputError, MemoryError, RuntimeError) as error:
        return f"at most {steps} steps (--iterations); none could be timed: {error}"
    each = ", ".join(f"{value:.2g} s with {name}" for name, value in zip(names, times, strict=True))
    most = duration(steps * max(times))
    return f"a step takes {each}, timed now; at most {steps} steps take at most {most} (--iterations, --device)"


def _time_data(plan: Plan, scan: Scan, batch: int) -> tuple[float, Tensor, Any]:
    """Seconds of a step on so many views without a denoiser, by steps on fewer where that takes long; image and sigma.

    The first step is not timed: it finds L, too, and all else that is found once.
    """
    counts, seconds, expected = [0], [0.0], 0.0
    while counts[-1] < batch and expected < (4 * _SECONDS if len(counts) == 2 else _SECONDS):
        begun = time.perf_counter()
        counts.append(min(batch, 4 * max(1, counts[-1])))
        model = plan.model(scan.columns, counts[-1])
        fidelity = plan.parts.fidelity(model, scan.read(torch.arange(counts[-1])))
        if not fidelity.has_lipschitz and (bound := find_lipschitz(plan.settings, fidelity)) is not None:
            fidelity = fidelity.with_views(model, lipschitz_max=bound)
        algorithm = plan.parts.algorithm(fidelity, Identity(), All())
        state = algorithm.step(algorithm.init())
        times = []
        for _ in range(3):  # of which the quickest had the machine for itself
            before = time.perf_counter()
            state = algorithm.step(state)
            times.append(time.perf_counter() - before)
        seconds.append(min(times))
        expected = 4 * (time.perf_counter() - begun)
    each = max(0.0, seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2])
    return seconds[-1] + each * (batch - counts[-1]), state.image, algorithm.parameters(1, state)[1]


def _time_prior(denoiser: Denoiser, image: Tensor, sigma: Any, plan: Plan) -> float:
    """Seconds of a call that starts from the one before, of a large image by its middle."""
    shape = plan.instrument.image.spatial
    side = round(_PIXELS ** (1 / len(shape)))
    where = tuple(slice((n - min(n, side)) // 2, (n + min(n, side)) // 2) for n in shape)
    index: Any = (..., *where)
    part, denoiser = image[index], denoiser.window(where)
    _, warm = denoiser.denoise(part, sigma)
    before = time.perf_counter()
    denoiser.denoise(part, sigma, warm)
    return (time.perf_counter() - before) * image.numel() / part.numel()
