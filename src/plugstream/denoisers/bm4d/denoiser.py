"""BM4D as a denoiser: which of its three forms runs, and what input it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, levels
from plugstream.denoisers.bm3d import BM3D
from plugstream.denoisers.bm4d import cuda_form, native, reference
from plugstream.denoisers.bm4d.profile import BLOCK, PROFILES, Profile


@dataclass(frozen=True)
class BM4D(Denoiser):
    r"""The prior of self-similar volumes: cube matching and filtering in four dimensions.

    Each reference cube of 4 x 4 x 4 voxels is stacked with the cubes most like it; the stack is transformed (3-D, then
    Haar along it), shrunk, transformed back, and all estimates of a voxel are averaged by how much was removed. Stage 1
    shrinks by a threshold of `threshold` sigma; stage 2 matches again on its result and uses it for an empirical
    Wiener filter. Where cubes differ by less than noise would make them differ, the group is not that of the nearest,
    which would share their noise, but that of cubes which overlap least (`alike1`, `alike2` of the profile).

    A group's mean is kept and nothing is clipped or rescaled, so D(z + c, sigma) = D(z, sigma) + c and
    D(c z, c sigma) = c D(z, sigma) for c > 0 in exact arithmetic, the latter to the bit for a power of two. Rounding
    may change which of two cubes is nearer, and so single voxels by a part of sigma. It is no proximal operator, and
    not known to be averaged. Where sigma is 0, a voxel stays as it is. NaN and infinity are refused on the CPU.

    Arguments:
        profile: "normal", "fast", or a `Profile` with any parameter changed.
        stages: 2, or 1 for the basic estimate alone.
    Volumes are (..., D, H, W) with at least 4 voxels an axis, real or complex (computed in single precision). The real
    and imaginary part of a complex volume are matched together and filtered each on its own; each has noise of sigma.
    sigma is a number, one for each volume, or a map of the volume's shape. For images, `adapt` takes BM3D instead.

    References: Maggioni, Katkovnik, Egiazarian and Foi, IEEE Trans. Image Process. 22(1), 2013; for the noise that
    overlapping cubes share, Makinen, Azzari and Foi, IEEE Trans. Image Process. 29, 2020.
    """

    profile: str | Profile = "normal"
    stages: int = 2

    ndim = 3
    takes_complex = True
    min_size = BLOCK

    def __post_init__(self) -> None:
        if isinstance(self.profile, str) and self.profile not in PROFILES:
            raise InputError(f"there is no BM4D profile {self.profile!r}; choose one of {', '.join(PROFILES)}")
        if self.stages not in (1, 2):
            raise InputError(f"BM4D has stages 1 and 2, not {self.stages}")
        # A voxel depends on the other cubes of each reference of its cubes: two radii and two cubes a stage.
        p = self.parameters
        object.__setattr__(self, "reach", self.stages * 2 * (p.radius + BLOCK - 1))
        object.__setattr__(self, "align", math.lcm(p.step1, p.step2) if self.stages == 2 else p.step1)

    @property
    def parameters(self) -> Profile:
        return PROFILES[self.profile] if isinstance(self.profile, str) else self.profile

    def variant(self, ndim: int, *, channels: bool = False, complex: bool = False) -> Denoiser | None:
        """For images BM3D: the same prior in two dimensions."""
        if ndim == 3:
            return super().variant(ndim, channels=channels, complex=complex)
        if not isinstance(self.profile, str):
            raise InputError("a profile of BM4D is for volumes; for images use BM3D, or BM4D's profiles by name")
        return BM3D(self.profile, self.stages).variant(ndim, channels=channels, complex=complex)

    def on_progress(self, part: float) -> None:
        """Called now and then by the native form with the part of the work that is done; a subclass may report it."""

    @torch.no_grad()
    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        if image.ndim < 3 or min(image.shape[-3:]) < BLOCK:
            raise InputError(f"BM4D needs volumes of at least 4 x 4 x 4 voxels, not {tuple(image.shape)}")
        if not (image.is_floating_point() or image.is_complex()):
            raise InputError(f"BM4D needs a volume of floating point numbers, not {image.dtype}")
        if image.device.type == "cpu" and not bool(torch.isfinite(image).all()):
            raise InputError("the volume holds NaN or infinity, which BM4D would spread; fix it first")
        shape = image.shape[-3:]
        if image.is_complex():
            parts = torch.view_as_real(image.reshape(-1, *shape).to(torch.complex64)).movedim(-1, 1)
        else:
            parts = image.reshape(-1, 1, *shape).float()
        noise = _noise(sigma, image)
        if native.serves(parts):
            out = native.bm4d(parts, noise, self.parameters, stages=self.stages, progress=self.on_progress)
        else:
            form = cuda_form if cuda_form.serves(parts) else reference
            out = form.bm4d(parts.contiguous(), noise, self.parameters, stages=self.stages)
        out = torch.view_as_complex(out.movedim(1, -1).contiguous()) if image.is_complex() else out
        return out.reshape(image.shape).to(image.dtype), None


def _noise(sigma: Sigma, image: Tensor) -> Tensor:
    """sigma of each volume, (N, 1, 1, 1), or as a map of each, (N, D, H, W), on their device."""
    shape = image.shape[-3:]
    if isinstance(sigma, Tensor) and sigma.ndim >= 3 and sigma.shape[-3:] == shape:
        if tuple(sigma.shape) not in (tuple(image.shape), tuple(shape)):
            raise InputError(
                f"a map of sigma has the shape {tuple(shape)} or {tuple(image.shape)}, not {tuple(sigma.shape)}"
            )
        noise = sigma.to(image.device, torch.float32).expand(image.shape).reshape(-1, *shape)
    else:
        noise = levels(sigma, image, 3, torch.float32).reshape(-1, 1, 1, 1)
    if noise.device.type == "cpu" and not bool(((noise >= 0) & (noise < math.inf)).all()):
        raise InputError("sigma must be a number >= 0 everywhere")
    return noise.contiguous()
