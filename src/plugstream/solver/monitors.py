"""What is measured now and then while an algorithm runs; this time is not the algorithm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from plugstream.algorithms.base import Algorithm, State, fidelity_at
from plugstream.algorithms.sampling import repeated_views
from plugstream.base.arrays import Array, as_tensor
from plugstream.base.errors import InputError
from plugstream.base.linalg import norm
from plugstream.base.quantities import HELD_OUT, Quantity
from plugstream.denoisers.wrap import as_denoiser
from plugstream.fidelity.least_squares import Fidelity
from plugstream.fidelity.misfit import compares_data, relative_misfits
from plugstream.images.global_phase import Phase, align_phase, check_phase
from plugstream.images.quality import psnr, ssim
from plugstream.models.views import Views, all_views
from plugstream.solver.verdict import Arrival, Outcome, Verdict, judge, remedies

Measure = Callable[[Any, Any], dict[str, Tensor]]
"""Measures a state of an algorithm: names and values, one value for each image."""

Past = Mapping[str, Sequence[ArrayLike]]
"""Earlier measurements of a run that continues: by name, the values in the order of the steps."""


class Monitor(Protocol):
    """Something to measure every `every` steps (None: as often as `solve` says); `measures` declares what."""

    @property
    def every(self) -> int | None: ...
    @property
    def measures(self) -> tuple[Quantity, ...]: ...

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        """A function that measures states of this run; its algorithm may have more views by then.

        Arguments: the run's algorithm; its first state; past, empty for a new run.
        """


class _Stateless:
    """A monitor that measures each state by itself."""

    def measure(self, algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
        raise NotImplementedError

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        return self.measure


@runtime_checkable
class Judge(Protocol):
    """A monitor that can judge from its measurements whether a run has arrived."""

    def judge(
        self, algorithm: Algorithm[Any], steps: Sequence[int], past: Past, arrivals: Sequence[Arrival] = ()
    ) -> Verdict:
        """The verdict on a run that ended.

        Arguments: past, what this monitor measured at each of these steps; arrivals, how far each image has to go.
        """


@dataclass(frozen=True)
class Distance:
    """The distance to a fixed point on all the data, ||x - T(x)||^2, absolute and relative to its start.

    T is the map that the algorithm iterates (`Algorithm.residual`), P = D_sigma(I - gamma grad d) for all but
    half-quadratic splitting, with gamma and sigma of the next iteration. `relative_distance` is divided by the first
    value, at x^0 (the paper's Table 1 is not), or if that is zero by the largest so far.

    Arguments: reference, largest: the first and largest values of an earlier run that this one continues, taken from
    its measurements if not given. views: a function from a fidelity to the views to measure on, None for all; on some
    views alone the distance does not go to zero. begins: steps at which another problem began, with other views or
    another sigma; the verdict is on the last of them.
    """

    measures: ClassVar = (
        Quantity("distance", curve="||x - T(x)||²", logarithmic=True, smaller_is_better=True, detail=True),
        Quantity(
            "relative_distance",
            "distance to a fixed point",
            short="distance",
            unit="of its start",
            form=".2e",
            curve="||x - T(x)||² relative to x⁰",
            logarithmic=True,
            smaller_is_better=True,
            stops=True,
        ),
    )

    every: int | None = None
    reference: Tensor | float | None = None
    views: Callable[[Fidelity], Views] | None = None
    largest: Tensor | float | None = None
    begins: tuple[int, ...] = ()

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        first, largest = self.reference, self.largest
        if first is None and len(distances := past.get("distance", ())):
            values = torch.from_numpy(np.stack([np.asarray(value) for value in distances]))
            first, largest = values[0], values.amax(0)

        def measure(algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
            nonlocal first, largest
            value = algorithm.residual(state, None if self.views is None else self.views(algorithm.fidelity))
            first = value if first is None else torch.as_tensor(first, dtype=value.dtype, device=value.device)
            largest = value if largest is None else torch.as_tensor(largest, dtype=value.dtype, device=value.device)
            largest = torch.maximum(largest, value)
            scale = torch.where(first > 0, first, largest)
            relative = torch.where(scale == 0, torch.ones_like(value), value / scale)
            return {"distance": value, "relative_distance": relative}

        return measure

    def judge(
        self, algorithm: Algorithm[Any], steps: Sequence[int], past: Past, arrivals: Sequence[Arrival] = ()
    ) -> Verdict:
        """Whether the run has arrived, from how the image moved and the distance went
        (`plugstream.solver.verdict.judge`)."""
        since = max([begin for begin in self.begins if begin < steps[-1]], default=-1)
        first = next(number for number, step in enumerate(steps) if step > since)  # there the one before was measured
        verdict = judge(
            steps[first:],
            np.asarray(past["distance"])[first:],
            np.asarray(past["relative_distance"])[first:],
            arrivals=arrivals,
            advice=remedies(algorithm),
        )
        if verdict.outcome is Outcome.ARRIVED and repeated_views(algorithm.sampler) == "few":
            own = "it is the image of the few views that each step takes, and that of all views is another"
            return replace(verdict, text=f"{verdict.text}; {own}")
        if first == 0 or verdict.outcome is not Outcome.NOT_MEASURED:
            return verdict
        return replace(verdict, text=f"{verdict.text} in the last stage; measure more often, by a smaller --every")


@dataclass(frozen=True, eq=False)
class SNR:
    """The signal-to-noise ratio against a known truth (..., *image_shape), in dB.

    For a complex truth it is up to a global phase, and its title says so, unless `phase` is "measured": see `snr`.
    """

    measures: ClassVar = (Quantity("snr", "SNR", unit="dB", form=".2f", smaller_is_better=False, needs_truth=True),)

    truth: Array
    every: int | None = None
    phase: Phase = "free"

    def __post_init__(self) -> None:
        _say_phase(self)

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        truth, ndim = _truth_of("SNR", self.truth, algorithm, state)
        phase = _phase_of(self)
        return lambda _, state: {"snr": snr(state.image, truth, ndim, phase=phase)}


@dataclass(frozen=True, eq=False)
class PSNR:
    """The peak signal-to-noise ratio against a known truth, in dB; `peak` is that of `psnr`, `phase` that of `SNR`."""

    measures: ClassVar = (Quantity("psnr", "PSNR", unit="dB", form=".2f", smaller_is_better=False, needs_truth=True),)

    truth: Array
    peak: float | None = None
    every: int | None = None
    phase: Phase = "free"

    def __post_init__(self) -> None:
        _say_phase(self)

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        truth, ndim = _truth_of("PSNR", self.truth, algorithm, state)
        phase = _phase_of(self)
        psnr(truth, truth, self.peak, ndim)  # raises before the first step if it must
        return lambda _, state: {"psnr": psnr(state.image, truth, self.peak, ndim, phase=phase)}


@dataclass(frozen=True, eq=False)
class SSIM:
    """The structural similarity with a known truth, of images of two axes; `peak` as for `plugstream.ssim`."""

    measures: ClassVar = (Quantity("ssim", "SSIM", form=".4f", smaller_is_better=False, needs_truth=True),)

    truth: Array
    peak: float | None = None
    every: int | None = None

    def begin(self, algorithm: Algorithm[Any], state: State, past: Past) -> Measure:
        truth, ndim = _truth_of("SSIM", self.truth, algorithm, state)
        if ndim != 2:
            raise InputError(f"SSIM compares images of two axes, and these have {ndim}")
        ssim(truth, truth, self.peak)
        return lambda _, state: {"ssim": ssim(state.image, truth, self.peak)}


@dataclass(frozen=True)
class Cost(_Stateless):
    """d(x), and if the denoiser is a known prox also f(x) = d(x) + (sigma^2 / gamma) r(x).

    A fixed point of P minimises f. Half-quadratic splitting minimises the sum with the Moreau envelope of d instead, so
    f need not fall to the end. `views` as for `Distance`.
    """

    measures: ClassVar = (
        Quantity("cost", form=".4e", logarithmic=True, smaller_is_better=True),
        Quantity("fidelity", curve="d(x)", form=".4e", logarithmic=True),  # noise that is fitted makes it smaller
    )

    every: int | None = None
    views: Callable[[Fidelity], Views] | None = None

    @torch.no_grad()
    def measure(self, algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
        views = None if self.views is None else self.views(algorithm.fidelity)
        out = {"fidelity": fidelity_at(algorithm, state).value(state.image, views)}
        prior = as_denoiser(algorithm.denoiser).value
        if prior is not None:
            gamma, sigma = algorithm.parameters(state.k + 1, state)
            out["cost"] = out["fidelity"] + sigma**2 / gamma * prior(state.image)
        return out


@dataclass(frozen=True)
class HeldOutMisfit(_Stateless):
    """d(x) on data that no step uses: how well the image predicts what it was not made from.

    Fitted noise makes d smaller on the data of the steps and larger on these, so it is smallest near the best image,
    and needs no truth. Views are held out or, in a race with a `judge`, a part of each view's data.

    Arguments: views, a function from a fidelity to those views, None if there are none yet.
    """

    name: ClassVar = HELD_OUT
    measures: ClassVar = (
        Quantity(
            name, "held-out misfit", curve="d(x) on held-out data", form=".4e", logarithmic=True, smaller_is_better=True
        ),
    )

    views: Callable[[Fidelity], Views]
    every: int | None = None

    @torch.no_grad()
    def measure(self, algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
        if algorithm.judge is not None:
            return {self.name: algorithm.misfit(state)}  # type: ignore[attr-defined]
        views = self.views(algorithm.fidelity)
        return {} if views is None else {self.name: fidelity_at(algorithm, state).value(state.image, views)}


@dataclass(frozen=True, eq=False)
class Misfit(_Stateless):
    r"""The mean over views of ||H_i x - y_i||^2 / ||y_i||^2, the part of the data that an image leaves unexplained.

    It is 1 for a zero image, at which a model with multiple scattering may be stuck, and about the noise for one that
    explains the data; fitted noise makes it smaller still. Measured for least squares and for intensities of waves.

    Arguments: views, a function from a fidelity to the views to measure on, all available ones if not given; groups of
    views by name, each also measured by itself.
    """

    views: Callable[[Fidelity], Views] | None = None
    groups: Mapping[str, Tensor] | None = None
    every: int | None = None

    @cached_property
    def measures(self) -> tuple[Quantity, ...]:
        """The misfit, and that of each group."""
        total = Quantity("misfit", curve="mean ||H x - y||² / ||y||²", form=".4f", logarithmic=True)
        return total, *(Quantity(f"misfit {g}", form=".4f", logarithmic=True, detail=True) for g in self.groups or ())

    def measure(self, algorithm: Algorithm[Any], state: Any) -> dict[str, Tensor]:
        fidelity: Any = algorithm.fidelity
        if not compares_data(fidelity):
            return {}
        chosen = None if self.views is None else self.views(fidelity)
        index = fidelity.available if chosen is None else all_views(chosen, fidelity.n_views)
        values = relative_misfits(fidelity_at(algorithm, state), state.image, index)
        means = {"misfit": values.nanmean(-1)}
        for name, group in (self.groups or {}).items():
            members = torch.isin(index, group).to(values.device)
            if bool(members.any()):
                means[f"misfit {name}"] = values[..., members].nanmean(-1)
        return {name: value for name, value in means.items() if bool(value.isfinite().all())}


def quantities_of(monitors: Sequence[Monitor]) -> list[Quantity]:
    """All quantities that monitors declare, in their order; a monitor that declares none is refused."""
    declared: list[Quantity] = []
    for monitor in monitors:
        measures = getattr(monitor, "measures", None)
        if not isinstance(measures, tuple) or not all(isinstance(quantity, Quantity) for quantity in measures):
            raise InputError(
                f"the monitor {type(monitor).__name__} does not declare what it measures; give it "
                'measures = (Quantity("name"),)'
            )
        declared += measures
    return declared


def with_stop(monitors: Sequence[Monitor]) -> list[Monitor]:
    """The monitors, with `Distance` if none of them measures a quantity that a run may stop on."""
    return [*monitors, *([] if any(quantity.stops for quantity in quantities_of(monitors)) else [Distance()])]


def _truth_of(name: str, truth: Array, algorithm: Algorithm[Any], state: State) -> tuple[Tensor, int]:
    """The truth like the images of this run, and the number of an image's axes."""
    shape = algorithm.fidelity.image_shape
    image = as_tensor("the truth", truth).to(state.image.device)
    if state.image.is_complex() or not image.is_complex():  # otherwise its imaginary part counts as error
        image = image.to(state.image)
    if image.shape[-len(shape) :] != torch.Size(shape):
        raise InputError(f"the truth is {tuple(image.shape)}, but the image {shape}; {name} needs them alike")
    return image, len(shape)


def _phase_of(monitor: SNR | PSNR) -> Phase:
    """Whether a comparison ignores a global phase; with a real truth it does not."""
    truth = monitor.truth
    is_complex = truth.is_complex() if isinstance(truth, Tensor) else np.iscomplexobj(truth)
    return monitor.phase if is_complex else "measured"


def _say_phase(monitor: SNR | PSNR) -> None:
    """Add to the titles of a monitor that it ignores a global phase, if it does."""
    check_phase(monitor.phase)
    if _phase_of(monitor) == "free":
        measures = tuple(replace(one, title=f"{one.title} up to a global phase") for one in monitor.measures)
        object.__setattr__(monitor, "measures", measures)


def snr(image: Array, truth: Array, ndim: int = 2, *, phase: Phase = "free") -> Tensor:
    """How close an image is to the truth, in dB: 20 log10(||x|| / ||x - x_hat||), of each image.

    If both are complex it is the largest over all c x_hat with |c| = 1, where c removes the phase of <x, x_hat>
    (`align_phase`): instruments that record intensities cannot tell these apart. With phase = "measured", for
    instruments that can, the phase is kept. Real images are compared as they are.

    Arguments: image and truth (..., *image_shape), whose last `ndim` axes are an image's; phase, "free" or "measured".
    Returns (...).

        >>> import torch, plugstream as ps
        >>> float(ps.snr(torch.full((4, 4), 1.1, dtype=torch.float64), torch.ones(4, 4, dtype=torch.float64)).round())
        20.0
    """
    check_phase(phase)
    image, truth = as_tensor("the image", image), as_tensor("the truth", truth)
    if image.ndim < ndim or image.shape[-ndim:] != truth.shape[-ndim:]:
        raise InputError(f"the image is {tuple(image.shape)}, but the truth {tuple(truth.shape)}; they must be alike")
    if phase == "free":
        image = align_phase(image, truth, ndim)
    return 20 * torch.log10(norm(truth, ndim) / norm(image - truth, ndim))
