"""What an X-ray detector counted, as the line integrals that a model predicts: flat and dark fields, a logarithm."""

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

__all__ = ["RawCounts"]

# Counts above the dark field that are taken where there are fewer: the logarithm of none is infinite.
_LEAST = 0.5


@dataclass(frozen=True, eq=False)
class RawCounts:
    r"""Counts of each pixel and view, with the fields that make line integrals of them.

    A pixel that counts n where the beam alone would give b and nothing d has the line integral
    y = log(b / max(n - d, 1/2)), and its likelihood counts by b: the Poisson loss of n is b times the transmission loss
    of y (`plugstream.fidelity.losses.Transmission`), but for half a photon where none came.

    Arguments: field, of the detector's rows and columns; places (views,), when each view was taken, in the units of
    `field.places`; data_shape, of a view; reference, the beam that weights are relative to, None for the median of what
    the beam gives in all pixels that it reaches.
    """

    field: FlatField
    places: Rows
    data_shape: tuple[int, ...]
    reference: float | None = None

    def __post_init__(self) -> None:
        if not bool((self.field.flats > self.field.dark).any()):
            raise InputError("the flat fields are nowhere brighter than the dark one, so that nothing can be measured")

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
        """What the beam gives in each pixel, of the median: (B, *data_shape)."""
        return self._beam(views) / self.usual

    def _beam(self, views: Views) -> Tensor:
        index = all_views(views, self.places.shape[0]).numpy()
        beam = self.field.beam(np.asarray(self.places[index], dtype=np.float64))
        # Pixels that the beam does not reach are masked; here they are kept finite.
        return torch.from_numpy(self._shaped(np.where(beam > 0, beam, 1.0).astype(np.float32)))

    def _shaped(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray(frames.reshape(len(frames), *self.data_shape))
