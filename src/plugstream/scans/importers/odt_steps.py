"""The steps from amplitude and phase of a view to the data of diffraction tomography, recorded to be redone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options
from plugstream.scans.importers.base import switch

__all__ = ["FieldOptions", "FieldSteps"]

Real = NDArray[np.float64]

_FRAME = 1 / 20  # of the sides: the border that shows the light without the object
_FLOOR = 1e-3  # of the amplitude without an object, below which the logarithm is cut off


class FieldOptions(Options):
    """What can be said of the steps from recorded fields to data."""

    approximation: Literal["rytov", "born"] = Field(
        "rytov", description="data is the logarithm of the field, or the field itself, less the light"
    )
    background: Literal["border", "tilt", "none"] = Field(
        "border",
        description="the light without the object: what the border shows, a tilted plane there, or as recorded",
    )
    unwrap: Literal["auto", "always", "never"] = Field(
        "auto", description="make phases continuous; auto does so if they jump by more than pi"
    )
    conjugate: bool = switch("fields are exp(+i w t), or phases negative")
    crop: int | None = Field(None, ge=2, le=1 << 15, description="keep this many rows and columns around the middle")
    shift: tuple[float, float] | None = Field(
        None, description="rows and columns from the camera's middle to the rotation axis, such as 0,1.5"
    )


class FieldSteps:
    """How the fields of views become data, one by one.

    In this order: the sign of time, phases made continuous, the light without the object divided out by what the border
    shows, the axis of rotation moved to the middle, cropped, and the approximation's data.

    Arguments: options; shape, rows and columns of the camera.
    Attributes: unwrapped, how many views had to be.
    """

    def __init__(self, options: FieldOptions, shape: tuple[int, int]) -> None:
        self.options, self.unwrapped = options, 0
        crop = options.crop or max(shape)
        self.window = tuple(slice((n - min(crop, n)) // 2, (n - min(crop, n)) // 2 + min(crop, n)) for n in shape)
        self.shape = tuple(part.stop - part.start for part in self.window)
        edge = [max(1, round(_FRAME * n)) for n in shape]
        self._border = np.ones(shape, bool)
        if all(n > 2 * e for n, e in zip(shape, edge, strict=True)):
            self._border[edge[0] : -edge[0], edge[1] : -edge[1]] = False

    def apply(self, view: int, amplitude: Real, phase: Real) -> NDArray[np.complex64]:
        """The data of a view."""
        if not (np.isfinite(amplitude).all() and np.isfinite(phase).all()):
            raise InputError(f"view {view}: amplitude or phase holds NaN or infinity")
        phase = self._unwrap(-phase if self.options.conjugate else phase)
        amplitude, phase = self._divide(view, amplitude, phase)
        if self.options.approximation == "rytov":
            data = np.log(np.maximum(amplitude, _FLOOR)) + 1j * phase
        else:
            data = amplitude * np.exp(1j * phase) - 1
        return np.ascontiguousarray(self._move(data)[self.window], dtype=np.complex64)

    def _unwrap(self, phase: Real) -> Real:
        wanted = self.options.unwrap
        if self.options.approximation == "born" or wanted == "never":
            return phase
        jumps = max(float(np.abs(np.diff(phase, axis=axis)).max(initial=0.0)) for axis in (0, 1))
        if wanted == "auto" and jumps <= np.pi:
            return phase
        from skimage.restoration import unwrap_phase

        self.unwrapped += 1
        # Its start is drawn at random where nothing says otherwise.
        whole = np.asarray(unwrap_phase(np.angle(np.exp(1j * phase)), rng=0), dtype=np.float64)
        turns = np.round(np.median(whole[self._border]) / (2 * np.pi))
        return np.asarray(whole - 2 * np.pi * turns)

    def _divide(self, view: int, amplitude: Real, phase: Real) -> tuple[Real, Real]:
        if self.options.background == "none":
            if (amplitude < 0).any():
                raise InputError(f"view {view}: an amplitude is below zero")
            return amplitude, phase
        level = float(np.median(amplitude[self._border]))
        if not level > 0 or (amplitude < 0).any():
            raise InputError(f"view {view}: the amplitude at the border is {level:.3g}; it must be > 0")
        if self.options.background == "border":
            return amplitude / level, phase - float(np.median(phase[self._border]))
        rows, columns = np.indices(phase.shape)
        plane = np.stack([np.ones(phase.size), rows.ravel(), columns.ravel()], 1)
        fit = np.linalg.lstsq(plane[self._border.ravel()], phase[self._border], rcond=None)[0]
        return amplitude / level, phase - (plane @ fit).reshape(phase.shape)

    def _move(self, data: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """Data with the axis of rotation in the middle, by a turn of its Fourier transform's phases."""
        if self.options.shift is None:
            return data
        turn = 1.0 + 0j
        for axis, by in enumerate(self.options.shift):
            q = 2 * np.pi * np.fft.fftfreq(data.shape[axis])
            turn = turn * np.exp(1j * q * by).reshape((-1, 1) if axis == 0 else (1, -1))
        return np.asarray(np.fft.ifft2(np.fft.fft2(data) * turn))

    def steps(self) -> list[dict[str, Any]]:
        """What was done, as JSON has it."""
        o = self.options
        done: list[dict[str, Any]] = []
        if o.conjugate:
            done.append({"step": "conjugate"})
        if o.approximation == "rytov" and o.unwrap != "never":
            done.append({"step": "unwrap", "when": o.unwrap})
        if o.background != "none":
            done.append({"step": "background", "by": o.background})
        if o.shift is not None:
            done.append({"step": "shift", "by": list(o.shift)})
        if o.crop is not None:
            done.append({"step": "crop", "shape": list(self.shape)})
        done.append({"step": o.approximation})
        return done
