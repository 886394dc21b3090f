"""Two-dimensional diffraction tomography in the first Born approximation: the paper's instrument."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSides, image_sides, size_field
from plugstream.base.registry import Field, Options
from plugstream.base.rows import Rows
from plugstream.images.grid import Grid, Points
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import MANY, advise_fall, advise_trained, suits_network
from plugstream.instruments.base import Experiment, Instrument, Place, add_white_noise, declare
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, FixedArray, mask_column
from plugstream.instruments.spectrum import describe_waves, parse_waves
from plugstream.instruments.suspects import suspects_of_born, views_of_born
from plugstream.instruments.wavelengths import (
    GAINS,
    WAVELENGTHS,
    balance_gains,
    build_by_wavelength,
    check_spectrum,
    describe_spectrum,
    spectrum_of,
    split_by_wavelength,
    without_spectrum,
)
from plugstream.models.born_geometry import BornGeometry, describe_range, ring
from plugstream.models.born_plausible import check_places, check_plausible, warn_if_implausible, warn_of_places

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model

InstrumentLike = Instrument | BornGeometry
"""What tells the instrument of a scan; a geometry has the columns of its views besides."""


class BornOptions(Options):
    """Options of the Born model."""

    method: Literal["auto", "dense", "fast"] = Field(
        "auto", description="by its Green's matrix, through plane waves, or whichever is cheaper"
    )
    eps: float | None = Field(
        None, ge=1e-12, le=1e-3, description="accuracy of the fast method; 1e-5, or 1e-9 in float64, if not given"
    )


# Beyond these, which no experiment comes near, squares and products overflow double precision, and counters 64 bits.
_LARGE, _SMALL = 1e100, 1e-100  # of images
_LONG, _SHORT = 1e15, 1e-15  # of lengths, in metres
_COUNT = 10**12
# Peak memory of a simulation for each measured value (the data and its noise in double precision) and position.
_BYTES_A_VALUE, _BYTES_A_POINT = 80, 100


class BornSimulation(Options):
    """The scan that `simulate` and `demo` make; lengths are in metres. The defaults are the paper's experiment."""

    picture: str = Field("camera", description="a picture file, or a name such as camera")
    size: ImageSides = size_field(8, 8192, "256 if not given", (256,))
    width: float = Field(0.18, ge=_SHORT, le=_LONG, description="width of the image")
    contrast: float = Field(1.0, ge=_SMALL, le=_LARGE, description="permittivity contrast that white stands for")
    wavelength: float = Field(6 * 0.18 / 256, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    frequencies: str | None = Field(
        None,
        max_length=1 << 16,
        description="instead of a wavelength several frequencies (or wavelengths), such as 2,4,6GHz: each transmitter "
        "then has a view of each",
    )
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
    """What is known of a scattering experiment before its first view: a `BornGeometry` without illuminations.

    Arguments: receivers (receivers, 2), positions in metres, or directions with `far_field`; wavelength in vacuum;
    grid of pixels; background, a relative permittivity.
    """

    receivers: Points
    wavelength: float
    grid: Grid
    background: float = 1.0
    far_field: bool = False

    name: ClassVar[str] = "born-2d"
    neighbours: ClassVar[bool] = True
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
        mask_column(("receiver",), "False where a receiver did not record"),
        WAVELENGTHS,
        GAINS,
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray("receivers", "float64", ("receiver", 2), "m", "x and y of each, or directions with far_field"),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("wavelength", float, "m", "in vacuum; the shortest where views have their own"),
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
    suspects = suspects_of_born
    trial_views = views_of_born
    add_noise = add_white_noise

    def __post_init__(self) -> None:
        checked = self.geometry(plane_waves=np.array([[1.0, 0.0]]))
        object.__setattr__(self, "receivers", checked.receivers)

    @property
    def image(self) -> ImageSpace:
        """Permittivity contrast on the grid."""
        grid = self.grid
        spacing = (grid.pixel, grid.pixel)
        return ImageSpace(grid.shape, spacing=spacing, origin=grid.origin, quantity="permittivity contrast")

    def geometry(self, *, wavelength: float | None = None, **views: Any) -> BornGeometry:
        """The geometry with these views: transmitters, plane_waves or fields, and mask; gains are ignored.

        Views of several wavelengths are refused: they have a geometry for each (`geometries`).

        Arguments: wavelength, the instrument's own if not given.
        """
        if WAVELENGTHS.name in views:
            several = np.unique(views[WAVELENGTHS.name][:]).tolist()
            if len(several) > 1:
                raise InputError(
                    f"the views are of {describe_waves(several)}, and a geometry is of one wavelength; use geometries"
                )
            wavelength = several[0]
        return BornGeometry(
            receivers=self.receivers,
            wavelength=self.wavelength if wavelength is None else wavelength,
            grid=self.grid,
            background=self.background,
            far_field=self.far_field,
            **without_spectrum(views),
        )

    def geometries(self, columns: Columns, n_views: int) -> list[BornGeometry]:
        """The geometry of the views of each wavelength, in the order in which wavelengths first appear."""
        return [
            self.geometry(wavelength=wave, **rows)
            for wave, rows in split_by_wavelength(columns, spectrum_of(columns, self.wavelength, n_views))
        ]

    @classmethod
    def of(cls, geometry: BornGeometry) -> Born2D:
        """The instrument of a geometry's views."""
        g = geometry
        return cls(g.receivers, g.wavelength, g.grid, g.background, g.far_field)

    def check_views(self, columns: Columns) -> dict[str, Any]:
        """The columns with plane waves at unit length; refuse impossible illuminations."""
        check_spectrum(columns)
        places = without_spectrum(columns)
        geometry = self.geometry(**places)
        return {name: getattr(geometry, name) if name in places else rows for name, rows in columns.items()}

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse an experiment whose lengths cannot be in one unit, as `plugstream.models.born_plausible` says."""
        if columns is None:
            check_plausible(self)
            return
        if "transmitters" in columns:
            check_places("transmitter", columns["transmitters"][:], self)
        if WAVELENGTHS.name in columns:
            for wave in np.unique(columns[WAVELENGTHS.name][:]).tolist():
                check_plausible(replace(self, wavelength=wave))

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of unusual lengths, as `plugstream.models.born_plausible` says."""
        if columns is None:
            warn_if_implausible(self)
            return
        if "transmitters" in columns:
            warn_of_places("transmitter", columns["transmitters"][:], self)
        if WAVELENGTHS.name in columns:
            waves = columns[WAVELENGTHS.name][:]
            for wave in {float(waves.min()), float(waves.max())} - {self.wavelength}:
                warn_if_implausible(replace(self, wavelength=wave))

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Which denoiser runs that search for sigma have, where sigma falls and where it does not."""
        fall, shape = advise_fall(n_views, 12), self.grid.shape
        if n_views < MANY or not suits_network(shape):
            return fall
        why = "no denoiser is given, so that it is unet, the best on average (--denoiser)"
        short = (("algorithm", "iterations"), ("algorithm", "search"))
        race = Advice("denoiser", "name", "unet", why, search=True, unless=short)
        return (*fall, *advise_trained(fall, shape), race)

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """The illumination, what was recorded, lengths in wavelengths, and how the model would be computed."""
        import torch

        from plugstream.models.born import choose_method

        each = self.geometries(columns, n_views)
        g = min(each, key=lambda one: one.wavelength)
        height, width = g.grid.shape
        kinds = {"fields given": g.fields, "plane waves": g.plane_waves, "line sources": g.transmitters}
        kind = next(name for name, array in kinds.items() if array is not None)
        choice = choose_method(g, device=torch.device("cpu"), dtype=torch.float32)
        mask = columns.get("mask")
        masked = f"{mask.mean():.1%} of all" if isinstance(mask, np.ndarray) else "masked by view"
        covered = "all" if mask is None else masked
        per_wavelength = g.wavelength / g.grid.pixel
        waves = sorted(geometry.wavelength for geometry in each)
        wavelengths = " to ".join(f"{wave:.6g}" for wave in (waves if len(waves) == 1 else (waves[0], waves[-1])))
        return {
            "views": f"{n_views}, {kind}",
            "receivers": f"{g.n_receivers}, {covered} recorded",
            **describe_spectrum(columns, self.wavelength, n_views),
            "wavelength": f"{wavelengths} m in vacuum, background permittivity {g.background:g}",
            "image": f"{height} x {width} pixels of {g.grid.pixel:.6g} m, {per_wavelength:.3g} a wavelength",
            "distance": f"receivers {'far away' if g.far_field else describe_range(g.receivers)}"
            + (f", transmitters {describe_range(columns['transmitters'][:])}" if g.transmitters is not None else ""),
            "size": f"{math.hypot(height, width) * g.grid.pixel / g.wavelength:.4g} wavelengths across the diagonal",
            "model": f"{'dense' if choice.expansion is None else 'fast'} on a CPU: {choice.reason}",
        }

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse a model that could not be built, or would not fit into memory."""
        from plugstream.models.born import choose_method

        chosen = options or BornOptions()
        rows = {"plane_waves": np.array([[1.0, 0.0]])} if columns is None else columns
        choices = [
            choose_method(geometry, method=chosen.method, eps=chosen.eps, **place)
            for geometry in self.geometries(rows, n_views)
        ]
        if place["device"].type == "cpu":
            name = "dense" if any(choice.expansion is None for choice in choices) else "fast"
            advice = "use a smaller image" + (", or --method fast" if chosen.method == "dense" else "")
            several = f" of {len(choices)} wavelengths" if len(choices) > 1 else ""
            check_memory(sum(choice.held for choice in choices), f"the {name} model{several}", advice)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The model of these views, one for each wavelength."""

        def build(wavelength: float, rows: Columns, before: Any) -> Model:
            geometry = self.geometry(wavelength=wavelength, **rows)
            if before is None:
                return self.model_of(geometry, options, **place)
            grown: Model = before.with_geometry(geometry)
            return grown

        return build_by_wavelength(columns, self.wavelength, n_views, build, previous)

    def model_of(self, geometry: BornGeometry, options: Any, **place: Unpack[Place]) -> Model:
        """The model of views of one wavelength; as a scan grows, its `with_geometry` gives that of more views."""
        from plugstream.models.born import BornModel

        chosen = options or BornOptions()
        return BornModel(geometry, method=chosen.method, eps=chosen.eps, **place)

    @classmethod
    def simulate_views(cls, options: BornSimulation) -> Experiment:
        """A picture as contrast, with transmitters and receivers on one circle around it."""
        s = options
        waves = (s.wavelength,) if s.frequencies is None else parse_waves(s.frequencies)
        views = s.views * len(waves)
        check_memory(
            _BYTES_A_VALUE * views * s.receivers + _BYTES_A_POINT * (views + s.receivers),
            f"a scan of {views:,} views of {s.receivers:,} receivers",
            "use fewer --views or --receivers",
        )
        height, width = image_sides(s, 2)
        corner = math.hypot(height, width) * s.width / width / 2
        if s.radius <= corner:
            raise InputError(
                f"a circle of radius {s.radius} m cuts the image, whose corners are at {corner:.4g} m; use a larger "
                "radius or a smaller width"
            )
        ring_of = {"radius": s.radius, "arc": s.arc}
        instrument = cls(ring(s.receivers, **ring_of), min(waves), Grid((height, width), s.width / width), s.background)
        columns = {"transmitters": np.tile(ring(s.views, **ring_of), (len(waves), 1))}
        if len(waves) > 1:
            columns[WAVELENGTHS.name] = np.repeat(waves, s.views)
        picture, y_axis = cls.simulated_picture(s, instrument.grid)
        truth = (s.contrast * picture).numpy()
        provenance = {"snr_db": s.snr, "seed": s.seed, "y_axis": y_axis}
        summary = f"{s.picture}, {height} x {width}, at {s.snr:g} dB"
        return Experiment(instrument, columns, views, truth, provenance, summary)

    def bring_to_scale(self, clean: torch.Tensor, columns: Columns) -> tuple[torch.Tensor, Columns]:
        """The data of several wavelengths at a common scale, and the gains for it."""
        import torch

        if WAVELENGTHS.name not in columns or GAINS.name in columns:
            return clean, columns
        mask = columns.get("mask")
        gains = balance_gains(clean.numpy(), columns[WAVELENGTHS.name][:], None if mask is None else mask[:])
        return torch.from_numpy(gains)[:, None].to(clean.dtype) * clean, {**columns, GAINS.name: gains}

    @classmethod
    def simulated_picture(cls, options: BornSimulation, grid: Grid) -> tuple[torch.Tensor, str]:
        """The picture that stands for contrast, white being 1, (H, W), and which way y points in it."""
        from plugstream.images.pictures import load_picture, picture_y_axis

        return load_picture(options.picture, grid.shape), picture_y_axis(options.picture)


def born_geometry(scan: Any) -> BornGeometry:
    """The geometry of the views of a Born scan, for a `BornModel`; refuse scans of other instruments.

    Arguments: scan, in memory or stored.
    """
    if not hasattr(scan, "instrument"):
        raise InputError(f"scan must be a scan (see open_scan), not {type(scan).__name__}")
    if not isinstance(scan.instrument, Born2D):
        raise InputError(f"a scan of {scan.instrument.name} has no geometry of transmitters and receivers")
    return scan.instrument.geometry(**scan.columns)


def instrument_parts(value: Any) -> tuple[Instrument, dict[str, Rows]]:
    """The instrument, and the columns of its views, of which an instrument alone has none.

    Arguments: value, an instrument, a geometry, or a model that has one.
    """
    value = getattr(value, "geometry", value) if not isinstance(value, Instrument) else value
    if isinstance(value, Instrument):
        return value, {}
    if not isinstance(value, BornGeometry):
        raise InputError(f"a scan needs an instrument, such as Born2D, or a BornGeometry, not {type(value).__name__}")
    rows = {column.name: getattr(value, column.name, None) for column in Born2D.columns}
    return Born2D.of(value), {name: array for name, array in rows.items() if array is not None}
