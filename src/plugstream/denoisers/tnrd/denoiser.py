"""TNRD as a denoiser: which model and which of its three forms runs, and what input it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from plugstream.base.cuda_graphs import GraphCall
from plugstream.base.errors import InputError, StorageError
from plugstream.denoisers.base import Denoiser, Sigma, levels, require_real
from plugstream.denoisers.forms import differentiated, triton_serves
from plugstream.denoisers.tnrd import native, triton_form
from plugstream.denoisers.tnrd.files import load_models, save_model
from plugstream.denoisers.tnrd.model import ReactionDiffusion

_SHIPPED = Path(__file__).parent / "weights"


class TNRD(Denoiser):
    r"""The prior of a trained diffusion: five steps with 48 filters and nonlinearities learnt from photographs.

    D(z, sigma) = (sigma / s0) R(s0 z / sigma), where R is the model (`ReactionDiffusion`) trained for noise s0 on the
    scale 0 .. 255: the trained model itself at 255 sigma / white = s0, and a denoiser for every other sigma and range
    of values. Of several models the one whose s0 is nearest to 255 sigma / white, as a ratio, is used. So for one model
    D(c z, c sigma) = c D(z, sigma), up to rounding.

    It is no proximal operator, and not known to be averaged. sigma = 0 returns the image as it is. A NaN spreads six
    pixels a stage. Differentiable once, in the image and in a model's parameters, by the torch form, which also runs in
    double precision. The fast forms are for 7 x 7 filters.

    Arguments:
        models: a model or several; ours, trained by us, if not given.
        white: the value that white has in the images, to choose among several models.
    Images are (..., H, W) with H, W >= 7 (the filters' size); sigma a number or one for each image. To choose among
    several models, sigma as a tensor on a GPU is waited for.

    Reference: Chen and Pock, IEEE Trans. Pattern Anal. Mach. Intell. 39(6), 2017.
    """

    def __init__(
        self, models: ReactionDiffusion | Sequence[ReactionDiffusion] | None = None, *, white: float = 1.0
    ) -> None:
        if models is None:
            if not any(_SHIPPED.glob("*.safetensors")):
                raise InputError(
                    "no trained TNRD weights are installed; give a file or folder of them (TNRD.load(path), "
                    "--weights PATH), or train some"
                )
            models = load_models(_SHIPPED)
        if isinstance(models, str | Path):
            raise InputError(f"models are objects; for those of a file or folder use TNRD.load({str(models)!r})")
        self.models = (models,) if isinstance(models, ReactionDiffusion) else tuple(models)
        if not self.models:
            raise InputError("TNRD needs at least one model")
        if not 0 < white < math.inf:
            raise InputError(f"the value of white must be a number > 0, not {white}")
        self.white = float(white)
        self.min_size = max(model.size for model in self.models)
        # A stage filters twice, with a filter and with the same one mirrored.
        self.reach = max(model.stages * (model.size - 1) for model in self.models)
        self._forms: dict[tuple[int, torch.device], tuple[object, Callable[[Tensor, Tensor], Tensor]]] = {}

    @classmethod
    def load(cls, path: str | Path, *, sigma: float | None = None, white: float = 1.0) -> TNRD:
        """TNRD with the models of a file (.safetensors, or the authors' .mat) or of a folder of such files.

        Arguments: path; sigma, s0 on the scale 0 .. 255, for a .mat file whose name does not end in 'sigma=5' or such;
        white, as for `TNRD`.
        """
        return cls(load_models(path, sigma), white=white)

    def save(self, path: str | Path) -> None:
        """Write one model to a .safetensors file, several to a folder of files 'sigma=5.safetensors' or such.

        Arguments: path, the file or folder; an existing file is replaced.
        """
        if len(self.models) == 1:
            save_model(self.models[0], path)
            return
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the folder {folder}: {error.strerror}") from error
        for model in self.models:
            save_model(model, folder / f"sigma={model.sigma:g}.safetensors")

    def denoise(self, image: Tensor, sigma: Sigma, warm: Tensor | None = None) -> tuple[Tensor, None]:
        if image.ndim < 2 or min(image.shape[-2:]) < self.min_size:
            least = self.min_size
            raise InputError(f"TNRD needs images of at least {least} x {least} pixels, not {tuple(image.shape)}")
        require_real(image, "TNRD")
        if not image.is_floating_point():
            raise InputError(f"TNRD needs an image of floating point numbers, not {image.dtype}")
        stack = image.reshape(-1, *image.shape[-2:])
        stack = stack if image.dtype == torch.float64 else stack.float()
        noise = levels(sigma, stack.reshape(image.shape))
        if not isinstance(sigma, Tensor):
            if sigma == math.inf:
                raise InputError("sigma must be a number >= 0, not inf")
            out = self._apply(self._nearest(float(sigma)), stack, noise)
        else:
            if noise.device.type == "cpu" and not bool(((noise >= 0) & noise.isfinite()).all()):
                raise InputError("sigma must be a number >= 0 for each image")
            out = self._apply(0, stack, noise) if len(self.models) == 1 else self._apply_nearest(stack, noise)
        return out.reshape(image.shape).to(image.dtype), None

    def _nearest(self, sigma: float) -> int:
        """Which model was trained for the noise nearest to this, as a ratio."""
        level = math.log(max(255 * sigma / self.white, 1e-300))
        return min(range(len(self.models)), key=lambda k: abs(math.log(self.models[k].sigma) - level))

    def _apply_nearest(self, stack: Tensor, levels: Tensor) -> Tensor:
        """Each image by its own nearest model."""
        chosen = torch.tensor([self._nearest(level) for level in levels.tolist()], dtype=torch.int64)
        parts = [(chosen == k).nonzero()[:, 0].to(stack.device) for k in range(len(self.models))]
        outs = [self._apply(k, stack[rows], levels[rows]) for k, rows in enumerate(parts) if len(rows) > 0]
        return torch.cat(outs)[torch.cat(parts).argsort()] if outs else stack

    def _apply(self, index: int, stack: Tensor, levels: Tensor) -> Tensor:
        """One model on all images, by the fastest form that serves: (N, H, W) and (N,) to (N, H, W)."""
        model = self.models[index]
        if native.serves(stack, model) or self._fused(stack, model):
            return self._form(index, stack.device)(stack, levels)
        gain = _gain(model, levels)
        noisy = (gain > 0)[:, None, None]
        scale = torch.where(noisy, gain[:, None, None], 1.0)
        return torch.where(noisy, model(stack * scale) / scale, stack)

    @staticmethod
    def _fused(stack: Tensor, model: ReactionDiffusion) -> bool:
        return triton_serves(stack) and model.size == 7 and not differentiated(stack, *model.parameters())

    def _form(self, index: int, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        """The kernels of a device, prepared again if the model's parameters have changed."""
        model, key = self.models[index], (index, device)
        stamp = tuple((p.data_ptr(), p._version) for p in model.parameters())
        if key not in self._forms or self._forms[key][0] != stamp:
            self._forms[key] = (stamp, _kernels(model, device))
        return self._forms[key][1]


def _kernels(model: ReactionDiffusion, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    if device.type == "cpu":
        arrays = native.prepare(model)
        return lambda images, levels: native.tnrd(images, _gain(model, levels) * model.scale, arrays)
    tables = triton_form.prepare(model, device)
    return GraphCall(lambda images, levels: triton_form.tnrd(images, _gain(model, levels) * model.scale, tables))


def _gain(model: ReactionDiffusion, levels: Tensor) -> Tensor:
    """s0 / sigma; 0 where sigma is zero, or so small that scaling would overflow: D is the identity there."""
    gain = model.sigma / levels
    return torch.where(gain <= 1e30, gain, 0.0)
