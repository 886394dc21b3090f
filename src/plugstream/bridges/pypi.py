"""BM3D with the call of PyPI's `bm3d`: NumPy in, NumPy out. Torch is imported only without native kernels."""

from __future__ import annotations

import enum
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.base.system import count_processors
from plugstream.denoisers.bm3d.profile import BLOCK, PROFILES, Profile
from plugstream.denoisers.bm3d.spectrum import Coloured, coloured_noise
from plugstream.denoisers.bm3d.transforms import dct, native_matrices, principal_axes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class BM3DStages(enum.IntFlag):
    """The stages of `bm3d`, under the names of PyPI's."""

    HARD_THRESHOLDING = 1
    WIENER_FILTERING = 2
    ALL_STAGES = 3


def bm3d(
    z: ArrayLike,
    sigma_psd: ArrayLike,
    profile: str | Profile = "np",
    stage_arg: BM3DStages | ArrayLike = BM3DStages.ALL_STAGES,
    blockmatches: tuple[bool, bool] = (False, False),
) -> NDArray[Any]:
    """Remove Gaussian noise from an image by BM3D; the call is that of PyPI's `bm3d`.

    >>> import numpy as np
    >>> from plugstream import bm3d
    >>> noisy = 0.5 + 0.1 * np.random.default_rng(0).standard_normal((64, 64))
    >>> float(np.std(bm3d(noisy, 0.1))) < 0.02
    True

    Arguments:
        z: (H, W), or (H, W, C): channels share their groups, which are found on the first, and each is filtered on its
            own; H, W >= 8. Of complex images the real and the imaginary parts are channels.
        sigma_psd: the noise's standard deviation; C of them; or its power spectrum E|fft2(n)|^2, (H, W) or (H, W, C).
            Of complex images that of each part.
        profile: "np" or "normal", "fast", or a `BM3DProfile`.
        stage_arg: both stages, the first alone (HARD_THRESHOLDING), or an estimate of the image, shaped like it, for
            the second alone.
        blockmatches: as it is; groups are neither returned nor taken.
    Returns an array shaped like z, in its precision; integers become float64.

    References: Dabov, Foi, Katkovnik and Egiazarian, IEEE Trans. Image Process. 16(8), 2007; Makinen, Azzari and Foi,
    IEEE Trans. Image Process. 29, 2020.
    """
    if tuple(blockmatches) != (False, False):
        raise InputError("blockmatches are neither returned nor taken; channels (H, W, C) share their groups")
    image, pilot = _images(z, stage_arg)
    parameters, turn = _parameters(profile), np.eye(image.shape[2] if image.ndim == 3 else 1)
    levels, noise = _noise(sigma_psd, image.shape[:2], turn, parameters.radius)
    return _denoise(image, levels, noise, parameters, pilot, turn, stage_arg)


def bm3d_rgb(
    z: ArrayLike, sigma_psd: ArrayLike, profile: str | Profile = "np", colorspace: str = "opp"
) -> NDArray[Any]:
    """Remove Gaussian noise, independent in every channel, from an image in colour or a series of images by BM3D.

    Channels are rotated, which leaves white noise as it is, and go through `bm3d`: groups are found on the first of
    the new ones. "opp" is the orthonormal DCT along channels: the opponent space of the papers for three, and the mean
    first, for times or energies that lie close together. "principal" are principal components of the image, the
    strongest first, for what has no order: coils, or energies that differ in contrast.

    Arguments: z, (H, W, C), real or complex; sigma_psd and profile, as of `bm3d`; colorspace, "opp" or "principal".
    Reference: Dabov, Foi, Katkovnik and Egiazarian, Color image denoising via sparse 3D collaborative filtering with
    grouping constraint in luminance-chrominance space, ICIP 2007.
    """
    if colorspace not in ("opp", "principal"):
        raise InputError(f"the colour space is opp or principal, not {colorspace!r}")
    image, _ = _images(z, BM3DStages.ALL_STAGES)
    if image.ndim != 3:
        raise InputError(f"an image in colour has the shape (H, W, C), not {image.shape}; bm3d takes others")
    parameters = _parameters(profile)
    turn = dct(image.shape[2]) if colorspace == "opp" else principal_axes(image)
    levels, noise = _noise(sigma_psd, image.shape[:2], turn, parameters.radius)
    return _denoise(image, levels, noise, parameters, None, turn, BM3DStages.ALL_STAGES)


def _parameters(profile: str | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    known = {**PROFILES, "np": PROFILES["normal"]}
    if profile not in known:
        raise InputError(f"there is no BM3D profile {profile!r}; choose one of {', '.join(known)}, or a BM3DProfile")
    return known[profile]


def _images(z: ArrayLike, stage_arg: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The image and the estimate for the second stage, if any, as arrays of numbers that are known to be sound."""
    image = np.asarray(z)
    if image.dtype.kind not in "fcbiu":
        raise InputError(f"the image must be an array of numbers, not of {image.dtype}")
    if image.ndim not in (2, 3) or min(image.shape[:2]) < BLOCK or image.size == 0:
        raise InputError(
            f"BM3D needs images (H, W) or (H, W, C) of at least {BLOCK} x {BLOCK} pixels, not {image.shape}"
        )
    pilot = None if np.ndim(stage_arg) == 0 else np.asarray(stage_arg)
    if pilot is None and stage_arg not in (1, 3):
        raise InputError("stage_arg is ALL_STAGES, HARD_THRESHOLDING, or an estimate of the image for the second stage")
    if pilot is not None and pilot.shape != image.shape:
        raise InputError(f"the estimate in stage_arg has the shape {pilot.shape}, the image {image.shape}")
    for values in (image, pilot):
        if values is not None and not np.isfinite(values).all():
            raise InputError("the image holds NaN or infinity, which BM3D would spread; fix it first")
    return image, pilot


def _noise(
    sigma_psd: ArrayLike, shape: tuple[int, ...], turn: NDArray[Any], radius: int
) -> tuple[NDArray[Any], Coloured | None]:
    """sigma of each channel after its rotation, and how its noise is coloured; None for white noise."""
    channels = len(turn)
    given = np.asarray(sigma_psd)
    if given.dtype.kind not in "fbiu":
        raise InputError(f"sigma_psd must be a number or an array of them, not {given.dtype}")
    given = given.astype(np.float64)
    if given.ndim <= 1:
        if given.size not in (1, channels) or not (np.isfinite(given).all() and (given >= 0).all()):
            raise InputError(f"sigma must be a number >= 0, or one for each of {channels} channels, not {sigma_psd!r}")
        levels = given.ravel() if given.size == 1 else np.linalg.norm(np.abs(turn) * given, axis=1)
        return np.broadcast_to(levels, channels), None
    if given.shape not in (shape, (*shape, 1), (*shape, channels)):
        raise InputError(
            f"a power spectrum is shaped like the image, {tuple(shape)}, with channels after that if they differ, not "
            f"{given.shape}; for one standard deviation a channel give {channels} numbers"
        )
    spectra = np.moveaxis(given.reshape(*shape, -1), -1, 0)
    noise = coloured_noise(spectra if len(spectra) == 1 else np.tensordot(np.abs(turn) ** 2, spectra, 1), radius)
    return np.broadcast_to(noise.sigma, channels), noise


def _denoise(
    image: NDArray[Any],
    levels: NDArray[Any],
    noise: Coloured | None,
    profile: Profile,
    pilot: NDArray[Any] | None,
    turn: NDArray[Any],
    stage_arg: Any,
) -> NDArray[Any]:
    """Rotate channels, denoise them with the groups of the first, rotate back."""
    stages = 3 if pilot is not None else 1 if stage_arg == BM3DStages.HARD_THRESHOLDING else 2
    stack = _stack(image, turn)
    out = np.empty_like(stack) if pilot is None else _stack(pilot, turn)
    parts = len(stack) // len(turn)
    if noise is not None and len(noise.sigma) > 1 and parts > 1:
        noise = noise._replace(shared=np.concatenate([noise.shared] * parts, axis=1))
    sigma = np.tile(levels, parts).astype(np.float32)
    coloured = {} if noise is None else {"shared": noise.shared, "offsets": noise.offsets}
    native = _native.load()
    if native is None:
        out = _by_torch(stack, sigma, profile, stages, coloured, out)
    else:
        options: dict[str, Any] = {**asdict(profile), **native_matrices(profile.kaiser), **coloured}
        if len(stack) > 1:
            options["channels"] = len(stack)
        native.bm3d(stack, sigma, out, stages=stages, threads=threads(), **options)
    clean = out.astype(np.float64 if image.dtype.kind not in "fc" else image.real.dtype)
    if parts == 2:
        clean = clean[: len(turn)] + 1j * clean[len(turn) :]
    turned: NDArray[Any] = np.moveaxis(clean, 0, -1) @ turn.conj()
    return turned.reshape(image.shape).astype(clean.dtype, copy=False)


def _by_torch(
    stack: NDArray[Any], sigma: NDArray[Any], profile: Profile, stages: int, coloured: dict[str, Any], out: NDArray[Any]
) -> NDArray[Any]:
    """The same by the torch form, where there are no native kernels."""
    import torch

    from plugstream.denoisers.bm3d import reference

    options: dict[str, Any] = {name: torch.from_numpy(values) for name, values in coloured.items()}
    if stages == 3:
        options["basic"] = torch.from_numpy(out)
    images, levels = torch.from_numpy(stack), torch.from_numpy(sigma)
    clean = reference.bm3d(images, levels, profile, stages=min(stages, 2), channels=len(stack), **options)
    return np.asarray(clean.numpy())


def _stack(image: NDArray[Any], turn: NDArray[Any]) -> NDArray[np.float32]:
    """(H, W) or (H, W, C) to (C, H, W), channels rotated, in float32; of complex images both parts, (2 C, H, W)."""
    planes = np.moveaxis((image if image.ndim == 3 else image[..., None]) @ turn.T, -1, 0)
    if np.iscomplexobj(planes):
        planes = np.concatenate([planes.real, planes.imag])
    return np.ascontiguousarray(planes, dtype=np.float32)


def threads() -> int:
    """How many threads a kernel uses without torch: OMP_NUM_THREADS, or the processors that this process may use."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return count_processors()
