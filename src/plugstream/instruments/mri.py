"""Magnetic resonance imaging: what several coils receive along any path through k-space."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import (
    Advice,
    Attribute,
    Block,
    Column,
    Columns,
    Data,
    Experiment,
    FixedArray,
    Instrument,
    declare,
)
from plugstream.instruments.mri_simulation import MRISimulation, draw_path, paint_image, ring_coils
from plugstream.instruments.suspects import suspects_of_mri
from plugstream.models.ct_geometry import Voxels

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model

__all__ = ["MRI", "MRIOptions"]

# The noise level that a reconstruction begins with where nobody says one, per cent of the image's range, by what sigma
# means to the denoiser, for steps with all views.
_SIGMA = {"weight": 6.0, "noise": 1.2}
_STEPS = 4  # where going through all views takes so many steps, each is used once before any comes again
# Cycles a pixel beyond which a sample says nothing of an image with such pixels, and at which units are forgotten.
_NYQUIST, _ABSURD = 0.5, 50.0


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
    """What is known of a scan before its first view: all but the path through k-space.

    Arguments: voxels of the image; coils and samples of a view; stack, whether slices are measured one by one along the
    same path of two dimensions, or the path has as many dimensions as the image; coil_maps (coils, slices, rows,
    columns), one slice of an image of two axes; None for a single coil that sees everything alike.
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
        Column(
            "mask", "bool", _VIEW, "", "False where a sample does not count", optional=True, default=True, covers=True
        ),
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
        """Magnetisation in the voxels, as its phase is received."""
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
    def data_shape(self) -> tuple[int, ...]:
        """(coils, samples), and slices before them of a stack."""
        view = (self.coils, self.samples)
        return (self.voxels.shape[0], *view) if self.stack else view

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of named axes."""
        axes = dict(zip(self.image.axes, self.voxels.shape, strict=True))
        axes |= {"coil": self.coils, "sample": self.samples, "encoded": self.encoded_axes}
        planes = self.voxels.shape[0] if len(self.voxels.shape) == 3 else 1
        return axes | {"plane": planes} | ({"slice": planes} if self.stack else {})

    def check_views(self, columns: Columns) -> Columns:
        """Refuse samples that lie nowhere, and densities below zero."""
        if not np.isfinite(columns["trajectory"][:]).all():
            raise InputError("the trajectory holds NaN or infinity")
        if "density" in columns:
            values = columns["density"][:]
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise InputError("density must be finite and not negative")
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse paths that no pixels of this size can have, as those in other units."""
        if columns is not None and (most := self._reach(columns)) > _ABSURD:
            raise InputError(
                f"the trajectory goes out to {most:.3g} cycles a pixel, where a half is the most that an image has; is "
                "it in 1/m, and are voxels in metres?"
            )

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of samples beyond what pixels of this size can tell, and of paths that tell nothing."""
        if columns is None:
            return
        most = self._reach(columns)
        if most > 1.05 * _NYQUIST or most < 1e-3:
            what = "finer detail than the pixels have" if most > _NYQUIST else "nothing of the image but its mean"
            warnings.warn(
                f"the trajectory goes out to {most:.3g} cycles a pixel: it tells {what}; see whether the field of view "
                "and the units are right",
                PlugstreamWarning,
                stacklevel=2,
            )

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Samples weighed by density, a step that follows the overlap in k-space, each view once before any again.

        Steps of a few views change less of k-space, and are shorter, and so is sigma: sigma^2 goes with the step, as
        where a prior has a weight.
        """
        share = 1.0 if batch is None else math.sqrt(min(1.0, batch / n_views))
        found = [
            Advice(
                "instrument",
                "density",
                1.0,
                "samples count by the part of k-space that they stand for (--density 1)",
                True,
            ),
            Advice(
                "algorithm",
                "step_size",
                "overlap",
                "the step follows how much the samples of a batch overlap (--step overlap), longer than 1/L",
                True,
            ),
        ]
        for of, percent in _SIGMA.items():
            text = f"{percent * share:.3g}%"
            reason = f"sigma is {text} of the image's range; --sigma says another"
            found.append(Advice("algorithm", "sigma", text, reason, sigma=of))
        if batch is not None and batch < n_views:
            if n_views >= _STEPS * batch:
                reason = f"{batch} of {n_views} views a step: each is used once before any comes again"
                found.append(Advice("sampler", "name", "epochs", f"{reason} (--sampler epochs)"))
            reason = "views see parts of k-space that hardly overlap, whose differences momentum would gather"
            found.append(Advice("momentum", "name", "bounded", f"{reason} (--momentum bounded)", True))
        return tuple(found)

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """The path, the coils, and how fine the image is."""
        from plugstream.models.kspace import encoded_voxels, find_axes

        path = columns["trajectory"][:]
        voxels = encoded_voxels(self.voxels, self.encoded_axes)
        on_grid = [axis.period is not None for axis in find_axes(path, voxels)]
        kind = "on the grid of an FFT" if all(on_grid) else "off the grid" + (" along some axes" * any(on_grid))
        shape = " x ".join(map(str, self.voxels.shape))
        steps = " x ".join(f"{step:.6g}" for step in dict.fromkeys(self.voxels.spacing))
        total, pixels = n_views * self.samples, math.prod(voxels.shape)
        maps = "with maps of their sensitivity" if self.coil_maps is not None else "that sees everything alike"
        return {
            "views": f"{n_views} of {self.samples} samples, {kind}, out to {self._reach(columns):.3g} cycles a pixel; "
            f"{total / pixels:.3g} samples a pixel",
            "coils": f"{self.coils} {maps}",
            "image": f"{shape} voxels of {steps} m" + (", slices measured one by one" if self.stack else ""),
        }

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """Some slices of a stack."""
        if not self.stack:
            return None
        v = self.voxels
        voxels = Voxels((last - first, *v.shape[1:]), v.spacing, (v.origin[0] + first * v.spacing[0], *v.origin[1:]))
        maps = None if self.coil_maps is None else np.ascontiguousarray(self.coil_maps[:, first:last])
        return Block(replace(self, voxels=voxels, coil_maps=maps), slice(first, last), {}, False)

    def check_model(
        self, columns: Columns | None, n_views: int, options: Any = None, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Refuse an image of which not even a few copies, its coil maps and a finer grid fit into memory."""
        if device.type == "cpu":
            size = 2 * math.prod(self.voxels.shape) * dtype.itemsize
            shape = " x ".join(map(str, self.voxels.shape))
            what = f"images of {shape}, {self.coils} coil maps and what is computed with them"
            check_memory((6 + 3 * self.coils) * size, what, "use a coarser image, or fewer slices")

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
        """The transform of these views, with samples weighed where that is asked for."""
        import torch

        from plugstream.models.mri import MRIModel

        chosen = options or MRIOptions()
        eps = chosen.eps if dtype == torch.float32 else min(chosen.eps, 1e-10)
        path = np.ascontiguousarray(columns["trajectory"][:])
        maps = self.coil_maps
        if maps is not None:
            maps = maps.reshape(self.coils, *self.voxels.shape)
        return MRIModel(
            path,
            self.voxels,
            maps,
            mask=columns.get("mask"),
            density=self._weights(columns, chosen.density),
            eps=eps,
            device=device,
            dtype=dtype,
        )

    def sample_density(self, columns: Columns) -> NDArray[np.float32]:
        """The part of k-space that each sample stands for, (views, samples): the column, or by the path itself."""
        import torch

        from plugstream.models.density import sample_density
        from plugstream.models.kspace import KSpace, encoded_voxels

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
        shape = (s.slices, s.size, s.size) if s.slices else (s.size, s.size)
        voxels = centered_voxels(shape, s.width / s.size)
        path = draw_path(s, voxels)
        views, samples = path.shape[:2]
        check_memory(
            24 * views * samples * s.coils * max(1, s.slices) + 24 * s.coils * math.prod(shape),
            f"a scan of {views} views of {samples} samples by {s.coils} coils",
            "use a larger --acceleration, fewer --coils or a smaller --size",
        )
        maps = ring_coils(shape, s.coils)
        truth, y_axis = paint_image(s, shape)
        made = cls(voxels, s.coils, samples, bool(s.slices), maps)
        provenance = {"snr_db": s.snr, "seed": s.seed, "y_axis": y_axis}
        what = f"{s.picture}, {' x '.join(map(str, shape))}, {s.trajectory}, {s.coils} coils, {s.snr:g} dB"
        return Experiment(made, {"trajectory": path}, views, truth, provenance, what)

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: MRISimulation) -> torch.Tensor:
        """White Gaussian noise at an exact SNR."""
        import torch

        from plugstream.images.simulated import add_noise

        return add_noise(clean, options.snr, seed=options.seed).to(torch.complex64)

    def _weights(self, columns: Columns, power: float) -> NDArray[np.float64] | None:
        """Densities to a power; None where all are 1, as on a grid."""
        if power == 0:
            return None
        found = self.sample_density(columns).astype(np.float64) ** power
        return None if (found == 1).all() else found

    def _reach(self, columns: Columns) -> float:
        """Cycles a pixel of the outermost sample along any axis."""
        path = np.abs(columns["trajectory"][:]).reshape(-1, self.encoded_axes).max(0, initial=0.0)
        return float((path * np.array(self.voxels.spacing[-self.encoded_axes :])).max())
