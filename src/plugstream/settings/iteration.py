"""The settings of the iteration: the algorithm, its momentum and gradient, and which views a step uses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plugstream.settings.choices import Choice
from plugstream.settings.fields import LARGE, MOST_COUNT, MOST_SEED, SHARE, SMALL, SWITCH, flag, short_flag, split_words

__all__ = ["AlgorithmSettings", "GradientSettings", "MomentumSettings", "SamplerSettings"]


class AlgorithmSettings(Choice):
    """The iteration."""

    kind = "algorithm"
    name: str = Field("pgm", description="the iteration", json_schema_extra=flag("algorithm"))
    step_size: float | str = Field(
        "1/L",
        description="a number, a multiple of 1/L such as 0.25/L, or overlap, if the instrument's views have one",
        json_schema_extra=short_flag("step"),
    )
    step_size_end: float | str | None = Field(
        None,
        description="let the step change to this value geometrically, as sigma does",
        json_schema_extra=short_flag("step-end"),
    )
    sigma: float | None = Field(
        None,
        ge=0,
        le=LARGE,
        description="the denoiser's noise level, in the image's unit (attenuation of ct: 1/m), or a share of the first "
        "image's range such as 1%",
        json_schema_extra=SHARE,
    )
    search: int | None = Field(
        None,
        ge=20,
        le=MOST_COUNT,
        description="find sigma in this many first steps, starting from --sigma, by views that are held out from them "
        "and used afterwards; the default without --sigma",
    )
    sigma_end: float | None = Field(
        None, ge=SMALL, le=LARGE, description="let sigma change to this value geometrically", json_schema_extra=SHARE
    )
    sigma_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="steps in which sigma and the step reach their ends; all iterations if not given",
    )
    lam: float | None = Field(None, ge=0, le=LARGE, description="instead of sigma: sigma = sqrt(step_size * lam)")
    refine: str | None = Field(
        None,
        max_length=1 << 10,
        description="refine this part of the instrument along with the image, such as probe; several with commas",
    )
    refine_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="refine it in this many first steps, without denoising, and then denoise; throughout if not given",
    )
    refine_tolerance: float | None = Field(
        None,
        ge=SMALL,
        le=1,
        description="end that before, once nothing of it has farther to go than this part of itself, by how its steps "
        "shrink",
    )
    refine_end: float | None = Field(
        None,
        ge=SMALL,
        le=1,
        description="let steps on it shrink to this part of their length, after a third of those that refine, so "
        "that its noise averages out",
    )
    changes: str | None = Field(
        None,
        max_length=1 << 18,
        description="changes on the way, from a step on, such as '40: sigma=0.05; 80: step=0.5/L; 120: stop'",
    )
    stages: str | None = Field(
        None,
        max_length=1 << 18,
        description="which views to use for how many steps, one after another: '2GHz: 30, sigma=0.2; 2-4GHz: 30; all'",
    )
    hop: str | None = Field(
        None,
        max_length=1 << 16,
        description="use the lowest frequency first and the higher ones step by step, such as 2,4,6GHz, or auto",
    )
    hop_steps: int | None = Field(
        None, ge=1, le=MOST_COUNT, description="steps of each stage of --hop but the last; equal parts if not given"
    )
    hop_keep: bool = Field(
        False,
        description="in each stage of --hop use the frequencies of the stages before it, too",
        json_schema_extra=SWITCH,
    )
    iterations: int = Field(100, ge=1, le=MOST_COUNT, description="number of steps")
    time_limit: float | None = Field(None, gt=0, description="stop after this many seconds")
    distance_limit: float | None = Field(None, gt=0, description="stop at this relative distance to a fixed point")
    arrive: float | None = Field(
        None,
        gt=0,
        le=1,
        description="stop when the image has arrived: when ten times as many steps would change it by less than this "
        "part of it; 0.01 where nobody says how many iterations there are, which then are five times the usual number "
        "at most",
    )
    settled: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="stop when the misfit on held-out views (--hold-out) has not fallen in this many measurements",
    )

    @property
    def refined(self) -> tuple[str, ...]:
        """What is found along with the image, by name."""
        return () if self.refine is None else split_words(self.refine)


class MomentumSettings(Choice):
    """The sequence q_k of pgm."""

    kind = "momentum"
    name: str = Field(
        "nesterov",
        description="the sequence q_k of pgm; if not given, nesterov with all views, tapered with a few of them, "
        "bounded for a followed scan, or what the algorithm prefers",
        json_schema_extra=flag("momentum"),
    )
    restart: Literal["none", "gradient", "residual"] = Field(
        "none", description="restart the momentum of pgm when it leads away, judged by the last move or the residual"
    )


class GradientSettings(Choice):
    """The gradient of pgm over the views of a step."""

    kind = "gradient"
    name: str = Field(
        "plain",
        description="of pgm: the mean over the batch, or with its variance reduced",
        json_schema_extra=flag("gradient"),
    )


class SamplerSettings(Choice):
    """Which views each step uses."""

    kind = "sampler"
    name: str = Field("uniform", description="how views are drawn", json_schema_extra=flag("sampler"))
    seed: int = Field(0, ge=0, le=MOST_SEED, description="seed of random choices: views, and full passes of svrg")

    def build(self, *parts: Any, **more: Any) -> Any:
        """The sampler of a fidelity; one that draws is handed the seed."""
        return super().build(*parts, **more, **({"seed": self.seed} if self.entry.facts.get("seeded") else {}))

    @property
    def views(self) -> int | None:
        """How many views a step has, None for all or where the sampler says no number."""
        batch: int | None = getattr(self, "batch", None)
        return batch
