"""Fourier ptychography: pictures of a microscope lit by one LED after another, made into one of finer detail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import FEW_PHOTONS, advise_batches, advise_fall_of_waves, advise_waves
from plugstream.instruments.base import Experiment, Instrument, Place, declare
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, FixedArray, mask_column
from plugstream.instruments.fpm_simulation import FPMSimulation, count_photons, plan_leds, thin_object
from plugstream.instruments.suspects import suspects_of_fpm
from plugstream.models.fpm_geometry import Microscope, aim_crops, light_directions, make_pupil

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model


_FEW = 50  # views a step, below which momentum is bounded
# Views a step, the most passes over all views while the microscope is refined, passes after that, sigma, and how far
# the microscope may still have to go, as a part of itself, when its refinement ends.
_BATCH, _REFINED, _DENOISED, _SIGMA, _ARRIVED = 25, 16, 3, 0.005, 0.05
_FALL_END = 0.15  # to which sigma falls (docs/sigma-search.md)
_CALIBRATED = 11  # passes over all views of a calibrated microscope
_COPIES = 6  # of an image that every method holds
_TOO_FINE, _TOO_COARSE = 1 / 50, 1e4  # pixels in wavelengths that no microscope has

_CAMERA = ("row", "column")


@declare
@dataclass(frozen=True, eq=False)
class FPM(Instrument):
    """What is known of a Fourier ptychographic microscope before its first view: everything except the light's origin.

    Arguments: camera_rows and camera_columns; image_rows and image_columns; pixel, of the camera as the object sees it;
    wavelength; aperture, the objective's; light, the intensity recorded on the axis without an object; defocus, from
    the object to the plane in focus; distance from the LEDs to the slide, or to the object if there is none, 0 if
    unknown; slide and slide_index, its thickness and refractive index; spherical, whether light comes from points at
    this distance, not as plane waves; guard, pixels by which the image's field exceeds the camera's on each side;
    calibrated, whether pupil, gains and LEDs are known well; aberrations, in radians; pupil, instead of these, complex.
    """

    camera_rows: int
    camera_columns: int
    image_rows: int
    image_columns: int
    pixel: float
    wavelength: float
    aperture: float
    light: float = 1.0
    defocus: float = 0.0
    distance: float = 0.0
    slide: float = 0.0
    slide_index: float = 1.52
    spherical: bool = False
    guard: int = 0
    calibrated: bool = False
    aberrations: NDArray[np.float64] | None = None
    pupil: NDArray[np.complex64] | None = None

    name: ClassVar[str] = "fpm"
    neighbours: ClassVar[bool] = True
    help: ClassVar[str] = "Fourier ptychography: a microscope lit by one LED after another"
    data: ClassVar[Data] = Data(
        ("float32", "uint8", "uint16", "uint32", "int32", "float64"),
        _CAMERA,
        meaning="recorded intensity, not negative",
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column("leds", "float64", (2,), "m", "x and y of the LED from the optical axis", choice="light"),
        Column("waves", "float64", (2,), "rad/m", "k_x and k_y of the light as it goes", choice="light"),
        Column("gains", "float64", (), "", "how much stronger a view is recorded", optional=True, default=1.0),
        Column("backgrounds", "float64", (), "", "intensity beside the light's", optional=True, default=0.0),
        mask_column(_CAMERA),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray(
            "aberrations",
            "float64",
            ("polynomial",),
            "rad",
            "weights of Zernike's polynomials 0, 1, 2, ... (ANSI) in the pupil's phase",
            optional=True,
        ),
        FixedArray(
            "pupil",
            "complex64",
            ("pupil_row", "pupil_column"),
            "",
            "what the objective does to waves, of as many frequencies as its aperture has, the axis in the middle",
            optional=True,
        ),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("camera_rows", int, "", "rows of the camera"),
        Attribute("camera_columns", int, "", "columns of the camera"),
        Attribute("image_rows", int, "", "rows of the image"),
        Attribute("image_columns", int, "", "columns of the image"),
        Attribute("pixel", float, "m", "from one pixel of the camera to the next, as the object sees them"),
        Attribute("wavelength", float, "m", "of the light"),
        Attribute("aperture", float, "", "numerical aperture of the objective"),
        Attribute("light", float, "", "intensity that is recorded on the axis where there is no object", default=1.0),
        Attribute("defocus", float, "m", "from the object to the plane in focus", default=0.0),
        Attribute("distance", float, "m", "from the LEDs to the slide or the object", default=0.0),
        Attribute("slide", float, "m", "thickness of the slide between LEDs and object", default=0.0),
        Attribute("slide_index", float, "", "refractive index of the slide", default=1.52),
        Attribute("spherical", bool, "", "light comes from points at this distance, not as plane waves", default=False),
        Attribute("guard", int, "pixels", "by which the image's field is wider than the camera's all round", default=0),
        Attribute("calibrated", bool, "", "pupil, gains and LEDs are known, and need not be found", default=False),
    )
    conventions: ClassVar[dict[str, str]] = {
        "image": "complex transmission, 1 where there is nothing, over the camera's field in finer pixels",
        "light": "an LED at +x sends light towards -x, so that its view sees the image's frequencies around "
        "+sin(a) / wavelength along columns; y is the same along rows, which go down",
        "data": "gain (light |wave|^2) + background",
    }
    simulation: ClassVar[type[Options]] = FPMSimulation
    suspects = suspects_of_fpm

    def __post_init__(self) -> None:
        scope = self.microscope
        if not (math.isfinite(self.light) and self.light > 0):
            raise InputError(f"the light must be > 0 and finite, not {self.light}")
        if self.guard < 0:
            raise InputError(f"the guard is a number of pixels, 0 or more, not {self.guard}")
        if self.spherical and not self.distance > 0:
            raise InputError("spherical light comes from LEDs at a distance; say which, or leave spherical out")
        if not math.isfinite(self.defocus):
            raise InputError(f"the defocus must be finite, not {self.defocus}")
        (top, bottom), (left, right) = scope.box
        box = (bottom - top + 1, right - left + 1)
        if self.pupil is not None and self.pupil.shape != box:
            raise InputError(
                f"the pupil is {self.pupil.shape}, but an aperture of {self.aperture:g} has {box} frequencies"
            )

    @property
    def microscope(self) -> Microscope:
        """Light, objective, camera and image."""
        image = (self.image_rows, self.image_columns)
        shape = (self.camera_rows + 2 * self.guard, self.camera_columns + 2 * self.guard)
        return Microscope(shape, self.pixel, self.wavelength, self.aperture, image)

    @property
    def image(self) -> ImageSpace:
        """Complex transmission, known up to a global phase."""
        shape, spacing = (self.image_rows, self.image_columns), self.microscope.spacing
        origin = tuple(-(n // 2) * step for n, step in zip(shape, spacing, strict=True))
        return ImageSpace(shape, is_complex=True, spacing=spacing, origin=origin, quantity="transmission")

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"row": self.camera_rows, "column": self.camera_columns}

    def directions(self, columns: Columns) -> NDArray[np.float64]:
        """Sines of the angles at which the light of views arrives, along x and y: (views, 2)."""
        if "waves" in columns:
            return np.asarray(-columns["waves"][:] * (self.wavelength / (2 * np.pi)))
        if not self.distance > 0:
            raise InputError("LEDs have places, but the attribute distance does not say how far away they are")
        return light_directions(columns["leds"][:], self.distance, self.slide, self.slide_index)

    @property
    def curvature(self) -> float:
        """Of the light's waves at the object, in 1/m, 0 for plane waves; a slide brings LEDs nearer by its index."""
        return 1 / (self.distance + self.slide / self.slide_index) if self.spherical else 0.0

    def starting_pupil(self) -> NDArray[Any]:
        """The given pupil, or that of defocus and aberrations, on the microscope's box.

        If it is to be refined, its edge is soft, since it is not known to a step of the spectrum.
        """
        if self.pupil is not None:
            return self.pupil
        return make_pupil(self.microscope, self.defocus, self.aberrations, soft=not self.calibrated)

    def check_views(self, columns: Columns) -> Columns:
        """Refuse light along the slide or beyond, detail finer than the image's, and gains <= 0."""
        sines = self.directions(columns)
        flat = np.hypot(sines[:, 0], sines[:, 1]) >= 1
        if flat.any():
            raise InputError(
                f"view {int(flat.argmax())}: its light has no direction, since k_x and k_y are beyond 2 pi / "
                "wavelength; they are in rad/m"
            )
        aim_crops(sines, self.microscope)
        for name in ("gains", "backgrounds"):
            if name in columns:
                values = np.asarray(columns[name][:])
                good = values > 0 if name == "gains" else values >= 0
                if not (np.isfinite(values) & good).all():
                    raise InputError(f"{name} of views must be finite and {'> 0' if name == 'gains' else '0 or more'}")
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse lengths that cannot be in one unit."""
        size = self.pixel / self.wavelength
        if not _TOO_FINE <= size <= _TOO_COARSE:
            raise InputError(f"a pixel is {size:.3g} wavelengths wide, where a few are usual; are both in metres?")
        if columns is not None and "leds" in columns and self.distance > 0:
            far = float(np.abs(columns["leds"][:]).max(initial=0.0)) / self.distance
            if far > 100:
                raise InputError(f"LEDs lie {far:.3g} times as far off the axis as they are away; is all in metres?")

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """A loss of waves, steps by the overlap, and a refinement of what is unknown of the microscope.

        Pupil, gains and LEDs are refined first, without denoising, and then stay fixed.
        """
        advice = []
        if self.calibrated and self.light < FEW_PHOTONS:
            reason = f"the light has {self.light:.2g} photons a pixel, whose roots would be biased (--loss poisson)"
            advice.append(Advice("loss", "name", "poisson", reason, True))
        advice += advise_waves("intensities", 0.05, "views")
        if batch is not None and n_views >= 2 * _BATCH:
            reason = f"batch {_BATCH}: runs of this instrument were measured with steps of so many views (--batch)"
            advice.append(Advice("sampler", "batch", _BATCH, reason))
        advice += advise_batches(n_views, batch, 2, _FEW)
        rounds = math.ceil(max(1, n_views) / max(1, min(batch or n_views, n_views)))
        times = _CALIBRATED if self.calibrated else _REFINED + _DENOISED
        steps, most = times * rounds, "" if self.calibrated else "up to "
        little = f"an image of about 1 is denoised little (--sigma {_SIGMA})"
        advice += [
            Advice("algorithm", "iterations", steps, f"views are used {most}{times} times (--iterations {steps})"),
            Advice("algorithm", "sigma", _SIGMA, little),
        ]
        if not self.calibrated:
            names, first = "pupil,gains,leds", _REFINED * rounds
            why = f"the microscope is not calibrated, so that {names.replace(',', ', ')} are found along with the image"
            limit = f"in {first} steps at most, and denoising begins then (--refine-steps {first})"
            end = f"they stay as they are once none has farther to go than {_ARRIVED:.0%} (--refine-tolerance)"
            advice += [
                Advice("algorithm", "refine", names, f"{why} (--refine {names})"),
                Advice("algorithm", "refine_steps", first, limit),
                Advice("algorithm", "refine_tolerance", _ARRIVED, end),
            ]
        return *advice, *(advise_fall_of_waves(n_views, self.image.spatial, _FALL_END) if self.calibrated else ())

    def groups(self, columns: Columns) -> dict[str, NDArray[np.int64]]:
        """Views in bright field, in dark field up to twice the aperture, and beyond."""
        sines = np.hypot(*self.directions(columns).T)
        kinds = {
            "bright field": sines < self.aperture,
            f"dark field, light up to {2 * self.aperture:g} off the axis": (sines >= self.aperture)
            & (sines < 2 * self.aperture),
            "dark field beyond": sines >= 2 * self.aperture,
        }
        return {name: np.flatnonzero(which) for name, which in kinds.items() if which.any()}

    def trial_views(self, columns: Columns, available: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Views whose light is nearest to the axis, which overlap."""
        sines = np.hypot(*self.directions(columns)[available].T)
        return np.sort(available[np.argsort(sines, kind="stable")[:count]])

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """Views in bright and dark field, light, camera and image."""
        sines = np.hypot(*self.directions(columns).T)
        bright = int((sines < self.aperture).sum())
        finest = self.wavelength / (self.aperture + float(sines.max()))
        step = self.microscope.spacing[1]
        return {
            "views": f"{n_views}, {bright} in bright and {n_views - bright} in dark field, light up to "
            f"{float(sines.max()):.3g} off the axis",
            "objective": f"aperture {self.aperture:g}, light of {self.wavelength:.6g} m, defocus {self.defocus:.6g} m",
            "camera": f"{self.camera_rows} x {self.camera_columns} pixels of {self.pixel:.6g} m"
            + (f", in a field that is {self.guard} wider all round" if self.guard else ""),
            "image": f"{self.image_rows} x {self.image_columns} pixels of {step:.6g} m, for waves down to "
            f"{finest:.3g} m",
        }

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse an image if a few copies do not fit into memory."""
        self.check_images(_COPIES, f"{_COPIES} images of {{}}", "import it with a smaller --size", place)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The waves of these views."""
        from plugstream.models.fpm import FPMModel

        return FPMModel(
            self.directions(columns),
            self.microscope,
            self.starting_pupil(),
            light=self.light,
            gains=columns["gains"][:] if "gains" in columns else None,
            backgrounds=columns["backgrounds"][:] if "backgrounds" in columns else None,
            mask=columns.get("mask"),
            curvature=self.curvature,
            guard=self.guard,
            **place,
        )

    @classmethod
    def simulate_views(cls, options: FPMSimulation) -> Experiment:
        """Pictures, or cells, under a square of LEDs, lit in a spiral from the middle."""
        s = options
        places = plan_leds(s)
        sizes, optics = (s.camera, s.camera, s.size, s.size), (s.pixel, s.wavelength, s.aperture)
        scope = cls(*sizes, *optics, s.photons / s.camera**2, s.defocus, s.distance, calibrated=True)
        scope.check_views({"leds": places})
        provenance = {"photons": s.photons, "seed": s.seed, "y_axis": "down"}
        cells = s.picture == s.phase_picture == "cells"
        scene = "a smear of cells" if cells else f"{s.picture} and {s.phase_picture}"
        summary = f"{scene}, {s.size} x {s.size}, {len(places)} LEDs, {s.photons:g} photons a frame"
        return Experiment(scope, {"leds": places}, len(places), thin_object(s), provenance, summary)

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: FPMSimulation) -> torch.Tensor:
        """Poisson counts of these intensities."""
        return count_photons(clean, options.seed)
