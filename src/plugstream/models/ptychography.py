"""Ptychography: far fields of an object that a beam goes over, position by position, each overlapping others."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models.base import ModelBase
from plugstream.models.views import Derivative, Views, all_views, check_shape

_BYTES = 64 << 20  # of predictions that are worked on at once, and fit a cache
_WHOLE = 1e-4  # of a pixel: smaller shifts would be lost in single precision
_SHARE = 0.1  # power of the first added mode, as a part of the main one's; each further one has half of it
# Where the object lights the probe less than this part of the most, the probe learns as slowly as there.
_LEAST = 0.1


class PtychographyModel(ModelBase):
    r"""The waves at a detector far behind an object that a known beam lights at one position after another.

        (A_i x)_m = F( P_m(. - f_i) x[r_i : r_i + n] ),   F the unitary FFT in two dimensions,

    with the probe's modes P_m and the position r_i + f_i of the probe's first pixel, r_i whole and |f_i| <= 1/2, by
    which the probe is shifted in Fourier space. The model is linear in the object x. Modes do not interfere, so the
    counts are I_i = sum_m |(A_i x)_m|^2 plus noise, and losses sum over the axis `incoherent` of predictions.

    sum_i A_i^H A_i is diagonal: it multiplies x with the sum of the beams' intensities at all positions (`overlap`).
    L_i is the largest intensity of the beam.

    Arguments:
        positions (views, 2): row and column of the probe's first pixel in the image, in pixels, not necessarily whole.
        probe (modes, n, n) or (n, n): the beam at the object; its modes are mutually incoherent.
        image_shape: rows and columns of the object.
        mask (views, n, n) or (n, n): False where a pixel of the detector does not count.
        subpixel: False rounds positions to whole pixels.
        device, dtype: where to compute, and the real precision.
    Zero frequency is at the corner of a frame, as torch.fft has it.
    Reference: Rodenburg and Faulkner, Appl. Phys. Lett. 85, 2004; for modes, Thibault and Menzel, Nature 494, 2013.
    """

    intensities = True
    refinable: tuple[str, ...] = ("probe",)

    def __init__(
        self,
        positions: NDArray[np.float64] | Rows,
        probe: NDArray[Any] | Tensor,
        image_shape: Sequence[int],
        *,
        mask: NDArray[np.bool_] | Rows | None = None,
        subpixel: bool = True,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype.to_complex()
        self.data_dtype = self.dtype
        beam = torch.as_tensor(probe).to(device=self.device, dtype=self.dtype)
        self.probe = beam[None] if beam.ndim == 2 else beam
        if self.probe.ndim != 3:
            raise InputError(f"a probe is (n, n), or (modes, n, n), not {tuple(self.probe.shape)}")
        self.image_shape: tuple[int, ...] = tuple(image_shape)
        self._shape_by_probe()
        places = np.asarray(positions[:], dtype=np.float64)
        if places.ndim != 2 or places.shape[1] != 2:
            raise InputError(f"positions are (views, 2), row and column, not {places.shape}")
        self.n_views = len(places)
        corners = np.rint(places)
        size, room = np.array(self.data_shape[1:]), np.array(self.image_shape)
        if ((corners < 0) | (corners + size > room)).any():
            raise InputError(
                f"positions go from {corners.min(0).tolist()} to {corners.max(0).tolist()}, where a probe of "
                f"{self.data_shape[1:]} leaves the image of {self.image_shape}"
            )
        rest = places - corners
        self.corners = corners.astype(np.int64)
        self.fractions = torch.from_numpy(rest) if subpixel and (np.abs(rest) > _WHOLE).any() else None
        self.mask = mask
        # The last shifted probes, shared with models of other parameters.
        self._shifted: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of a frame: modes are counted together."""
        return self.data_shape[1:]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What can be refined beside the image."""
        return {"probe": self.probe}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same model with another probe of as many pixels, and of any number of modes."""
        other = copy.copy(self)
        other.probe = parameters["probe"].to(device=self.device, dtype=self.dtype)
        check_shape("the probe", other.probe, self.data_shape[1:])
        other._shape_by_probe()
        return other

    def _shape_by_probe(self) -> None:
        """What depends on how many modes there are."""
        self.data_shape = tuple(self.probe.shape)
        self.incoherent = -3 if len(self.probe) > 1 else None
        self._at_once = max(1, _BYTES // (math.prod(self.data_shape) * self.data_dtype.itemsize))
        self.views_at_once = self._at_once

    def report_parameters(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The probe with modes that are orthogonal, the strongest first."""
        return {**parameters, "probe": mode_powers(parameters["probe"])[0]}

    def start_image(self) -> Tensor:
        """Free space, since all derivatives of the data are zero at zero."""
        return torch.ones(self.image_shape, device=self.device, dtype=self.dtype)

    def describe(self) -> str:
        """What a run's log says of it."""
        modes, how = self.data_shape[0], "between pixels" if self.fractions is not None else "on whole pixels"
        return f"ptychography: a probe of {modes} mode{'s' * (modes > 1)}, positions {how}"

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        """Frames (..., B, n, n) with an axis in the place of the modes, (..., B, 1, n, n), not copied."""
        return data.unsqueeze(-3)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, modes, n, n)."""
        return self.linearize(image, views)[0]

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, modes, n, n) to (..., *image_shape), summed over views and modes."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        return self._pull(data, index, self._probes(index))

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Predictions, and the adjoint, which have the shifted probes in common."""
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views)
        probes = self._probes(index)
        waves = torch.fft.fft2(self._patches(image, index).unsqueeze(-3) * probes, norm="ortho")
        return self.restrict(waves, index), lambda data: self._pull(data, index, probes)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with masked pixels set to zero, whatever they hold."""
        if self.mask is None:
            return data
        mask = self.mask if len(self.mask.shape) == 2 else self.mask[all_views(views, self.n_views).numpy()][:, None]
        good = torch.from_numpy(np.ascontiguousarray(mask)).to(data.device)
        return torch.where(good, data, torch.zeros((), dtype=data.dtype, device=data.device))

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """The diagonal of sum_i w_i A_i^H A_i, in space: the intensity that reaches each pixel, (*image_shape).

        Masked pixels of the detector make sum_i A_i^H A_i smaller, and not diagonal; this bounds it.

        Arguments: weights (B,), ones if not given.
        """
        index = all_views(views, self.n_views)
        out = torch.zeros(self.image_shape, device=self.device, dtype=self.dtype.to_real())
        for rows in torch.arange(len(index)).split(self._at_once):
            light = self._intensities(index[rows]).expand(len(rows), *self.data_shape[1:])
            if weights is not None:
                light = light * weights[rows].to(light).reshape(-1, 1, 1)
            self._add_patches(light, index[rows], out)
        return out

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i A_i^H A_i x: a product with the overlap, where no pixel of the detector is masked."""
        if self.mask is not None:
            return super().normal(views, weights)
        diagonal = self.overlap(views, weights)
        return lambda image: diagonal * image

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The same as `squared_norm_bounds`, whatever `tol`."""
        return self.squared_norm_bounds(views)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """The largest intensity of each view's beam, which is ||A_i||^2 where no pixel is masked."""
        parts = [self._intensities(part).amax((-2, -1)).expand(len(part)) for part in views.split(self._at_once)]
        return torch.cat(parts).double().cpu()

    def refine(
        self, image: Tensor, data: Tensor, views: Views, names: Sequence[str], derivative: Derivative, pace: float = 1.0
    ) -> dict[str, Tensor]:
        r"""The parameters after a step on the probe, at an image that stays as it is.

            P_m <- P_m - sum_i S_i^H( conj(x_i) F^H g_im ) / ( sum_i |x_i|^2 + 0.1 max ),

        g_im being the loss's derivative at the prediction of view i, x_i the part of the image that view i sees, and
        S_i the shift by a fraction of a pixel. It is the gradient step whose length follows the object's overlap, as
        that of the image follows the probe's. The beam's power is fixed: the data cannot tell it from the square of the
        object's transmission, and with a denoiser that shrinks the object the probe would grow.

        Arguments: image (*image_shape); data (B, 1, n, n) of these views; names, of parameters to refine; derivative of
        a loss whose curvature at a fit is 1; pace, the part of the step that is taken.
        Reference: Maiden and Rodenburg, Ultramicroscopy 109, 2009.
        """
        if "probe" not in names:
            return self.parameters
        index = all_views(views, self.n_views)
        slope = torch.zeros_like(self.probe)
        light = torch.zeros(self.data_shape[1:], device=self.device, dtype=self.dtype.to_real())
        for rows in torch.arange(len(index)).split(self._at_once):
            part = index[rows]
            patches = self._patches(image, part).unsqueeze(-3)
            waves = torch.fft.fft2(patches * self._probes(part), norm="ortho")
            slopes = self.restrict(derivative(self.restrict(waves, part), data[rows], part), part)
            slope += self._unshift(torch.fft.ifft2(slopes, norm="ortho") * patches.conj(), part)
            light += patches.abs().square().sum((0, 1))
        step = slope / (light + _LEAST * light.max())
        probe = self.probe - (step if pace == 1 else pace * step)
        return {"probe": probe * (torch.linalg.vector_norm(self.probe) / torch.linalg.vector_norm(probe))}

    def _probes(self, index: Tensor) -> Tensor:
        """The modes where each view has them: (B, modes, n, n), or (1, modes, n, n) where all are at whole pixels."""
        if self.fractions is None:
            return self.probe[None]
        cached = self._shifted.get("probes")  # of the same step: its gradient, its overlap and its refinement
        if cached is None or cached[0] is not self.probe or not torch.equal(cached[1], index):
            shifted = torch.fft.ifft2(torch.fft.fft2(self.probe) * self._ramps(index))
            cached = self._shifted["probes"] = (self.probe, index, shifted)
        return cached[2]

    def _unshift(self, waves: Tensor, index: Tensor) -> Tensor:
        """The adjoint of the shift of each view, summed over views: (B, modes, n, n) to (modes, n, n)."""
        if self.fractions is None:
            return waves.sum(0)
        back: Tensor = torch.fft.ifft2((torch.fft.fft2(waves) * self._ramps(index).conj()).sum(0))
        return back

    def _ramps(self, index: Tensor) -> Tensor:
        """Factors in Fourier space that shift by the fraction of a pixel of each view: (B, 1, n, n)."""
        assert self.fractions is not None
        rest = self.fractions[index].to(self.device)
        turns = [
            torch.exp(-2j * math.pi * rest[:, axis, None] * torch.fft.fftfreq(n, dtype=torch.float64).to(self.device))
            for axis, n in enumerate(self.data_shape[1:])
        ]
        return (turns[0][:, None, :, None] * turns[1][:, None, None, :]).to(self.dtype)

    def _intensities(self, index: Tensor) -> Tensor:
        """sum_m |P_m|^2 where each view has it: (B, n, n), or (1, n, n) where all are at whole pixels."""
        probes = self._probes(index)
        return (probes.real.square() + probes.imag.square()).sum(1)

    def _patches(self, image: Tensor, index: Tensor) -> Tensor:
        """What each view sees of the image: (..., *image_shape) to (..., B, n, n)."""
        values = image.to(device=self.device, dtype=self.dtype)
        h, w = self.data_shape[1:]
        return torch.stack([values[..., r : r + h, c : c + w] for r, c in self.corners[index.numpy()].tolist()], -3)

    def _add_patches(self, patches: Tensor, index: Tensor, out: Tensor) -> Tensor:
        """The adjoint of `_patches`, added to `out`, one view after the other, so that sums are repeatable."""
        h, w = self.data_shape[1:]
        for number, (r, c) in enumerate(self.corners[index.numpy()].tolist()):
            out[..., r : r + h, c : c + w] += patches[..., number, :, :]
        return out

    def _pull(self, data: Tensor, index: Tensor, probes: Tensor) -> Tensor:
        waves = torch.fft.ifft2(self.restrict(data, index), norm="ortho")
        back = (waves * probes.conj()).sum(-3)
        lead = back.shape[: back.ndim - 3]
        return self._add_patches(back, index, torch.zeros((*lead, *self.image_shape), dtype=self.dtype).to(self.device))


def probe_modes(probe: NDArray[Any], modes: int) -> NDArray[np.complex64]:
    r"""A probe with so many modes: the given ones, the strongest first, and then further ones.

    Further modes are the first one times Hermite polynomials of the row and column about its centre, orthogonal to all
    before and each weaker, so that a refinement can remove modes that it does not need. The total power does not
    change.

    Arguments: probe (n, n) or (given, n, n); modes >= 1.
    """
    stack = np.asarray(probe, dtype=np.complex128)
    stack = stack[None] if stack.ndim == 2 else stack
    power = float((np.abs(stack) ** 2).sum())
    order = np.argsort(-(np.abs(stack) ** 2).sum((1, 2)), kind="stable")
    chosen = list(stack[order][:modes])
    main, share = chosen[0], _SHARE
    light = np.abs(main) ** 2 / (np.abs(main) ** 2).sum()
    y, x = np.indices(main.shape) * 1.0
    y, x = y - (light * y).sum(), x - (light * x).sum()
    y, x = y / math.sqrt((light * y**2).sum() or 1.0), x / math.sqrt((light * x**2).sum() or 1.0)
    for degree in range(1, modes + 1):
        for i in range(degree + 1):
            if len(chosen) >= modes:
                break
            mode = main * x ** (degree - i) * y**i
            for other in chosen:
                mode = mode - other * np.vdot(other, mode) / np.vdot(other, other)
            mode *= math.sqrt(share * (np.abs(main) ** 2).sum() / (np.abs(mode) ** 2).sum())
            chosen.append(mode)
            share /= 2
    beam = np.stack(chosen)
    return (beam * math.sqrt(power / (np.abs(beam) ** 2).sum())).astype(np.complex64)


def mode_powers(probe: Tensor) -> tuple[Tensor, Tensor]:
    """The modes of a probe made orthogonal, the strongest first, and the share of each one's power.

    Any unitary mixture of modes has the same intensities, whatever the object is; this is the one that is unique.

    Arguments: probe (modes, n, n). Returns the same shape, and (modes,).
    """
    flat = probe.reshape(probe.shape[0], -1)
    gram = flat @ flat.conj().T
    values, vectors = torch.linalg.eigh(gram)
    modes = (vectors.conj().T @ flat).flip(0).reshape(probe.shape)
    powers = values.flip(0).clamp_min(0)
    return modes, powers / powers.sum().clamp_min(torch.finfo(powers.dtype).tiny)
