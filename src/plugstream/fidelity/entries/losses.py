"""The losses by name: how a prediction is compared with the data.

A fact that an entry may say: prox, that its fidelity has one, for linear models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.fidelity.losses import Loss

__all__ = ["AmplitudeOptions", "HuberOptions", "PoissonOptions", "TransmissionOptions"]


class HuberOptions(Options):
    """Of the Huber loss."""

    delta: float = Field(
        1.0, ge=1e-100, le=1e100, description="misfit beyond which a datum counts less, in the data's unit"
    )


class PoissonOptions(Options):
    """Of the Poisson loss."""

    background_counts: float = Field(0.0, ge=0, le=1e100, description="counts that are expected without the object")
    floor: float = Field(
        1.0, ge=1e-100, le=1e100, description="counts below which the logarithm is continued by its parabola"
    )


class AmplitudeOptions(Options):
    """Of the amplitude loss."""

    roots: bool = Field(False, description="the data is the root of intensities", json_schema_extra={"switch": True})


class TransmissionOptions(Options):
    """Of the loss of line integrals."""

    limit: float | None = Field(
        None,
        ge=1e-100,
        le=1e100,
        description="by how much a ray counts at most, of one that nothing attenuates: 1 / (photons s^2) where the "
        "model is wrong by s in a line integral; no limit if not given",
    )


@register("loss", "gaussian", "least squares: independent Gaussian noise of one strength", prox=True)
def build_gaussian(options: Options) -> Loss:
    from plugstream.fidelity.losses import Gaussian

    return Gaussian()


@register("loss", "huber", "Gaussian noise with outliers", options=HuberOptions)
def build_huber(options: HuberOptions) -> Loss:
    from plugstream.fidelity.losses import Huber

    return Huber(options.delta)


@register("loss", "poisson", "counts", options=PoissonOptions)
def build_poisson(options: PoissonOptions) -> Loss:
    from plugstream.fidelity.losses import Poisson

    return Poisson(options.background_counts, options.floor)


@register("loss", "amplitude", "intensities of waves, by their roots", options=AmplitudeOptions)
def build_amplitude(options: AmplitudeOptions) -> Loss:
    from plugstream.fidelity.losses import Amplitude

    return Amplitude(options.roots)


@register(
    "loss",
    "transmission",
    "line integrals of X-rays, by the photons that were counted",
    options=TransmissionOptions,
)
def build_transmission(options: TransmissionOptions) -> Loss:
    from plugstream.fidelity.losses import Transmission

    return Transmission(limit=options.limit)
