"""The paper: what it prints, its images, the scan of each and a fidelity for all of them; and two other instruments.

What is printed, and the hyperparameters its authors' code used, are numbers to stand beside ours, nothing else.
Reference: Sun, Wohlberg and Kamilov, IEEE Trans. Comput. Imaging 5(3), 2019, Tables I and II and section V; their
MATLAB code for the strengths of BM3D and TV.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, Wrapper
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.images.simulated import add_noise
from plugstream.models.base import Model
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.views import Views

IMAGES = ("barbara", "boat", "foreman", "house", "lenna", "monarch", "parrot", "pepper")

# Minimal distance ||x - P(x)||^2 to a fixed point, averaged over the images; not divided by its value at x^0, as a
# comparison with ours shows (docs/reproduction.md). First the steps 1/L, 1/4L and
# 1/16L with 30 views, then 10, 20 and 30 views with the step 1/L.
TABLE1 = {
    "tv": (1.96e-5, 1.47e-6, 7.83e-8, 3.18e-4, 6.71e-5, 1.96e-5),
    "bm3d": (1.47e-5, 6.26e-6, 3.22e-6, 1.78e-4, 4.07e-5, 1.47e-5),
    "tnrd": (4.20e-2, 9.18e-3, 1.44e-3, 3.12e-1, 1.14e-1, 4.20e-2),
}

METHODS = ("PnP-ADMM(10)", "PnP-ADMM(30)", "PnP-FISTA(10)", "PnP-FISTA(30)", "PnP-SGD(10)", "PnP-SGD(30)")

# SNR in dB, a row for each image and a column for each method.
TABLE2 = {
    "barbara": (15.62, 21.18, 13.32, 20.21, 23.61, 23.90),
    "boat": (15.94, 23.10, 13.69, 22.01, 24.87, 25.15),
    "foreman": (23.10, 29.19, 18.46, 28.61, 29.61, 29.80),
    "house": (19.23, 26.43, 15.68, 26.79, 28.29, 28.41),
    "lenna": (15.52, 23.17, 13.49, 22.91, 25.30, 25.38),
    "monarch": (11.46, 19.66, 8.80, 20.69, 23.51, 23.65),
    "parrot": (17.29, 24.05, 13.72, 24.32, 26.38, 26.47),
    "pepper": (15.49, 22.90, 11.68, 22.96, 24.92, 25.15),
}
# As printed. For PnP-FISTA and PnP-SGD they are not the means of the rows above: 13.61, 23.56, 25.81 and 25.99.
AVERAGE = (16.71, 23.71, 14.26, 23.73, 25.85, 26.04)

# sigma of BM3D for each image, on the scale 0 .. 255.
BM3D_SIGMA = (0.448, 0.623, 0.583, 0.620, 0.548, 0.575, 0.550, 0.562)
# Weight of TV for each image beside a *sum* over 30 views; d here is a mean, so lambda is a thirtieth of it.
TV_LAMBDA = tuple(tau * 1e-7 / 30 for tau in (3.05, 5.53, 9.73, 7.29, 4.95, 4.88, 6.07, 5.28))
# The model that the authors took, without tuning.
TNRD_SIGMA = 5.0

# Of scikit-image, and all of the paper's size or larger; they stand in where the paper's images are not at hand.
_STAND_IN = ("camera", "moon", "coins", "page")
# As many as in the paper's scans, so that a batch of 10 or 30 means the same.
VIEWS = 60
# Names of problems, and their input SNR in dB.
OTHER_INSTRUMENTS = {"ct": 40.0, "mri": 30.0, "mri-density": 30.0}
_COILS = 4


@dataclass(frozen=True, eq=False)
class Pictures:
    """True images (n, H, W) with values in [0, 1], their names, and whether they are the paper's."""

    names: tuple[str, ...]
    truth: Tensor
    printed: bool

    def only(self, names: tuple[str, ...]) -> Pictures:
        """Those of these names that exist."""
        indices = [i for i, name in enumerate(self.names) if name in names] or [0]
        return Pictures(tuple(self.names[i] for i in indices), self.truth[indices], self.printed)


def load_pictures(folder: Path | None, size: int = 256) -> Pictures:
    """The paper's eight images from a folder (barbara.png ... pepper.png, or .npy), or four others without one.

    They are 256 x 256 in the paper; another size cuts and resamples them.
    """
    from plugstream.images.pictures import load_picture

    if folder is None:
        return Pictures(_STAND_IN, torch.stack([load_picture(name, size) for name in _STAND_IN]), False)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give the one with the paper's images, or leave --images out")
    images = []
    for name in IMAGES:
        paths = [path for kind in ("png", "npy", "tif") if (path := folder / f"{name}.{kind}").exists()]
        if not paths:
            raise InputError(f"{folder} has no {name}.png; the paper's images are {', '.join(IMAGES)}")
        image = load_picture(paths[0])
        images.append(image if image.shape == (size, size) else load_picture(paths[0], size))
    return Pictures(IMAGES, torch.stack(images), True)


@dataclass(frozen=True, eq=False)
class Problem:
    """Images and their measurements by one model: leading axes are images, and steps serve all of them at once."""

    pictures: Pictures
    truth: Tensor
    fidelity: LeastSquares
    counted: CountingModel
    seconds: float
    instrument: str = "born-2d"

    @property
    def names(self) -> tuple[str, ...]:
        return self.pictures.names

    @property
    def device(self) -> torch.device:
        return self.fidelity.device


def make_problem(pictures: Pictures, *, device: torch.device | str = "cpu") -> Problem:
    """Measure every picture as the authors' code did: 60 views, 360 receivers, noise at exactly 40 dB.

    The i-th of the paper's images has noise of seed i, whichever others it comes with. The prox of PnP-ADMM is solved
    to a relative 1e-4, in at most 12 conjugate gradients from the last image on; for long steps that is inexact, and
    the SNR is the same (docs/reproduction.md).
    """
    begin = time.perf_counter()
    model = BornModel(BornGeometry.paper(pictures.truth.shape[-1]), device=device)
    truth = pictures.truth.to(device=model.device, dtype=model.dtype)
    seeds = [IMAGES.index(name) if name in IMAGES else i for i, name in enumerate(pictures.names)]
    return pose(pictures, truth, model, model.forward(truth).cpu(), 40.0, seeds, begin)


def pose(
    pictures: Pictures,
    truth: Tensor,
    model: Model,
    clean: Tensor,
    snr: float,
    seeds: Iterable[int],
    begin: float,
    instrument: str = "born-2d",
) -> Problem:
    """The problem of data without noise, with noise of this many dB and a seed for each picture; its L is known."""
    data = torch.stack([add_noise(one, snr, seed=seed) for one, seed in zip(clean, seeds, strict=True)])
    counted = CountingModel(model)
    fidelity = LeastSquares(cast(Model, counted), data, prox_tol=1e-4, prox_iterations=12)
    assert fidelity.lipschitz_max > 0  # computed now, and not within the first run's time
    return Problem(pictures, truth, fidelity, counted, time.perf_counter() - begin, instrument)


def make_other_problem(name: str, pictures: Pictures, *, device: torch.device | str = "cpu") -> Problem:
    """Pictures measured by "ct" or "mri" from 60 views, with white noise whose seed is the picture's place.

    ct: a parallel beam over half a turn, at 40 dB. mri: spokes turned by the golden angle, four coils on a ring, at
    30 dB; the image is complex with a smooth phase. "mri-density" is the same data, with samples weighted by the part
    of k-space that they represent. The prox is that of `make_problem`.
    """
    if name not in OTHER_INSTRUMENTS:
        raise InputError(f"there is no problem {name!r}; choose one of {', '.join(OTHER_INSTRUMENTS)}")
    begin = time.perf_counter()
    size = int(pictures.truth.shape[-1])
    model, phase = (_tomograph(size, device), None) if name == "ct" else _scanner(size, device, name == "mri-density")
    truth = pictures.truth if phase is None else pictures.truth * phase
    truth = truth.to(device=model.device, dtype=model.dtype)
    clean = _scanner(size, device, False)[0].forward(truth).cpu() if phase is not None else model.forward(truth).cpu()
    return pose(pictures, truth, model, clean, OTHER_INSTRUMENTS[name], range(len(clean)), begin, name)


def _tomograph(size: int, device: torch.device | str) -> Any:
    """A parallel beam; pixels and voxels have side 1."""
    from plugstream.models.ct import CTModel
    from plugstream.models.ct_beams import parallel_beam
    from plugstream.models.ct_geometry import Voxels

    angles = np.arange(VIEWS) * np.pi / VIEWS
    return CTModel(parallel_beam(angles, int(1.45 * size), 1.0), Voxels((size, size), 1.0), device=device)


def _scanner(size: int, device: torch.device | str, weighted: bool) -> tuple[Any, Tensor]:
    """Spokes and coils, and the phase of an image."""
    from plugstream.instruments.mri_simulation import ring_coils
    from plugstream.models.kspace import KSpace, centered_voxels, encoded_voxels, sample_density
    from plugstream.models.mri import MRIModel
    from plugstream.models.trajectories import radial_spokes

    voxels = centered_voxels((size, size), 1e-3)
    path = radial_spokes(voxels, VIEWS)
    density = sample_density(KSpace(path, encoded_voxels(voxels, 2), 1e-4)) if weighted else None
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    phase = torch.from_numpy(np.exp(0.5j * np.sin(2 * x + 0.5) * np.cos(1.5 * y - 0.3)).astype(np.complex64))
    maps = ring_coils((size, size), _COILS)[:, 0]
    return MRIModel(path, voxels, maps, density=density, device=device), phase


class CountingModel:
    """A linear model that counts visits to views: a gradient, or H^H H, of one view is one visit.

    Forward and adjoint alone are half a visit each. Several images together count once. `calls` are those of the
    denoiser (`PerImage`), and `noted` has the calls and visits by step, as noted by `note`.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.reset()

    def reset(self) -> None:
        """Reset the counts."""
        self.visits, self.calls = 0.0, 0
        self.noted: dict[int, tuple[int, float]] = {}

    def note(self, step: int) -> None:
        """Record the counts of this step; later counts belong to the next."""
        self.noted[step] = (self.calls, self.visits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        self._visit(views, 0.5)
        return self.model.forward(image, views)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        self._visit(views, 0.5)
        return self.model.adjoint(data, views)

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        self._visit(views, 1.0)
        return self.model.gradient(image, data, views, weights)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        apply = self.model.normal(views, weights)

        def counted(image: Tensor) -> Tensor:
            self._visit(views, 1.0)
            return apply(image)

        return counted

    def _visit(self, views: Views, share: float) -> None:
        self.visits += share * (self.model.n_views if views is None else len(views))


class PerImage(Wrapper):
    """A denoiser whose strength differs from image to image: D(z_i, sigma c_i).

    Arguments: denoiser; factors c, one for each image, of the leading axes' shape; counted, which counts its calls.
    """

    def __init__(self, denoiser: Denoiser, factors: Tensor, counted: CountingModel | None = None) -> None:
        super().__init__(denoiser)
        self.factors, self.stacked, self.counted = factors, True, counted
        self.averaged = denoiser.averaged

    def rewrap(self, denoiser: Denoiser) -> PerImage:
        return PerImage(denoiser, self.factors, self.counted)

    def level(self, sigma: Sigma) -> Sigma:
        return self.denoiser.level(sigma * self.factors)

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.counted is not None:
            self.counted.calls += 1
        return self.denoiser.denoise(image, sigma * self.factors, warm)
