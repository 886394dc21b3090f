"""Two-dimensional diffraction tomography with multiple scattering: the experiment of born-2d, without its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options
from plugstream.images.grid import Grid
from plugstream.instruments.base import Advice, Columns, declare
from plugstream.instruments.born import Born2D, BornOptions, BornSimulation
from plugstream.instruments.wavelengths import spectrum_of
from plugstream.models.born_geometry import BornGeometry

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model

__all__ = ["Scattering2D", "ScatteringOptions", "ScatteringSimulation"]

# What serves all targets of the Institut Fresnel (docs/scattering.md): contrasts of 0.3 to 2, one to five wavelengths.
_SIGMA, _STEPS, _BATCH = 0.03, 75, 12
_STAGES = 5  # of a hop through all frequencies
# A hop is of stages, which these cannot be combined with.
_NO_HOP = (
    ("algorithm", "name"),
    ("algorithm", "stages"),
    ("algorithm", "distance_limit"),
    ("monitor", "watch_theory"),
)
# Stages are equal parts of all steps where somebody says how many there are.
_NO_PARTS = (*_NO_HOP, ("algorithm", "iterations"))


class ScatteringOptions(BornOptions):
    """What a person can say of the model: how fields are solved for, and how antennas are reached."""

    tolerance: float | None = Field(
        None, ge=1e-13, le=0.1, description="relative residual of the fields; 1e-3, or 1e-9 in float64, if not given"
    )
    max_iterations: int = Field(200, ge=1, le=100_000, description="limit on GMRES products for each field")


class ScatteringSimulation(BornSimulation):
    """The scan that `simulate` and `demo` make; lengths are in metres. The defaults are like the Institut Fresnel's."""

    picture: str = Field(
        "discs", description="a picture file, the name of a scikit-image picture, or discs as --discs says"
    )
    discs: str = Field(
        "0,0.03,0.015,1; -0.02,-0.03,0.02,0.5",
        max_length=10_000,
        description="discs of x,y,radius,contrast, with ; between them; contrasts are times --contrast",
    )
    size: int = Field(64, ge=8, le=8192, description="pixels a side")
    width: float = Field(0.2, ge=1e-15, le=1e15, description="width of the image")
    wavelength: float = Field(0.075, ge=1e-15, le=1e15, description="wavelength in vacuum")
    views: int = Field(36, ge=1, le=10**12, description="number of transmitters")
    receivers: int = Field(72, ge=1, le=10**12, description="number of receivers")
    radius: float = Field(0.76, ge=1e-15, le=1e15, description="radius of the circle of transmitters and receivers")


@declare
@dataclass(frozen=True, eq=False)
class Scattering2D(Born2D):
    """What is known of a scattering experiment before its first view, as of `Born2D`; the model is another.

    Arguments: as of `Born2D`.
    """

    name: ClassVar[str] = "scattering-2d"
    help: ClassVar[str] = "2D diffraction tomography with multiple scattering"
    model_options: ClassVar[type[Options]] = ScatteringOptions
    simulation: ClassVar[type[Options]] = ScatteringSimulation

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """As of born-2d, and how the field is found."""
        found = super().describe(columns, n_views)
        found["model"] = f"multiple scattering by GMRES; antennas {found['model']}"
        return found

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Sigma of an image of strong objects; of several frequencies a hop, with a few views a step."""
        found = [
            Advice("algorithm", "sigma", _SIGMA, f"sigma is {_SIGMA}, for contrasts of 0.3 or more"),
            # Measured in docs/sigma-search.md: with few views, each dear, held-out ones tell too little.
            Advice("algorithm", "search", "none", "it is not searched for, unless data are noisy (--search 250)"),
        ]
        waves = spectrum_of(columns, self.wavelength, n_views).wavelengths
        if len(waves) > 1:
            hop = f"there are {len(waves)} frequencies: the low ones come first (--hop auto; --stages 'all' for none)"
            stages = min(_STAGES, len(waves))
            found += [
                Advice("algorithm", "hop", "auto", hop, unless=_NO_HOP),
                Advice("algorithm", "iterations", _STEPS, f"{_STEPS} steps are usual (--iterations)", unless=_NO_HOP),
                Advice(
                    "algorithm",
                    "hop_steps",
                    _STEPS // stages,
                    "stages of a hop are alike",
                    unless=_NO_PARTS,
                ),
                Advice("sampler", "name", "epochs", "every view is used before any comes again (--sampler epochs)"),
                Advice(
                    "sampler",
                    "batch",
                    min(_BATCH, n_views),
                    f"{min(_BATCH, n_views)} views a step share what is solved (--batch)",
                    unless=(("sampler", "name"),),
                ),
            ]
        return tuple(found)

    def check_model(
        self, columns: Columns | None, n_views: int, options: Any = None, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Refuse a model that could not be built, or would not fit into memory."""
        from plugstream.models.scattering import check_tolerance

        check_tolerance((options or ScatteringOptions()).tolerance, dtype)
        super().check_model(columns, n_views, options, device=device, dtype=dtype)

    def model_of(
        self, geometry: BornGeometry, options: Any, before: Model | None, *, device: torch.device, dtype: torch.dtype
    ) -> Model:
        """The scattering model of a geometry, from that of its first views where there is one."""
        from plugstream.models.scattering import ScatteringModel

        if isinstance(before, ScatteringModel):
            return before.with_geometry(geometry)
        o = options or ScatteringOptions()
        return ScatteringModel(
            geometry,
            tolerance=o.tolerance,
            max_iterations=o.max_iterations,
            method=o.method,
            eps=o.eps,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def simulated_picture(cls, options: BornSimulation, grid: Grid) -> tuple[torch.Tensor, str]:
        """Discs, or a picture, averaged over pixels: sums over pixels are then of second order in their size."""
        import torch

        if not isinstance(options, ScatteringSimulation) or options.picture != "discs":
            return _averaged_picture(options.picture, grid)
        from plugstream.images.simulated import disc

        picture = np.zeros(grid.shape)
        for x, y, radius, contrast in _parse_discs(options.discs):
            covered = disc(grid, (x, y), radius)
            # A disc that lies in another takes its place, as a rod in foam does.
            picture = picture * (1 - covered) + contrast * covered
        return torch.from_numpy(picture).float(), "up"


def _parse_discs(text: str) -> list[tuple[float, float, float, float]]:
    """Discs of "x,y,radius,contrast; ..."; what is none is refused."""
    found = []
    for part in text.split(";"):
        words = part.split(",")
        try:
            x, y, radius, contrast = map(float, words)
        except ValueError:
            raise InputError(f"a disc is x,y,radius,contrast, such as 0,0.03,0.015,1, not {part.strip()!r}") from None
        if not (all(map(math.isfinite, (x, y, contrast))) and 0 < radius < math.inf):
            raise InputError(f"a disc needs finite numbers and a radius > 0, not {part.strip()!r}")
        found.append((x, y, radius, contrast))
    return found


def _averaged_picture(source: str, grid: Grid) -> tuple[torch.Tensor, str]:
    """The largest centred square of a picture, averaged over the pixels of a square grid."""
    from torch.nn.functional import interpolate

    from plugstream.images.pictures import load_picture, picture_y_axis

    whole = load_picture(source)
    side = min(whole.shape)
    top, left = ((n - side) // 2 for n in whole.shape)
    square = whole[top : top + side, left : left + side]
    averaged = interpolate(square[None, None], size=grid.shape, mode="area")[0, 0]
    return averaged, picture_y_axis(source)
