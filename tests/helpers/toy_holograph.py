"""A toy instrument in one file: holograms of parts of a complex volume, counted by a small detector.

counts = gain |1 + sum_z probe exp(i tilt z) x[z, corner : corner + (3, 5)]|^2 + background, which is not linear in x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plugstream.base.registry import Field, Options
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Attribute, Column, Columns, Data, Experiment, FixedArray, Instrument, declare


class ModelOptions(Options):
    background: float = Field(0.0, ge=0, description="counts of a pixel without the beam")


class Simulation(Options):
    views: int = Field(24, ge=1, le=10_000, description="number of exposures")
    gain: float = Field(50.0, gt=0, le=1000, description="counts of a unit of intensity")
    seed: int = Field(0, ge=0, description="seed of the counts", json_schema_extra={"flag": "noise-seed"})


@declare
@dataclass(frozen=True, eq=False)
class ToyHolograph(Instrument):
    """What is known before the first exposure: the beam, and what it makes of a unit of intensity."""

    probe: NDArray[np.complex64]
    gain: float
    slices: int = 2

    name: ClassVar[str] = "toy-holograph"
    help: ClassVar[str] = "holograms of parts of a small complex volume"
    data: ClassVar[Data] = Data(("uint16",), ("row", "column"), "counts", "photons of each pixel")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("corner", "int64", (2,), "pixels", "row and column of the beam's first pixel"),
        Column("tilt", "float64", (), "rad", "phase from a slice to the next"),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (FixedArray("probe", "complex64", ("row", "column"), "", "the beam"),)
    attributes: ClassVar[tuple[Attribute, ...]] = (
        Attribute("gain", float, "counts", "of a unit of intensity"),
        Attribute("slices", int, "", "of the volume", default=2),
    )
    model_options: ClassVar[type[Options]] = ModelOptions
    simulation: ClassVar[type[Options]] = Simulation

    @property
    def image(self) -> ImageSpace:
        """The complex scattering of a volume of (slices, 8, 9)."""
        # The beam beside the object is the reference that its phase is measured by.
        return ImageSpace((self.slices, 8, 9), is_complex=True, quantity="scattering", phase="measured")

    def check_views(self, columns: Columns) -> Columns:
        """Refuse a beam that leaves the image."""
        room = np.array(self.image.shape[1:]) - self.probe.shape
        if ((columns["corner"][:] < 0) | (columns["corner"][:] > room)).any():
            from plugstream import InputError

            raise InputError(
                f"corners must be from (0, 0) to {tuple(map(int, room))}, so that the beam is in the image"
            )
        return columns

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, device: Any, dtype: Any, previous: Any = None
    ) -> Any:
        """The model of these exposures, whose derivative autograd gives."""
        import torch

        from plugstream.models import FunctionModel

        kind = {torch.float32: torch.complex64, torch.float64: torch.complex128}[dtype]
        height, width = self.probe.shape
        corner = torch.from_numpy(columns["corner"][:]).to(device)
        rows = corner[:, :1] + torch.arange(height, device=device)
        across = corner[:, 1:] + torch.arange(width, device=device)
        tilt = torch.from_numpy(columns["tilt"][:]).to(device=device, dtype=dtype)
        phase = torch.exp(1j * tilt[:, None] * torch.arange(self.slices, device=device))
        probe = torch.from_numpy(self.probe).to(device=device, dtype=kind)
        background = (options or ModelOptions()).background

        def counts(image: Any, views: Any) -> Any:
            views = views.to(device)
            patches = image[..., rows[views][:, :, None], across[views][:, None, :]]  # (..., slices, B, 3, 5)
            field = probe * torch.einsum("...zbhw,bz->...bhw", patches, phase[views].to(kind))
            return self.gain * ((1 + field.real) ** 2 + field.imag**2) + background

        return FunctionModel(
            counts,
            n_views=n_views,
            image_shape=self.image.shape,
            data_shape=self.data_shape,
            device=device,
            dtype=kind,
            data_dtype=dtype,
        )

    @classmethod
    def simulate_views(cls, options: Simulation) -> Experiment:
        """A disc in each slice, and a beam that goes over them to and fro."""
        y, x = np.mgrid[:3, :5]
        probe = np.exp(-((y - 1) ** 2 + (x - 2) ** 2) / 9 + 0.5j * x).astype(np.complex64)
        toy = cls(probe, options.gain)
        slices, height, width = toy.image.shape
        v, u = np.mgrid[:height, :width]
        discs = np.stack([(v - 3) ** 2 + (u - 3 - 2 * z) ** 2 < 6 for z in range(slices)])
        truth = np.where(discs, 0.3 * np.exp(0.9j), 0).astype(np.complex64)
        k = np.arange(options.views)
        corner = np.stack([(2 * k) % (height - 2), (k + k // 5) % (width - 4)], axis=1)
        return Experiment(toy, {"corner": corner, "tilt": 2.4 * k}, options.views, truth, {"seed": options.seed})

    def add_noise(self, clean: Any, columns: Columns, options: Simulation) -> Any:
        """Counts as they come."""
        import torch

        draw = np.random.Generator(np.random.Philox(key=options.seed)).poisson(clean.clamp(min=0).numpy())
        return torch.from_numpy(draw.astype(np.uint16))
