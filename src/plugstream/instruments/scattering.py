"""Two-dimensional diffraction tomography with multiple scattering: the experiment of born-2d, without its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSides, size_field
from plugstream.base.registry import Field, Options
from plugstream.images.grid import Grid
from plugstream.instruments.advice import advise_fall
from plugstream.instruments.base import Place, declare
from plugstream.instruments.born import Born2D, BornOptions, BornSimulation
from plugstream.instruments.declarations import Advice, Columns
from plugstream.instruments.wavelengths import spectrum_of
from plugstream.models.born_geometry import BornGeometry

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model


# These suit all targets of the Institut Fresnel (docs/scattering.md): contrasts of 0.3 to 2, one to five wavelengths.
_SIGMA, _STEPS, _BATCH = 0.03, 75, 12
# Where sigma and the step fall together: sigma, which of TV only says how long steps are, and that of the first run.
_FALL: dict[str, Any] = {"fall": 12, "sigma": "100%", "step_size": "40/L", "search": 144, "iterations": 384}
_WIDE = 2.5  # wavelengths across an image from which held-out data say enough about the strength
_STAGES = 5  # of a hop through all frequencies
# A hop consists of stages, which cannot be combined with these.
_NO_HOP = (("algorithm", "name"), ("algorithm", "stages"), ("algorithm", "distance_limit"))
# If somebody gives the number of steps, stages are equal parts of them.
_NO_PARTS = (*_NO_HOP, ("algorithm", "iterations"))


class ScatteringOptions(BornOptions):
    """Options of the model: how fields are solved for, and how antennas are reached."""

    tolerance: float | None = Field(
        None, ge=1e-13, le=0.1, description="relative residual of the fields; 1e-3, or 1e-9 in float64, if not given"
    )
    max_iterations: int = Field(200, ge=1, le=100_000, description="limit on GMRES products for each field")


class ScatteringSimulation(BornSimulation):
    """The scan that `simulate` and `demo` make; lengths are in metres. The defaults are like the Institut Fresnel's."""

    picture: str = Field("discs", description="a picture file, a name such as camera, or discs as --discs says")
    discs: str = Field(
        "0,0.03,0.015,1; -0.02,-0.03,0.02,0.5",
        max_length=10_000,
        description="discs of x,y,radius,contrast, with ; between them; contrasts are times --contrast",
    )
    size: ImageSides = size_field(8, 8192, "64 if not given", (64,))
    width: float = Field(0.2, ge=1e-15, le=1e15, description="width of the image")
    wavelength: float = Field(0.075, ge=1e-15, le=1e15, description="wavelength in vacuum")
    views: int = Field(36, ge=1, le=10**12, description="number of transmitters")
    receivers: int = Field(72, ge=1, le=10**12, description="number of receivers")
    radius: float = Field(0.76, ge=1e-15, le=1e15, description="radius of the circle of transmitters and receivers")


@declare
@dataclass(frozen=True, eq=False)
class Scattering2D(Born2D):
    """What is known of a scattering experiment before its first view, as for `Born2D`, with another model."""

    name: ClassVar[str] = "scattering-2d"
    help: ClassVar[str] = "2D diffraction tomography with multiple scattering"
    model_options: ClassVar[type[Options]] = ScatteringOptions
    simulation: ClassVar[type[Options]] = ScatteringSimulation

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """As for born-2d, and how fields are solved for."""
        lines = super().describe(columns, n_views)
        return lines | {"model": f"multiple scattering by GMRES; antennas {lines['model']}"}

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """A sigma for strong objects; for several frequencies, a hop with a few views a step."""
        strong = f"sigma is {_SIGMA}, for contrasts of 0.3 or more"
        advice = [
            *(Advice("algorithm", "sigma", _SIGMA, strong, sigma=kind) for kind in ("weight", "noise")),
            # Measured in docs/sigma-search.md: of so few views, those held out say too little.
            Advice("algorithm", "search", "none", "it is not searched for, unless data are noisy (--search 250)"),
        ]
        waves = spectrum_of(columns, self.wavelength, n_views).wavelengths
        if len(waves) > 1:
            hop = f"there are {len(waves)} frequencies: the low ones come first (--hop auto; --stages 'all' for none)"
            stages, batch = min(_STAGES, len(waves)), min(_BATCH, n_views)
            share = f"{batch} views a step share what is solved (--batch)"
            return (
                *advice,
                Advice("algorithm", "hop", "auto", hop, unless=_NO_HOP),
                Advice("algorithm", "iterations", _STEPS, f"{_STEPS} steps are usual (--iterations)", unless=_NO_HOP),
                Advice("algorithm", "hop_steps", _STEPS // stages, "stages of a hop are alike", unless=_NO_PARTS),
                Advice("sampler", "name", "epochs", "every view is used before any comes again (--sampler epochs)"),
                Advice("sampler", "batch", batch, share, unless=(("sampler", "name"),)),
            )
        wide = min(self.grid.shape) * self.grid.pixel >= _WIDE * self.wavelength
        for fall in advise_fall(n_views, _FALL["fall"]) if wide else ():  # with TV, unless a person wants another
            usual = replace(fall, section="denoiser", key="name", value="tv")
            steps = (replace(fall, key=key, value=value) for key, value in _FALL.items())
            advice += [replace(one, sigma="weight") for one in (usual, *steps)]
        return tuple(advice)

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse a model that could not be built, or would not fit into memory."""
        from plugstream.models.scattering import check_tolerance

        check_tolerance((options or ScatteringOptions()).tolerance, place["dtype"])
        super().check_model(columns, n_views, options, **place)

    def model_of(self, geometry: BornGeometry, options: Any, **place: Unpack[Place]) -> Model:
        from plugstream.models.scattering import ScatteringModel

        o = options or ScatteringOptions()
        accuracy, most = o.tolerance, o.max_iterations
        return ScatteringModel(geometry, tolerance=accuracy, max_iterations=most, method=o.method, eps=o.eps, **place)

    @classmethod
    def simulated_picture(cls, options: BornSimulation, grid: Grid) -> tuple[torch.Tensor, str]:
        """Discs, or a picture, averaged over pixels, so that sums over pixels are of second order in their size."""
        import torch

        if not isinstance(options, ScatteringSimulation) or options.picture != "discs":
            return _averaged_picture(options.picture, grid)
        from plugstream.images.simulated import disc

        picture = np.zeros(grid.shape)
        for x, y, radius, contrast in _parse_discs(options.discs):
            covered = disc(grid, (x, y), radius)
            # A disc inside another one replaces it, like a rod in foam.
            picture = picture * (1 - covered) + contrast * covered
        return torch.from_numpy(picture).float(), "up"


def _parse_discs(text: str) -> list[tuple[float, float, float, float]]:
    """Discs of "x,y,radius,contrast; ..."; refuse anything else."""
    discs = []
    for part in text.split(";"):
        words = part.split(",")
        try:
            x, y, radius, contrast = map(float, words)
        except ValueError:
            raise InputError(f"a disc is x,y,radius,contrast, such as 0,0.03,0.015,1, not {part.strip()!r}") from None
        if not (all(map(math.isfinite, (x, y, contrast))) and 0 < radius < math.inf):
            raise InputError(f"a disc needs finite numbers and a radius > 0, not {part.strip()!r}")
        discs.append((x, y, radius, contrast))
    return discs


def _averaged_picture(source: str, grid: Grid) -> tuple[torch.Tensor, str]:
    """The largest centred part of a picture that has the shape of a grid, averaged over its pixels."""
    from torch.nn.functional import interpolate

    from plugstream.images.pictures import load_picture, middle_part, picture_y_axis

    picture = load_picture(source)
    part = picture[middle_part(picture.shape, grid.shape)]
    averaged = interpolate(part[None, None], size=grid.shape, mode="area")[0, 0]
    return averaged, picture_y_axis(source)
