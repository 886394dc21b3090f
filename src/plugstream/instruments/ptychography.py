"""Ptychography: diffraction patterns of a thin object, counted while a beam goes over it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import FEW_PHOTONS, advise_batches, advise_fall_of_waves, advise_waves
from plugstream.instruments.base import Experiment, Instrument, Place, declare
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, FixedArray, mask_column
from plugstream.instruments.suspects import suspects_of_ptychography

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model


_SHORT, _LONG = 1e-15, 1e3
_COPIES = 8  # of an image that every method holds
_MOST_MODES = 64
_FEW = 50  # views a step, below which growing momentum gathers their noise
_STEPS = 3  # of an epoch, from which epochs pay
_MARGIN = 2  # pixels around the frames of a simulation, so that positions may be a little off
_ARRIVED = 0.05  # how far a probe may still have to go, as a part of itself, when its refinement ends
_LIT = 0.1  # part of the largest intensity of all frames from which a simulated object is present
# The sigma of TV that suits N photons a pixel of the object, in all exposures together, is about _SIGMA N^_FALL; the
# best one of a picture differs from it by a factor of about exp(_SPREAD). (At a fixed point it would fall as N^-1/4:
# the noise of a gradient over its curvature falls as N^-1/2, and sigma^2 is a weight.)
_SIGMA, _FALL, _SPREAD = 0.1, -0.2, 0.15
_FALL_END = 0.07  # to which sigma falls, of images of about 1 (docs/sigma-search.md)
_MOST_LIGHT = 0.9  # part of a probe's light within its diameter; closer positions overlap


class PtychographyOptions(Options):
    """How the model is computed."""

    probe_modes: int | None = Field(
        None,
        ge=1,
        le=_MOST_MODES,
        description="mutually incoherent modes of the probe; as many as the scan has if not given; refine any that "
        "are added",
    )
    whole_pixels: bool = Field(
        False, description="round positions to whole pixels, which is faster", json_schema_extra={"switch": True}
    )


class PtychographySimulation(Options):
    """The scan that `simulate` makes: two pictures as magnitude and phase of an object, and a defocused beam."""

    picture: str = Field("camera", description="magnitude of the object: a picture file, or a name such as camera")
    phase_picture: str = Field("camera", description="phase of the object, as picture")
    frame: int = Field(64, ge=8, le=4096, description="pixels a side of the detector, and of the probe")
    across: int = Field(16, ge=2, le=10_000, description="positions a side of the scan")
    overlap: float = Field(0.7, ge=0, lt=1, description="how far neighbouring beams overlap, as a part of their width")
    photons: float = Field(20_000.0, gt=0, le=1e15, description="photons of a frame")
    contrast: float = Field(0.7, ge=0, lt=1, description="how much the object absorbs at most")
    shift: float = Field(1.0, ge=0, le=math.pi, description="how far the object turns the phase at most, in radians")
    jitter: float = Field(0.15, ge=0, le=0.5, description="how far positions are off their raster, in parts of a step")
    pixel: float = Field(2e-8, ge=_SHORT, le=_LONG, description="size of a pixel of the object")
    seed: int = Field(
        0, ge=0, le=2**63 - 1, description="seed of positions and counts", json_schema_extra={"flag": "noise-seed"}
    )


_FRAME = ("row", "column")


@declare
@dataclass(frozen=True, eq=False)
class Ptychography(Instrument):
    """What is known before the first exposure: the beam, and the size of the image that contains its positions.

    Arguments: probe (modes, n, n), the beam at the object, scaled so that the sum of its squares is the number of
    photons of a frame without an object; rows and columns of the image; pixel of the object in metres, 0 if unknown;
    good (n, n), False for pixels of the detector that never count.
    """

    probe: NDArray[np.complex64]
    image_rows: int
    image_columns: int
    pixel: float = 0.0
    good: NDArray[np.bool_] | None = None

    name: ClassVar[str] = "ptychography"
    neighbours: ClassVar[bool] = True
    help: ClassVar[str] = "ptychography: diffraction patterns of a beam scanned over a thin object"
    data: ClassVar[Data] = Data(("uint16", "int32", "uint8", "float32"), _FRAME, "counts", "photons of each pixel")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("positions", "float64", (2,), "pixels", "row and column of the probe's first pixel in the image"),
        mask_column(_FRAME),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray("probe", "complex64", ("mode", *_FRAME), "sqrt(counts)", "modes of the beam at the object"),
        FixedArray("good", "bool", _FRAME, "", "False where a pixel counts for nothing", optional=True),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("image_rows", int, "pixels", "rows of the image"),
        Attribute("image_columns", int, "pixels", "columns of the image"),
        Attribute("pixel", float, "m", "size of a pixel of the object, 0 where it is not known", default=0.0),
    )
    conventions: ClassVar[dict[str, str]] = {
        "detector": "zero frequency is at row 0, column 0, as of an FFT",
        "image": "what the object does to a wave, 1 where it is free space; its global phase is not measured",
        "waves": "exp(-i w t): what slows a wave down turns its phase up",
    }
    model_options: ClassVar[type[Options]] = PtychographyOptions
    simulation: ClassVar[type[Options]] = PtychographySimulation
    suspects = suspects_of_ptychography

    def __post_init__(self) -> None:
        set_once = object.__setattr__
        probe = np.ascontiguousarray(self.probe, dtype=np.complex64)
        set_once(self, "probe", probe[None] if probe.ndim == 2 else probe)
        if self.probe.ndim != 3 or min(self.probe.shape) < 1:
            raise InputError(f"a probe is (modes, n, n), not {self.probe.shape}")
        if not np.isfinite(self.probe).all() or not self.probe.any():
            raise InputError("the probe is zero, or holds NaN or infinity; give the beam at the object")
        frame = self.probe.shape[1:]
        if self.image_rows < frame[0] or self.image_columns < frame[1]:
            raise InputError(f"an image of {self.image_rows} x {self.image_columns} is smaller than its probe, {frame}")
        if self.good is not None:
            set_once(self, "good", np.ascontiguousarray(self.good, dtype=bool))
            if self.good.shape != frame:
                raise InputError(f"good has shape {self.good.shape}, but the detector is {frame}")
            if not self.good.any():
                raise InputError("no pixel of the detector is good, so there is nothing to reconstruct from")
        if not self.pixel >= 0:
            raise InputError(f"a pixel must be larger than 0, or 0 where that is not known, not {self.pixel}")

    @property
    def image(self) -> ImageSpace:
        """What the object does to a wave in each pixel."""
        spacing = (self.pixel, self.pixel) if self.pixel else None
        shape = (self.image_rows, self.image_columns)
        return ImageSpace(shape, is_complex=True, spacing=spacing, quantity="transmission", phase="free")

    def check_views(self, columns: Columns) -> Columns:
        """Refuse positions at which the beam leaves the image."""
        places = np.rint(columns["positions"][:])
        room = np.array([self.image_rows, self.image_columns]) - self.probe.shape[1:]
        if places.size and ((places < 0) | (places > room)).any():
            raise InputError(
                f"positions go from {places.min(0).tolist()} to {places.max(0).tolist()}, and must be from 0 to "
                f"{room.tolist()} pixels for a probe of {self.probe.shape[1:]} to stay in the image"
            )
        return columns

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of beams that do not overlap, from which no phase can be found."""
        if columns is None or len(columns["positions"]) < 2:
            return
        near, width = neighbour_distance(columns["positions"][:]), _width(self.probe)
        if near > width:
            warnings.warn(
                f"positions are {near:.3g} pixels apart, and the beam is {width:.3g} wide: without an overlap there is "
                "no phase; are positions in pixels of the object?",
                PlugstreamWarning,
                stacklevel=2,
            )

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """A loss for counts of waves, a step that follows the overlap, every view once before any comes again."""
        advice = []
        mean = self._photons / math.prod(self.probe.shape[1:])
        if mean < FEW_PHOTONS:
            reason = f"the beam has {mean:.2g} photons a pixel, whose roots would be biased (--loss poisson)"
            # Refining a probe was only tried with roots.
            advice.append(Advice("loss", "name", "poisson", reason, True, unless=(("algorithm", "refine"),)))
        reason = (
            f"--refine-steps is a limit: the probe stays as it is once it has no farther to go than {_ARRIVED:.0%} of "
            "itself (--refine-tolerance)"
        )
        refine = Advice("algorithm", "refine_tolerance", _ARRIVED, reason, True)
        waves = advise_waves("counts of waves", 0.02, "beams")
        batches = advise_batches(n_views, batch, _STEPS, _FEW)
        return *advice, *waves, refine, *batches, *advise_fall_of_waves(n_views, self.image.spatial, _FALL_END)

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """As `advise`, and the sigma that suits the dose."""
        advice = self.advise(n_views, batch)
        if "positions" not in columns or n_views < 1:
            return advice
        places = columns["positions"][:]
        area = float(np.prod(np.ptp(places, axis=0) + _width(self.probe)))
        dose = self._photons * n_views / area
        sigma = float(f"{_SIGMA * dose**_FALL:.2g}")
        reason = f"sigma is {sigma:g}, for about {dose:.2g} photons a pixel of the image (--sigma)"
        return (*advice, Advice("algorithm", "sigma", sigma, reason, sigma="weight", spread=_SPREAD))

    @property
    def _photons(self) -> float:
        """Of a frame without an object."""
        return float((np.abs(self.probe) ** 2).sum())

    def trial_views(self, columns: Columns, available: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Neighbours near the middle: beams that do not overlap agree with any probe."""
        places = columns["positions"][:][available]
        away = ((places - np.median(places, axis=0)) ** 2).sum(1)
        return np.sort(available[np.argsort(away, kind="stable")[:count]])

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """The beam, the distance of its positions, and the size of the image."""
        places, width = columns["positions"][:], _width(self.probe)
        near = neighbour_distance(places)
        modes, h, w = self.probe.shape
        size = f" of {self.pixel:.4g} m" if self.pixel else ""
        grid = "on whole pixels" if np.array_equal(places, np.rint(places)) else "between pixels"
        bad = 0 if self.good is None else int((~self.good).sum())
        return {
            "views": f"{n_views}, {near:.3g} pixels apart, {grid}",
            "beam": f"{modes} mode{'s' * (modes > 1)}, about {width:.3g} pixels wide, "
            f"{self._photons:.4g} photons a frame",
            "detector": f"{h} x {w} pixels" + (f", {bad} of them bad" if bad else ""),
            "image": f"{self.image_rows} x {self.image_columns} pixels{size}",
        }

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse an image if a few copies do not fit into memory."""
        self.check_images(_COPIES, f"{_COPIES} images of {{}}", "crop the scan, or bin its pixels", place)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The far fields of these positions."""
        from plugstream.models.ptychography import PtychographyModel, probe_modes

        chosen, shape, mask = options or PtychographyOptions(), self.image.shape, columns.get("mask")
        probe = self.probe if chosen.probe_modes is None else probe_modes(self.probe, chosen.probe_modes)
        if self.good is not None:
            mask = self.good if mask is None else mask[:] & self.good
        positions, subpixel = columns["positions"], not chosen.whole_pixels
        return PtychographyModel(positions, probe, shape, mask=mask, subpixel=subpixel, **place)

    @classmethod
    def simulate_views(cls, options: PtychographySimulation) -> Experiment:
        """Two pictures as an object in free space, and a beam that scans it on a jittered raster."""
        s = options
        check_memory(
            40.0 * s.across**2 * s.frame**2,
            f"a scan of {s.across**2:,} frames of {s.frame} x {s.frame}",
            "use fewer positions --across, or a smaller --frame",
        )
        probe = _defocused_beam(s.frame)
        step = max(1.0, (1 - s.overlap) * _width(probe[None]))
        draw = np.random.default_rng(s.seed)
        raster = np.stack(np.meshgrid(*[np.arange(s.across)] * 2, indexing="ij"), -1).reshape(-1, 2)
        places = step * (raster + s.jitter * draw.uniform(-1, 1, raster.shape))
        positions, shape = place_frames(places, probe.shape, _MARGIN)
        power = math.sqrt(s.photons / float((np.abs(probe) ** 2).sum()))
        scanner = cls((power * probe)[None].astype(np.complex64), *shape, s.pixel)
        truth = _object(s, positions, np.abs(probe) ** 2, shape)
        provenance = {"photons": s.photons, "seed": s.seed, "y_axis": "down"}
        summary = f"{s.picture} and {s.phase_picture}, {shape[0]} x {shape[1]}, {s.photons:g} photons a frame"
        return Experiment(scanner, {"positions": positions}, len(positions), truth, provenance, summary)

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: PtychographySimulation) -> torch.Tensor:
        """Poisson counts of the intensity of all modes."""
        import torch

        expected = clean.abs().double().square().sum(-3).numpy()
        counts = np.random.default_rng([options.seed, 1]).poisson(expected)
        return torch.from_numpy(counts.astype(np.uint16 if counts.max() < 1 << 16 else np.int32))


def place_frames(
    places: NDArray[Any], frame: tuple[int, ...], margin: int = 0
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Positions in an image that just holds all frames, and its shape.

    Arguments: places (views, 2), row and column in pixels from any origin; frame, rows and columns of one; margin,
    pixels around all of them.
    """
    positions = np.asarray(places, dtype=np.float64)
    positions = positions - positions.min(0) + margin
    size = np.rint(positions.max(0)).astype(int) + np.array(frame) + margin
    return positions, (int(size[0]), int(size[1]))


def neighbour_distance(places: NDArray[np.float64]) -> float:
    """The median distance of a position to its nearest neighbour, over at most 2,000 positions."""
    from scipy.spatial import cKDTree

    distances = cKDTree(places).query(places[:2000], k=min(2, len(places)))[0]
    return float(np.median(distances[:, -1])) if distances.ndim == 2 else 0.0


def _width(probe: NDArray[Any]) -> float:
    """The diameter of the circle around the beam's centre that holds nine tenths of its light."""
    light = (np.abs(probe.astype(np.complex128)) ** 2).sum(0)
    y, x = np.indices(light.shape)
    total = light.sum()
    away = np.hypot(y - (light * y).sum() / total, x - (light * x).sum() / total).ravel()
    order = np.argsort(away)
    inside = np.searchsorted(np.cumsum(light.ravel()[order]), _MOST_LIGHT * total)
    return max(1.0, 2 * float(away[order[min(inside, len(away) - 1)]]))


def _defocused_beam(frame: int) -> NDArray[np.complex128]:
    """A beam from a round aperture, somewhat out of focus, in the middle of its frame."""
    k = np.fft.fftfreq(frame)
    y, x = np.meshgrid(k, k, indexing="ij")
    radius = np.hypot(y, x)
    pupil = np.clip((0.18 - radius) * frame / 2 + 0.5, 0, 1) * np.exp(1j * 2.2 * frame * radius**2)
    return np.fft.fftshift(np.fft.ifft2(pupil))


def _object(
    s: PtychographySimulation, positions: NDArray[np.float64], light: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.complex64]:
    """An object with the pictures as magnitude and phase where beams reach it well, and free space elsewhere."""
    from plugstream.images.pictures import load_picture

    side = max(shape)
    magnitude, phase = (
        load_picture(name, side).numpy()[: shape[0], : shape[1]] for name in (s.picture, s.phase_picture)
    )
    reached = np.zeros(shape)
    h, w = light.shape
    for r, c in np.rint(positions).astype(int).tolist():
        reached[r : r + h, c : c + w] += light
    present = np.clip(reached / (_LIT * reached.max()) - 1, 0, 1)
    values = (1 - s.contrast * (1 - magnitude)) * np.exp(1j * s.shift * (phase - 0.5))
    return np.asarray(1 + present * (values - 1), dtype=np.complex64)
