"""What an algorithm is: `init` and `step` on a small frozen state. No loop, no printing, no files.

torch is imported where it is used, so that a file which declares an algorithm of its own can have `PlugAndPlay` at its
top, and lists of entries do not wait.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from plugstream.algorithms.abilities import AlgorithmAbilities, as_algorithm
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.schedules import Number, OverL, Overlap, parse_step, value_at

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.algorithms.sampling import Batch, Sampler
    from plugstream.base.arrays import Array
    from plugstream.denoisers.base import Denoiser
    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views

__all__ = ["Algorithm", "PlugAndPlay", "State", "fidelity_at"]


class State(Protocol):
    """Where an algorithm is: `k` steps taken, and the image they gave. What else it needs is its own."""

    @property
    def k(self) -> int: ...
    @property
    def image(self) -> Tensor: ...


S = TypeVar("S", bound=State)


@runtime_checkable
class Algorithm(Protocol[S]):
    """An iteration, and the map T whose fixed points it seeks: T(x) = x says that it has arrived.

    `residual` belongs to the algorithm, since only it knows its T: for proximal gradients and ADMM it is
    P(x) = D(x - gamma grad d(x)), for half-quadratic splitting D(prox_{gamma d}(x)). What one of your own need not have
    has a default in `AlgorithmAbilities`.
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
        """gamma and sigma of iteration k = 1, 2, ...; `state` is the one before it, for a step that is found."""

    def fidelity_at(self, state: S) -> Fidelity: ...
    def phase(self, state: S) -> int | None: ...
    def residual(self, state: S, views: Views = None) -> Tensor:
        """||x - T(x)||^2 at the state's image, with the parameters of the iteration to come, for each image: (...).

        T is on all views that are available, or with `views` that of the problem with these alone. Zero exactly at
        fixed points; `Distance` measures it and `solve(..., distance_limit=...)` stops by it.
        """


def _all_views() -> Sampler:
    from plugstream.algorithms.sampling import All

    return All()


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
    sampler: Sampler | Any = field(default_factory=_all_views)

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

        A multiple of 1/L goes by the fidelity's L, or where none is known by what the state has found. A step that
        follows the overlap goes by that of `batch`, which is the one that the sampler draws if it is not given.
        """
        step = self.step_size
        assert not isinstance(step, str)
        if isinstance(step, Overlap):
            gamma = value_at(step.multiple, k) / self._overlap(k, state, batch)
        elif isinstance(step, OverL):
            found = None if self.fidelity.has_lipschitz else getattr(state, "lipschitz", None)
            largest = self.fidelity.lipschitz_max if found is None else float(found)
            if not 0 < largest < math.inf:
                raise InputError(
                    f"L is {largest:g}, so there is no step 1/L: the data does not depend on the image, or is "
                    "beyond what can be computed; see whether everything is masked, and the units of all lengths"
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
        drawn = self.sampler.draw(k - 1, self.fidelity.available) if batch is None else batch
        fidelity = self.fidelity_at(state)
        overlap = fidelity.overlap(drawn.views, drawn.weights)
        if overlap is None:
            raise InputError("how much views overlap is not known of this model; use a multiple of 1/L as the step")
        largest = float(overlap.max()) * fidelity.fit_curvature
        if not 0 < largest < math.inf:
            raise InputError(f"the overlap of the views of step {k} is {largest:g}, so that there is no step by it")
        return largest

    def fidelity_at(self, state: Any) -> Fidelity:
        """The fidelity with what the state has found of the model beside the image; this one's where that is nothing.

        It is what predictions, misfits and distances of a run that refines its model are of.
        """
        refined = getattr(state, "parameters", None)
        return self.fidelity.with_parameters(refined) if refined else self.fidelity

    def renew(self, state: Any) -> Any:
        """The state from which this algorithm goes on where another one, of other views say, has come to `state`.

        As of `init` from the image there: momentum, duals, what gradients remember and an L that was found begin anew,
        since they are of another problem. The count of steps goes on, which sampler and schedules go by, and so does
        the warm start of the denoiser.
        """
        own: Any = self  # `init` is of the algorithms, which have states of their own
        return replace(own.init(state.image), k=state.k, warm=state.warm)

    def residual(self, state: Any, views: Views = None) -> Tensor:
        """||x - P(x)||^2 with P = D_sigma(I - gamma grad d), gamma and sigma of iteration k + 1: (...).

        Arguments: state, of this algorithm; views, the problem's with these alone, all that are available if not given.
        Reference: Sun, Wohlberg and Kamilov, eq. (24); for ADMM, Proposition 3.
        """
        from plugstream.algorithms.theory import fixed_point_distance

        gamma, sigma = self.parameters(state.k + 1, state, self._whole(views))
        warm = getattr(state, "warm", None)
        return fixed_point_distance(state.image, self.fidelity_at(state), self.denoiser, gamma, sigma, warm, views)

    def _whole(self, views: Views) -> Batch | None:
        """The views by which a step is found that follows them: those of the problem whose fixed points are meant."""
        if not isinstance(self.step_size, Overlap):
            return None
        import torch

        from plugstream.algorithms.sampling import Batch

        return Batch(None if views is None else torch.as_tensor(views, dtype=torch.int64))

    @property
    def _searches(self) -> bool:
        """Whether the step is one that has to be found: a multiple of 1/L where no L is known."""
        return isinstance(self.step_size, OverL) and not self.fidelity.has_lipschitz

    @property
    def _ndim(self) -> int:
        """The number of axes of an image."""
        return len(self.fidelity.image_shape)

    def _start_image(self, image: Array | None) -> Tensor:
        """The first image, zero if not given, after a check of everything that can be checked before work starts."""
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
        lead_own, several = tuple(image.shape[: image.ndim - len(shape)]), self.fidelity.batch_shape
        try:
            lead = broadcast_axes(lead_own, several)
        except ValueError:
            raise InputError(
                f"the first image has leading axes {lead_own}, but there is data of {several} images"
            ) from None
        image = image.expand(*lead, *shape)  # one start for the data of several images
        return image.to(device=self.fidelity.device, dtype=self.fidelity.dtype)

    def _warn_of_long_steps(self) -> None:
        """Gradient descent on d is nonexpansive up to gamma = 2/L and not beyond, so say where that is passed."""
        if self._searches or isinstance(self.step_size, Overlap):  # which is 1/L of the batch
            return
        gamma, _ = self.parameters(1)
        batch = self.sampler.draw(0, self.fidelity.available)
        about = "="
        try:
            if isinstance(self.step_size, OverL):
                bound = self.fidelity.lipschitz_max
                if gamma * bound > 2 and batch.views is None:
                    bound = self.fidelity.lipschitz  # all views together allow a longer step than the worst of them
            elif (least := self.fidelity.lipschitz_at_least(batch.views, batch.weights)) is not None:
                # A step that is a number needs no L, so what it takes to know L is not spent on a warning.
                bound, about = least, "<="
            else:
                bound = self.fidelity.lipschitz_max
        except InputError:
            return  # a fidelity without a known L cannot be checked
        if gamma * bound > 2:
            words = "at least " if about == "<=" else ""
            warnings.warn(
                f"the step {gamma:.4g} is {words}{gamma * bound:.3g} / L, beyond 2 / L {about} {2 / bound:.4g}: the "
                "gradient step then enlarges distances and the iteration will probably diverge; use at most 1/L",
                PlugstreamWarning,
                stacklevel=4,
            )


def fidelity_at(algorithm: Algorithm[Any], state: Any) -> Fidelity:
    """The fidelity that an algorithm's state speaks of: with what it has found of the model beside the image."""
    found: Fidelity = as_algorithm(algorithm).fidelity_at(state)
    return found


def _adapt_denoiser(denoiser: Denoiser, fidelity: Fidelity) -> Denoiser:
    """The denoiser for the images of this fidelity; itself where it takes them, which is refused if it cannot be had.

    Of images with three axes the first is of channels where the fidelity says so, or a denoiser that takes them is
    given. Functions of other arrays than images, such as a row of numbers, are left alone.
    """
    from plugstream.denoisers.shapes import adapt

    shape = fidelity.image_shape
    channels = fidelity.channels or len(shape) == 4
    channels = channels or (denoiser.channels and denoiser.axes == len(shape))
    if len(shape) - channels not in (2, 3):
        return denoiser
    return adapt(denoiser, shape, complex=fidelity.dtype.is_complex, channels=channels)
