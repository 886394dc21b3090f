"""BM3D as a denoiser: which of its three forms runs, and what input it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plugstream.base.cuda_graphs import filled
from plugstream.base.errors import InputError
from plugstream.denoisers.base import Denoiser, Sigma, per_image, require_real
from plugstream.denoisers.bm3d import cuda_form, native, reference
from plugstream.denoisers.bm3d.profile import BLOCK, PROFILES, Profile


@dataclass(frozen=True)
class BM3D(Denoiser):
    r"""The prior of self-similar images: block matching and filtering in three dimensions.

    Each 8 x 8 reference block is stacked with the blocks most like it; the stack is transformed (2-D, then Haar along
    it), shrunk, transformed back, and all estimates of a pixel are averaged by how much was removed. Stage 1 shrinks by
    a threshold of `threshold` sigma; stage 2 matches again on its result and uses it for an empirical Wiener filter.

    Nothing is clipped or rescaled, so D(c z, c sigma) = c D(z, sigma) for every c > 0 in exact arithmetic, and to the
    bit for a power of two. Any other c, and adding a constant, changes by rounding which of two blocks is nearer and
    which coefficient passes the threshold: 6e-4 of the image's norm on a photograph with noise of 0.1, and up to a
    tenth of sigma in single pixels. It is no proximal operator, and not known to be averaged. sigma = 0 returns the
    image as it is. NaN and infinity are refused on the CPU; on a GPU they come out as they went in.

    Arguments:
        profile: "normal" (the reference's parameters), "fast", or a `Profile` with any of them changed.
        stages: 2, or 1 for the basic estimate alone.
        channels: whether images are (..., C, H, W) whose channels share the groups that are found on the first, and are
            filtered each on its own; on the CPU.
    Images are (..., H, W) with H, W >= 8, in float32 or float64 (computed in float32); sigma a number or one for each.

    References: Dabov, Foi, Katkovnik and Egiazarian, IEEE Trans. Image Process. 16(8), 2007; Lebrun, IPOL 2, 2012.
    """

    profile: str | Profile = "normal"
    stages: int = 2
    channels: bool = field(default=False, kw_only=True)

    min_size = BLOCK

    def __post_init__(self) -> None:
        if isinstance(self.profile, str) and self.profile not in PROFILES:
            raise InputError(f"there is no BM3D profile {self.profile!r}; choose one of {', '.join(PROFILES)}")
        if self.stages not in (1, 2):
            raise InputError(f"BM3D has stages 1 and 2, not {self.stages}")
        # A pixel depends on the other blocks of each reference of its blocks: two radii and two blocks a stage.
        radius = self.parameters.radius
        object.__setattr__(self, "reach", self.stages * 2 * (radius + BLOCK - 1))
        object.__setattr__(self, "halo", 2 * radius + 10)
        object.__setattr__(self, "align", self.parameters.step)

    @property
    def parameters(self) -> Profile:
        return PROFILES[self.profile] if isinstance(self.profile, str) else self.profile

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        # Images of a loop come to a GPU again and again, which waits for all these lines.
        key: tuple[Any, ...] | None = None
        if image.is_cuda and type(sigma) is float and image.is_contiguous() and not self.channels:
            call = cuda_form.graph_call(self.parameters, self.stages)
            key = image.data_ptr(), image.shape, image.dtype, sigma
            known = call.again(key, image)
            if known is not None:
                return known, None
        # Not torch.no_grad, which takes longer than all that follows until a GPU has its work.
        image = image.detach() if image.requires_grad else image
        sigma = sigma.detach() if isinstance(sigma, Tensor) else sigma
        if image.ndim < 2 or min(image.shape[-2:]) < BLOCK:
            raise InputError(f"BM3D needs images of at least {BLOCK} x {BLOCK} pixels, not {tuple(image.shape)}")
        require_real(image, "BM3D")
        if not image.is_floating_point():
            raise InputError(f"BM3D needs an image of floating point numbers, not {image.dtype}")
        if image.is_cpu and not bool(torch.isfinite(image).all()):
            raise InputError("the image holds NaN or infinity, which BM3D would spread; fix it first")
        some = image if image.ndim <= 3 else image.reshape(-1, *image.shape[-2:])
        some = some.float().contiguous()
        level = per_image(sigma, image, self.axes)
        if isinstance(level, Tensor):
            levels = level.expand(*image.shape[:-2], 1, 1).reshape(-1).float()
        else:
            levels = filled(1 if some.ndim == 2 else len(some), level, image.device)
        if not self.channels and cuda_form.serves(some):
            out = cuda_form.bm3d(some, levels, self.parameters, stages=self.stages)
            if key is not None and some.data_ptr() == key[0] and some.shape == key[1]:
                call.remember(key, some, levels)
        else:
            out = self._on_stack(some if some.ndim == 3 else some[None], levels, image)
        out = out if out.shape == image.shape else out.reshape(image.shape)
        return out if out.dtype == image.dtype else out.to(image.dtype), None

    def _on_stack(self, stack: Tensor, levels: Tensor, image: Tensor) -> Tensor:
        """The other forms, on (N, H, W); with `channels`, all those of an image with the groups of the first."""
        if self.channels and image.device.type != "cpu":
            raise InputError("BM3D shares groups among channels on the CPU only; use Channels(BM3D()) on a GPU")
        form: Any = native.bm3d if native.serves(stack) else reference.bm3d
        options = {"channels": image.shape[-3]} if self.channels else {}
        out: Tensor = form(stack, levels, self.parameters, stages=self.stages, **options)
        return out
