"""X-ray tomography: parallel, fan and cone beams, and any other that four vectors a view describe."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError
from plugstream.base.image_size import ImageSides, image_sides, size_field
from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import MANY, advise_fall, advise_trained
from plugstream.instruments.base import Block, Experiment, Instrument, Place, declare
from plugstream.instruments.ct_advice import advise_limited, advise_views, lacks_angles
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, FixedArray, mask_column
from plugstream.instruments.suspects import suspects_of_ct
from plugstream.models.ct_beams import cone_beam, fan_beam, find_order, ordered_angles, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_plausible import check_plausible, outlook, warn_if_implausible
from plugstream.models.ct_stack import row_slices

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model


# Peak memory of a simulation for each measured value: prediction and counts in double precision.
_BYTES_A_VALUE = 40
_COPIES = 3  # of an image that every method holds: the image, its gradient, and the next image
_SMALL, _LARGE = 1e-12, 1e12


class CTSimulation(Options):
    """The scan that `simulate` makes; lengths are in metres. By default a slice of 25.6 mm in a parallel beam."""

    picture: str = Field("shepp-logan", description="shepp-logan, a picture file, or a name such as camera")
    size: ImageSides = size_field(8, 8192, "256 if not given", (256,))
    slices: int = Field(0, ge=0, le=8192, description="slices of a volume; 0 for a two-dimensional image")
    width: float = Field(0.0256, ge=_SMALL, le=_LARGE, description="width of the image")
    attenuation: float = Field(100.0, ge=_SMALL, le=_LARGE, description="attenuation, in 1/m, that white stands for")
    beam: Literal["parallel", "fan", "curved-fan", "cone"] = Field(
        "parallel", description="parallel, fan (flat or curved detector) or cone"
    )
    views: int = Field(180, ge=1, le=10**9, description="number of views")
    arc: float = Field(
        0.0, ge=0, le=360, description="degrees that they cover; 0 for 180 if parallel, and otherwise 360"
    )
    order: Literal["ascending", "golden", "bit-reversed"] = Field(
        "ascending", description="order of the angles: ascending, golden or bit-reversed, which see all sides early"
    )
    columns: int = Field(0, ge=0, le=1 << 24, description="detector columns; 0 for as many as see the whole image")
    rows: int = Field(0, ge=0, le=1 << 20, description="detector rows of a volume; 0 for as many as it has slices")
    source: float = Field(0.1, gt=0, le=_LARGE, description="distance from the source to the rotation axis")
    detector: float = Field(0.1, ge=0, le=_LARGE, description="distance from the rotation axis to the detector")
    photons: float = Field(1e5, ge=1, le=1e15, description="photons that a pixel counts without the object")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the noise", json_schema_extra={"flag": "noise-seed"})


_DETECTOR = ("row", "column")


@declare
@dataclass(frozen=True, eq=False)
class CT(Instrument):
    """What is known of a tomographic scan before its first view: everything except the rays.

    Arguments: voxels of the image or volume; columns and rows of the detector, 0 rows for a two-dimensional scan;
    parallel, whether rays are; curvature, the radius of a curved detector, 0 for a flat one; unit of all lengths, m, or
    pixel if the size of a detector pixel is unknown; good, (rows, columns) or (1, columns), False for pixels of the
    detector that never count, None if all do; seen, the radius about the rotation axis that the detector saw of a
    sample which reaches beyond it, 0 where it saw all.
    """

    voxels: Voxels
    detector_columns: int
    detector_rows: int = 0
    parallel: bool = True
    curvature: float = 0.0
    unit: str = "m"
    good: NDArray[np.bool_] | None = None
    seen: float = 0.0

    name: ClassVar[str] = "ct"
    neighbours: ClassVar[bool] = True
    help: ClassVar[str] = "X-ray tomography: parallel, fan and cone beams"
    each_view: ClassVar[bool] = True
    data: ClassVar[Data] = Data(("float32",), _DETECTOR, meaning="integral of the attenuation along each ray")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "rays",
            "float64",
            (4, 3),
            "m",
            "x, y, z of the source or of the rays' direction, of the detector's centre, and of the steps to its next "
            "column and to its next row",
        ),
        mask_column(_DETECTOR),
        Column("weight", "float32", (), "", "what a view counts, over 0 and up to 1", optional=True, default=1.0),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray("good", "bool", ("rows", "columns"), "", "False for pixels that never count", optional=True),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("voxels", Voxels, "m", "shape, spacing and origin of the image"),
        Attribute("detector_columns", int, "", "pixels of a detector row"),
        Attribute("detector_rows", int, "", "rows of the detector, 0 for a two-dimensional scan", default=0),
        Attribute("parallel", bool, "", "the first of a view's vectors is a direction, not a source", default=True),
        Attribute("curvature", float, "m", "radius of the detector's arc, 0 for a flat one", default=0.0),
        Attribute("unit", str, "", "of all lengths: m, or pixel where its size is not known", default="m"),
        Attribute("seen", float, "m", "radius of the field of view of a wider sample, 0 if all is seen", default=0.0),
    )
    conventions: ClassVar[dict[str, str]] = {
        "vectors": "x, y, z",
        "pixels": "row a, column b of the detector is at centre + (b - (columns - 1)/2) u + (a - (rows - 1)/2) v",
        "voxels": "value (k, i, j) is at z = z0 + k dz, y = y0 + i dy, x = x0 + j dx",
    }
    simulation: ClassVar[type[Options]] = CTSimulation
    suspects = suspects_of_ct
    baseline: ClassVar[str] = "filtered"
    by_slabs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.detector_columns < 1 or self.detector_rows < 0:
            raise InputError(
                f"a detector needs columns >= 1 and rows >= 0, not {self.detector_columns} and {self.detector_rows}"
            )
        if not 0 <= self.seen < float("inf"):
            raise InputError(f"seen, the radius of the field of view, must be 0 or a length, not {self.seen}")
        if self.unit not in ("m", "pixel"):
            raise InputError(
                f"lengths of a ct scan are in m, or in pixel where its size is not known, not {self.unit!r}"
            )
        if len(self.voxels.shape) != len(self.data_shape) + 1:
            image = "an image" if self.detector_rows == 0 else "a volume"
            raise InputError(
                f"a detector of {self.data_shape} sees {image}, but voxels are {self.voxels.shape}; give them "
                f"{len(self.data_shape) + 1} axes"
            )
        if self.good is not None:
            object.__setattr__(self, "good", np.ascontiguousarray(self.good, dtype=bool))
            if self.good.shape != (max(1, self.detector_rows), self.detector_columns):
                raise InputError(f"good has shape {self.good.shape}, but the detector is {self.data_shape}")
        if self.detector_rows == 0:  # the data and the mask of a view are then a row
            set_once = object.__setattr__
            set_once(self, "data", replace(type(self).data, shape=("column",)))
            rows = (replace(c, shape=("column",)) if c.shape == _DETECTOR else c for c in type(self).columns)
            set_once(self, "columns", tuple(rows))

    @property
    def image(self) -> ImageSpace:
        """Attenuation in the voxels."""
        v, one = self.voxels, "1/m" if self.unit == "m" else "1/pixel"
        return ImageSpace(
            v.shape,
            spacing=v.spacing,
            origin=v.origin,
            unit=self.unit,
            quantity="attenuation",
            value_unit=one,
            seen=self.seen,
        )

    @property
    def data_shape(self) -> tuple[int, ...]:
        """(rows, columns), or (columns,) of a two-dimensional scan."""
        return (self.detector_columns,) if self.detector_rows == 0 else (self.detector_rows, self.detector_columns)

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"row": self.detector_rows, "column": self.detector_columns}

    def rays(self, columns: Columns) -> Rays:
        """The rays of views."""
        curvature = self.curvature or float("inf")
        return Rays(columns["rays"][:], self.data_shape, parallel=self.parallel, curvature=curvature)

    @classmethod
    def of(
        cls, rays: Rays, voxels: Voxels, *, unit: str = "m", good: NDArray[np.bool_] | None = None, seen: float = 0.0
    ) -> CT:
        """The instrument of views with these rays; their column is `rays.vectors`."""
        rows = rays.detector[0] if len(rays.detector) == 2 else 0
        curvature = rays.curvature if np.isfinite(rays.curvature) else 0.0
        return cls(voxels, rays.detector[-1], rows, rays.parallel, curvature, unit, good, seen)

    def check_views(self, columns: Columns) -> Columns:
        """Refuse invalid rays and weights."""
        self.rays(columns)
        if "weight" in columns:
            weights = np.asarray(columns["weight"][:])
            if not bool(((weights > 0) & (weights <= 1)).all()):
                raise InputError("the weight of a view is above 0 and at most 1")
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse views that cannot see the image, as `plugstream.models.ct_plausible` says."""
        if columns is not None:
            check_plausible(self.rays(columns), self.voxels)

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of voxels that the detector does not resolve."""
        if columns is not None:
            warn_if_implausible(self.rays(columns), self.voxels)

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        fall = () if self.detector_rows else advise_fall(n_views, 16)
        usual = advise_views(max(self.voxels.shape[-2:]), n_views, batch)
        trained = advise_trained(fall, self.voxels.shape, "tnrd", "bm3d,tv") if n_views >= MANY else ()
        return (*usual, *fall, *trained)

    def unit_of(self, declared: Column | FixedArray | Attribute) -> str:
        """Lengths are in the scan's unit."""
        return self.unit if declared.unit == "m" else declared.unit

    def lacks_angles(self, columns: Columns) -> bool:
        """Whether many views of an image cover less than 150 degrees."""
        return not self.detector_rows and "rays" in columns and lacks_angles(self.rays(columns), self.voxels)

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """As `advise`, but other settings if angles are missing."""
        usual = self.advise(n_views, batch)
        return advise_limited(n_views, usual) if self.lacks_angles(columns) else usual

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """The beam, the angles it covers, the detector's resolution and the size of voxels."""
        beam, unit = outlook(self.rays(columns), self.voxels), self.unit
        flat = "curved" if self.curvature else "flat"
        kind = "parallel" if self.parallel else "cone" if self.detector_rows else f"fan, {flat} detector,"
        tilt = float(np.rad2deg(np.abs(beam.tilt).max()))
        tilted = f", tilted by {tilt:.3g} degrees" if tilt > 0.01 else ""
        scale = "" if self.parallel else f" magnified {np.median(beam.magnification):.4g} times"
        bad = 0 if self.good is None else int((~self.good).sum())
        order = find_order(beam.angles)
        ordered = f" in {order} order" if order not in ("", "ascending") else ""
        return {
            "views": f"{n_views} over {beam.arc:.4g} degrees{ordered}, {kind}{scale}{tilted}",
            "detector": f"{' x '.join(map(str, self.data_shape))} pixels, {np.median(beam.pixel):.6g} {unit} wide at "
            "the image" + (f", {bad} of them bad" if bad else ""),
            "image": f"{self.voxels.describe()} {unit}"
            + (f"; the detector saw part of the sample, {2 * self.seen:.6g} {unit} across" if self.seen else ""),
        }

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """Some slices, if rays are parallel and each row of the detector sees the same single slice in all views."""
        rays = self.rays(columns)
        slices = row_slices(rays, self.voxels) if self.detector_rows else None
        if slices is None or not np.isin(np.arange(self.voxels.shape[0]), slices).all():
            return None
        inside = np.flatnonzero((slices >= first) & (slices < last))  # consecutive, since rows are evenly spaced
        rows = slice(int(inside[0]), int(inside[-1]) + 1)
        middle = (inside[0] + inside[-1] - (self.detector_rows - 1)) / 2
        part = replace(rays.shift_detector(rows=middle), detector=(len(inside), self.detector_columns))
        arrays = {}
        for array in self.arrays:
            value = getattr(self, array.name)
            if value is not None and "rows" in array.shape:
                arrays[array.name] = value[(*(slice(None),) * array.shape.index("rows"), rows)]
        alike = self.good is None and self.find_mask(columns) is None
        voxels = self.voxels.slices(first, last)
        instrument = replace(self, voxels=voxels, detector_rows=len(inside), **arrays)
        return Block(instrument, rows, {"rays": part.vectors}, alike)

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse an image if a few copies, which every method needs, do not fit into memory."""
        advice = "import it with a smaller --size, or fewer --rows"
        self.check_images(_COPIES, f"{_COPIES} images of {{}}", advice, place)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """Joseph's projector of these views."""
        from plugstream.models.ct import CTModel

        rays, mask = self._grow_rays(columns, previous), self._mask(columns, n_views)
        return CTModel(rays, self.voxels, mask=mask, previous=previous, **place)

    def _grow_rays(self, columns: Columns, previous: Any) -> Rays:
        """The rays of these views; those of a previous model of the first of them are used again."""
        return self.rays(columns) if previous is None else previous.rays.grow(columns["rays"][:])

    def _mask(self, columns: Columns, n_views: int) -> Any:
        """Which pixels count, by view; a mask common to all views is stored once."""
        mask = columns.get("mask")
        if self.good is None:
            return mask
        fixed = np.broadcast_to(self.good.reshape(self.data_shape), (n_views, *self.data_shape))
        return fixed if mask is None else mask[:] & fixed

    @classmethod
    def simulate_views(cls, options: CTSimulation) -> Experiment:
        """A phantom, or a picture as attenuation, rotated in a beam that sees all of it."""
        s = options
        if s.beam == "cone" and not s.slices:
            raise InputError("a cone beam sees a volume; give --slices, or --beam fan")
        if s.beam in ("fan", "curved-fan") and s.slices:
            raise InputError(f"a {s.beam} beam sees an image, and --slices make a volume; use --beam cone or parallel")
        sides = image_sides(s, 2)
        shape = (s.slices, *sides) if s.slices else sides
        voxels = Voxels(shape, s.width / sides[1])
        reach = math.hypot(*sides) * voxels.spacing[-1] / 2
        if s.beam != "parallel" and s.source <= reach:
            raise InputError(f"a source at {s.source} m is inside the image, whose corners are at {reach:.4g} m")
        magnification = 1.0 if s.beam == "parallel" else (s.source + s.detector) / s.source
        pixel = magnification * voxels.spacing[-1]
        # Where the widest ray that touches the circle around the image hits the detector.
        edge = reach if s.beam == "parallel" else reach * magnification / np.sqrt(1 - (reach / s.source) ** 2)
        columns = s.columns or 2 * int(np.ceil(edge / pixel)) + 1
        rows = s.rows or s.slices
        check_memory(
            _BYTES_A_VALUE * s.views * max(1, rows) * columns + 16 * math.prod(shape),
            f"a scan of {s.views:,} views of {max(1, rows)} x {columns} pixels",
            "use fewer --views or a smaller --size",
        )
        arc = s.arc or (180.0 if s.beam == "parallel" else 360.0)
        angles = ordered_angles(s.views, np.deg2rad(arc), s.order)
        if s.beam == "parallel":
            rays = parallel_beam(angles, (rows, columns) if s.slices else columns, pixel)
        elif s.beam == "cone":
            rays = cone_beam(angles, (rows, columns), pixel, source=s.source, detector=s.detector)
        else:
            curved = s.beam == "curved-fan"
            rays = fan_beam(angles, columns, pixel, source=s.source, detector=s.detector, curved=curved)
        truth, y_axis = _phantom(s, voxels)
        provenance = {"photons": s.photons, "seed": s.seed, "y_axis": y_axis}
        summary = f"{s.picture}, {' x '.join(map(str, shape))}, {s.beam} beam, {s.photons:g} photons a ray"
        return Experiment(cls.of(rays, voxels), {"rays": rays.vectors}, s.views, truth, provenance, summary)

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: CTSimulation) -> torch.Tensor:
        """-log(n / N), n being Poisson counts of mean N exp(-p), at least 1/2."""
        import torch

        draw = np.random.default_rng(options.seed)
        expected = options.photons * np.exp(-clean.double().numpy())
        counts = np.maximum(draw.poisson(expected), 0.5)
        return torch.from_numpy(np.log(options.photons / counts).astype(np.float32))


def ct_rays(scan: Any) -> Rays:
    """The rays of the views of a tomographic scan, in memory or stored; refuse scans of other instruments."""
    if not isinstance(scan.instrument, CT):
        raise InputError(f"a scan of {scan.instrument.name} has no X-rays; only ct has")
    return scan.instrument.rays(scan.columns)


def _phantom(s: CTSimulation, voxels: Voxels) -> tuple[NDArray[np.float32], str]:
    """The simulated image, and which way its y axis points."""
    if s.picture == "shepp-logan":
        from plugstream.images.simulated import shepp_logan

        return (s.attenuation * shepp_logan(voxels.shape)).astype(np.float32), "up"
    from plugstream.images.pictures import load_picture, picture_y_axis

    rows, columns = voxels.shape[-2:]
    flat = s.attenuation * load_picture(s.picture, (rows, columns)).numpy()
    inside = np.hypot(*np.mgrid[-1 : 1 : rows * 1j, -1 : 1 : columns * 1j]) <= 1  # what every view sees
    image = np.where(inside, flat, 0)
    if s.slices:  # fading towards the ends, so that slices differ
        image = np.cos(np.linspace(-1.2, 1.2, s.slices))[:, None, None] * image
    return image.astype(np.float32), picture_y_axis(s.picture)
