"""A cheap denoiser for the first steps of a run, before another one takes over."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper
from plugstream.denoisers.parts import RealImaginary
from plugstream.denoisers.wrap import as_denoiser


class Opening(Wrapper):
    r"""D in all steps of an algorithm but the first n, which another denoiser E takes:

        E(z, c sigma) in steps 1 ... n,    D(z, sigma) from then on.

    While an image is still far off any denoiser brings it nearer, and TV takes a small part of BM3D's time. The fixed
    points sought, and the distance to them, are those of D. Which of the two a step calls depends on its number alone
    (`Denoiser.draw`), so that a resumed run makes the same calls. Called by itself it is D, whose averagedness it has.

    c converts sigma if it means something else to E: for TV, whose sigma^2 is a weight, before BM3D, which takes a
    noise level, about 3 was good for images from 0 to 1 on diffraction tomography.

    Arguments: denoiser, D; first, E; steps, n >= 1; factor, c > 0.
    """

    keeps_averaged = True

    def __init__(
        self,
        denoiser: Denoiser | Callable[..., Tensor],
        first: Denoiser | Callable[..., Tensor],
        steps: int,
        factor: float = 1.0,
    ) -> None:
        super().__init__(as_denoiser(denoiser), first=first, steps=steps, factor=factor)
        if steps < 1:
            raise InputError(f"an opening has at least one step, not {steps}")
        if not 0 < factor < float("inf"):
            raise InputError(f"the factor of sigma in the first steps must be more than 0 and finite, not {factor}")
        self.first = _of_kind(as_denoiser(first), self.denoiser)
        self.steps, self.factor = steps, factor
        self.takes_complex = self.denoiser.takes_complex and self.first.takes_complex
        self.stacked = self.denoiser.stacked or self.first.stacked

    @property
    def opening_steps(self) -> int:
        return self.steps

    @property
    def min_shape(self) -> tuple[int, ...]:
        return tuple(map(max, self.denoiser.min_shape, self.first.min_shape))

    def orient(self, axis: int) -> Denoiser:
        return Opening(self.denoiser.orient(axis), self.first.orient(axis), self.steps, self.factor)

    def window(self, where: tuple[slice, ...]) -> Denoiser:
        return Opening(self.denoiser.window(where), self.first.window(where), self.steps, self.factor)

    def draw(self, step: int) -> Denoiser:
        if step < self.steps:
            return _Step(self.first.draw(step), self.factor)
        inner = self.denoiser.draw(step)
        return _Step(inner, cold=True) if step == self.steps else inner

    def describe(self) -> str:
        count = "the first step" if self.steps == 1 else f"the first {self.steps} steps"
        return f"{self.denoiser.describe()}, after {self.first.describe()} in {count}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.denoiser.denoise(image, sigma)  # a warm start may be that of the first one


class _Step(Wrapper):
    """E(z, c sigma); `cold` without the warm start, which is that of another denoiser."""

    keeps_averaged = True

    def __init__(self, denoiser: Denoiser, factor: float = 1.0, cold: bool = False) -> None:
        super().__init__(denoiser, factor=factor, cold=cold)
        self.factor, self.cold = factor, cold

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.denoiser.denoise(image, self.factor * sigma, None if self.cold else warm)


def _of_kind(first: Denoiser, main: Denoiser) -> Denoiser:
    """`first` for the images that `main` takes; refused if it has no form for them."""
    if isinstance(main, RealImaginary) and not first.takes_complex:
        first = RealImaginary(first, phase=main.phase)
    variant = first.variant(main.ndim, channels=main.channels)
    if variant is None:
        kind = f"{main.ndim} axes{' and channels' if main.channels else ''}"
        raise InputError(
            f"{first.describe()} has no form for images of {kind}; begin with another denoiser, such as tv"
        )
    return variant
