"""The losses by name: how a prediction is compared with the data.

Facts: prox, its fidelity has one, for linear models; bends, its expected second derivative is known for waves.
"""

from __future__ import annotations

from typing import Any

from plugstream.base.class_entries import register_class
from plugstream.base.registry import Field, Options


class HuberOptions(Options):
    """Of the Huber loss."""

    delta: float = Field(
        1.0, ge=1e-100, le=1e100, description="misfit beyond which a datum counts less, in the data's unit"
    )


class PoissonOptions(Options):
    """Of the Poisson loss."""

    background_counts: float = Field(0.0, ge=0, le=1e100, description="counts expected without the object")
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
        description="largest weight of a ray, relative to an unattenuated one: 1 / (photons s^2) if the model is wrong "
        "by s in a line integral; no limit if not given",
    )


def _declare(name: str, text: str, loss: str, **how: Any) -> None:
    register_class(__name__, "loss", name, text, f"plugstream.fidelity:{loss}", **how)


_declare("gaussian", "least squares: independent Gaussian noise of one strength", "Gaussian", prox=True)
_declare("huber", "Gaussian noise with outliers", "Huber", options=HuberOptions)
_COUNTS = {"background_counts": "background"}
_declare("poisson", "counts", "Poisson", options=PoissonOptions, arguments=_COUNTS, bends=True)
_declare("amplitude", "intensities of waves, by their roots", "Amplitude", options=AmplitudeOptions, bends=True)
_declare("transmission", "line integrals of X-rays, by photon counts", "Transmission", options=TransmissionOptions)
