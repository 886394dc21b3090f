"""A scan: the measurements of all views with their geometry, wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.errors import DamagedError, InputError
from plugstream.scans.geometry import BornGeometry

__all__ = ["MemoryScan", "Scan", "check_finite", "fingerprint"]


class Scan(Protocol):
    """Measurements that are read view by view, the geometry they were taken with, and where they come from."""

    @property
    def geometry(self) -> BornGeometry: ...
    @property
    def truth(self) -> NDArray[np.float32] | None: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def n_views(self) -> int: ...

    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, receivers) complex64, on the CPU; all for None."""


@dataclass(frozen=True, eq=False)
class MemoryScan:
    """A scan held in memory: data (views, receivers), its geometry, and the true image (H, W) if it was simulated."""

    data: Tensor
    geometry: BornGeometry
    truth: NDArray[np.float32] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_agreement(tuple(self.data.shape), self.geometry, self.truth)
        check_finite(self.data, self.geometry.mask)

    @property
    def n_views(self) -> int:
        return len(self.data)

    def read(self, views: Tensor | None = None) -> Tensor:
        return self.data if views is None else self.data[views]


def check_agreement(shape: tuple[int, ...], geometry: BornGeometry, truth: NDArray[Any] | None) -> None:
    """Refuse data that the geometry does not describe."""
    want = (geometry.n_views, geometry.n_receivers)
    if shape != want:
        raise InputError(
            f"the scan's data has shape {shape}, but its geometry has {want[0]} views of {want[1]} receivers"
        )
    if truth is not None and truth.shape != geometry.grid.shape:
        raise InputError(f"the scan's true image is {truth.shape}, but its grid is {geometry.grid.shape}")


def check_finite(data: Tensor, mask: NDArray[np.bool_] | None = None, first: int = 0) -> None:
    """Refuse NaN and infinity in (views, receivers), except at masked receivers, naming the view.

    `first` is the number of the first view, where data and mask are of a part of the scan.
    """
    bad = ~(torch.isfinite(data.real) & torch.isfinite(data.imag))
    if mask is not None:
        bad &= torch.from_numpy(mask)
    if bool(bad.any()):
        view = first + int(bad.any(1).nonzero()[0])
        raise InputError(f"view {view} of the scan holds NaN or infinity; mask those receivers or leave the view out")


def fingerprint(scan: Scan) -> str:
    """Which scan this is, in 16 hexadecimal digits: from its geometry and the data of the first view that can be read.

    Views that are added later do not change it.
    """
    geometry = scan.geometry
    total = hashlib.sha256(repr((geometry.wavelength, geometry.background, geometry.grid)).encode())
    total.update(np.ascontiguousarray(geometry.receivers).tobytes())
    for view in range(scan.n_views):
        try:
            total.update(np.ascontiguousarray(scan.read(torch.tensor([view])).numpy()).tobytes())
            break
        except DamagedError:
            continue
    return total.hexdigest()[:16]
