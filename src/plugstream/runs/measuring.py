"""Which views steps may draw, and which distance, cost and misfit are measured on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from plugstream.fidelity.least_squares import Fidelity
from plugstream.instruments.spectrum import describe_wave, find_spectrum
from plugstream.instruments.wavelengths import WAVELENGTHS
from plugstream.models.views import spread_views
from plugstream.runs.events import Views
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import Settings

# Of a scan that is not in memory at most so many views, and about so many bytes.
_VIEWS, _BYTES = 1000, 32 << 20
# While a scan is still measured, at most so many, since somebody waits for the next picture.
_LIVE = 32
# Of at most so many frequencies each has a misfit of its own.
_GROUPS = 64


def usable_views(record: Views, hold_out: int | None) -> Tensor:
    """The views that steps draw from: all of the record but damaged ones and every `hold_out`-th; (n,), ascending."""
    return _split(record, hold_out)[0]


def held_out_views(record: Views, hold_out: int | None) -> Tensor:
    """The others of `usable_views`: every `hold_out`-th view, but damaged ones; (n,), ascending."""
    return _split(record, hold_out)[1]


def _split(record: Views, hold_out: int | None) -> tuple[Tensor, Tensor]:
    """The views to draw from, and those held out."""
    usable = torch.arange(record.views) >= record.first
    usable[list(record.damaged)] = False
    out = torch.zeros(record.views, dtype=torch.bool)
    if hold_out is not None:
        out[hold_out - 1 :: hold_out] = True
    return (usable & ~out).nonzero().flatten(), (usable & out).nonzero().flatten()


class MeasuredViews:
    """The views to measure on, evenly spaced, without damaged ones; None for all."""

    def __init__(self, scan: Scan, settings: Settings, record: Callable[[], Views | None] = lambda: None) -> None:
        self.scan, self.settings, self._record = scan, settings, record

    def __call__(self, fidelity: Fidelity) -> Tensor | None:
        most = self._most()
        return None if most is None else spread_views(fidelity.available, most)

    def every_view(self, fidelity: Fidelity) -> Tensor | None:
        """Of all views that steps may draw in any stage, as many as are measured on."""
        return self._spread(self._split(fidelity)[0])

    def _split(self, fidelity: Fidelity) -> tuple[Tensor, Tensor]:
        """The views to draw from, and those held out, of as many as the fidelity has."""
        now = self._record() or Views(0, 0, (), None, True)
        return _split(replace(now, views=fidelity.n_views), self.settings.monitor.hold_out)

    def _spread(self, views: Tensor) -> Tensor:
        """As many of these as are measured on, evenly spaced."""
        most = self._most()
        spread = None if most is None else spread_views(views, most)
        return views if spread is None else spread

    @property
    def groups(self) -> dict[str, Tensor]:
        """The views of each frequency, by its name; none where there is one."""
        waves = self.scan.columns.get(WAVELENGTHS.name)
        spectrum = None if waves is None else find_spectrum(waves[:])
        if spectrum is None or not 1 < len(spectrum.wavelengths) <= _GROUPS:
            return {}
        order = sorted(range(len(spectrum.wavelengths)), key=lambda number: -spectrum.wavelengths[number])
        return {describe_wave(spectrum.wavelengths[n]): torch.from_numpy(spectrum.views(n)) for n in order}

    def held_out(self, fidelity: Fidelity) -> Tensor | None:
        """Views of the fidelity that no step uses, as many as are measured on; None where there are none (yet)."""
        views = self._split(fidelity)[1]
        return None if len(views) == 0 else self._spread(views)

    def searched(self, fidelity: Fidelity) -> Tensor | None:
        """Views that no step uses while sigma is searched for, and none once they are used."""
        drawn, out = self._split(fidelity)
        there = torch.cat([drawn, out]).sort().values
        views = there[~torch.isin(there, fidelity.available.cpu())]
        return None if len(views) == 0 else views

    def _most(self) -> int | None:
        """How many views are measured on at most."""
        monitor, scan = self.settings.monitor, self.scan
        most = monitor.measured_views
        large = isinstance(scan, StoredScan) and scan.nbytes > self.settings.scan.in_memory * 1e6
        if large and most is None:
            view = math.prod(scan.instrument.data_shape) * scan.dtype.itemsize
            most = min(_VIEWS, max(_VIEWS // 10, _BYTES // view))
        record = self._record()
        live = record is not None and self.settings.scan.follow and not record.ended
        if live and monitor.measured_views is None:
            most = min(_LIVE, most or _LIVE)
        return most

    def describe(self, fidelity: Fidelity) -> str | None:
        """For the log; None where all views are measured on or there is no distance."""
        views = self(fidelity)
        if views is None or "distance" not in self.settings.monitor.names:
            return None
        few = f"on {len(views)} evenly spaced views of {self.scan.n_views}"
        return f"the distance is measured {few}; --measured-views says on how many"
