"""The strength and phase of an instrument's source, from the field measured without an object."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.images.grid import Points
from plugstream.instruments.born import Born2D

# Above this the sources are far from the modelled line source or plane wave.
MISMATCH_LIMIT = 0.4
NEAR = 30.0  # degrees about the direct line, within which that is judged


@dataclass(frozen=True)
class Calibration:
    """c, and ||incident / c - u|| / ||u|| near the direct line, None where no receiver is, and over all receivers."""

    factor: complex
    near: float | None
    everywhere: float


class Calibrator:
    r"""The factor between the measured incident field and the modelled one.

    c = sum conj(u) incident / sum |u|^2, the least-squares fit over one receiver of each view: of those that recorded,
    the nearest to the direct line through the middle of the image, where antennas that beam are most like the model.
    Over all receivers where none is within 30 degrees of it. u_i(r) is that of a line source,
    (i/4) H_0^(1)(k |r - t_i|), or of a plane wave, exp(i k s_i . r). Data divided by c is that of unit sources.

    Holds for sources that differ only in their place or direction, at receivers outside of them. Views come some at a
    time, so that files may be larger than memory.

    Arguments: instrument; kind, "transmitters" or "plane_waves".

    Reference: Belkebir and Saillard, Inverse Problems 17, 2001.
    """

    def __init__(self, instrument: Born2D, kind: str) -> None:
        if kind not in ("transmitters", "plane_waves") or instrument.far_field:
            wrong = "receivers in the far field" if instrument.far_field else kind
            raise InputError(f"a measured incident field calibrates transmitters and plane_waves, not {wrong}")
        self.instrument, self.kind, self.views = instrument, kind, 0
        # Rows: the nearest receivers, those near the direct line, and all. Columns: sum conj(u) incident, sum |u|^2
        # and sum |incident|^2.
        self.sums = np.zeros((3, 3), dtype=np.complex128)

    def add(self, incident: NDArray[np.complexfloating], sources: Points, mask: NDArray[np.bool_] | None) -> None:
        """The next views: incident (views, receivers), sources (views, 2), mask (views, receivers) or None."""
        recorded = np.ones(incident.shape, dtype=bool) if mask is None else mask
        bad = recorded & ~np.isfinite(incident)
        if bad.any():
            view = self.views + int(bad.any(1).argmax())
            raise InputError(f"the incident field of view {view} holds NaN or infinity; mask those receivers")
        self.views += len(incident)
        modelled, cosine = self._model(sources)
        if not np.isfinite(modelled[recorded]).all():  # a source need not record itself
            raise InputError("a receiver stands where a source does, so the incident field cannot be modelled there")
        near = recorded & (cosine >= np.cos(np.deg2rad(NEAR + 1e-6)))
        first = np.where(near, cosine, -np.inf).argmax(1)[:, None] == np.arange(near.shape[1])
        for row, where in zip(self.sums, (near & first, near, recorded), strict=True):
            u, measured = modelled[where], incident[where].astype(np.complex128)
            with np.errstate(over="ignore", invalid="ignore"):
                row += (np.vdot(u, measured), np.vdot(u, u), np.vdot(measured, measured))

    def result(self) -> Calibration:
        """The calibration by all views together."""
        if not np.isfinite(self.sums).all():
            raise InputError("the incident field is too large to compute with; give it in other units")
        sums = self.sums[0] if self.sums[0, 1].real > 0 else self.sums[2]
        factor = complex(sums[0] / sums[1]) if sums[1].real > 0 else 0j
        if not abs(factor) > 0:
            raise InputError("the incident field is zero where it was recorded, so nothing can be calibrated by it")

        def mismatch(sums: NDArray[np.complex128]) -> float:
            cross, model, measured = sums[0] / factor, sums[1].real, sums[2].real / abs(factor) ** 2
            return float(np.sqrt(max(0.0, measured - 2 * cross.real + model) / model))

        near = mismatch(self.sums[1]) if self.sums[1, 1].real > 0 else None
        return Calibration(factor, near, mismatch(self.sums[2]))

    def _model(self, sources: Points) -> tuple[NDArray[np.complex128], NDArray[np.float64]]:
        """u at the receivers, and the cosine of their angle to the direct line: (views, receivers) each."""
        from scipy.special import hankel1

        instrument = self.instrument
        k = 2 * np.pi * np.sqrt(instrument.background) / instrument.wavelength
        middle = np.asarray(instrument.grid.center)
        if self.kind == "transmitters":
            field = 0.25j * hankel1(0, k * np.linalg.norm(sources[:, None] - instrument.receivers[None], axis=-1))
            ahead = middle - sources
        else:
            ahead = sources / np.linalg.norm(sources, axis=1, keepdims=True)
            field = np.exp(1j * k * (ahead @ instrument.receivers.T))
        out = instrument.receivers - middle
        lengths = np.outer(np.linalg.norm(ahead, axis=1), np.linalg.norm(out, axis=1))
        return field, (ahead @ out.T) / np.maximum(lengths, np.finfo(float).tiny)
