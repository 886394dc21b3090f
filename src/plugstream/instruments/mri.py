"""Magnetic resonance imaging: what several coils receive along any path through k-space."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.image_size import image_sides
from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.advice import advise_fall, advise_trained
from plugstream.instruments.base import Block, Experiment, Instrument, Place, add_white_noise, declare
from plugstream.instruments.declarations import Advice, Attribute, Column, Columns, Data, FixedArray, mask_column
from plugstream.instruments.mri_simulation import MRISimulation, draw_path, paint_image, ring_coils
from plugstream.instruments.suspects import suspects_of_mri
from plugstream.models.ct_geometry import Voxels

if TYPE_CHECKING:
    from plugstream.models.base import Model


# Sigma by default, in per cent of the image's range, by its meaning to the denoiser, for steps with all views.
_SIGMA = {"weight": 6.0, "noise": 1.2}
_STEPS = 4  # of a pass over all views, from which each view is used once before any is used again
# Cycles a pixel beyond which samples are finer than the pixels, and beyond which a unit was forgotten.
_NYQUIST, _ABSURD = 0.5, 50.0
_CLOSE = 0.8  # cycles over the image from sample to sample, below which they see nearly the same


class MRIOptions(Options):
    """How the model is computed."""

    density: float = Field(
        0.0, ge=0, le=1, description="weight samples by the part of k-space that they represent, to this power"
    )
    eps: float = Field(1e-4, ge=1e-12, le=0.1, description="relative accuracy of the non-uniform FFT")


_VIEW, _STACK = ("coil", "sample"), ("slice", "coil", "sample")


@declare
@dataclass(frozen=True, eq=False)
class MRI(Instrument):
    """What is known of a scan before its first view: everything except the path through k-space.

    Arguments: voxels of the image; coils and samples of a view; stack, whether slices are measured one by one along the
    same path of two dimensions, rather than along a path with as many dimensions as the image; coil_maps (coils,
    slices, rows, columns), with one slice for an image of two axes; None for a single coil of uniform sensitivity.
    """

    voxels: Voxels
    coils: int
    samples: int
    stack: bool = False
    coil_maps: NDArray[np.complex64] | None = None

    name: ClassVar[str] = "mri"
    help: ClassVar[str] = "magnetic resonance imaging: several coils, any path through k-space"
    data: ClassVar[Data] = Data(("complex64",), _VIEW, meaning="k-space samples that each coil received")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("trajectory", "float64", ("sample", "encoded"), "1/m", "k-space, along z, y, x, or y, x"),
        Column(
            "density",
            "float32",
            ("sample",),
            "",
            "the part of k-space that each sample stands for, 1 on the image's own grid",
            optional=True,
            default=1.0,
        ),
        mask_column(_VIEW, "False where a sample does not count"),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        FixedArray(
            "coil_maps", "complex64", ("coil", "plane", "y", "x"), "", "sensitivity of each coil", optional=True
        ),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("voxels", Voxels, "m", "shape, spacing and origin of the image"),
        Attribute("coils", int, "", "number of coils"),
        Attribute("samples", int, "", "samples of a view"),
        Attribute("stack", bool, "", "slices are measured one by one, along a path of two dimensions", default=False),
    )
    conventions: ClassVar[dict[str, str]] = {
        "sign": "data is the sum of x exp(-2 pi i k r), divided by the root of the number of pixels",
        "voxels": "value (k, i, j) is at z = z0 + k dz, y = y0 + i dy, x = x0 + j dx; k-space is along the same axes",
    }
    model_options: ClassVar[type[Options]] = MRIOptions
    simulation: ClassVar[type[Options]] = MRISimulation
    suspects = suspects_of_mri
    add_noise = add_white_noise
    baseline: ClassVar[str] = "gridding"

    def __post_init__(self) -> None:
        if self.coils < 1 or self.samples < 1:
            raise InputError(f"a view needs coils and samples, not {self.coils} and {self.samples}")
        if self.stack and len(self.voxels.shape) != 3:
            raise InputError(f"a stack of slices has three axes, not {self.voxels.shape}")
        planes = self.voxels.shape[0] if len(self.voxels.shape) == 3 else 1
        want = (self.coils, planes, *self.voxels.shape[-2:])
        if self.coil_maps is None and self.coils > 1:
            raise InputError(f"{self.coils} coils need coil_maps of {want}; import mri estimates them")
        if self.coil_maps is not None and self.coil_maps.shape != want:
            raise InputError(f"coil_maps have shape {self.coil_maps.shape}, but must be {want}")
        if self.stack:
            set_once = object.__setattr__
            set_once(self, "data", replace(type(self).data, shape=_STACK))
            rows = (replace(c, shape=_STACK) if c.shape == _VIEW else c for c in type(self).columns)
            set_once(self, "columns", tuple(rows))

    @property
    def image(self) -> ImageSpace:
        """Magnetisation in the voxels, with its phase."""
        v = self.voxels
        return ImageSpace(
            v.shape,
            is_complex=True,
            spacing=v.spacing,
            origin=v.origin,
            quantity="magnetisation",
            phase="measured",  # coils receive waves, with their phase
        )

    @property
    def encoded_axes(self) -> int:
        """How many dimensions the path through k-space has."""
        return 2 if self.stack else len(self.voxels.shape)

    @property
    def sizes(self) -> dict[str, int]:
        sizes = super().sizes | {"coil": self.coils, "sample": self.samples, "encoded": self.encoded_axes}
        planes = self.voxels.shape[0] if len(self.voxels.shape) == 3 else 1
        return sizes | {"plane": planes} | ({"slice": planes} if self.stack else {})

    def check_views(self, columns: Columns) -> Columns:
        """Refuse samples that are not finite, and densities below zero."""
        if not np.isfinite(columns["trajectory"][:]).all():
            raise InputError("the trajectory holds NaN or infinity")
        if "density" in columns:
            values = columns["density"][:]
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise InputError("density must be finite and not negative")
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse paths that do not fit pixels of this size, such as those in other units."""
        if columns is not None and (most := self._reach(columns)) > _ABSURD:
            raise InputError(
                f"the trajectory goes out to {most:.3g} cycles a pixel, where a half is the most that an image has; is "
                "it in 1/m, and are voxels in metres?"
            )

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of samples of finer detail than the pixels, and of paths that measure nothing but the mean."""
        if columns is None:
            return
        most = self._reach(columns)
        if most > 1.05 * _NYQUIST or most < 1e-3:
            detail = "finer detail than the pixels have" if most > _NYQUIST else "nothing of the image but its mean"
            warnings.warn(
                f"the trajectory goes out to {most:.3g} cycles a pixel: it tells {detail}; see whether the field of "
                "view and the units are right",
                PlugstreamWarning,
                stacklevel=2,
            )

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Samples weighted by density, a step that follows the overlap in k-space, each view once before any again.

        Steps of a few views change less of k-space and are shorter. So is sigma: sigma^2 is proportional to the step,
        as for a prior with a weight.
        """
        share = 1.0 if batch is None else math.sqrt(min(1.0, batch / max(1, n_views)))
        weigh = "samples count by the part of k-space that they stand for (--density 1)"
        step = "the step follows how much the samples of a batch overlap (--step overlap), longer than 1/L"
        advice = [
            Advice("instrument", "density", 1.0, weigh, True),
            Advice("algorithm", "step_size", "overlap", step, True),
        ]
        for kind, percent in _SIGMA.items():
            text = f"{percent * share:.3g}%"
            reason = f"sigma is {text} of the image's range; --sigma says another"
            advice.append(Advice("algorithm", "sigma", text, reason, sigma=kind))
        if batch is not None and batch < n_views:
            if n_views >= _STEPS * batch:
                reason = f"{batch} of {n_views} views a step: each is used once before any comes again"
                advice.append(Advice("sampler", "name", "epochs", f"{reason} (--sampler epochs)"))
            reason = "views see parts of k-space that hardly overlap, whose differences momentum would gather"
            advice.append(Advice("momentum", "name", "bounded", f"{reason} (--momentum bounded)", True))
        fall = advise_fall(n_views, 12) if len(self.voxels.shape) == 2 else ()
        return (*advice, *fall, *advise_trained(fall, self.voxels.shape))

    def has_neighbours(self, columns: Columns) -> bool:
        """Whether samples that follow each other are nearer than an image of this size can tell apart."""
        path, v = columns["trajectory"][:], self.voxels
        width = np.multiply(v.shape, v.spacing)[-path.shape[-1] :]
        return bool((np.abs(np.diff(path, axis=1)) * width < _CLOSE).all())

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """The path, the coils, and the size of voxels."""
        from plugstream.models.kspace import encoded_voxels, find_axes

        path = columns["trajectory"][:]
        voxels = encoded_voxels(self.voxels, self.encoded_axes)
        on_grid = [axis.period is not None for axis in find_axes(path, voxels)]
        kind = "on the grid of an FFT" if all(on_grid) else "off the grid" + (" along some axes" * any(on_grid))
        total, pixels = n_views * self.samples, math.prod(voxels.shape)
        maps = "with maps of their sensitivity" if self.coil_maps is not None else "that sees everything alike"
        return {
            "views": f"{n_views} of {self.samples} samples, {kind}, out to {self._reach(columns):.3g} cycles a pixel; "
            f"{total / pixels:.3g} samples a pixel",
            "coils": f"{self.coils} {maps}",
            "image": f"{self.voxels.describe()} m" + (", slices measured one by one" if self.stack else ""),
        }

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """Some slices of a stack."""
        if not self.stack:
            return None
        maps = None if self.coil_maps is None else np.ascontiguousarray(self.coil_maps[:, first:last])
        part = replace(self, voxels=self.voxels.slices(first, last), coil_maps=maps)
        return Block(part, slice(first, last), {}, False)

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse an image if a few copies, its coil maps and a finer grid do not fit into memory."""
        images = f"images of {{}}, {self.coils} coil maps and what is computed with them"
        self.check_images(6 + 3 * self.coils, images, "use a coarser image, or fewer slices", place)

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The transform of these views, with samples weighted if asked for."""
        import torch

        from plugstream.models.mri import MRIModel

        chosen = options or MRIOptions()
        eps = chosen.eps if place["dtype"] == torch.float32 else min(chosen.eps, 1e-10)
        maps = None if self.coil_maps is None else self.coil_maps.reshape(self.coils, *self.voxels.shape)
        density = None
        if chosen.density:
            density = self.sample_density(columns).astype(np.float64) ** chosen.density
            density = None if (density == 1).all() else density  # as on a grid
        path, mask = columns["trajectory"][:], columns.get("mask")
        return MRIModel(path, self.voxels, maps, mask=mask, density=density, eps=eps, **place)

    def sample_density(self, columns: Columns) -> NDArray[np.float32]:
        """The part of k-space that each sample stands for, (views, samples): the column, or from the path."""
        import torch

        from plugstream.models.kspace import KSpace, encoded_voxels, sample_density

        if "density" in columns:
            return np.asarray(columns["density"][:], np.float32)
        path = np.ascontiguousarray(columns["trajectory"][:])
        mask = self.find_mask(columns)
        counts = None
        if mask is not None:
            counts = torch.from_numpy(np.ascontiguousarray(mask[:].reshape(len(path), -1, self.samples).any(1)))
        return sample_density(KSpace(path, encoded_voxels(self.voxels, self.encoded_axes), 1e-4), weights=counts)

    @classmethod
    def simulate_views(cls, options: MRISimulation) -> Experiment:
        """A phantom, or a picture with a phase, inside a ring of coils."""
        from plugstream.models.kspace import centered_voxels

        s = options
        sides = image_sides(s, 2)
        shape = (s.slices, *sides) if s.slices else sides
        voxels = centered_voxels(shape, s.width / sides[1])
        path = draw_path(s, voxels)
        views, samples = path.shape[:2]
        check_memory(
            24 * views * samples * s.coils * max(1, s.slices) + 24 * s.coils * math.prod(shape),
            f"a scan of {views} views of {samples} samples by {s.coils} coils",
            "use a larger --acceleration, fewer --coils or a smaller --size",
        )
        maps = ring_coils(shape, s.coils)
        truth, y_axis = paint_image(s, shape)
        scanner = cls(voxels, s.coils, samples, bool(s.slices), maps)
        provenance = {"snr_db": s.snr, "seed": s.seed, "y_axis": y_axis}
        summary = f"{s.picture}, {' x '.join(map(str, shape))}, {s.trajectory}, {s.coils} coils, {s.snr:g} dB"
        return Experiment(scanner, {"trajectory": path}, views, truth, provenance, summary)

    def _reach(self, columns: Columns) -> float:
        """Cycles a pixel of the outermost sample along any axis."""
        path = np.abs(columns["trajectory"][:]).reshape(-1, self.encoded_axes).max(0, initial=0.0)
        return float((path * np.array(self.voxels.spacing[-self.encoded_axes :])).max())
