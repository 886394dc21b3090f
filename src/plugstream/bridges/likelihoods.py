"""deepinv's noise models and data fidelities as losses of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.bridges.physics import is_deepinv, list_physics
from plugstream.fidelity.losses import Gaussian, Loss, Poisson, Transmission


@dataclass(frozen=True)
class Likelihood:
    """How predictions A x are compared with y: `factor` times the loss of scale * A x and data_scale * y.

    The factor is that of deepinv's function, which steps and weights of priors there go by; ours is the loss alone.
    variance: a and b of a Gaussian loss whose variance is a + b y.
    """

    loss: Loss | None = None
    scale: float = 1.0
    data_scale: float = 1.0
    factor: float = 1.0
    variance: tuple[float, float] | None = None

    def weigh(self, data: Tensor, shape: tuple[int, ...]) -> Loss | None:
        """The loss for data of this shape; with a variance its weights are 1 over that, at most 1."""
        if self.variance is None:
            return self.loss
        constant, slope = self.variance
        variance = constant + slope * data.reshape(shape).clamp_min(0)
        least = float(variance.min())
        if not least > 0:
            raise InputError("data without counts has no variance under this noise model; give loss=ps.Poisson()")
        return Gaussian(weights=least / variance)


def read_noise(physics: Any) -> Likelihood:
    """The likelihood of the noise that a Physics, or each of a list of them, says it has.

    | noise model                            | loss                                                      |
    | -------------------------------------- | --------------------------------------------------------- |
    | none, `ZeroNoise`, `GaussianNoise`     | least squares                                             |
    | `PoissonNoise(gain)`                   | `Poisson` of A x / gain                                   |
    | `LogPoissonNoise(N0, mu)`              | `Transmission` of mu A x                                  |
    | `PoissonGaussianNoise(gain, sigma)`    | `Gaussian`, weights 1 / (sigma^2 + gain y)                |

    Others, and several of different kinds, are refused.
    """
    first, *others = [_noise(getattr(one, "noise_model", None)) for one in list_physics(physics)]
    if any(other != first for other in others):
        raise InputError("the Physics have noise of different kinds; say by loss=... how to compare their data")
    return first


def read_likelihood(physics: Any, loss: Loss | Likelihood | None) -> Likelihood:
    """The likelihood of a loss, by default of the noise. If both are of a kind it is in the noise's units: a `Poisson`
    with a floor of its own is of counts, A x / gain, as that of the noise is."""
    if loss is None or isinstance(loss, Likelihood):
        return loss or read_noise(physics)
    try:
        noise = read_noise(physics)
    except InputError:
        return Likelihood(loss)
    return replace(noise, loss=loss) if type(noise.loss) is type(loss) else Likelihood(loss)


def _noise(noise: Any) -> Likelihood:
    if noise is None or is_deepinv(noise, "ZeroNoise", "GaussianNoise", "UniformGaussianNoise"):
        return Likelihood()
    if is_deepinv(noise, "PoissonNoise"):
        gain = _number("gain", noise.gain)
        return Likelihood(Poisson(), scale=1 / gain, data_scale=1 / gain if bool(noise.normalize) else 1.0)
    if is_deepinv(noise, "LogPoissonNoise"):
        mu = _number("mu", noise.mu)
        return Likelihood(Transmission(), scale=mu, data_scale=mu)
    if is_deepinv(noise, "PoissonGaussianNoise"):
        return Likelihood(variance=(_number("sigma", noise.sigma) ** 2, _number("gain", noise.gain)))
    raise InputError(
        f"no loss is known for {type(noise).__name__}; say how to compare, such as loss=ps.Gaussian() for least "
        "squares or loss=ps.Huber(0.1) for outliers"
    )


def read_fidelity(fidelity: Any) -> Likelihood:
    """The likelihood that a deepinv `DataFidelity` is: L2, PoissonLikelihood or LogPoissonLikelihood."""
    if isinstance(fidelity, Sequence) and len(fidelity) == 1:
        fidelity = fidelity[0]
    exact = type(fidelity).__name__
    if is_deepinv(fidelity, "L2") and exact == "L2":
        return Likelihood(factor=float(fidelity.norm))
    if is_deepinv(fidelity, "PoissonLikelihood"):
        gain = _number("gain", fidelity.gain)
        loss = Poisson(background=_number("bkg", fidelity.bkg))
        return Likelihood(loss, scale=1 / gain, data_scale=1 / gain if fidelity.normalize else 1.0)
    if is_deepinv(fidelity, "LogPoissonLikelihood"):
        mu = _number("mu", fidelity.d.mu)
        return Likelihood(Transmission(), scale=mu, data_scale=mu, factor=_number("N0", fidelity.d.N0))
    raise InputError(
        f"the data fidelity {exact} has no smooth loss here; use L2, PoissonLikelihood or LogPoissonLikelihood, or "
        "give one of ours, such as loss=ps.Huber(0.1)"
    )


def _number(name: str, value: Any) -> float:
    tensor = torch.as_tensor(value)
    if tensor.numel() != 1:
        raise InputError(f"{name} is one number for all images here, not {tensor.numel()}; reconstruct them one by one")
    return float(tensor)
