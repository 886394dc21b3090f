"""X-ray tomography whose scans hold the detector's counts and its flat and dark fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Options
from plugstream.instruments.base import Block, Place, declare
from plugstream.instruments.ct import CT
from plugstream.instruments.declarations import Attribute, Column, Columns, Data, FixedArray
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_line_integrals import FlatField

if TYPE_CHECKING:
    import torch

    from plugstream.models.base import Model
    from plugstream.models.ct_counts import RawCounts


@declare
@dataclass(frozen=True, eq=False)
class CTCounts(CT):
    """As `CT`, with counts instead of line integrals, which are computed where they are used.

    Arguments: besides those of `CT`, dark (rows, columns); flats (groups, rows, columns), the mean of each group of
    flat fields; flat_places (groups,), when they were taken, on the scale of the column `place`; usual_beam, the
    reference of weights, 0 for the median of the flat fields: a block of slices has that of the whole detector.
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
        self.field  # noqa: B018 - refuses flat fields that do not fit

    @property
    def field(self) -> FlatField:
        """The flat and dark fields."""
        return FlatField(self.dark, self.flats, self.flat_places)  # type: ignore[arg-type]  # checked above

    @classmethod
    def of_counts(
        cls, rays: Rays, voxels: Voxels, field: FlatField, *, unit: str = "m", good: NDArray[np.bool_] | None = None
    ) -> CTCounts:
        """The instrument of views with these rays, flat and dark fields."""
        ct = CT.of(rays, voxels, unit=unit, good=good)
        common = (ct.voxels, ct.detector_columns, ct.detector_rows, ct.parallel, ct.curvature, unit, good)
        return cls(*common, dark=field.dark, flats=field.flats, flat_places=field.places)

    def raw(self, columns: Columns) -> RawCounts:
        """The conversion of counts of views to line integrals."""
        from plugstream.models.ct_counts import RawCounts

        return RawCounts(self.field, columns["place"], self.data_shape, self.usual_beam or None)

    def integrals(self, data: torch.Tensor, columns: Columns, views: Any = None) -> torch.Tensor:
        """Line integrals of the counts of some views, (B, *data_shape)."""
        import torch

        return self.raw(columns).integrals(data.to(torch.float32), views)

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """As for `CT`, with the rows of flat and dark fields, and with weights relative to all rows."""
        block = super().block(columns, first, last)
        if block is None:
            return None
        assert isinstance(block.instrument, CTCounts)
        return replace(block, instrument=replace(block.instrument, usual_beam=self.raw(columns).usual))

    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """Joseph's projector of these views, which converts counts to line integrals."""
        from plugstream.models.ct import CTModel

        rays, mask, counts = self._grow_rays(columns, previous), self._mask(columns, n_views), self.raw(columns)
        return CTModel(rays, self.voxels, mask=mask, counts=counts, previous=previous, **place)

    @classmethod
    def simulate_views(cls, options: Any) -> Any:
        """Refused: `ct` is simulated."""
        raise InputError(
            "ct-counts has no simulation; simulate ct, or import counts with 'plugstream import ct --counts'"
        )
