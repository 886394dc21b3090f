"""Where camera and light are in each view of diffraction tomography. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError

Real = NDArray[np.float64]

_SIZES = 1 << 15  # of a camera's side
_ORTHONORMAL = 1e-6


@dataclass(frozen=True)
class Optics:
    """The microscope: its light, its medium and its camera, with lengths in the object's space (without magnification).

    Arguments:
        shape: rows and columns of the camera. pixel: metres from one to the next, in the object's space.
        wavelength: in vacuum, metres. medium: refractive index around the object.
        aperture: numerical aperture of the objective, which light beyond does not pass; at most that of the medium.
        distance: metres from the middle of the object to the plane in focus, along the light's way to the camera.
    """

    shape: tuple[int, int]
    pixel: float
    wavelength: float
    medium: float = 1.0
    aperture: float = float("inf")
    distance: float = 0.0

    def __post_init__(self) -> None:
        if len(self.shape) != 2 or not all(1 <= n <= _SIZES for n in self.shape):
            raise InputError(f"a camera has rows and columns, 1 to {_SIZES} of them, not {self.shape}")
        for name in ("pixel", "wavelength", "medium", "aperture"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0, not {getattr(self, name)}")
        if not np.isfinite([self.pixel, self.wavelength, self.medium, self.distance]).all():
            raise InputError("pixel, wavelength, medium and distance must be finite")

    @property
    def wavenumber(self) -> float:
        """k = 2 pi medium / wavelength, in the medium, 1/m."""
        return float(2 * np.pi * self.medium / self.wavelength)

    @property
    def reach(self) -> float:
        """The largest transverse wave number that reaches the camera, 1/m.

        Just below k even for the largest aperture, since waves along the plane in focus would have infinite weight.
        """
        return min(float(2 * np.pi / self.wavelength * self.aperture), 0.995 * self.wavenumber)


def poses_of_rotation(angles: ArrayLike, axis: str = "y") -> Real:
    """Views of an object that turns about an axis of the camera, with the light along the optical axis.

    In the object's frame it is the camera that turns: at the angle 0 columns run along x, rows along y and the light
    along z; at the angle t the light comes along (sin t, 0, cos t) where the axis is y.

    Arguments: angles in radians; axis, y where the object turns about the camera's columns, x about its rows.
    Returns: (views, 4, 3), see `check_poses`.
    """
    t = np.atleast_1d(np.asarray(angles, dtype=np.float64))
    zero, one, c, s = np.zeros_like(t), np.ones_like(t), np.cos(t), np.sin(t)
    if axis == "y":
        frame = [[c, zero, -s], [zero, one, zero], [s, zero, c]]
    elif axis == "x":
        frame = [[one, zero, zero], [zero, c, s], [zero, -s, c]]
    else:
        raise InputError(f"an object turns about y or x of the camera, not {axis!r}")
    vectors = np.moveaxis(np.array(frame), -1, 0)
    return np.concatenate([vectors, vectors[:, 2:]], 1)


def poses_of_light(directions: ArrayLike) -> Real:
    """Views of an object at rest under light from many directions.

    Arguments: directions (views, 3) of propagation, of any length, with z towards the camera.
    Returns: (views, 4, 3), see `check_poses`.
    """
    light = np.atleast_2d(np.asarray(directions, dtype=np.float64))
    if light.ndim != 2 or light.shape[1] != 3:
        raise InputError(f"directions have shape {light.shape}, but must be (views, 3)")
    length = np.linalg.norm(light, axis=1, keepdims=True)
    if not (np.isfinite(length) & (length > 0)).all():
        raise InputError("a direction of light is zero, NaN or infinite")
    frame = np.broadcast_to(np.eye(3), (len(light), 3, 3))
    return np.concatenate([frame, (light / length)[:, None]], 1)


def check_poses(poses: Real, optics: Optics) -> Real:
    """Poses (views, 4, 3) in double precision; refuse invalid ones.

    A pose is four unit vectors in the object's frame: to the camera's next column, to its next row, along the optical
    axis away from the object, and the direction of the light. The first three are orthonormal.
    """
    poses = np.ascontiguousarray(poses, dtype=np.float64)
    if poses.ndim != 3 or poses.shape[1:] != (4, 3):
        raise InputError(f"poses have shape {poses.shape}, but must be (views, 4, 3)")

    def refuse(wrong: Any, why: str) -> None:
        if wrong.any():
            raise InputError(f"view {int(np.argmax(wrong))}: {why}")

    refuse(~np.isfinite(poses).all((1, 2)), "its pose holds NaN or infinity")
    frame, light = poses[:, :3], poses[:, 3]
    product = frame @ frame.transpose(0, 2, 1)
    refuse(np.abs(product - np.eye(3)).max((1, 2)) > _ORTHONORMAL, "the axes of its camera are not orthonormal")
    refuse(np.abs(np.linalg.norm(light, axis=1) - 1) > _ORTHONORMAL, "the direction of its light is no unit vector")
    across = np.linalg.norm((frame[:, :2] @ light[:, :, None])[..., 0], axis=1) * optics.wavenumber
    refuse((light * frame[:, 2]).sum(1) <= 0, "its light goes away from the camera")
    refuse(across > optics.reach, "its light is beyond the aperture, and never reaches the camera")
    return poses


def exact_axes(poses: Real) -> tuple[int | None, ...]:
    """Which axis of the camera each of the object's axes x, y and z is parallel to in every view.

    Returns: 0 for the camera's x (from column to column), 1 for its y, None for neither.
    """
    along = np.abs(poses[:, :2])  # (views, camera axis, object axis)
    parallel = np.asarray((along > 1 - 1e-12).all(0))
    return tuple(0 if along_x else 1 if along_y else None for along_x, along_y in parallel.T)


def padded_sizes(shape: Sequence[int], padding: float) -> tuple[int, int]:
    """Rows and columns of the field that is computed, of which the camera sees a part."""
    from scipy.fft import next_fast_len

    rows, columns = (next_fast_len(int(np.ceil(padding * n)), real=False) for n in shape)
    return rows, columns


def is_fast(size: int) -> bool:
    """Whether FFTs of this length are fast: no prime factor above 11."""
    from scipy.fft import next_fast_len

    return bool(next_fast_len(size, real=False) == size)
