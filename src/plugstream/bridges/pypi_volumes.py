"""BM4D with the call of PyPI's `bm4d`: NumPy in, NumPy out. Torch is imported only without native kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream import _native
from plugstream.base.errors import InputError
from plugstream.bridges.pypi import BM3DStages, threads
from plugstream.denoisers.bm4d.profile import BLOCK, PROFILES, Profile, native_settings

BM4DStages = BM3DStages


def bm4d(
    z: ArrayLike,
    sigma_psd: float,
    profile: str | Profile = "np",
    stage_arg: BM3DStages = BM3DStages.ALL_STAGES,
    blockmatches: tuple[bool, bool] = (False, False),
) -> NDArray[Any]:
    """Remove white Gaussian noise from a volume by BM4D; the call is that of PyPI's `bm4d`.

    >>> import numpy as np
    >>> from plugstream import bm4d
    >>> noisy = 0.5 + 0.1 * np.random.default_rng(0).standard_normal((16, 16, 16))
    >>> float(np.std(bm4d(noisy, 0.1))) < 0.03
    True

    Arguments:
        z: (D, H, W) of at least 4 voxels an axis, real or complex. The parts of a complex volume share their groups.
        sigma_psd: the noise's standard deviation, of a complex volume that of each part. A power spectrum is not taken
            (`bm3d` takes that of images), and for a map of sigma use `BM4D`.
        profile: "np" or "normal", "fast" or "lc", or a `BM4DProfile`.
        stage_arg: both stages, or the first alone (HARD_THRESHOLDING). blockmatches: as it is.
    Returns an array shaped like z, in its precision; integers become float64.

    Reference: Maggioni, Katkovnik, Egiazarian and Foi, IEEE Trans. Image Process. 22(1), 2013.
    """
    volume = np.asarray(z)
    parameters = _check(volume, sigma_psd, profile, stage_arg, blockmatches)
    stages = 1 if stage_arg == BM3DStages.HARD_THRESHOLDING else 2
    parts = np.stack([volume.real, volume.imag]) if np.iscomplexobj(volume) else volume[None]
    stack = np.ascontiguousarray(parts[None], dtype=np.float32)
    out = np.empty_like(stack)
    native = _native.load()
    if native is None:
        import torch

        from plugstream.denoisers.bm4d import reference

        noise = torch.full((1, 1, 1, 1), float(sigma_psd))
        out = reference.bm4d(torch.from_numpy(stack), noise, parameters, stages=stages).numpy()
    else:
        level = np.full((1, 1, 1, 1), sigma_psd, np.float32)
        native.bm4d(stack, level, out, stages=stages, threads=threads(), **native_settings(parameters))
    clean: NDArray[Any] = out[0].astype(volume.real.dtype if volume.dtype.kind in "fc" else np.float64)
    whole: NDArray[Any] = clean[0] + 1j * clean[1] if len(clean) == 2 else clean[0]
    return whole


def _check(volume: NDArray[Any], sigma: Any, profile: str | Profile, stage_arg: Any, blockmatches: Any) -> Profile:
    """The parameters, once everything is known to be sound."""
    if volume.dtype.kind not in "fcbiu":
        raise InputError(f"the volume must be an array of numbers, not of {volume.dtype}")
    if volume.ndim != 3 or min(volume.shape) < BLOCK:
        raise InputError(
            f"BM4D needs volumes (D, H, W) of at least 4 x 4 x 4 voxels, not {volume.shape}; bm3d takes images"
        )
    if not np.isfinite(volume).all():
        raise InputError("the volume holds NaN or infinity, which BM4D would spread; fix it first")
    if np.ndim(sigma) > 0:
        raise InputError("bm4d takes one sigma, not a power spectrum; for a map of sigma use BM4D()(volume, sigma)")
    if not (isinstance(sigma, int | float | np.number | np.ndarray) and 0 <= float(sigma) < np.inf):
        raise InputError(f"sigma must be a number >= 0, not {sigma!r}")
    if np.ndim(stage_arg) > 0 or stage_arg not in (1, 3):
        raise InputError("stage_arg of bm4d is ALL_STAGES or HARD_THRESHOLDING; no estimate is taken")
    if tuple(blockmatches) != (False, False):
        raise InputError("blockmatches are neither returned nor taken")
    known = {**PROFILES, "np": PROFILES["normal"], "lc": PROFILES["fast"]}
    if isinstance(profile, str) and profile not in known:
        raise InputError(f"there is no BM4D profile {profile!r}; choose one of {', '.join(known)}, or a BM4DProfile")
    return known[profile] if isinstance(profile, str) else profile
