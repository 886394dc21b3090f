"""Does a tomographic scan make physical sense? A forgotten unit shows in ratios that no scanner has.

| ratio | usual | warning | refused |
| --- | --- | --- | --- |
| voxels to a detector pixel, as seen from the source | 0.5 to 4 | below 1/20, above 20 | below 1e-4, above 1e4 |
| the image on the detector | on it | | beside it in all views |
| the source | outside the image | | inside |
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.models.ct_geometry import Rays, Voxels

_RATIO, _TOO_FAR = 20.0, 1e4
_UNITS = "are pixels, distances and voxels in one unit? Scans are in metres"


@dataclass(frozen=True)
class Outlook:
    """The rays of views at the middle of the image.

    Arguments: magnification from there to the detector, (views,); pixel, the width of a detector pixel there, (views,);
    angles, (views,), radians, as in `plugstream.models.ct_beams`; tilt of the rays against the plane z = 0, (views,).
    """

    magnification: NDArray[np.float64]
    pixel: NDArray[np.float64]
    angles: NDArray[np.float64]
    tilt: NDArray[np.float64]

    @property
    def arc(self) -> float:
        """Degrees that the views cover, up to 360: the circle without its largest gap, plus one step."""
        turned = np.sort(self.angles % (2 * np.pi))
        gaps = np.diff(np.append(turned, turned[0] + 2 * np.pi))
        step = float(np.median(gaps)) if len(gaps) > 1 else 0.0
        covered = 2 * np.pi - gaps.max()
        return float(np.rad2deg(min(2 * np.pi, covered + (step if covered + 1.5 * step > 2 * np.pi else 0.0))))


def outlook(rays: Rays, voxels: Voxels) -> Outlook:
    """The rays of each view at the middle of the image."""
    first, center, u, _ = np.moveaxis(rays.vectors, 1, 0)
    along = first if rays.parallel else center - first
    along = along / np.linalg.norm(along, axis=1, keepdims=True)
    if rays.parallel:
        magnification = np.ones(len(rays))
    else:
        near, far = ((_middle(voxels) - first) * along).sum(1), ((center - first) * along).sum(1)
        with np.errstate(divide="ignore"):
            magnification = far / near
    flat = np.hypot(along[:, 0], along[:, 1])
    angles = np.arctan2(-along[:, 0], along[:, 1])
    return Outlook(magnification, np.linalg.norm(u, axis=1) / magnification, angles, np.arctan2(along[:, 2], flat))


def check_plausible(rays: Rays, voxels: Voxels) -> None:
    """Refuse views whose source is inside the image, or that do not see it."""
    if not rays.parallel:
        half = np.asarray(voxels.spacing) / 2
        low, high = np.asarray(voxels.origin) - half, np.asarray(voxels.ends) + half
        source = rays.vectors[:, 0, : len(voxels.shape)][:, ::-1]
        inside = ((source >= low) & (source <= high)).all(1)
        if inside.any():
            raise InputError(f"view {int(inside.argmax())}: the source is inside the image; {_UNITS}")
    view = outlook(rays, voxels)
    behind = view.magnification <= 0
    if behind.any():
        raise InputError(f"view {int(behind.argmax())}: the image is not between the source and the detector")
    ratio = view.pixel / voxels.spacing[-1]
    far = (ratio > _TOO_FAR) | (ratio < 1 / _TOO_FAR)
    if far.any():
        raise InputError(
            f"view {int(far.argmax())}: a detector pixel covers {ratio[far.argmax()]:.3g} voxels of "
            f"{voxels.spacing[-1]:.3g}; {_UNITS}"
        )
    if _misses(rays, voxels, view.magnification).all():
        raise InputError(
            f"no view sees the image: its middle is far off the detector; {_UNITS}, and is --center right?"
        )


def warn_if_implausible(rays: Rays, voxels: Voxels) -> None:
    """Warn of voxels much larger or smaller than the detector's pixels."""
    ratio = float(np.median(outlook(rays, voxels).pixel)) / voxels.spacing[-1]
    if not 1 / _RATIO <= ratio <= _RATIO:
        warnings.warn(
            f"a detector pixel covers {ratio:.3g} voxels, where one or two are usual; {_UNITS}",
            PlugstreamWarning,
            stacklevel=3,
        )


def _middle(voxels: Voxels) -> NDArray[np.float64]:
    middle = np.zeros(3)
    middle[: len(voxels.shape)] = ((np.asarray(voxels.origin) + np.asarray(voxels.ends)) / 2)[::-1]
    return middle


def _misses(rays: Rays, voxels: Voxels, scale: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the circle around the image, magnified, lies beside the detector's columns, for each view."""
    first, center, u, _ = np.moveaxis(rays.vectors, 1, 0)
    height, width = (n * s for n, s in zip(voxels.shape[-2:], voxels.spacing[-2:], strict=True))
    pixel = np.linalg.norm(u, axis=1)
    place = _middle(voxels) if rays.parallel else first + (_middle(voxels) - first) * scale[:, None]
    across = ((place - center) * u).sum(1) / pixel
    return np.asarray(np.abs(across) > rays.detector[-1] / 2 * pixel + 0.5 * np.hypot(height, width) * scale)
