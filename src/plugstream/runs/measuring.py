"""Which views distance and cost are measured on: all of a scan in memory, some of a larger one."""

from __future__ import annotations

import math

from torch import Tensor

from plugstream.fidelity import Fidelity
from plugstream.sampling import spread_views
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import Settings

__all__ = ["MeasuredViews"]

# Of a scan that is not in memory at most so many views, and about so many bytes.
_VIEWS, _BYTES = 1000, 32 << 20


class MeasuredViews:
    """The views to measure on, evenly spaced; None for all, which is what the theory speaks of."""

    def __init__(self, scan: Scan, settings: Settings) -> None:
        self.scan, self.settings = scan, settings

    def __call__(self, fidelity: Fidelity) -> Tensor | None:
        monitor, scan = self.settings.monitor, self.scan
        most = monitor.measured_views
        large = isinstance(scan, StoredScan) and scan.nbytes > self.settings.scan.in_memory * 1e6
        if large and most is None and not monitor.watch_theory:
            view = math.prod(scan.instrument.data_shape) * scan.dtype.itemsize
            most = min(_VIEWS, max(_VIEWS // 10, _BYTES // view))
        return None if most is None else spread_views(fidelity.available, most)

    def describe(self, fidelity: Fidelity) -> str | None:
        """What the log says of it, None where all views are measured on or there is no distance."""
        some = self(fidelity)
        if some is None or "distance" not in self.settings.monitor.names:
            return None
        few = f"on {len(some)} evenly spaced views of {self.scan.n_views}"
        return f"the distance is measured {few}; --measured-views says on how many"
