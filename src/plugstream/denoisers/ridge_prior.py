"""A convex prior that is learned: a sum of ridge functions of filtered images, and its proximal operator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, pad, unfold

from plugstream.base.errors import InputError
from plugstream.denoisers.base import centre

# Frequencies along each axis at which the filters' spectra are sampled for the bound of the curvature.
_FREQUENCIES = 128
# Responses of filters held at once: on the CPU what fits into a cache, on a GPU a gigabyte.
_NUMBERS_CPU, _NUMBERS_CUDA = 2**19, 2**28


class Ridges(nn.Module):
    r"""The filters and profiles of a convex prior, as functions of the noise level.

    R_sigma(x) = sigma^2 sum_i sum_pixels psi_i((w_i * x) / sigma; sigma), where the image continues beyond its borders
    as its mirror image, the filters w_i have mean zero, and the profiles' derivatives are odd, nondecreasing, bounded
    and piecewise linear,

        psi_i'(u) = sum_j a_ij clip(u / (r_j d_i), -1, 1),   a_ij, d_i, r_j > 0.

    So every psi_i is convex and even, and R_sigma is convex for all parameters. The amounts a_ij and widths d_i are
    exponentials, interpolated in log sigma between levels and constant beyond them.

    Each filter has a mirror image with the same profile, and each is even or odd under a half turn. Hence R_sigma does
    not change when the image is mirrored, and a mirrored border makes no eigenvalue of its Hessian larger. If the
    Hessian could exceed `limit`, all widths of that noise level are stretched until it cannot: this bounds the solver's
    iterations without changing the amounts, which say how much is smoothed.

    Arguments:
        filters: (count, size, size), count even, size odd and >= 3; the first half is made even, the second odd.
        amounts: log a, (levels, count, ratios). widths: log d, (levels, count).
        levels: noise levels, increasing. ratios: r, such as (1, 5). limit: of the Hessian's eigenvalues.

    Reference: Goujon, Neumayer, Bohra, Ducotterd and Unser, IEEE Trans. Comput. Imaging 9, 2023.
    """

    filters: Tensor
    amounts: Tensor
    widths: Tensor
    levels: Tensor
    ratios: Tensor
    limit: Tensor

    def __init__(
        self, filters: Tensor, amounts: Tensor, widths: Tensor, levels: Tensor, ratios: Tensor, limit: Tensor
    ) -> None:
        super().__init__()
        count, size = filters.shape[0], filters.shape[-1]
        shapes = {
            "filters": (count, size, size),
            "amounts": (len(levels), count, len(ratios)),
            "widths": (len(levels), count),
        }
        for name, value in (("filters", filters), ("amounts", amounts), ("widths", widths)):
            if tuple(value.shape) != shapes[name] or count % 2 or size % 2 == 0 or size < 3:
                raise InputError(
                    f"the {name} of ridges have shape {tuple(value.shape)}, not {shapes[name]} for an even number of "
                    f"filters of odd size >= 3, {len(levels)} levels and {len(ratios)} ratios"
                )
            if not bool(torch.isfinite(value).all()):
                raise InputError(f"the {name} of ridges hold NaN or infinity")
            setattr(self, name, nn.Parameter(value.clone()))
        if len(levels) < 2 or not bool((levels > 0).all() and (levels.diff() > 0).all()):
            raise InputError("ridges need two or more levels > 0 that increase")
        if not bool((ratios > 0).all()) or limit.shape != () or not bool(limit > 0):
            raise InputError("the ratios of ridges and their limit, one number, must be > 0")
        for name, value in (("levels", levels), ("ratios", ratios), ("limit", limit)):
            self.register_buffer(name, value.clone())

    @classmethod
    def initial(
        cls,
        size: int = 9,
        levels: tuple[float, ...] = (1 / 255, 2.5 / 255, 5 / 255, 12 / 255, 25 / 255, 50 / 255),
        ratios: tuple[float, ...] = (1.0, 5.0),
        limit: float = 80.0,
        seed: int = 0,
    ) -> Ridges:
        """A start for training: waves in windows of 5 x 5 and of `size` x `size`, amounts growing with frequency.

        Waves along an axis are their own mirror images; a little noise lets training turn them.
        """
        window = min(5, size)
        waves = [(u, v, window) for u in range(window // 2 + 1) for v in range(window // 2 + 1) if u or v]
        if size > window:
            waves += [(0, 1, size), (1, 0, size), (1, 1, size), (2, 2, size)]
        rng = torch.Generator().manual_seed(seed)
        filters: tuple[list[Tensor], list[Tensor]] = ([], [])  # cosines and sines
        strengths, sides = [], []
        for u, v, side in waves:
            place = torch.arange(side) - side // 2
            angle = 2 * math.pi / side * (u * place[:, None] + v * place[None, :])
            for kind, wave in zip(filters, (angle.cos(), angle.sin()), strict=True):
                framed = pad(wave / wave.norm(), ((size - side) // 2,) * 4)
                kind.append(framed + 0.05 / size * torch.randn(framed.shape, generator=rng))
            # Both mirror images of a wave along an axis are the same one; those of the large windows start weak.
            strengths.append(math.hypot(u, v) ** 0.5 / (1 if u and v else 2) / (1 if side == window else 4))
            sides.append(side)
        amount = 2.1 * window**-2.5 * torch.tensor(strengths * 2)
        level = torch.tensor(levels)
        amounts = amount * (level[:, None] * 255 / 25).clamp_min(0.04) ** 0.33
        widths = torch.tensor(sides * 2) ** 2 / 30 * amounts  # so that no frequency has much more than 30
        share = torch.tensor([0.85] + [0.15 / max(1, len(ratios) - 1)] * (len(ratios) - 1))
        return cls(
            torch.stack(filters[0] + filters[1]),
            (amounts[..., None] * share / share.sum()).log(),
            widths.log(),
            level,
            torch.tensor(ratios),
            torch.tensor(float(limit)),
        )

    @property
    def size(self) -> int:
        return int(self.filters.shape[-1])

    def patience(self, tol: float) -> int:
        """Twice the iterations of the heavy ball to a tolerance for a constant Hessian."""
        return math.ceil(math.sqrt(1 + float(self.limit)) * math.log(max(10.0, 1 / tol)))

    def kernels(self) -> Tensor:
        """All filters, (2 count, 1, size, size): of mean zero, even or odd under a half turn, then mirrored."""
        even, odd = self.filters.chunk(2)
        turned = torch.cat([even + even.flip(-2, -1), odd - odd.flip(-2, -1)]) / 2
        turned = turned - turned.mean((-2, -1), keepdim=True)
        return torch.cat([turned, turned.flip(-1)])[:, None]

    def _between(self, values: Tensor, sigma: Tensor) -> Tensor:
        """exp of the values at the levels, (levels, count, ...), at these noise levels, for both mirror images."""
        nodes = self.levels.log()
        above = torch.searchsorted(nodes, sigma.log().contiguous()).clamp(1, len(nodes) - 1)
        share = ((sigma.log() - nodes[above - 1]) / (nodes[above] - nodes[above - 1])).clamp(0, 1)
        share = share.reshape(-1, *[1] * (values.ndim - 1))
        between = torch.lerp(values[above - 1], values[above], share).exp()
        return torch.cat([between, between], 1)

    def parts(self) -> tuple[Tensor, Tensor]:
        """`kernels` and their power spectra, which do not depend on the noise level, for `at`."""
        kernels = self.kernels()
        return kernels, torch.fft.rfft2(kernels[:, 0], s=(_FREQUENCIES, _FREQUENCIES)).abs().square()

    def at(self, sigma: Tensor, parts: tuple[Tensor, Tensor] | None = None) -> RidgePotential:
        """The prior at these noise levels, one for each image: (N,), all > 0. parts: `parts()`, if at hand."""
        kernels, spectra = self.parts() if parts is None else parts
        amounts = self._between(self.amounts, sigma)
        widths = self._between(self.widths, sigma)[..., None] * self.ratios
        bound = _bound(spectra, (amounts / widths).sum(-1), self.size)
        stretch = (bound / self.limit).clamp_min(1)
        return RidgePotential(kernels, amounts, widths * stretch[:, None, None], sigma, bound / stretch)


def _bound(spectra: Tensor, steepest: Tensor, size: int) -> Tensor:
    """A bound of sum_i psi_i''(0) |w_i^(f)|^2 over all frequencies f, (N,).

    It is a trigonometric polynomial of degree size - 1 along each axis, which between n samples of a period is at most
    1 / cos(pi degree / n) times its values there.
    """
    between = math.cos(math.pi * (size - 1) / _FREQUENCIES) ** 2
    return torch.einsum("nc,cfg->nfg", steepest, spectra).amax((1, 2)) / between


def _conv_adjoint(u: Tensor, kernels: Tensor) -> Tensor:
    """The adjoint of conv2d with these kernels.

    On the CPU it is a product of matrices, whose rows are added down and then across: a third of the time of
    `torch.nn.functional.fold`.
    """
    if u.is_cuda:
        return conv_transpose2d(u, kernels)
    stack, _, height, width = u.shape
    size = kernels.shape[-1]
    shares = (kernels.flatten(1).T @ u.flatten(2)).view(stack, size, size, height, width)
    down = u.new_zeros(stack, size, height + size - 1, width)
    for i in range(size):
        down[:, :, i : i + height] += shares[:, i]
    out = u.new_zeros(stack, 1, height + size - 1, width + size - 1)
    for j in range(size):
        out[:, 0, :, j : j + width] += down[:, j]
    return out


class RidgePotential:
    """R_sigma for a stack of images (N, 1, H, W), with its gradient and its Hessian, whose eigenvalues are <= bound.

    Why the bound holds with mirrored borders: the terms of R and of its three mirror images are those of the periodic
    image of 2H x 2W pixels, in which each pixel occurs four times; all four are the same R; and a filter on a periodic
    image has the eigenvalues w_i^(f).

    Arguments: kernels (count, 1, size, size); amounts, widths (N, count, ratios); sigma, bound (N,).
    """

    def __init__(self, kernels: Tensor, amounts: Tensor, widths: Tensor, sigma: Tensor, bound: Tensor) -> None:
        self.kernels, self.sigma, self.bound = kernels, sigma, bound
        height, reach = ((sigma[:, None, None] * part)[..., None, None] for part in (amounts, widths))
        # For each j, sigma a_ij and sigma r_j d_i, as (N, count, 1, 1).
        self.profiles = list(zip(height.unbind(2), reach.unbind(2), strict=True))
        self._lines: dict[int, Tensor] = {}

    def detach(self) -> RidgePotential:
        """The same without gradients with respect to its parameters."""
        other = copy.copy(self)
        other.kernels, other.sigma, other.bound = (t.detach() for t in (self.kernels, self.sigma, self.bound))
        other.profiles = [(height.detach(), reach.detach()) for height, reach in self.profiles]
        return other

    def heavy_ball(self) -> tuple[Tensor, Tensor]:
        """Step and momentum of each image, (N,), for Hessians of 1/2 ||x - z||^2 + R(x) between 1 and 1 + bound.

        As if the least were 0.9: the fastest at all noise levels together, as fewer components are then slowest alike.
        """
        largest, least = (1 + self.bound).sqrt(), math.sqrt(0.9)
        return 4 / (largest + least) ** 2, ((largest - least) / (largest + least)) ** 2

    def nesterov(self) -> tuple[Tensor, Tensor]:
        """The same for accelerated gradients with a constant momentum, which converge for every R."""
        condition = 1 + self.bound
        root = condition.sqrt()
        return 1 / condition, (root - 1) / (root + 1)

    def gradient(self, x: Tensor) -> Tensor:
        """grad R(x) = sigma sum_i w_i^T psi_i'((w_i * x) / sigma)."""
        return self._through(x, lambda u, images, rows: self._slope(u, images))

    def gradient_along(self, x: Tensor, v: Tensor) -> Tensor:
        """<grad R(x), v> over all images: sum_i <sigma psi_i'((w_i * x) / sigma), w_i * v>, without an adjoint.

        For training, which differentiates it with respect to filters and profiles: products of matrices, since
        gradients of a convolution from one channel are slow on a GPU.
        """
        kernels = self.kernels.flatten(1)
        u, along = (kernels @ unfold(self._extend(image), self.kernels.shape[-1]) for image in (x, v))
        return (self._slope(u[..., None], slice(None))[..., 0] * along).sum()

    def _slope(self, u: Tensor, images: slice) -> Tensor:
        """sigma psi_i'(u / sigma) for responses u of these images, (n, count, ., .)."""
        # clamp with tensors as bounds takes five times as long on the CPU.
        height, reach = (t[images] for t in self.profiles[0])
        out = height * (u / reach).clamp(-1, 1)
        for profile in self.profiles[1:]:
            height, reach = (t[images] for t in profile)
            out = torch.addcmul(out, height, (u / reach).clamp(-1, 1))
        return out

    def curvature(self, x: Tensor) -> Tensor:
        """psi_i''((w_i * x) / sigma) at every filter and pixel, for `hessian`: (N, count, H, W)."""
        u = conv2d(self._extend(x), self.kernels).abs()
        out = torch.zeros_like(u)
        for height, reach in self.profiles:
            out += height / reach * (u < reach)
        return out

    def hessian(self, curvature: Tensor, v: Tensor) -> Tensor:
        """The Hessian of R at the point of `curvature`, applied to v."""
        return self._through(v, lambda u, images, rows: curvature[images, :, rows] * u)

    def _through(self, x: Tensor, change: Callable[[Tensor, slice, slice], Tensor]) -> Tensor:
        """sum_i w_i^T change(w_i * x), a few images or rows at a time, since the responses are many."""
        extended = self._extend(x)
        stack, _, height, width = x.shape
        size = self.kernels.shape[-1]
        most = (_NUMBERS_CUDA if x.is_cuda else _NUMBERS_CPU) // (len(self.kernels) * width)
        rows = min(height, max(size, most))
        images = max(1, most // rows)
        if images >= stack and rows == height:
            changed = change(conv2d(extended, self.kernels), slice(None), slice(None))
            return self._extend_adjoint(_conv_adjoint(changed, self.kernels))
        out = torch.zeros_like(extended)
        for first in range(0, stack, images):
            for top in range(0, height, rows):
                part, lines = slice(first, first + images), slice(top, top + rows)
                around = slice(top, min(top + rows, height) + size - 1)
                u = conv2d(extended[part, :, around], self.kernels)
                out[part, :, around] += _conv_adjoint(change(u, part, lines), self.kernels)
        return self._extend_adjoint(out)

    def _line(self, count: int) -> Tensor:
        """The pixels of a line of this length that continues as its mirror image at both ends."""
        if count not in self._lines:
            by, line = self.kernels.shape[-1] // 2, torch.arange(count, device=self.kernels.device)
            self._lines[count] = torch.cat([line[:by].flip(0), line, line[-by:].flip(0)])
        return self._lines[count]

    def _extend(self, x: Tensor) -> Tensor:
        """The image, continued by its mirror image as far as filters reach."""
        return x.index_select(-2, self._line(x.shape[-2])).index_select(-1, self._line(x.shape[-1]))

    def _extend_adjoint(self, y: Tensor) -> Tensor:
        """The adjoint: pixels beyond a border are added to those that they mirror."""
        height, width = (n + 1 - self.kernels.shape[-1] for n in y.shape[-2:])
        rows = y.new_zeros(*y.shape[:-2], height, y.shape[-1]).index_add(-2, self._line(height), y)
        return y.new_zeros(*y.shape[:-2], height, width).index_add(-1, self._line(width), rows)


def prox(
    potential: RidgePotential, z: Tensor, tol: float, max_iterations: int, start: Tensor | None = None, *, patience: int
) -> tuple[Tensor, bool]:
    """argmin_x 1/2 ||x - z||^2 + R(x) for each image of (N, 1, H, W), and whether all reached the tolerance.

    The objective is 1-strongly convex, so ||x - x*|| <= ||x - z + grad R(x)||, and an image rests once that is below
    tol ||z - mean(z)||. With tol = 0 it takes just `max_iterations`, and nothing waits for the device. R does not see a
    constant, so the mean of z is taken out first, and little contrast on large values loses no digits.

    The first `patience` iterations are Polyak's heavy ball, which is proved to converge for a constant Hessian, twice
    as fast as Nesterov's accelerated gradients. These take over for images that do not rest by then, for any convex R.

    References: Polyak, USSR Comput. Math. Math. Phys. 4(5), 1964; Nesterov, Introductory Lectures on Convex
    Optimization, 2004, (2.2.11).
    """
    flat, mean = centre(z[:, 0])
    z, mean = flat[:, None], mean[:, None]
    step, momentum = (part[:, None, None, None] for part in potential.heavy_ball())
    careful, ahead = (part[:, None, None, None] for part in potential.nesterov())
    goal = tol * torch.linalg.vector_norm(z, dim=(1, 2, 3))
    # A constant image is its own prox, which is reached to a relative error only from itself.
    x = z if start is None else torch.where((goal == 0)[:, None, None, None], z, start - mean)
    before = out = x
    active = torch.ones(len(z), dtype=torch.bool, device=z.device)
    every = 5 if z.is_cuda else 1  # a GPU waits for each test by the host
    for k in range(max_iterations):
        residual = x - z + potential.gradient(x)
        if tol > 0 and k % every == 0:
            # Not greater, so that a NaN rests too.
            near = ~(torch.linalg.vector_norm(residual, dim=(1, 2, 3)) > goal)
            out = torch.where((active & near)[:, None, None, None], x, out)
            active = active & ~near
            if not bool(active.any()):
                return out + mean, True
        if k < patience:
            x, before = torch.addcmul(x + momentum * (x - before), residual, step, value=-1), x
        else:
            if k == patience:
                before = x  # the start of Nesterov's own sequence
            new = torch.addcmul(x, residual, careful, value=-1)
            x, before = new + ahead * (new - before), new
    return torch.where(active[:, None, None, None], x, out) + mean, False
