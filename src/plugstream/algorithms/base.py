"""What an algorithm is: `init` and `step` on a small frozen state. No loop, no printing, no files.

torch is imported where it is used, so that a file which declares an algorithm can import `PlugAndPlay` at its top
without making lists of entries wait.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from plugstream.algorithms.abilities import AlgorithmAbilities, all_views, as_algorithm
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.schedules import Number, OverL, Overlap, parse_step, value_at

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.algorithms.sampling import Batch, Sampler
    from plugstream.base.arrays import Array
    from plugstream.denoisers.base import Denoiser
    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views


class State(Protocol):
    """Where an algorithm is: `k` steps taken, and the image they gave. The rest is the algorithm's own."""

    @property
    def k(self) -> int: ...
    @property
    def image(self) -> Tensor: ...


S = TypeVar("S", bound=State)


@runtime_checkable
class Algorithm(Protocol[S]):
    """An iteration, and the map T whose fixed points it seeks: T(x) = x says that it has arrived.

    `residual` belongs to the algorithm, since only it knows its T: for proximal gradients and ADMM it is
    P(x) = D(x - gamma grad d(x)), for half-quadratic splitting D(prox_{gamma d}(x)). `AlgorithmAbilities` has defaults
    for the optional parts.
    """

    @property
    def fidelity(self) -> Fidelity: ...
    @property
    def denoiser(self) -> Denoiser: ...
    @property
    def judge(self) -> Any: ...
    @property
    def sampler(self) -> Any: ...

    def init(self, image: Tensor | None = None) -> S: ...
    def step(self, state: S) -> S: ...
    def parameters(self, k: int, state: S | None = None) -> tuple[float, float]:
        """gamma and sigma of iteration k = 1, 2, ...; `state` is the one before it, for steps found on the way."""

    def fidelity_at(self, state: S) -> Fidelity: ...
    def phase(self, state: S) -> int | None: ...
    def residual(self, state: S, views: Views = None) -> Tensor:
        """||x - T(x)||^2 at the state's image, with the parameters of the next iteration, for each image: (...).

        T uses all available views, or `views` alone. Zero exactly at fixed points; `Distance` measures it and
        `solve(..., distance_limit=...)` stops by it.
        """


@dataclass(frozen=True, eq=False)
class PlugAndPlay(AlgorithmAbilities):
    """What the paper's algorithms share: a fidelity, a denoiser, a step and a noise level.

    Arguments:
        fidelity: d, the mean over views.
        denoiser: D; any function or network will do. For volumes, channels and complex images it gets the adapters that
            it needs (`plugstream.adapt`): `algorithm.denoiser.describe()` says which.
        sigma: its noise level, a number or schedule; independent of the step.
        lam: instead of sigma, the weight lambda of the prior, which means sigma = sqrt(step * lambda), so that a
            prox of the denoiser minimises d + lambda r whatever the step.
        step_size: gamma, as a number, a schedule, or a multiple of 1/L ("1/L", "1/4L", OverL(...)); L is
            max_i L_i, which bounds every d_i. Where no L is known, `ProximalGradient` finds one. "overlap", or
            Overlap(...), follows how much the views of each step overlap, where the model can tell.
        sampler: which views each step uses; a number B is Uniform(B), as --batch B is.
    """

    fidelity: Fidelity
    denoiser: Denoiser | Any
    sigma: Number | None = None
    lam: Number | None = None
    step_size: Number | OverL | Overlap | str = "1/L"
    sampler: Sampler | Any = field(default_factory=all_views)

    def __post_init__(self) -> None:
        from plugstream.algorithms.sampling import as_sampler
        from plugstream.denoisers.wrap import as_denoiser
        from plugstream.fidelity.least_squares import as_fidelity

        object.__setattr__(self, "fidelity", as_fidelity(self.fidelity))
        object.__setattr__(self, "denoiser", _adapt_denoiser(as_denoiser(self.denoiser), self.fidelity))
        object.__setattr__(self, "sampler", as_sampler(self.sampler))
        if (self.sigma is None) == (self.lam is None):
            raise InputError("give either sigma, the denoiser's noise level, or lam, the weight of the prior")
        if isinstance(self.step_size, str):
            object.__setattr__(self, "step_size", parse_step(self.step_size))

    def phase(self, state: Any) -> int | None:
        return int(state.k < self.denoiser.opening_steps)

    def parameters(self, k: int, state: Any = None, batch: Batch | None = None) -> tuple[float, float]:
        """gamma and sigma of iteration k = 1, 2, ..., checked to be usable.

        A multiple of 1/L uses the fidelity's L, or the state's if that is not known. A step that follows the overlap
        uses that of `batch`, the sampler's if not given.
        """
        step = self.step_size
        assert not isinstance(step, str)
        if isinstance(step, Overlap):
            gamma = value_at(step.multiple, k) / self._overlap(k, state, batch)
        elif isinstance(step, OverL):
            estimate = None if self.fidelity.has_lipschitz else getattr(state, "lipschitz", None)
            largest = self.fidelity.lipschitz_max if estimate is None else float(estimate)
            if not 0 < largest < math.inf:
                raise InputError(
                    f"L is {largest:g}, so there is no step 1/L: the data does not depend on the image, or is "
                    "beyond what can be computed; check whether everything is masked, and the units of all lengths"
                )
            gamma = value_at(step.multiple, k) / largest
        else:
            gamma = value_at(step, k)
        if not (math.isfinite(gamma) and gamma > 0):
            raise InputError(f"the step must be a number > 0, not {gamma} (iteration {k})")
        if self.sigma is not None:
            sigma = value_at(self.sigma, k)
        else:
            assert self.lam is not None
            lam = value_at(self.lam, k)
            sigma = math.sqrt(gamma * lam) if lam >= 0 else math.nan
        if not (math.isfinite(sigma) and sigma >= 0):
            raise InputError(f"sigma must be a number >= 0, not {sigma} (iteration {k}); lambda must be >= 0 too")
        return gamma, sigma

    def _overlap(self, k: int, state: Any, batch: Batch | None) -> float:
        """The largest overlap of the views of iteration k, in the mean over them, times the loss's curvature."""
        batch = self.sampler.draw(k - 1, self.fidelity.available) if batch is None else batch
        fidelity = self.fidelity_at(state)
        overlap = fidelity.overlap(batch.views, batch.weights)
        if overlap is None:
            raise InputError("this model does not say how much views overlap; use a multiple of 1/L as the step")
        largest = float(overlap.max()) * fidelity.fit_curvature
        if not 0 < largest < math.inf:
            raise InputError(f"the overlap of the views of step {k} is {largest:g}, so there is no step by it")
        return largest

    def fidelity_at(self, state: Any) -> Fidelity:
        """The fidelity with the parameters of the model that the state holds."""
        refined = getattr(state, "parameters", None)
        return self.fidelity.with_parameters(refined) if refined else self.fidelity

    def renew(self, state: Any) -> Any:
        """The state from which this algorithm continues after another one, of other views say, has reached `state`.

        As `init` from the image there: momentum, duals, remembered gradients and an estimated L start over, since they
        belong to another problem. The count of steps and the denoiser's warm start go on.
        """
        algorithm: Any = self
        return replace(algorithm.init(state.image), k=state.k, warm=state.warm)

    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - P(x)||^2 with P = D_sigma(I - gamma grad d), gamma and sigma of iteration k + 1: (...).

        Arguments: state, of this algorithm; views, all available ones if not given.
        Reference: Sun, Wohlberg and Kamilov, eq. (24); for ADMM, Proposition 3.
        """
        from plugstream.algorithms.theory import fixed_point_distance

        gamma, sigma = self.parameters(state.k + 1, state, self._problem_batch(views))
        warm = getattr(state, "warm", None)
        return fixed_point_distance(state.image, self.fidelity_at(state), self.denoiser, gamma, sigma, warm, views)

    def _problem_batch(self, views: Views) -> Batch | None:
        """The views of the problem whose fixed points are sought, for a step that follows their overlap."""
        if not isinstance(self.step_size, Overlap):
            return None
        import torch

        from plugstream.algorithms.sampling import Batch

        return Batch(None if views is None else torch.as_tensor(views, dtype=torch.int64))

    @property
    def _searches(self) -> bool:
        """Whether the step has to be found: a multiple of an unknown 1/L."""
        return isinstance(self.step_size, OverL) and not self.fidelity.has_lipschitz

    @property
    def _ndim(self) -> int:
        """The number of axes of an image."""
        return len(self.fidelity.image_shape)

    def _start_image(self, image: Array | None) -> Tensor:
        """The first image, zero if not given, after all checks that are possible before the first step."""
        import torch

        from plugstream.base.arrays import as_tensor
        from plugstream.base.linalg import broadcast_axes
        from plugstream.models.views import check_shape

        shape = self.fidelity.image_shape
        if image is None:
            image = self.fidelity.start_image()
        if image is None:
            image = torch.zeros(shape, device=self.fidelity.device, dtype=self.fidelity.dtype)
        image = as_tensor("the first image", image, dtype=self.fidelity.dtype)
        check_shape("the first image", image, shape)
        if not bool(torch.isfinite(image).all()):
            raise InputError("the first image holds NaN or infinity")
        if not self._searches:
            self.parameters(1)
        self.sampler.draw(0, self.fidelity.available)
        axes, batch = tuple(image.shape[: image.ndim - len(shape)]), self.fidelity.batch_shape
        try:
            lead = broadcast_axes(axes, batch)
        except ValueError:
            raise InputError(f"the first image has leading axes {axes}, but there is data of {batch} images") from None
        image = image.expand(*lead, *shape)  # one start for the data of several images
        return image.to(device=self.fidelity.device, dtype=self.fidelity.dtype)

    def _warn_of_long_steps(self) -> None:
        """Warn of steps beyond 2/L, where gradient descent on d is no longer nonexpansive."""
        if self._searches or isinstance(self.step_size, Overlap):  # 1/L of the batch
            return
        gamma, _ = self.parameters(1)
        batch = self.sampler.draw(0, self.fidelity.available)
        about = "="
        try:
            if isinstance(self.step_size, OverL):
                bound = self.fidelity.lipschitz_max
                if gamma * bound > 2 and batch.views is None:
                    bound = self.fidelity.lipschitz  # all views together allow a longer step
            elif (least := self.fidelity.lipschitz_at_least(batch.views, batch.weights)) is not None:
                # A step that is a number needs no L; do not compute it for a warning.
                bound, about = least, "<="
            else:
                bound = self.fidelity.lipschitz_max
        except InputError:
            return  # no L is known
        if gamma * bound > 2:
            words = "at least " if about == "<=" else ""
            warnings.warn(
                f"the step {gamma:.4g} is {words}{gamma * bound:.3g} / L, beyond 2 / L {about} {2 / bound:.4g}: the "
                "gradient step then enlarges distances and the iteration will probably diverge; use at most 1/L",
                PlugstreamWarning,
                stacklevel=4,
            )


def fidelity_at(algorithm: Algorithm[Any], state: Any) -> Fidelity:
    """The fidelity with the parameters of the model that an algorithm's state holds."""
    fidelity: Fidelity = as_algorithm(algorithm).fidelity_at(state)
    return fidelity


def _adapt_denoiser(denoiser: Denoiser, fidelity: Fidelity) -> Denoiser:
    """The denoiser with adapters for the images of this fidelity; refused if there are none.

    The first of three axes holds channels if the fidelity says so or the denoiser takes them. Functions of other arrays
    than images, such as a row of numbers, are left alone.
    """
    from plugstream.denoisers.shapes import adapt

    shape = fidelity.image_shape
    channels = fidelity.channels or len(shape) == 4
    channels = channels or (denoiser.channels and denoiser.axes == len(shape))
    if len(shape) - channels not in (2, 3):
        return denoiser
    return adapt(denoiser, shape, complex=fidelity.dtype.is_complex, channels=channels)
