"""The steps from amplitude and phase of a view to the data of diffraction tomography, recorded to be redone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.base.registry import Field, Options
from plugstream.scans.importers.base import switch
from plugstream.scans.importers.reading import middle_window

Real = NDArray[np.float64]

_FRAME = 1 / 20  # of the sides: the border that shows the light without the object
_FLOOR = 1e-3  # of the amplitude without an object, below which the logarithm is cut off


class FieldOptions(Options):
    """Options for the steps from recorded fields to data."""

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
    """The steps from the field of a view to its data.

    In this order: the sign of time, phases made continuous, the light without the object, which the border shows,
    divided out, the approximation's data, the axis of rotation moved to the middle, and the crop.

    Arguments: options; shape, rows and columns of the camera.
    Attributes: shape of the data; unwrapped, how many phases were made continuous.
    """

    def __init__(self, options: FieldOptions, shape: tuple[int, int]) -> None:
        self.options, self.unwrapped = options, 0
        self.window = middle_window(shape, options.crop)
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
        if self.options.approximation == "born" or self.options.unwrap == "never":
            return phase
        jumps = max(float(np.abs(np.diff(phase, axis=axis)).max(initial=0.0)) for axis in (0, 1))
        if self.options.unwrap == "auto" and jumps <= np.pi:
            return phase
        try:
            from skimage.restoration import unwrap_phase
        except ImportError:
            raise InputError(
                f"the phase of this view jumps by {jumps:.1f}, and unwrapping needs scikit-image; install it with: pip "
                "install 'plugstream[pictures]', or add --unwrap never"
            ) from None

        self.unwrapped += 1
        # Without a seed its start is random.
        smooth = np.asarray(unwrap_phase(np.angle(np.exp(1j * phase)), rng=0), dtype=np.float64)
        turns = np.round(np.median(smooth[self._border]) / (2 * np.pi))
        return np.asarray(smooth - 2 * np.pi * turns)

    def _divide(self, view: int, amplitude: Real, phase: Real) -> tuple[Real, Real]:
        """Amplitude and phase relative to the light without the object."""
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
        """Data with the axis of rotation in the middle, moved by the phases of its Fourier transform."""
        if self.options.shift is None:
            return data
        turns = [
            np.exp(2j * np.pi * np.fft.fftfreq(n) * by) for n, by in zip(data.shape, self.options.shift, strict=True)
        ]
        return np.asarray(np.fft.ifft2(np.fft.fft2(data) * np.outer(*turns)))

    def steps(self) -> list[dict[str, Any]]:
        """The steps as JSON."""
        o = self.options
        steps: list[tuple[bool, dict[str, Any]]] = [
            (o.conjugate, {"step": "conjugate"}),
            (o.approximation == "rytov" and o.unwrap != "never", {"step": "unwrap", "when": o.unwrap}),
            (o.background != "none", {"step": "background", "by": o.background}),
            (o.shift is not None, {"step": "shift", "by": list(o.shift or ())}),
            (o.crop is not None, {"step": "crop", "shape": list(self.shape)}),
            (True, {"step": o.approximation}),
        ]
        return [step for applies, step in steps if applies]
