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

from plugstream.arrays import Array, as_tensor
from plugstream.errors import InputError
from plugstream.scans.geometry import BornGeometry, Grid, Rows

__all__ = ["MemoryScan", "Scan", "check_agreement", "check_finite", "check_truth", "fingerprint", "hashes"]

# Of a scan of up to this many bytes every view is compared, and of a larger one the first view of each part.
_WHOLE_BYTES = 64 << 20
_PARTS = 16


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


@dataclass(frozen=True, eq=False, init=False)
class MemoryScan:
    """A scan held in memory: data (views, receivers), its geometry, and the true image (H, W) if it was simulated.

    Data and truth may be tensors or NumPy arrays of real or complex numbers. They are held as a complex64 tensor on the
    CPU, one of complex128 as it is, and as an array of float32.
    """

    data: Tensor
    geometry: BornGeometry
    truth: NDArray[np.float32] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        data: Array,
        geometry: BornGeometry,
        truth: Array | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if truth is not None:
            truth = as_tensor("the scan's true image", truth).detach().cpu().numpy()
        held = as_tensor("the scan's data", data).detach().cpu()
        check_agreement(tuple(held.shape), geometry, truth)
        if not (isinstance(data, Tensor) and data.dtype == torch.complex128):
            held = held.to(torch.complex64)
        check_finite(held, geometry.mask)
        set_once = object.__setattr__  # as the __init__ of a frozen dataclass does
        set_once(self, "data", held)
        set_once(self, "geometry", geometry)
        set_once(self, "truth", None if truth is None else np.asarray(truth, dtype=np.float32))
        set_once(self, "provenance", {} if provenance is None else provenance)

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
    if truth is not None:
        check_truth(truth, geometry.grid)


def check_truth(truth: NDArray[Any], grid: Grid) -> None:
    """Refuse a true image that cannot be one."""
    if truth.shape != grid.shape:
        raise InputError(f"the scan's true image is {truth.shape}, but its grid is {grid.shape}")
    if not (truth.dtype.kind in "fiu" and np.isfinite(truth).all()):
        raise InputError("the scan's true image must be of real, finite numbers")


def check_finite(data: Tensor, mask: Rows | None = None, first: int = 0) -> None:
    """Refuse NaN and infinity in (views, receivers), except at masked receivers, naming the view.

    `first` is the number of the first view, where data and mask are of a part of the scan.
    """
    finite = np.isfinite(data.detach().cpu().resolve_conj().numpy())  # of one view ten times as fast as torch
    if finite.all():
        return
    bad = ~finite if mask is None else ~finite & mask[:]
    if bad.any():
        view = first + int(np.argmax(bad.any(1)))
        raise InputError(f"view {view} of the scan holds NaN or infinity; mask those receivers or leave the view out")


def hashes(scan: Scan, views: int) -> dict[str, str]:
    """What tells a scan from others, by name: hashes of its geometry and, in parts, of its first `views` views.

    Of a scan of up to 64 MB every view counts, of a larger one the first view of each of 16 parts. A part that is
    damaged has no entry, and views that come later have none, so that neither makes it another scan.
    """
    g = scan.geometry
    place = repr((g.wavelength, g.background, g.grid, g.far_field)).encode()
    found = {"the geometry of the scan": _hash(place, np.ascontiguousarray(g.receivers))}
    values = g.n_receivers + (0 if g.fields is None else g.grid.shape[0] * g.grid.shape[1])
    whole = 8 * views * values <= _WHOLE_BYTES
    for part in np.array_split(np.arange(views), min(_PARTS, views)):
        some = part if whole else part[:1]
        try:
            data = scan.read(torch.from_numpy(some)).numpy()
            check_finite(torch.from_numpy(data), None if g.mask is None else g.mask[some])
        except InputError:  # damaged, or of NaN, which is damage that came before the checksum
            continue
        rows = [data, *(r[some] for r in (g.transmitters, g.plane_waves, g.fields, g.mask) if r is not None)]
        name = f"view {some[0]} of the scan" if len(some) == 1 else f"one of views {some[0]} to {some[-1]} of the scan"
        found[name] = _hash(*map(np.ascontiguousarray, rows))
    return found


def fingerprint(scan: Scan) -> str:
    """Which scan this is, with the views that it has now, in 16 hexadecimal digits."""
    return _hash(repr((scan.n_views, hashes(scan, scan.n_views))).encode())


def _hash(*parts: Any) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]
