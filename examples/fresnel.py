"""Real data: the four Institut Fresnel targets, imaged from several low frequencies together.

The contrast of these plastics and foams is the same at all frequencies, so each frequency is a set of views of one
image. Every frequency is scaled to the same Lipschitz constant, and a step draws views of all of them.

    python examples/fresnel.py ../shared/data/fresnel fresnel.png

Cite Belkebir and Saillard, Inverse Problems 17, 2001, and Geffrin, Sabouroux and Eyraud, Inverse Problems 21, 2005.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from fresnel_importer import import_fresnel
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import plugstream as ps

# Frequencies in GHz, and each cylinder's centre and radius in mm with its contrast, as the experimenters give them.
TARGETS = {
    "dielTM_dec8f.exp": ((1.0, 2.0, 3.0), [(0.0, 29.0, 15.0, 2.0)]),
    "twodielTM_8f.exp": ((1.0, 2.0, 3.0), [(0.0, 45.0, 15.0, 2.0), (0.0, -45.0, 15.0, 2.0)]),
    "FoamDielExtTM.txt": ((2.0, 3.0), [(0.0, 0.0, 40.0, 0.45), (-55.5, 0.0, 15.5, 2.0)]),
    "FoamDielIntTM.txt": ((2.0, 3.0), [(0.0, 0.0, 40.0, 0.45), (-5.0, 0.0, 15.5, 2.0)]),
}

# Where an exact solution for round cylinders fits the data of 2001 best (tests/scans/importers/test_fresnel.py has it).
FITTED = {
    "dielTM_dec8f.exp": [(1.3, 26.2, 15.0)],
    "twodielTM_8f.exp": [(-2.5, 46.3, 15.0), (-12.3, -43.6, 15.0)],
}


class Joint(ps.ModelBase):
    """Several models of one image, their views one after another, each model times a factor."""

    def __init__(self, models: Sequence[ps.Model], factors: Sequence[float]) -> None:
        first = models[0]
        self.image_shape, self.data_shape = first.image_shape, first.data_shape
        self.device, self.dtype, self.data_dtype = first.device, first.dtype, first.data_dtype
        self.n_views = sum(model.n_views for model in models)
        ends = torch.tensor([model.n_views for model in models]).cumsum(0).tolist()
        self.parts = [(m, f, end - m.n_views) for m, f, end in zip(models, factors, ends, strict=True)]

    def forward(self, image: torch.Tensor, views: ps.models.views.Views = None) -> torch.Tensor:
        index = self._index(views)
        shape = (*image.shape[:-2], len(index), *self.data_shape)
        out = torch.zeros(shape, dtype=self.data_dtype, device=self.device)
        for model, factor, first in self.parts:
            rows = self._rows(index, first, model.n_views)
            if len(rows):
                out[..., rows, :] = factor * model.forward(image, index[rows] - first)
        return out

    def adjoint(self, data: torch.Tensor, views: ps.models.views.Views = None) -> torch.Tensor:
        index = self._index(views)
        out = torch.zeros((*data.shape[:-2], *self.image_shape), dtype=self.dtype, device=self.device)
        for model, factor, first in self.parts:
            rows = self._rows(index, first, model.n_views)
            if len(rows):
                out += factor * model.adjoint(data[..., rows, :], index[rows] - first)
        return out

    def _index(self, views: ps.models.views.Views) -> torch.Tensor:
        return torch.arange(self.n_views) if views is None else torch.as_tensor(views)

    @staticmethod
    def _rows(index: torch.Tensor, first: int, count: int) -> torch.Tensor:
        return ((index >= first) & (index < first + count)).nonzero()[:, 0]


def reconstruct(
    file: Path, frequencies: Sequence[float], *, sigma: float = 0.08, iterations: int = 100
) -> tuple[torch.Tensor, ps.Grid, float]:
    """The image, its grid, and the part of the data's energy that it leaves unexplained."""
    scans = [import_fresnel(file, frequency) for frequency in frequencies]
    models = [ps.BornModel(ps.born_geometry(scan)) for scan in scans]
    factors = [ps.LeastSquares(m, s.data).lipschitz_max ** -0.5 for m, s in zip(models, scans, strict=True)]
    data = torch.cat([factor * scan.data for factor, scan in zip(factors, scans, strict=True)])
    fidelity = ps.LeastSquares(Joint(models, factors), data)
    algorithm = ps.ProximalGradient(
        fidelity, ps.TV(low=0.0), sigma=sigma, momentum="nesterov", sampler=ps.Epochs(len(data) // 2)
    )
    image = ps.solve(algorithm, iterations=iterations).image
    left = float(fidelity.value(image) / fidelity.value(torch.zeros_like(image)))
    return image, ps.born_geometry(scans[0]).grid, left


def main(folder: Path, picture: str) -> None:
    figure = Figure(figsize=(14.5, 3.9), layout="constrained")
    for axes, (name, (frequencies, cylinders)) in zip(figure.subplots(1, len(TARGETS)), TARGETS.items(), strict=True):
        image, grid, left = reconstruct(folder / name, frequencies)
        half = 500 * grid.shape[0] * grid.pixel  # in mm; pixel (i, j) lies on its point, half a pixel from its edges
        low, high = -half - 500 * grid.pixel, half - 500 * grid.pixel
        shown = axes.imshow(image, origin="lower", extent=(low, high, low, high), cmap="gray", vmin=0)
        for x, y, radius, _ in cylinders:
            axes.add_patch(Circle((x, y), radius, fill=False, color="tab:orange", linewidth=1.2))
        for x, y, radius in FITTED.get(name, []):
            axes.add_patch(Circle((x, y), radius, fill=False, color="tab:cyan", linewidth=1.2, linestyle="--"))
        figure.colorbar(shown, ax=axes, shrink=0.75)
        text = ", ".join(f"{f:g}" for f in frequencies)
        axes.set_title(f"{Path(name).stem}, {text} GHz\n{left:.0%} of the data unexplained", fontsize=9)
        axes.set_xlabel("x, mm")
        truth = " and ".join(f"{contrast:g}" for contrast in sorted({c[3] for c in cylinders}))
        print(f"{name:<20} contrast up to {float(image.max()):.2f}, truly {truth}; {left:.0%} of the data unexplained")
    figure.savefig(picture, dpi=90)


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/fresnel"),
        sys.argv[2] if len(sys.argv) > 2 else "fresnel.png",
    )
