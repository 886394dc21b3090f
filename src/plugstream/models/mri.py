"""Magnetic resonance imaging: k-space samples of an image as each of several coils receives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall
from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models.base import ModelBase
from plugstream.models.ct_geometry import Voxels
from plugstream.models.kspace import KSpace, ToeplitzNormal, convolve, encoded_voxels
from plugstream.models.views import Views, all_views, check_shape, mask_data

_LARGEST = 1 << 20  # numbers of an image or of data up to which launches take longer than kernels


class MRIModel(ModelBase):
    r"""What coils receive of an image along a trajectory in k-space:

        y_icj = (1 / sqrt N) sum_n S_c(r_n) x_n exp(-2 pi i k_ij . r_n),

    for view i (a spoke, an interleaf of a spiral, phase-encode lines), coil c with the sensitivity S_c, and samples j.
    The image is complex. Each slice of a stack is measured along the same trajectory of two dimensions; a volume that
    is encoded along three axes has a trajectory of three. On the grid of an FFT, the transform is one
    (`plugstream.models.kspace.KSpace`), so the model is unitary if fully sampled with maps of sum_c |S_c|^2 = 1.

    With `density` w_ij, predictions and data (`convert`) are multiplied by sqrt(w_ij), so that least squares weight
    samples by the part of k-space that they stand for: spokes sample the middle of k-space far more densely than the
    rest, and without the weights fine detail comes last.

    Arguments:
        trajectory: (views, samples, axes), 1/m, along z, y, x, or y, x.
        voxels: shape, spacing and origin of the image; one axis more than the trajectory has for a stack.
        coil_maps: (coils, *image shape), complex; one coil that sees everything alike if not given.
        mask: (views, *data_shape), which data counts. density: (views, samples), not negative.
        eps: relative accuracy of the non-uniform FFT; 1e-4 in single and 1e-10 in double precision if not given.
        device, dtype: where, and in which real precision. form: of the non-uniform FFT, as of `KSpace`.
    References: Pruessmann et al., Magn. Reson. Med. 46(4), 2001; Fessler, IEEE Signal Process. Mag. 27(4), 2010.
    """

    def __init__(
        self,
        trajectory: NDArray[np.float64],
        voxels: Voxels,
        coil_maps: NDArray[np.complexfloating] | None = None,
        *,
        mask: Rows | None = None,
        density: NDArray[np.floating] | None = None,
        eps: float | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        form: str = "auto",
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"the precision must be float32 or float64, not {dtype}")
        path = np.ascontiguousarray(trajectory, dtype=np.float64)
        if (
            path.ndim != 3
            or path.shape[2] not in (2, 3)
            or path.shape[2] not in (len(voxels.shape), len(voxels.shape) - 1)
        ):
            raise InputError(
                f"a trajectory is (views, samples, 2 or 3 axes) for an image of {voxels.shape}, not {path.shape}"
            )
        if not np.isfinite(path).all():
            raise InputError("the trajectory holds NaN or infinity")
        self.stacked = path.shape[2] < len(voxels.shape)
        maps = np.ones((1, *voxels.shape), np.complex64) if coil_maps is None else np.asarray(coil_maps)
        if maps.ndim != 1 + len(voxels.shape) or maps.shape[1:] != voxels.shape or len(maps) == 0:
            raise InputError(f"coil maps are {maps.shape}, but must be (coils, {', '.join(map(str, voxels.shape))})")
        self.voxels, self.device = voxels, torch.device(device)
        self.coils, self.samples = len(maps), path.shape[1]
        self.n_views, self.image_shape = len(path), voxels.shape
        self.data_shape = (*voxels.shape[: 1 if self.stacked else 0], self.coils, self.samples)
        self.dtype = self.data_dtype = dtype.to_complex()
        for name, array, shape in (("mask", mask, self.data_shape), ("density", density, (self.samples,))):
            if array is not None and tuple(array.shape) != (self.n_views, *shape):
                raise InputError(f"the {name} has shape {tuple(array.shape)}, but must be {(self.n_views, *shape)}")
        self._mask = mask
        self._roots: Tensor | None = None
        if density is not None:
            values = np.asarray(density, dtype=np.float64)
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise InputError("a density must be finite and not negative")
            self._roots = torch.from_numpy(np.sqrt(values)).to(device=self.device, dtype=dtype)
        eps = (1e-4 if dtype == torch.float32 else 1e-10) if eps is None else eps
        self.kspace = KSpace(
            path, encoded_voxels(voxels, path.shape[2]), eps, device=self.device, dtype=dtype, form=form
        )
        planes = maps.swapaxes(0, 1) if self.stacked else maps[None]  # (planes, coils, *encoded shape)
        self._maps = torch.from_numpy(np.ascontiguousarray(planes)).to(device=self.device, dtype=self.dtype)

    @property
    def coil_maps(self) -> Tensor:
        """(coils, *image_shape)."""
        return self._maps.transpose(0, 1).reshape(self.coils, *self.image_shape)

    @cached_property
    def sensitivity(self) -> float:
        """The largest sum over coils of |S_c|^2 of any pixel, a factor of L."""
        return float(self._maps.abs().square().sum(1).max())

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape)."""
        check_shape("image", image, self.image_shape)
        index = all_views(views, self.n_views)
        lead, images = self._split(image)
        data = self._call("forward", images, index).reshape(*lead, len(index), *self.data_shape)
        return self.restrict(data, index)

    def _forward(self, images: Tensor, index: Tensor) -> Tensor:
        """(n, planes, 1, *encoded shape) to (n, B, planes, coils, samples), times the roots of the density."""
        coil_images = len(images) * len(self._maps) * self.coils
        out = torch.empty((coil_images, len(index), self.samples), dtype=self.dtype, device=self.device)
        for begin, end in self._shares(len(out)):
            out[begin:end] = self.kspace.sample(self._weigh(images, begin, end), index)
        data = out.view(len(images), len(self._maps), self.coils, len(index), self.samples).movedim(3, 1)
        return self._multiply(data.contiguous(), index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape), summed over views."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        lead = data.shape[: data.ndim - 1 - len(self.data_shape)]
        values = self.restrict(data.to(device=self.device, dtype=self.dtype), index)
        values = values.reshape(math.prod(lead), len(index), -1, self.coils, self.samples)
        return self._call("adjoint", values, index).reshape(*lead, *self.image_shape)

    def _adjoint(self, data: Tensor, index: Tensor) -> Tensor:
        """(n, B, planes, coils, samples), which are multiplied by the roots, to planes of images."""
        values = self._multiply(data, index).movedim(1, 3).reshape(-1, len(index), self.samples)
        out = self._zeros(len(data))
        for begin, end in self._shares(len(values)):
            self._gather(self.kspace.adjoint(values[begin:end], index), begin, out)
        return out

    def _multiply(self, data: Tensor, index: Tensor) -> Tensor:
        """Data (n, B, planes, coils, samples) times the roots of the density."""
        if self._roots is None:
            return data
        return data * self._roots[index.to(self.device)][:, None, None]

    def _call(self, name: str, tensor: Tensor, index: Tensor) -> Tensor:
        """A product, by a graph if views can be given to one."""
        call = self._graphs[name]
        return call(tensor, index.to(self.device)) if self.kspace.is_tabled else call.function(tensor, index)

    @cached_property
    def _graphs(self) -> dict[str, GraphCall]:
        forward, adjoint = (GraphCall(work, largest=_LARGEST) for work in (self._forward, self._adjoint))
        return {
            "forward": forward,
            "adjoint": adjoint,
            "normal": GraphCall(self._normal, steady=(1,), largest=_LARGEST),
        }

    def convert(self, data: Tensor, views: Views = None) -> Tensor:
        """Stored data times the roots of the density, if there is one."""
        if self._roots is None:
            return data
        roots = self._roots if views is None else self._roots[all_views(views, self.n_views).to(self.device)]
        return data * roots.view(len(roots), *(1,) * (len(self.data_shape) - 1), self.samples).to(data.device)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with masked samples set to zero."""
        return mask_data(data, self._mask, views, self.n_views)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i H_i^H H_i x by FFTs of twice the size, if all coils and slices share one mask."""
        index = all_views(views, self.n_views)
        if self._mask is not None:
            mask = np.ascontiguousarray(self._mask[index.numpy()]).reshape(len(index), -1, self.samples)
            if not (mask == mask[:, :1]).all():
                return super().normal(views, weights)
        toeplitz = ToeplitzNormal(self.kspace, index, self._sample_weights(index, weights))

        def apply(image: Tensor) -> Tensor:
            check_shape("image", image, self.image_shape)
            lead, images = self._split(image)
            return self._graphs["normal"](images, toeplitz.spectrum).reshape(*lead, *self.image_shape)

        return apply

    def _normal(self, images: Tensor, spectrum: Tensor) -> Tensor:
        """Planes of images (n, planes, 1, *encoded shape) by the spectrum of a `ToeplitzNormal`."""
        out = self._zeros(len(images))
        for begin, end in self._shares(len(out) * self.coils):
            self._gather(convolve(self._weigh(images, begin, end), spectrum), begin, out)
        return out

    def overlap(self, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """The eigenvalues of a circular convolution that contains sum_i w_i H_i^H H_i of these views.

        The largest bounds its norm. It is the norm if samples lie on the image's own grid and sum |S_c|^2 = 1: views
        that share no samples then allow a step of B / L_i, and all of them together one of n / L_i.

        Arguments: weights (B,), ones if not given.
        """
        index = all_views(views, self.n_views)
        samples = self._sample_weights(index, weights)
        return self.sensitivity * ToeplitzNormal(self.kspace, index, samples, rough=True).spectrum

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """Each view's ||H_i||^2: from the grid if samples lie on one, else as estimated with one coil.

        With several coils it is an upper bound, as `squared_norm_bounds`, and not within `tol`.
        """
        return self._norms(views, tol)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Upper bounds of each view's ||H_i||^2: ||F_i||^2 times the largest sum over coils of |S_c|^2.

        On the grid of an FFT, ||F_i||^2 is the largest weight of the samples of a cell; otherwise Lanczos iterations
        with a single coil bound it.

        The image that F_i amplifies most is not the one that coils see best, so the largest of these is above the
        largest ||H_i||^2: by 1.5 to 1.8 for 2 to 16 coils around a ring on spokes, spirals and random paths, by 1.3 to
        2.6 for random smooth maps with sum |S_c|^2 = 1, and by 1.8 to 10 for maps whose sum varies over the image.
        """
        return self._norms(views, None)

    def _norms(self, views: Tensor, tol: float | None) -> Tensor:
        if self.kspace.is_exact:
            parts = all_views(views, self.n_views).split(1)
            bounds = [ToeplitzNormal(self.kspace, view, self._sample_weights(view)).bound for view in parts]
            return self.sensitivity * torch.tensor(bounds, dtype=torch.float64)
        if self.coils == 1 and not self.stacked and self.sensitivity == 1:
            return super().squared_norm_bounds(views) if tol is None else super().squared_norms(views, tol)
        one_coil = MRIModel(  # and one slice, with norms that bound those of all
            self.kspace.trajectory,
            self.kspace.voxels,
            density=self._sample_weights(torch.arange(self.n_views)).cpu().numpy(),
            eps=self.kspace.eps,
            device=self.device,
            dtype=self.dtype.to_real(),
            form=self.kspace.form,
        )
        norms = one_coil.squared_norm_bounds(views) if tol is None else one_coil.squared_norms(views, tol)
        return self.sensitivity * norms

    def _sample_weights(self, index: Tensor, weights: Tensor | None = None) -> Tensor:
        """The weight of each sample, (B, samples): its density times its view's, and 0 if all coils mask it."""
        samples = torch.ones((len(index), self.samples), dtype=self.dtype.to_real(), device=self.device)
        if self._roots is not None:
            samples = self._roots[index.to(self.device)].square()
        if self._mask is not None:
            mask = torch.from_numpy(np.ascontiguousarray(self._mask[index.numpy()])).to(self.device)
            samples = samples * mask.reshape(len(index), -1, self.samples).any(1)
        return samples if weights is None else samples * weights.to(samples).reshape(-1, 1)

    def _split(self, image: Tensor) -> tuple[torch.Size, Tensor]:
        """The leading axes of images, and the images as (n, planes, 1, *encoded shape)."""
        lead = image.shape[: image.ndim - len(self.image_shape)]
        planes, shape = len(self._maps), self._maps.shape[2:]
        return lead, image.to(device=self.device, dtype=self.dtype).reshape(math.prod(lead), planes, 1, *shape)

    def _zeros(self, images: int) -> Tensor:
        """Planes of so many images: (images * planes, *encoded shape)."""
        shape = (images * len(self._maps), *self._maps.shape[2:])
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _weigh(self, images: Tensor, begin: int, end: int) -> Tensor:
        """Numbers `begin` to `end` of the images times coil maps, (n, planes, coils) in a row."""
        planes, coils, shape = *self._maps.shape[:2], self._maps.shape[2:]
        if (begin, end) == (0, len(images) * planes * coils):
            return (images * self._maps).reshape(-1, *shape)
        rows = torch.arange(begin, end, device=self.device)
        flat = images.reshape(-1, *shape)[rows // coils]
        return flat * self._maps.view(-1, *shape)[rows % (planes * coils)]

    def _gather(self, parts: Tensor, begin: int, out: Tensor) -> None:
        """Add coil images from number `begin` on, times the conjugate maps, to their planes."""
        planes, coils, shape = *self._maps.shape[:2], self._maps.shape[2:]
        if len(parts) == len(out) * coils:
            out += (parts.view(-1, planes, coils, *shape) * self._maps.conj()).sum(2).view(out.shape)
            return
        rows = torch.arange(begin, begin + len(parts), device=self.device)
        out.index_add_(0, rows // coils, parts * self._maps.view(-1, *shape)[rows % (planes * coils)].conj())

    def _shares(self, count: int) -> list[tuple[int, int]]:
        step = self.kspace.images_at_once
        return [(begin, min(begin + step, count)) for begin in range(0, count, step)]
