"""Optical diffraction tomography in three dimensions: fields of plane waves behind cells and other weak objects."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.image_size import SquareSize
from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import advise_momentum
from plugstream.instruments.base import Experiment, Instrument, Place, add_white_noise, declare
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, mask_column
from plugstream.instruments.suspects import suspects_of_odt
from plugstream.models.ct_geometry import Voxels
from plugstream.models.odt_caps import farthest_waves
from plugstream.models.odt_geometry import Optics, check_poses, poses_of_light, poses_of_rotation

if TYPE_CHECKING:
    from plugstream.models.base import Model


_SHORT, _LONG = 1e-12, 1e3
_COPIES = 3  # of a volume that every method holds
_MOMENTUM = 50.0  # up to which it grows, by measurement (docs/tuning.md)
_FINE, _COARSE, _TOO_FAR = 0.02, 1.05, 50.0


class ODTOptions(Options):
    """How the model is computed."""

    padding: float = Field(1.25, ge=1, le=8, description="how much wider than the camera the computed field is")
    eps: float = Field(1e-4, ge=1e-12, le=0.1, description="relative accuracy of the non-uniform FFT")


class ODTSimulation(Options):
    """The scan that `simulate` makes, a cell of balls that turns; lengths are in metres."""

    size: SquareSize = Field(64, ge=8, le=2048, description="voxels a side, and pixels of the camera")
    pixel: float = Field(1.6e-7, ge=_SHORT, le=_LONG, description="size of a pixel and of a voxel")
    wavelength: float = Field(6.47e-7, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    medium: float = Field(1.335, ge=0.1, le=10, description="refractive index around the object")
    index: float = Field(1.37, ge=0.1, le=10, description="refractive index of the cell's body")
    aperture: float = Field(1.0, gt=0, le=10, description="numerical aperture of the objective")
    distance: float = Field(0.0, ge=-_LONG, le=_LONG, description="from the object's middle to the plane in focus")
    scanning: Literal["rotation", "light"] = Field("rotation", description="what turns: the object, or the light")
    views: int = Field(60, ge=1, le=10**7, description="number of views")
    arc: float = Field(360.0, gt=0, le=360, description="degrees that they cover")
    tilt: float = Field(35.0, gt=0, lt=90, description="degrees between light that turns and the optical axis")
    snr: float = Field(30.0, ge=-200, le=400, description="input SNR in dB", json_schema_extra={"flag": "input-snr"})
    seed: int = Field(0, ge=0, le=2**63 - 1, description="seed of the noise", json_schema_extra={"flag": "noise-seed"})


_CAMERA = ("row", "column")


@declare
@dataclass(frozen=True, eq=False)
class ODT3D(Instrument):
    """What is known of a diffraction tomograph before its first view: everything except the poses.

    Arguments: voxels of the volume; rows and columns of the camera, and metres from one pixel to the next as the object
    sees them; wavelength in vacuum; medium, its refractive index; aperture, the objective's; distance from the object's
    middle to the plane in focus; approximation of the data, born or rytov; absorbing, whether the image is complex.
    """

    voxels: Voxels
    camera_rows: int
    camera_columns: int
    pixel: float
    wavelength: float
    medium: float
    aperture: float
    distance: float = 0.0
    approximation: str = "rytov"
    absorbing: bool = False

    name: ClassVar[str] = "odt-3d"
    neighbours: ClassVar[bool] = True
    help: ClassVar[str] = "optical diffraction tomography in 3D, Born or Rytov approximation"
    data: ClassVar[Data] = Data(
        ("complex64",),
        _CAMERA,
        meaning="u / u0 - 1 (born) or log(u / u0) (rytov) in the plane in focus, u being the field with the object and "
        "u0 without",
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "poses",
            "float64",
            (4, 3),
            "",
            "x, y, z in the object's frame of four unit vectors: along the camera's columns, along its rows, along the "
            "optical axis away from the object, and the way that the light goes",
        ),
        mask_column(_CAMERA),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("voxels", Voxels, "m", "shape, spacing and origin of the volume"),
        Attribute("camera_rows", int, "", "rows of the camera"),
        Attribute("camera_columns", int, "", "columns of the camera"),
        Attribute("pixel", float, "m", "from one pixel to the next, as the object sees them"),
        Attribute("wavelength", float, "m", "in vacuum"),
        Attribute("medium", float, "", "refractive index around the object"),
        Attribute("aperture", float, "", "numerical aperture of the objective"),
        Attribute("distance", float, "m", "from the object's middle to the plane in focus", default=0.0),
        Attribute("approximation", str, "", "born or rytov, of which the data is", default="rytov"),
        Attribute("absorbing", bool, "", "the image is complex", default=False),
    )
    conventions: ClassVar[dict[str, str]] = {
        "time": "exp(-i w t), waves go along +k",
        "image": "contrast (n / medium)^2 - 1 of a refractive index n; imaginary part > 0 where light is absorbed",
        "pixels": "row a, column b is at (b - (columns - 1)/2) pixel along the first vector of a pose and "
        "(a - (rows - 1)/2) pixel along the second",
        "voxels": "value (k, i, j) is at z = z0 + k dz, y = y0 + i dy, x = x0 + j dx; the object turns about 0",
    }
    model_options: ClassVar[type[Options]] = ODTOptions
    simulation: ClassVar[type[Options]] = ODTSimulation
    suspects = suspects_of_odt
    add_noise = add_white_noise

    def __post_init__(self) -> None:
        if len(self.voxels.shape) != 3:
            raise InputError(f"diffraction tomography sees a volume; voxels need three axes, not {self.voxels.shape}")
        if self.approximation not in ("born", "rytov"):
            raise InputError(f"the approximation is born or rytov, not {self.approximation!r}")
        self.optics  # noqa: B018  refuses impossible ones

    @property
    def optics(self) -> Optics:
        """The microscope."""
        camera = (self.camera_rows, self.camera_columns)
        return Optics(camera, self.pixel, self.wavelength, self.medium, self.aperture, self.distance)

    @property
    def image(self) -> ImageSpace:
        """Permittivity contrast in the voxels."""
        v = self.voxels
        return ImageSpace(
            v.shape,
            is_complex=self.absorbing,
            spacing=v.spacing,
            origin=v.origin,
            quantity="permittivity contrast",
            phase="measured",  # fields are recorded, with their phase
        )

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"row": self.camera_rows, "column": self.camera_columns}

    def check_views(self, columns: Columns) -> Columns:
        """Refuse invalid poses."""
        check_poses(columns["poses"][:], self.optics)
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse lengths that cannot be in one unit: pixels and voxels are of the order of a wavelength."""
        light = self.wavelength / self.medium
        for name, size in (("pixel", self.pixel), ("voxel", max(self.voxels.spacing))):
            if not 1 / _TOO_FAR**2 <= size / light <= _TOO_FAR:
                raise InputError(
                    f"a {name} is {size / light:.3g} wavelengths wide, where a quarter is usual; are both in metres?"
                )

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of voxels that are too coarse for the measured waves, or far too fine."""
        if columns is None:
            return
        far = farthest_waves(self.optics, columns["poses"][:])
        steps = [wave * step / np.pi for wave, step in zip(far, self.voxels.spacing[::-1], strict=True)]
        if not _FINE <= max(steps) <= _COARSE:
            finest = 2 * np.pi / max(far)
            warnings.warn(
                f"voxels of {max(self.voxels.spacing):.3g} m for waves down to {finest:.3g} m: half of these is "
                "usual, and at most that is right",
                PlugstreamWarning,
                stacklevel=2,
            )

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Momentum that grows far, since volumes take many steps and views hardly differ."""
        return () if batch is None or batch >= n_views else advise_momentum(_MOMENTUM, batch)

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """What turns, the light, the camera, and the size of voxels."""
        poses = columns["poses"][:]
        turn = np.degrees(np.arccos(np.clip(poses[:, 2] @ poses[0, 2], -1, 1))).max()
        slant = np.degrees(np.arccos(np.clip((poses[:, 2] * poses[:, 3]).sum(1), -1, 1))).max()
        turns = f"turns by up to {turn:.4g} degrees" if turn > 0.01 else "rests"
        angle = f"up to {slant:.3g} degrees off" if slant > 0.01 else "on"
        return {
            "views": f"{n_views}, the object {turns}, light {angle} the optical axis",
            "light": f"{self.wavelength:.6g} m in vacuum, refractive index {self.medium:g} around the object, "
            f"aperture {self.aperture:g}",
            "camera": f"{self.camera_rows} x {self.camera_columns} pixels of {self.pixel:.6g} m, in focus "
            f"{self.distance:.6g} m behind the object's middle; {self.approximation} approximation",
            "image": f"{self.voxels.describe()} m",
        }

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse a volume if a few copies and a finer one do not fit into memory."""
        advice = "import it with a smaller --size, or larger --voxel"
        self.check_images(_COPIES, f"{_COPIES} volumes of {{}} and the spectrum of one", advice, place, extra=16)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The caps of Ewald's sphere of these views."""
        from plugstream.models.odt import ODTModel

        chosen = options or ODTOptions()
        return ODTModel(
            columns["poses"][:],
            self.optics,
            self.voxels,
            absorbing=self.absorbing,
            mask=columns.get("mask"),
            padding=chosen.padding,
            eps=chosen.eps,
            **place,
        )

    @classmethod
    def simulate_views(cls, options: ODTSimulation) -> Experiment:
        """A cell with a nucleus and nucleoli that turns, or is seen under light that turns."""
        s = options
        check_memory(
            24 * s.views * s.size**2 + 40 * s.size**3,
            f"a scan of {s.views:,} views of {s.size} x {s.size} pixels",
            "use fewer --views or a smaller --size",
        )
        angles = np.deg2rad(s.arc) * np.arange(s.views) / s.views
        if s.scanning == "rotation":
            poses = poses_of_rotation(angles)
        else:
            across, along = np.sin(np.deg2rad(s.tilt)), np.cos(np.deg2rad(s.tilt))
            light = [across * np.cos(angles), across * np.sin(angles), np.full(s.views, along)]
            poses = poses_of_light(np.stack(light, 1))
        voxels = Voxels((s.size,) * 3, s.pixel)
        microscope = cls(voxels, s.size, s.size, s.pixel, s.wavelength, s.medium, s.aperture, s.distance)
        check_poses(poses, microscope.optics)
        truth = ball_cell(s.size, s.index, s.medium)
        provenance = {"snr_db": s.snr, "seed": s.seed, "y_axis": "up"}
        summary = f"a cell, {s.size}^3 voxels, {s.scanning}, {s.snr:g} dB"
        return Experiment(microscope, {"poses": poses}, s.views, truth, provenance, summary)


def ball_cell(size: int, index: float, medium: float) -> NDArray[np.float32]:
    """The contrast of a cell of balls: a body, a nucleus of a lower index, nucleoli and droplets of a higher one.

    Arguments: size, voxels a side; index of the body; medium.
    """
    # Radius and centre (x, y, z), in parts of half a side, and the index in steps from the medium to the body.
    parts = (
        (0.60, 0.0, 0.0, 0.0, 1.0),
        (0.30, 0.12, -0.10, 0.08, 0.6),
        (0.08, 0.18, -0.15, 0.05, 1.2),
        (0.07, 0.02, -0.02, 0.18, 1.2),
        (0.08, -0.35, 0.22, -0.10, 1.6),
        (0.06, -0.10, 0.42, 0.15, 1.6),
    )
    axis = (np.arange(size) - (size - 1) / 2) * 2 / size
    z, y, x = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    indices = np.full((size,) * 3, medium)
    for radius, x0, y0, z0, step in parts:
        inside = (x - x0) ** 2 + (y - y0) ** 2 + (z - z0) ** 2 <= radius**2
        indices[inside] = medium + step * (index - medium)
    return ((indices / medium) ** 2 - 1).astype(np.float32)
