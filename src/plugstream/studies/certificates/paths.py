"""The images that a reconstruction gives to a denoiser, as pairs to judge it by."""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.algorithms.sampling import Uniform
from plugstream.base.progress import report
from plugstream.denoisers.base import Denoiser
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.images.grid import Grid
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.function import FunctionModel
from plugstream.scans.simulation import simulate


def small_problem(image: Tensor, *, views: int = 12, receivers: int = 48, snr: float = 40.0) -> LeastSquares:
    """A diffraction tomography of an image like the paper's: a ring around it, a wavelength of six pixels, 40 dB.

    For volumes, channels and complex images it is random Fourier coefficients instead, which diffraction tomography
    measures in any number of dimensions.

    Arguments: image, the truth, (H, W) or of any other kind. Returns the fidelity of `views` views, in its precision.
    """
    if image.ndim != 2 or image.is_complex():
        return _fourier_problem(image, views, receivers, snr)
    grid = Grid((image.shape[-2], image.shape[-1]), 1 / max(image.shape))
    geometry = BornGeometry.rings(grid, 6 * grid.pixel, views=views, receivers=receivers, radius=8.0)
    model = BornModel(geometry, method="dense", device=image.device, dtype=image.dtype)
    return LeastSquares(model, simulate(model, image, snr=snr).data)


def _fourier_problem(image: Tensor, views: int, count: int, snr: float) -> LeastSquares:
    """Random Fourier coefficients of an image of any kind, `count` per view, with noise."""
    shape, generator = tuple(image.shape), torch.Generator().manual_seed(0)
    places = torch.randint(image.numel(), (views, count), generator=generator).to(image.device)
    axes = tuple(range(-len(shape), 0))

    def coefficients(z: Tensor, index: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.fftn(z, dim=axes, norm="ortho").flatten(z.ndim - len(shape))
        return spectrum[..., places[index.to(z.device)]]

    model = FunctionModel(
        coefficients,
        n_views=views,
        image_shape=shape,
        data_shape=(count,),
        linear=True,
        device=image.device,
        dtype=image.dtype,
        data_dtype=image.dtype.to_complex(),
    )
    clean = model.forward(image)
    noise = torch.randn(clean.shape, generator=generator, dtype=torch.complex128).to(clean)
    return LeastSquares(model, clean + noise * (clean.norm() / noise.norm() * 10 ** (-snr / 20)))


@torch.no_grad()
def reconstruction_path(
    fidelity: LeastSquares, denoiser: Denoiser, sigma: float, *, steps: int, batch: int = 3, seed: int = 0
) -> Tensor:
    r"""What PnP-ISTA and PnP-SGD give to the denoiser: z^k = x^{k-1} - gamma grad d(x^{k-1}), gamma = 1/L.

    From x^0 = 0, x^k = D(z^k). Each z^k of the batch algorithm comes with the input that the online one would have had
    from the same x^{k-1} with B random views; Proposition 5 is about how D maps that pair.

    Returns (steps, 2, *image_shape): of all views, and of B views.
    """
    gamma, sampler = 1 / fidelity.lipschitz_max, Uniform(batch, seed)
    x = torch.zeros(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
    warm: Tensor | None = None
    inputs: list[Tensor] = []
    for k in range(steps):
        report("reconstructing", k, steps)
        views = sampler.draw(k, fidelity.available).views
        z, online = (x - gamma * fidelity.gradient(x, batch_views) for batch_views in (None, views))
        inputs.append(torch.stack([z, online]))
        x, warm = denoiser.denoise(z, sigma, warm)
        if not bool(torch.isfinite(x).all()) or float(x.norm()) > 1e6 * float(inputs[0].norm()):
            break  # it diverges, and what came before says enough
    return torch.stack(inputs)


def path_pairs(path: Tensor) -> list[tuple[int, int, str]]:
    """Which inputs of a path, (steps, 2, *image_shape) as one row of 2 steps images, to compare, and what they are."""
    steps = len(path)
    pairs = [(2 * k, 2 * k + 1, f"all views against three, step {k + 1}") for k in range(steps)]
    pairs += [(2 * k, 2 * k + 2, f"steps {k + 1} and {k + 2}") for k in range(steps - 1)]
    pairs += [(2 * k, 2 * steps - 2, f"steps {k + 1} and {steps}") for k in range(steps - 2)]
    return pairs
