"""From an X-ray detector's counts to the line integrals that a model predicts, by flat and dark fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.rows import Rows
from plugstream.models.ct_line_integrals import FlatField
from plugstream.models.views import Views, all_views

_LEAST = 0.5  # counts above the dark field, at least, since the logarithm of 0 is infinite


@dataclass(frozen=True, eq=False)
class RawCounts:
    r"""The fields that turn counts of each pixel and view into line integrals.

    A pixel with a count of n, of b for the beam alone and of d without beam has the line integral
    y = log(b / max(n - d, 1/2)), and its likelihood is weighted by b: the Poisson loss of n is b times the transmission
    loss of y (`plugstream.fidelity.losses.Transmission`), except for half a photon where none came.

    Arguments: field, of the detector's rows and columns; places (views,), when each view was taken, in the units of
    `field.places`; data_shape, of a view; reference, the beam that weights are relative to, None for the median over
    all pixels that the beam reaches.
    """

    field: FlatField
    places: Rows
    data_shape: tuple[int, ...]
    reference: float | None = None

    def __post_init__(self) -> None:
        if not bool((self.field.flats > self.field.dark).any()):
            raise InputError("the flat fields are nowhere brighter than the dark one, so nothing can be measured")

    @property
    def usual(self) -> float:
        """The beam that weights are relative to."""
        if self.reference is not None:
            return self.reference
        bright = self.field.flats - self.field.dark
        return float(np.median(bright[bright > 0]))

    @property
    def strongest(self) -> float:
        """The largest that a weight can be."""
        return float((self.field.flats - self.field.dark).max()) / self.usual

    def integrals(self, counts: Tensor, views: Views = None) -> Tensor:
        """Line integrals of the counts of some views: (..., B, *data_shape) to the same."""
        dark = torch.from_numpy(self._shaped(self.field.dark[None])).to(device=counts.device, dtype=counts.dtype)
        beam = self._beam(views).to(device=counts.device, dtype=counts.dtype)
        return torch.log(beam / (counts - dark).clamp_min(_LEAST))

    def weights(self, views: Views = None) -> Tensor:
        """The beam in each pixel, relative to the reference: (B, *data_shape)."""
        return self._beam(views) / self.usual

    def _beam(self, views: Views) -> Tensor:
        index = all_views(views, self.places.shape[0]).numpy()
        beam = self.field.beam(np.asarray(self.places[index], dtype=np.float64))
        # Pixels that the beam does not reach are masked; here they only need to be finite.
        return torch.from_numpy(self._shaped(np.where(beam > 0, beam, 1.0).astype(np.float32)))

    def _shaped(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray(frames.reshape(len(frames), *self.data_shape))
