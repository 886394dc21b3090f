"""Two-dimensional diffraction tomography in the first Born approximation: the paper's instrument."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from plugstream.capacity import check_memory
from plugstream.errors import InputError
from plugstream.grid import Grid, Points
from plugstream.image_space import ImageSpace
from plugstream.instruments.base import (
    Attribute,
    Column,
    Columns,
    Data,
    Experiment,
    FixedArray,
    Instrument,
    declare,
)
from plugstream.models.born_geometry import BornGeometry, ring
from plugstream.models.born_plausible import (
    check_plausible,
    check_transmitters,
    warn_if_implausible,
    warn_of_transmitters,
)
from plugstream.registry import Field, Options

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model

__all__ = ["Born2D", "BornOptions", "BornSimulation", "born_geometry"]


class BornOptions(Options):
    """What a person can say of the Born model."""

    method: Literal["auto", "dense", "fast"] = Field(
        "auto", description="by its Green's matrix, through plane waves, or whichever is cheaper"
    )
    eps: float | None = Field(
        None, ge=1e-12, le=1e-3, description="accuracy of the fast method; 1e-5, or 1e-9 in float64, if not given"
    )


# Nothing that is measured or computed here comes near these; beyond them squares and products leave the range of double
# precision, and counters that of 64 bits.
_LARGE, _SMALL = 1e100, 1e-100  # of images
_LONG, _SHORT = 1e15, 1e-15  # of lengths, in metres
_COUNT = 10**12
# What simulating takes at its peak for each measured value (the data and its noise in double precision) and position.
_BYTES_A_VALUE, _BYTES_A_POINT = 80, 100


class BornSimulation(Options):
    """The scan that `simulate` and `demo` make; lengths are in metres. The defaults are the paper's experiment."""

    picture: str = Field("camera", description="a picture file, or the name of a scikit-image picture")
    size: int = Field(256, ge=8, le=8192, description="pixels a side")
    width: float = Field(0.18, ge=_SHORT, le=_LONG, description="width of the image")
    contrast: float = Field(1.0, ge=_SMALL, le=_LARGE, description="permittivity contrast that white stands for")
    wavelength: float = Field(6 * 0.18 / 256, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    background: float = Field(1.0, ge=_SHORT, le=_LONG, description="relative permittivity around the object")
    views: int = Field(60, ge=1, le=_COUNT, description="number of transmitters")
    receivers: int = Field(360, ge=1, le=_COUNT, description="number of receivers")
    radius: float = Field(1.6, ge=_SHORT, le=_LONG, description="radius of the circle of transmitters and receivers")
    arc: float = Field(360.0, gt=0, le=360, description="degrees that they cover")
    snr: float = Field(40.0, ge=-200, le=400, description="input SNR in dB", json_schema_extra={"flag": "input-snr"})
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the noise", json_schema_extra={"flag": "noise-seed"})


@declare
@dataclass(frozen=True, eq=False)
class Born2D(Instrument):
    """What is known of a scattering experiment before its first view: all of a `BornGeometry` but the illuminations.

    Arguments: receivers (receivers, 2), positions in metres, or directions with `far_field`; wavelength in vacuum;
    grid of pixels; background, a relative permittivity.
    """

    receivers: Points
    wavelength: float
    grid: Grid
    background: float = 1.0
    far_field: bool = False

    name: ClassVar[str] = "born-2d"
    help: ClassVar[str] = "2D diffraction tomography, first Born approximation"
    data: ClassVar[Data] = Data(
        ("complex64",),
        ("receiver",),
        meaning="scattered field where the incident one is (i/4) H0^(1)(k |r - t|) for the transmitter t, "
        "exp(i k s . r) for the plane wave s, or what fields says; k = 2 pi sqrt(background) / wavelength. With "
        "far_field the amplitude A, u ~ A exp(i k r) / sqrt(r)",
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column("transmitters", "float64", (2,), "m", "x and y of a line source", choice="illumination"),
        Column("plane_waves", "float64", (2,), "", "direction of a plane wave", choice="illumination"),
        Column("fields", "complex64", ("y", "x"), "", "incident field on the grid", choice="illumination"),
        Column(
            "mask",
            "bool",
            ("receiver",),
            "",
            "False where a receiver did not record",
            optional=True,
            default=True,
            covers=True,
        ),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray("receivers", "float64", ("receiver", 2), "m", "x and y of each, or directions with far_field"),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("wavelength", float, "m", "in vacuum"),
        Attribute("background", float, "", "relative permittivity around the object", default=1.0),
        Attribute("grid", Grid, "m", "the image's pixels"),
        Attribute("far_field", bool, "", "receivers are directions", default=False),
    )
    conventions: ClassVar[dict[str, str]] = {
        "time": "exp(-i w t), outgoing waves are H0^(1)",
        "positions": "x, y",
        "pixels": "row i, column j at x = xc + (j - W // 2) pixel, y = yc + (i - H // 2) pixel",
    }
    model_options: ClassVar[type[Options]] = BornOptions
    simulation: ClassVar[type[Options]] = BornSimulation

    def __post_init__(self) -> None:
        checked = self.geometry(plane_waves=np.array([[1.0, 0.0]]))
        object.__setattr__(self, "receivers", checked.receivers)

    @property
    def image(self) -> ImageSpace:
        """Permittivity contrast on the grid."""
        grid = self.grid
        spacing = (grid.pixel, grid.pixel)
        return ImageSpace(grid.shape, spacing=spacing, origin=grid.origin, quantity="permittivity contrast")

    def geometry(self, **views: Any) -> BornGeometry:
        """The geometry with these views: transmitters, plane_waves or fields, and mask."""
        return BornGeometry(
            receivers=self.receivers,
            wavelength=self.wavelength,
            grid=self.grid,
            background=self.background,
            far_field=self.far_field,
            **views,
        )

    @classmethod
    def of(cls, geometry: BornGeometry) -> Born2D:
        """The instrument that a geometry's views were taken with."""
        g = geometry
        return cls(g.receivers, g.wavelength, g.grid, g.background, g.far_field)

    def check_views(self, columns: Columns) -> dict[str, Any]:
        """The columns with plane waves at unit length; illuminations that cannot be are refused."""
        geometry = self.geometry(**columns)
        return {name: getattr(geometry, name) for name in columns}

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse an experiment whose lengths cannot be in one unit, as `plugstream.models.born_plausible` says."""
        if columns is None:
            check_plausible(self)
        elif "transmitters" in columns:
            check_transmitters(columns["transmitters"][:], self)

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of an experiment that is unusual in that."""
        if columns is None:
            warn_if_implausible(self)
        elif "transmitters" in columns:
            warn_of_transmitters(columns["transmitters"][:], self)

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """Kind of illumination, what was recorded, lengths in wavelengths, and how the model would be computed."""
        import torch

        from plugstream.models.born import choose_method

        g = self.geometry(**columns)
        height, width = g.grid.shape
        kinds = {"fields given": g.fields, "plane waves": g.plane_waves, "line sources": g.transmitters}
        kind = next(name for name, array in kinds.items() if array is not None)
        choice = choose_method(g, device=torch.device("cpu"), dtype=torch.float32)
        masked = f"{g.mask.mean():.1%} of all" if isinstance(g.mask, np.ndarray) else "masked by view"
        covered = "all" if g.mask is None else masked
        per_wavelength = g.wavelength / g.grid.pixel
        return {
            "views": f"{n_views}, {kind}",
            "receivers": f"{g.n_receivers}, {covered} recorded",
            "wavelength": f"{g.wavelength:.6g} m in vacuum, background permittivity {g.background:g}",
            "image": f"{height} x {width} pixels of {g.grid.pixel:.6g} m, {per_wavelength:.3g} a wavelength",
            "distance": f"receivers {'far away' if g.far_field else _range(g.receivers)}"
            + (f", transmitters {_range(g.transmitters)}" if g.transmitters is not None else ""),
            "size": f"{math.hypot(height, width) * g.grid.pixel / g.wavelength:.4g} wavelengths across the diagonal",
            "model": f"{'dense' if choice.expansion is None else 'fast'} on a CPU: {choice.reason}",
        }

    def check_model(
        self, columns: Columns | None, n_views: int, options: Any = None, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Refuse a model that could not be built, or would not fit into memory."""
        from plugstream.models.born import choose_method

        asked = options or BornOptions()
        geometry = self.geometry(**({"plane_waves": np.array([[1.0, 0.0]])} if columns is None else columns))
        choice = choose_method(geometry, method=asked.method, eps=asked.eps, device=device, dtype=dtype)
        if device.type == "cpu":
            name = "dense" if choice.expansion is None else "fast"
            advice = "use a smaller image" + (", or --method fast" if asked.method == "dense" else "")
            check_memory(choice.held, f"the {name} model", advice)

    def build_model(
        self,
        columns: Columns,
        n_views: int,
        options: Any = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
        previous: Model | None = None,
    ) -> Model:
        """The Born model of these views."""
        from plugstream.models.born import BornModel

        geometry = self.geometry(**columns)
        if isinstance(previous, BornModel):
            return previous.with_geometry(geometry)
        chosen = options or BornOptions()
        return BornModel(geometry, method=chosen.method, eps=chosen.eps, device=device, dtype=dtype)

    @classmethod
    def simulate_views(cls, options: BornSimulation) -> Experiment:
        """A picture as contrast, with transmitters and receivers on one circle about it."""
        from plugstream.runs.images import load_picture, picture_y_axis

        s = options
        check_memory(
            _BYTES_A_VALUE * s.views * s.receivers + _BYTES_A_POINT * (s.views + s.receivers),
            f"a scan of {s.views:,} views of {s.receivers:,} receivers",
            "use fewer --views or --receivers",
        )
        if s.radius <= s.width / math.sqrt(2):
            raise InputError(
                f"a circle of radius {s.radius} m cuts the image, whose corners are at {s.width / math.sqrt(2):.4g} m; "
                "use a larger radius or a smaller width"
            )
        ring_of = {"radius": s.radius, "arc": s.arc}
        instrument = cls(
            ring(s.receivers, **ring_of), s.wavelength, Grid((s.size, s.size), s.width / s.size), s.background
        )
        columns = {"transmitters": ring(s.views, **ring_of)}
        truth = (s.contrast * load_picture(s.picture, s.size)).numpy()
        provenance = {"snr_db": s.snr, "seed": s.seed, "y_axis": picture_y_axis(s.picture)}
        summary = f"{s.picture}, {s.size} x {s.size}, at {s.snr:g} dB"
        return Experiment(instrument, columns, s.views, truth, provenance, summary)

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: BornSimulation) -> torch.Tensor:
        """Complex white Gaussian noise at exactly the input SNR that is asked for."""
        import torch

        from plugstream.noise import add_noise

        mask = columns.get("mask")
        recorded = None if mask is None else torch.from_numpy(mask[:])
        return add_noise(clean, options.snr, seed=options.seed, mask=recorded).to(torch.complex64)


def born_geometry(scan: Any) -> BornGeometry:
    """The geometry of a Born scan's views, such as `BornModel` takes; scans of other instruments have none.

    Arguments: scan, in memory or stored.
    """
    if not isinstance(scan.instrument, Born2D):
        raise InputError(f"a scan of {scan.instrument.name} has no geometry of transmitters and receivers")
    return scan.instrument.geometry(**scan.columns)


def _range(points: Points) -> str:
    """How far points are from the origin."""
    radii = np.hypot(*points.T)
    low, high = radii.min(), radii.max()
    return f"{low:.4g} m" if np.isclose(low, high) else f"{low:.4g} to {high:.4g} m"
