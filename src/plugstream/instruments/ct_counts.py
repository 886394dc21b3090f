"""X-ray tomography of which the scan holds what the detector counted, and its flat and dark fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Options
from plugstream.instruments.base import Attribute, Block, Column, Columns, Data, FixedArray, declare
from plugstream.instruments.ct import CT
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_line_integrals import FlatField

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model
    from plugstream.models.ct_counts import RawCounts

__all__ = ["CTCounts"]


@declare
@dataclass(frozen=True, eq=False)
class CTCounts(CT):
    """As `CT`, with counts in place of line integrals, which are formed where they are used.

    Arguments: besides those of `CT`, dark (rows, columns); flats (groups, rows, columns), the mean of each group of
    flat fields; flat_places (groups,), when they were taken, on the scale of the column `place`; usual_beam, what
    weights are relative to, 0 for the median of the flat fields: a block of slices has that of the whole detector.
    """

    dark: NDArray[np.float32] | None = None
    flats: NDArray[np.float32] | None = None
    flat_places: NDArray[np.float64] | None = None
    usual_beam: float = 0.0

    name: ClassVar[str] = "ct-counts"
    help: ClassVar[str] = "X-ray tomography from detector counts"
    data: ClassVar[Data] = Data(("uint16", "int32"), CT.data.shape, "counts", "what each pixel counted")
    columns: ClassVar[tuple[Column, ...]] = (
        *CT.columns,
        Column("place", "float64", (), "", "when a view was taken, on the scale of flat_places: its number"),
    )
    arrays: ClassVar[tuple[FixedArray, ...]] = (
        *CT.arrays,
        FixedArray("dark", "float32", ("rows", "columns"), "counts", "without the beam"),
        FixedArray("flats", "float32", ("groups", "rows", "columns"), "counts", "without the object"),
        FixedArray("flat_places", "float64", ("groups",), "", "before which view each group of flat fields was taken"),
    )
    attributes: ClassVar[tuple[Attribute, ...]] = (
        *CT.attributes,
        Attribute("usual_beam", float, "counts", "what weights are relative to; 0: the median flat field", default=0.0),
    )
    simulation: ClassVar[type[Options]] = Options

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dark is None or self.flats is None or self.flat_places is None:
            raise InputError("counts need a dark field, flat fields and their places; give dark, flats and flat_places")
        if self.dark.shape != (max(1, self.detector_rows), self.detector_columns):
            raise InputError(f"the dark field has shape {self.dark.shape}, but the detector is {self.data_shape}")
        if not 0 <= self.usual_beam < float("inf"):
            raise InputError(f"usual_beam must be a number of counts, or 0 for the median, not {self.usual_beam}")
        self.field  # noqa: B018 - which refuses flat fields that do not go with it

    @property
    def field(self) -> FlatField:
        """The flat and dark fields."""
        assert self.dark is not None
        assert self.flats is not None
        assert self.flat_places is not None
        return FlatField(self.dark, self.flats, self.flat_places)

    @classmethod
    def of_counts(
        cls, rays: Rays, voxels: Voxels, field: FlatField, *, unit: str = "m", good: NDArray[np.bool_] | None = None
    ) -> CTCounts:
        """The instrument that views with these rays, flat and dark fields were taken with."""
        plain = CT.of(rays, voxels, unit=unit, good=good)
        own = (plain.voxels, plain.detector_columns, plain.detector_rows, plain.parallel, plain.curvature, unit, good)
        return cls(*own, field.dark, field.flats, field.places)

    def raw(self, columns: Columns) -> RawCounts:
        """What makes line integrals of the counts of views."""
        from plugstream.models.ct_counts import RawCounts

        return RawCounts(self.field, columns["place"], self.data_shape, self.usual_beam or None)

    def integrals(self, data: torch.Tensor, columns: Columns, views: Any = None) -> torch.Tensor:
        """Line integrals of the counts of some views, (B, *data_shape)."""
        import torch

        return self.raw(columns).integrals(data.to(torch.float32), views)

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """As of `CT`, with the rows of flat and dark fields; what weights are relative to is that of all rows."""
        found = super().block(columns, first, last)
        if found is None:
            return None
        assert isinstance(found.instrument, CTCounts)
        return replace(found, instrument=replace(found.instrument, usual_beam=self.raw(columns).usual))

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
        """Joseph's projector of these views, which knows how counts become line integrals."""
        from plugstream.models.ct import CTModel

        mask = self._mask(columns, n_views)
        return CTModel(self.rays(columns), self.voxels, mask=mask, counts=self.raw(columns), device=device, dtype=dtype)

    @classmethod
    def simulate_views(cls, options: Any) -> Any:
        """Refused: `ct` is simulated."""
        raise InputError(
            "ct-counts has no simulation; simulate ct, or import counts with 'plugstream import ct --counts'"
        )
