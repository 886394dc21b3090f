"""Training of the light U-Net, free or safe: AdamW on noisy patches of all levels, and the average of its weights."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.denoisers.networks.light_unet import BLOCKS, CHANNELS, Form, LightUNet
from plugstream.studies.training.fit import Training, fit
from plugstream.studies.training.graphed import GraphedStep
from plugstream.studies.training.patches import Patches

HIGHEST = 55 / 255
"""The largest noise level that is drawn, with values from 0 to 1."""
_EVERY = 4  # one step of so many has the penalty, which takes longer than a step, with so many times its weight
_MOST_NOISE = 3.0  # of the patches whose slopes are penalised, in units of the noise that the network is told of
_CORNER = 64  # pixels a side of them, which take half the time of whole patches
_CLIP = 3.0  # times the usual norm of gradients; with the penalty, by which a long run exploded once
_ABSOLUTE = 0.8  # part of the steps with the mean absolute error, which gets further before the squared one takes over


class AveragedTraining(Training):
    """AdamW, with the running mean of the parameters that a denoiser is made of.

    Arguments: as of `Training`; decay, of the weights; average, of the mean, less in the first steps; warm_up, steps
    over which the rate grows; clip, the norm that gradients are shortened to, in units of its root mean square over the
    last steps (Adam's second moments), None for no limit.
    Reference: Loshchilov and Hutter, ICLR 2019; Polyak and Juditsky, SIAM J. Control Optim. 30, 1992.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        about: Mapping[str, Any],
        decay: float,
        average: float,
        warm_up: int,
        clip: float | None = None,
    ) -> None:
        super().__init__(parameters, about)
        self.decay, self.average, self.warm_up, self.clip = decay, average, warm_up, clip
        self.averages = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self, rate: float, beta1: float = 0.9, beta2: float = 0.99, least: float = 1e-8) -> None:
        """One step with the gradients that the parameters carry, in few kernels for all of them."""
        self.step += 1
        rate *= min(1.0, self.step / self.warm_up)
        values = list(self.parameters.values())
        gradients = [value.grad for value in values if value.grad is not None]
        first, second = (list(moments) for moments in zip(*self.moments.values(), strict=True))
        if self.clip is not None and self.step > self.warm_up:
            norm = torch.stack(torch._foreach_norm(gradients)).norm()
            usual = torch.stack(torch._foreach_norm(second, 1)).sum().sqrt()  # bias is gone after so many steps
            torch._foreach_mul_(gradients, (self.clip * usual / norm).clamp(max=1.0))
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        sizes = torch._foreach_div(second, 1 - beta2**self.step)
        torch._foreach_sqrt_(sizes)
        torch._foreach_add_(sizes, least)
        torch._foreach_mul_(values, 1 - rate * self.decay)
        torch._foreach_addcdiv_(values, first, sizes, -rate / (1 - beta1**self.step))
        weight = min(self.average, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.averages.values()), values, 1 - weight)
        for value in values:
            value.grad = None

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"average.{name}": value for name, value in self.averages.items()}


def train_unet(
    patches: Patches,
    *,
    form: Form = "free",
    channels: Sequence[int] = CHANNELS,
    blocks: Sequence[int] = BLOCKS,
    steps: int = 40_000,
    batch: int = 64,
    rate: float = 6e-4,
    high: float = HIGHEST,
    decay: float = 1e-4,
    average: float = 0.999,
    penalty: float = 0.0,
    limit: float = 0.9,
    start: LightUNet | None = None,
    compiled: bool = False,
    checkpoint: Path | None = None,
    every: int = 1000,
    progress: Callable[[int, float], Any] | None = None,
) -> tuple[LightUNet, int]:
    r"""Learn a denoiser for all noise levels up to `high`, drawn evenly, on the device of the patches.

    The loss is the mean of |D(x + s n, s) - x| / m(s), in the last fifth of the steps of its square, with m(s)^2 the
    mean squared error that such networks reach, so that each level counts by its PSNR. With a penalty w it adds w times
    the mean over a quarter of the patches of max(0, log(norm / limit)), where the norm is that of

        safe:  grad^2 g = I - J, whose bound l makes D, damped by less than 1 / l, the prox of a weakly convex function;
        free:  k I + (1 - k) J with k = limit, over 1: D is k-strictly pseudo-contractive if it is never larger.

    It is measured at patches with 0 to 3 times the noise that the network is told of, as the images of a loop may have
    it, but at most `HIGHEST`, and only penalised, so `certify` has to say what holds elsewhere. On CUDA the network
    computes in bfloat16, and a step is one CUDA graph. All that is random is a function of the seed and the step.

    Arguments:
        form, channels, blocks: of `LightUNet`; those of `start`, whose weights it begins with, but for the form.
        batch: patches a step. rate: of AdamW; it falls to a hundredth along a cosine. decay, average: as of
            `AveragedTraining`. compiled: the network by torch.compile, but for the penalty.
        checkpoint, every, progress: as of `fit`.
    Returns the network with averaged weights, and the steps done, fewer than asked for if `progress` ended it.
    References: Zhang et al., 2022 (DRUNet); Hurault et al., ICLR and ICML 2022; Wei et al., ICML 2024.
    """
    if penalty > 0 and not 0 < limit < (1 if form == "free" else math.inf):
        raise InputError(f"the penalty's limit must be > 0, for the free form also < 1, not {limit}")
    shape = (channels, blocks) if start is None else (start.channels, start.blocks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(patches.seed)
        network = LightUNet(*shape, form)
    if patches.size < network.multiple:
        raise InputError(f"the network needs patches of at least {network.multiple} pixels a side, not {patches.size}")
    if start is not None:
        network.load_state_dict(start.state_dict())
    network = network.to(patches.device).requires_grad_(True)
    about = {"what": "unet", "form": form, "channels": list(shape[0]), "blocks": list(shape[1]), "steps": steps,
             "pictures": len(patches.pictures), "patch": patches.size, "seed": patches.seed, "batch": batch,
             "rate": rate, "high": high, "decay": decay, "average": average, "penalty": penalty, "limit": limit,
             "start": None if start is None else _digest(start)}  # fmt: skip
    training = AveragedTraining(
        dict(network.named_parameters()),
        about,
        decay,
        average,
        max(1, min(500, steps // 20)),
        _CLIP if penalty else None,
    )
    loss = _Loss(network, penalty, limit, compiled)
    leaves = list(training.parameters.values())
    kinds = {
        kind: GraphedStep(_gradients_of(loss, leaves, *kind), leaves)
        for kind in itertools.product((False, True), (False, True))
    }

    def gradients(step: int) -> Tensor:
        noise, place = patches.noise(step, batch)
        call = kinds[step < _ABSOLUTE * steps, penalty > 0 and step % _EVERY == 0]
        return call(patches.draw(step, batch), noise, high * place)

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        fit(training, gradients, steps=steps, rate=rate, checkpoint=checkpoint, every=every, progress=progress)
    network.load_state_dict(training.averages)
    return network.requires_grad_(False).cpu().eval(), training.step


def _gradients_of(
    loss: _Loss, leaves: list[Tensor], absolute: bool, penalised: bool
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, tuple[Tensor, ...]]]:
    def compute(clean: Tensor, noise: Tensor, sigma: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        value = loss(clean, noise, sigma, absolute, penalised)
        return value.detach(), torch.autograd.grad(value, leaves)

    return compute


class _Loss:
    """The loss of patches (N, h, w) with noise of variance 1 and levels (N,); arguments as of `train_unet`."""

    def __init__(self, network: LightUNet, penalty: float, limit: float, compiled: bool) -> None:
        self.network, self.penalty, self.limit = network, penalty, limit
        self.call: Any = torch.compile(network) if compiled else network

    def __call__(self, clean: Tensor, noise: Tensor, sigma: Tensor, absolute: bool, penalised: bool) -> Tensor:
        x, n, level = clean[:, None], noise[:, None], sigma.reshape(-1, 1, 1, 1)
        noisy = x + level * n
        with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
            out = self.call(noisy, sigma)
        error = (out - x) / typical_error(level)
        loss: Tensor = error.abs().mean() if absolute else error.square().mean()
        return loss + _EVERY * self.penalty * self._excess(x, n, sigma) if penalised else loss

    def _excess(self, clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        count, corner = max(1, len(clean) // 4), slice(0, _CORNER)
        x, n, level = (value[:count, :, corner, corner] for value in (clean, noise, sigma.reshape(-1, 1, 1, 1)))
        times = torch.linspace(_MOST_NOISE, 0, count, device=clean.device).reshape(-1, 1, 1, 1)
        spread = (times * level).clamp(max=HIGHEST)
        safe = self.network.form == "safe"
        with torch.autocast(clean.device.type, torch.bfloat16, enabled=clean.is_cuda):
            norm = jacobian_norm(
                lambda z: self.network(z, sigma[:count]),
                x + spread * n,
                n,
                identity=1.0 if safe else self.limit,
                jacobian=-1.0 if safe else 1 - self.limit,
                symmetric=safe,
            )
        return (norm / (self.limit if safe else 1.0)).log().clamp(min=0).mean()


def typical_error(sigma: Tensor) -> Tensor:
    """The root mean squared error that good networks leave of noise s of 1/255 and more, on values from 0 to 1.

    sqrt(0.0126 s^2 / (s + 0.0105)) fits the PSNR of such networks on photographs, 37.8, 31.6, 29.1 and 26.1 dB at noise
    of 5, 15, 25 and 50 of 255, within 0.5 dB.
    """
    s = sigma.clamp(min=1 / 255)
    return s * (0.0126 / (s + 0.0105)).sqrt()


def _digest(network: LightUNet) -> int:
    """A hash of the start, so that a checkpoint with another start is refused."""
    return zlib.crc32(b"".join(v.detach().cpu().contiguous().numpy().tobytes() for v in network.state_dict().values()))


def jacobian_norm(
    denoise: Callable[[Tensor], Tensor],
    image: Tensor,
    start: Tensor,
    *,
    identity: float,
    jacobian: float,
    symmetric: bool,
    iterations: int = 6,
) -> Tensor:
    r"""||a I + b J|| at each image, with J the Jacobian of the denoiser there: a lower bound, with a gradient.

    With (a, b) = (1, -1) it is the Lipschitz constant of I - D there, and D is a prox if it is below 1 everywhere and J
    symmetric; with (k, 1 - k) it is at most 1 everywhere exactly if D is k-strictly pseudo-contractive. The direction
    comes from power iteration and is then fixed: the derivative of the norm at its maximiser needs no more.

    Arguments: denoise, of (N, C, H, W); image; start, a direction for each, (N, C, H, W); identity, a; jacobian, b;
    symmetric, if J is, so that one product with it is enough; iterations. Returns (N,).
    References: Pesquet et al., SIAM J. Imaging Sci. 14, 2021; Hurault et al., ICML 2022; Wei et al., ICML 2024.
    """
    x = image.detach().requires_grad_()
    out = denoise(x)
    direction = _unit(start)
    for _ in range(iterations):
        after = _product(out, x, direction, identity, jacobian, symmetric, keep=False)
        if not symmetric:
            (back,) = torch.autograd.grad(out, x, after, retain_graph=True)
            after = identity * after + jacobian * back
        direction = _unit(after.detach())
    length: Tensor = _product(out, x, direction, identity, jacobian, symmetric, keep=True).flatten(1).norm(dim=1)
    return length


def _product(
    out: Tensor, x: Tensor, v: Tensor, identity: float, jacobian: float, symmetric: bool, *, keep: bool
) -> Tensor:
    """(a I + b J) v; for any J, J v is the derivative of <J^T w, v> with respect to w."""
    if symmetric:
        (product,) = torch.autograd.grad(out, x, v, create_graph=keep, retain_graph=True)
    else:
        w = torch.zeros_like(out, requires_grad=True)
        (back,) = torch.autograd.grad(out, x, w, create_graph=True)
        (product,) = torch.autograd.grad(back, w, v, create_graph=keep, retain_graph=True)
    return identity * v + jacobian * product


def _unit(v: Tensor) -> Tensor:
    unit: Tensor = v / v.flatten(1).norm(dim=1).clamp(min=1e-30).reshape(-1, 1, 1, 1)
    return unit
