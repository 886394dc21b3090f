"""Denoisers of real images as denoisers of complex ones, by two or three real parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from plugstream.base.arrays import accept_arrays
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Around, Denoiser, Sigma, repeat_sigma, require_axes
from plugstream.denoisers.wrap import as_denoiser

_LEAST_MEAN = 0.1  # of an image, in units of its root mean square, from which on its phase says where real is


class _Parts(Around):
    """What both adapters share: the kind of images is the denoiser's, except that they may be complex."""

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], phase: str) -> None:
        super().__init__(as_denoiser(denoiser), phase=phase)
        self.takes_complex, self.lift = True, 0.0
        # A mean over the image reaches everywhere; in practice the denoiser's halo is enough.
        self.reach, self.halo = None, self.denoiser.reach if self.denoiser.halo is None else self.denoiser.halo

    def _each(
        self, parts: Tensor, sigma: Sigma, warm: Tensor | None, positive: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """The denoiser on a stack of parts, (..., K, *image), as independent images.

        All but the first `positive` of them have both signs, and are lifted if the denoiser asks for it: what is
        removed from a part p is then r(p + c(p)) with c = k std(p) - mean(p), and of a gradient step of g the gradient
        of g(p + c(p)), r + (sum r) grad c with grad c = (k (p - mean) / std - 1) / N.
        """
        count = parts.shape[-self.axes - 1]
        if not self.denoiser.lift:
            return self.denoiser.denoise(parts, repeat_sigma(sigma, count), warm)
        shift, slope = self._lift(parts, positive)
        out, warm = self.denoiser.denoise(parts + shift, repeat_sigma(sigma, count), warm)
        clean = out - shift
        if self.denoiser.potential is not None:
            clean = clean - slope * (parts - clean).sum(self._last_axes(), keepdim=True)
        return clean, warm

    def _lift(self, parts: Tensor, positive: int = 0) -> tuple[Tensor, Tensor]:
        """c and its gradient, of a stack of parts (..., K, *image): (..., K, 1, ...) and (..., K, *image)."""
        last, k = self._last_axes(), self.denoiser.lift
        mean = parts.mean(last, keepdim=True)
        away = parts - mean
        spread = (away.square().mean(last, keepdim=True) + 1e-30).sqrt()  # whose slope is finite at a constant
        slope = (k * away / spread - 1) / math.prod(parts.shape[-self.axes :])
        signed = (torch.arange(parts.shape[-self.axes - 1]) >= positive).to(parts).reshape(-1, *(1,) * self.axes)
        return signed * (k * spread - mean), signed * slope

    def _last_axes(self) -> tuple[int, ...]:
        return tuple(range(-self.axes, 0))


class RealImaginary(_Parts):
    r"""A denoiser of real images on the real and the imaginary part: D(a) + i D(b) for z = a + i b.

    sigma is that of each part: noise with E|n|^2 = s^2 has sigma = s / sqrt(2) in both. With phase = "keep",
    averagedness is kept, as for any map that acts on parts on their own (see `Slices`), and the prox of r becomes the
    prox of r(a) + r(b).

    The parts depend on the global phase, which is arbitrary in most instruments. phase = "mean" takes the phase of the
    image's mean out first and puts it back, exp(i t) D(exp(-i t) z) with t = arg(sum z), so that an image of nearly
    constant phase is mostly in the real part, and D(exp(i c) z) = exp(i c) D(z). But t depends on z, and jumps where
    the mean is zero, so nothing is known of averagedness.

    A gradient step of g remains one, of g(a) + g(b). With phase = "mean" t counts as a function of z in that gradient:

        exp(i t) (D(u) - i c),    u = exp(-i t) z,    c = Im <u, D(u)> / sum u,

    of images whose mean is at least a tenth of their root mean square, with a smaller c for others. Without c the phase
    would turn a little in every step of a loop, for ever, since nothing else in it says what the phase is.

    Arguments: denoiser, for real images; phase, "keep" or "mean".
    Real images are denoised as they are. The warm start is the denoiser's for (..., 2, *image).
    """

    def __init__(self, denoiser: Denoiser | Callable[..., Tensor], *, phase: Literal["keep", "mean"] = "keep") -> None:
        super().__init__(denoiser, phase)
        if phase not in ("keep", "mean"):
            raise InputError(f"phase must be keep or mean, not {phase!r}")
        self.phase = phase
        if phase == "keep":
            self.averaged, self.proximal = self.denoiser.averaged, self.denoiser.proximal
            self.reach = None if self.denoiser.lift else self.denoiser.reach
            if self.denoiser.value is not None:
                self.value = self._value
        if self.denoiser.potential is not None:
            self.potential = self._potential

    def describe(self) -> str:
        turned = "" if self.phase == "keep" else " after the mean phase was taken out"
        return f"{self.denoiser.describe()}, on real and imaginary part{turned}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        if not image.is_complex():
            return self.denoiser.denoise(image, sigma, warm)
        turn = None
        if self.phase == "mean":
            turn = _phasor(image.sum(self._last_axes(), keepdim=True))
            image = image * turn.conj()
        out, warm = self._each(self._split(image), sigma, warm)
        real, imaginary = out.unbind(-self.axes - 1)
        clean = torch.complex(real, imaginary)
        if turn is not None and self.potential is not None:
            clean = clean - 1j * self._spin(image, clean)
        return clean if turn is None else clean * turn, warm

    def _spin(self, image: Tensor, clean: Tensor) -> Tensor:
        """c of an image whose mean is real and not negative."""
        last, pixels = self._last_axes(), math.prod(image.shape[-self.axes :])
        total = image.real.sum(last, keepdim=True)
        energy = image.abs().square().sum(last, keepdim=True)
        turned = (image.conj() * clean).imag.sum(last, keepdim=True)
        return turned * total / torch.maximum(total.square(), _LEAST_MEAN**2 * pixels * energy).clamp(min=1e-30)

    def _split(self, image: Tensor) -> Tensor:
        """(..., *image) to (..., 2, *image)."""
        return torch.stack([image.real, image.imag], -self.axes - 1)

    def _potential(self, image: Tensor, sigma: Sigma) -> Tensor:
        """g(a) + g(b), (..., *image) to (...)."""
        inner = self.denoiser.potential
        assert inner is not None
        if not image.is_complex():
            return inner(image, sigma)
        if self.phase == "mean":
            image = image * _phasor(image.sum(self._last_axes(), keepdim=True)).conj()
        parts = self._split(image)
        lifted = parts + self._lift(parts)[0] if self.denoiser.lift else parts
        return inner(lifted, repeat_sigma(sigma, 2)).sum(-1)

    @accept_arrays
    def _value(self, image: Tensor) -> Tensor:
        """r(a) + r(b): (..., *image) to (...)."""
        inner = self.denoiser.value
        assert inner is not None
        return inner(self._split(image)).sum(-1) if image.is_complex() else inner(image)


class MagnitudePhase(_Parts):
    r"""A denoiser of real images on the magnitude and on the phase: D(|z|) exp(i p).

    The phase p comes from the phasors u = z / |z|, relative to the phase of the image's mean: with phase = "phasor"
    their real and imaginary parts are denoised and p is the angle of the result; with phase = "angle" the angle itself
    is denoised, in (-pi, pi], with false edges where it wraps. Both are scaled by the root mean square c of |z|,
    D(c u, sigma) / c, since noise turns the phase by its size over that of z. A magnitude below zero becomes zero.

    For images whose magnitude and phase mean different things (absorption and delay). Nothing is known of averagedness,
    even if D is a prox: where |z| is small, the phase changes fast with z. `RealImaginary` keeps what is known.

    Arguments: denoiser, for real images; phase, "phasor" or "angle".
    Real images are denoised as they are. The warm start is the denoiser's for (..., 3, *image), or 2 with "angle".
    """

    def __init__(
        self, denoiser: Denoiser | Callable[..., Tensor], *, phase: Literal["phasor", "angle"] = "phasor"
    ) -> None:
        super().__init__(denoiser, phase)
        if phase not in ("phasor", "angle"):
            raise InputError(f"phase must be phasor or angle, not {phase!r}")
        self.phase = phase

    def describe(self) -> str:
        return f"{self.denoiser.describe()}, on magnitude and {self.phase}"

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        require_axes(image, self)
        if not image.is_complex():
            return self.denoiser.denoise(image, sigma, warm)
        last = self._last_axes()
        turn = _phasor(image.sum(last, keepdim=True))
        magnitude = image.abs()
        scale = magnitude.square().mean(last, keepdim=True).sqrt()
        turned = image * turn.conj()
        if self.phase == "phasor":
            unit = scale * torch.sgn(turned)
            parts = [magnitude, unit.real, unit.imag]
        else:
            parts = [magnitude, scale * turned.angle()]
        out, warm = self._each(torch.stack(parts, -self.axes - 1), sigma, warm, positive=1)
        clean, *rest = out.unbind(-self.axes - 1)
        if self.phase == "phasor":
            phase = torch.atan2(rest[1], rest[0])
        else:
            phase = torch.where(scale > 0, rest[0] / scale, 0.0)
        return torch.polar(clean.clamp_min(0), phase) * turn, warm


def _phasor(number: Tensor) -> Tensor:
    """z / |z|, and 1 where z is zero."""
    return torch.where(number == 0, torch.ones_like(number), torch.sgn(number))
