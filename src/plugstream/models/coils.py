"""Sensitivities of coils from the middle of k-space, where it is fully sampled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError

Complex = NDArray[np.complexfloating]

_BLOCK_BYTES = 1 << 27  # of matrices of pixels that are decomposed together


def find_calibration(sampled: NDArray[np.bool_], least: int = 4) -> tuple[slice, ...]:
    """A fully sampled box around the middle of k-space, N // 2 along each axis, that cannot grow on any side.

    A box of fewer than `least` samples along an axis is refused, since it cannot tell coils apart.

    Arguments: sampled, (H, W) or (D, H, W), True where k-space was.
    """
    low = [size // 2 for size in sampled.shape]
    high = [size // 2 + 1 for size in sampled.shape]
    if not sampled[tuple(low)]:
        raise InputError("the middle of k-space was not sampled, so coil maps cannot be estimated; give them")
    grown = True
    while grown:
        grown = False
        for axis, size in enumerate(sampled.shape):
            for ends, step, end in ((low, -1, 0), (high, 1, size)):
                if ends[axis] == end:
                    continue
                ends[axis] += step
                if sampled[tuple(slice(a, b) for a, b in zip(low, high, strict=True))].all():
                    grown = True
                else:
                    ends[axis] -= step
    box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    small = [b - a for a, b, size in zip(low, high, sampled.shape, strict=True) if b - a < min(least, size)]
    if small:
        shape = " x ".join(str(b - a) for a, b in zip(low, high, strict=True))
        raise InputError(
            f"the fully sampled middle of k-space is {shape}, too small to estimate coil maps from; give them"
        )
    return box


def espirit_maps(
    calibration: Complex,
    shape: Sequence[int],
    *,
    kernel: int = 6,
    threshold: float = 0.02,
    crop: float = 0.0,
    real_image: bool = False,
) -> NDArray[np.complex64]:
    r"""Coil maps by ESPIRiT: eigenvectors of what k-space of all coils has in common, (coils, *shape).

    Every neighbourhood of k-space of all coils lies in a space of few dimensions, spanned by the right singular
    vectors v_m, of a singular value above `threshold` times the largest, of the matrix of all neighbourhoods in the
    middle. In the image this says that the vector of sensitivities at each pixel is an eigenvector with the eigenvalue
    1 of the matrix

        G(r) = (1/K) sum_m g_m(r) g_m(r)^H,

    g_m being the Fourier transform of v_m and K the size of a neighbourhood. Where the largest eigenvalue is below
    `crop` there is no object, and maps are zero; elsewhere sum |S_c|^2 = 1. Their common phase, which nothing tells, is
    that with which the strongest combination of coils is real, so that it is smooth. With `real_image` it is that of
    the image in the calibration besides, so that images are real but for what phase varies within its pixels: then
    nearly all of an image is in its real part, as denoisers want it.

    Arguments: calibration (coils, *sizes), the fully sampled middle of k-space, zero at N // 2 of each axis, two or
    three of them; shape of the maps; kernel, samples along a side of a neighbourhood.
    Reference: Uecker et al., Magn. Reson. Med. 71(3), 2014.
    """
    middle = torch.from_numpy(np.ascontiguousarray(calibration)).to(torch.complex64)
    coils, sizes = len(middle), tuple(middle.shape[1:])
    if len(shape) != len(sizes) or len(sizes) not in (2, 3):
        raise InputError(f"a calibration of {tuple(middle.shape)} gives no maps of {tuple(shape)}")
    sides = tuple(max(1, min(kernel, (size + 1) // 2, n)) for size, n in zip(sizes, shape, strict=True))
    # All neighbourhoods as rows, (positions, coils * K).
    windows = middle
    for axis, side in enumerate(sides, 1):
        windows = windows.unfold(axis, side, 1)
    rows = windows.movedim(0, len(sizes)).reshape(-1, coils * math.prod(sides))
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    basis = right[values > threshold * values[0]].reshape(-1, coils, *sides)
    if len(basis) == 0:
        raise InputError("the middle of k-space is zero, so coil maps cannot be estimated")
    # sum_m g_m g_m^H is the transform of the correlation of kernels, which is small in k-space.
    spread = tuple(2 * side - 1 for side in sides)
    axes = tuple(range(2, 2 + len(sides)))
    spectra = torch.fft.fftn(basis, s=spread, dim=axes)
    products = torch.einsum("mc...,md...->cd...", spectra, spectra.conj())
    lags = torch.fft.ifftn(products, dim=axes)  # lag l at l modulo the spread
    folded = torch.zeros((coils, coils, *shape), dtype=torch.complex64)
    for lag in itertools.product(*(range(1 - side, side) for side in sides)):  # small images fold lags together
        place: Any = (..., *(a % n for a, n in zip(lag, shape, strict=True)))
        source: Any = (..., *(a % n for a, n in zip(lag, spread, strict=True)))
        folded[place] += lags[source]
    matrices = torch.fft.ifftn(folded, dim=axes, norm="forward") / math.prod(sides)
    matrices = torch.fft.fftshift(matrices, dim=axes).flatten(2).permute(2, 0, 1)
    maps, strength = _principal(matrices)
    maps = _turn(maps, _virtual_coil(middle))
    if real_image:
        combined = (maps.conj() * smooth_images(middle, shape).flatten(1).T).sum(1)
        maps = maps * _phasor(combined)[:, None]
    maps = torch.where(strength[:, None] >= crop, maps, torch.zeros((), dtype=maps.dtype))
    return maps.T.reshape(coils, *shape).numpy()


def smooth_images(calibration: Tensor, shape: Sequence[int]) -> Tensor:
    """Images of each coil by the middle of k-space, which fades out: (coils, *sizes) to (coils, *shape)."""
    values = calibration
    for axis, size in enumerate(calibration.shape[1:], 1):
        window = torch.hann_window(size + 2, periodic=False)[1:-1]
        values = values * window.view(-1, *(1,) * (calibration.ndim - 1 - axis))
    kspace = torch.zeros((len(values), *shape), dtype=values.dtype)
    pairs = zip(shape, values.shape[1:], strict=True)
    kspace[(slice(None), *(slice(n // 2 - size // 2, n // 2 - size // 2 + size) for n, size in pairs))] = values
    axes = tuple(range(1, kspace.ndim))
    images: Tensor = torch.fft.ifftn(torch.fft.ifftshift(kspace, axes), dim=axes, norm="ortho")
    shifted: Tensor = torch.fft.fftshift(images, axes)
    return shifted


def adaptive_maps(images: Complex, *, window: int = 5, crop: float = 0.0) -> NDArray[np.complex64]:
    r"""Coil maps from images of each coil, adaptively combined: (coils, *shape) to the same.

    At each pixel it is the first eigenvector of the correlations sum conj(z_c) z_d of coil images z over the window
    around it. Images are those of the middle of k-space, of any path: maps are as smooth as they are. Where all coils
    together receive less than `crop` of the most, maps are zero; elsewhere sum |S_c|^2 = 1.

    Arguments: images (coils, H, W) or (coils, D, H, W); window, pixels a side.
    Reference: Walsh, Gmitro and Marcellin, Magn. Reson. Med. 43(5), 2000.
    """
    z = torch.from_numpy(np.ascontiguousarray(images)).to(torch.complex64)
    coils, shape = len(z), tuple(z.shape[1:])
    products = (z[:, None] * z[None].conj()).reshape(coils * coils, 1, *shape)
    smooth = _mean_around(products, window).reshape(coils, coils, -1).permute(2, 0, 1)
    energy = smooth.diagonal(dim1=1, dim2=2).real.sum(1)
    maps, _ = _principal(smooth / energy.clamp_min(torch.finfo(torch.float32).tiny)[:, None, None])
    maps = _turn(maps, _virtual_coil(z))
    maps = torch.where((energy >= crop**2 * energy.max())[:, None], maps, torch.zeros((), dtype=maps.dtype))
    return maps.T.reshape(coils, *shape).numpy()


def _principal(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The first eigenvectors of Hermitian matrices, (n, coils), and their eigenvalues, (n,), some at a time."""
    coils = matrices.shape[1]
    vectors = torch.empty(matrices.shape[:2], dtype=matrices.dtype)
    values = torch.empty(len(matrices))
    step = max(1, _BLOCK_BYTES // (16 * coils * coils))
    for begin in range(0, len(matrices), step):
        part = matrices[begin : begin + step]
        # NumPy takes them one by one on one thread, which is the fastest for such small matrices.
        eigenvalues, eigenvectors = np.linalg.eigh(((part + part.mH) / 2).numpy())
        values[begin : begin + step] = torch.from_numpy(eigenvalues[:, -1].copy())
        vectors[begin : begin + step] = torch.from_numpy(eigenvectors[:, :, -1].copy())
    return vectors, values


def _virtual_coil(data: Tensor) -> Tensor:
    """The combination of coils that receives most, (coils,): its phase is what maps are turned to."""
    flat = data.flatten(1)
    combination: Tensor = torch.linalg.eigh(flat @ flat.mH).eigenvectors[:, -1]
    return combination


def _turn(maps: Tensor, reference: Tensor) -> Tensor:
    """Vectors (n, coils) turned so that what the reference receives is real and not negative."""
    return maps * _phasor(maps @ reference.conj()).conj()[:, None]


def _phasor(values: Tensor) -> Tensor:
    """z / |z|, and 1 where z is zero."""
    return torch.where(values == 0, torch.ones_like(values), torch.sgn(values))


def _mean_around(values: Tensor, window: int) -> Tensor:
    """Means over windows, (n, 1, *shape) to the same, real and imaginary part."""
    dims = values.ndim - 2
    pool = torch.nn.functional.avg_pool2d if dims == 2 else torch.nn.functional.avg_pool3d
    sides = [min(window, 2 * n - 1) // 2 * 2 + 1 for n in values.shape[2:]]
    parts = [
        pool(part.contiguous(), sides, stride=1, padding=[side // 2 for side in sides])
        for part in (values.real, values.imag)
    ]
    return torch.complex(*parts)
