"""The settings of the iteration: the algorithm, its momentum and gradient, and which views a step uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from plugstream.settings.choices import Choice
from plugstream.settings.fields import LARGE, SMALL, Count, Part, Positive, setting, split_words

Level = Annotated[float, Field(ge=0, le=LARGE)]


class AlgorithmSettings(Choice):
    """The iteration."""

    kind = "algorithm"
    name: str = setting("pgm", "the iteration", flag="algorithm")
    step_size: float | str = setting(
        "1/L",
        "a number, a multiple of 1/L such as 0.25/L, or overlap, if the instrument's views have one",
        short="step",
    )
    step_size_end: float | str | None = setting(
        None, "let the step change to this value geometrically, as sigma does", short="step-end"
    )
    sigma: Level | None = setting(
        None,
        "the denoiser's noise level, in the image's unit (attenuation of ct: 1/m), or a share of the first image's "
        "range such as 1%; if not given, the run finds it",
        share=True,
    )
    search: Annotated[int, Field(ge=20, le=10**12)] | None = setting(
        None,
        "find sigma in this many first steps, starting from --sigma, judged by views that are held out until then; the "
        "default without --sigma",
    )
    fall: Annotated[int, Field(ge=2, le=10**6)] | None = setting(
        None,
        "search by runs of so many steps, in each of which sigma and the step fall together to --sigma and to a step "
        "that is found; for admm, ipa and inexact-admm",
    )
    sigma_end: Annotated[float, Field(ge=SMALL, le=LARGE)] | None = setting(
        None, "let sigma change to this value geometrically", share=True
    )
    sigma_steps: Count | None = setting(
        None, "steps in which sigma and the step reach their ends; all iterations if not given"
    )
    lam: Level | None = setting(None, "instead of sigma: sigma = sqrt(step_size * lam)")
    refine: Annotated[str, Field(max_length=1 << 10)] | None = setting(
        None, "refine this part of the instrument, such as probe, along with the image; separate several by commas"
    )
    refine_steps: Count | None = setting(
        None, "refine in this many first steps without denoising, and then denoise; throughout if not given"
    )
    refine_tolerance: Part | None = setting(
        None, "stop refining earlier, once all of it is this near to where it heads, judged by how its steps shrink"
    )
    refine_end: Part | None = setting(
        None,
        "let the steps that refine shrink to this part of their length, after a third of them, so that noise averages "
        "out",
    )
    changes: Annotated[str, Field(max_length=1 << 18)] | None = setting(
        None, "changes during the run, each from a step on, such as '40: sigma=0.05; 80: step=0.5/L; 120: stop'"
    )
    stages: Annotated[str, Field(max_length=1 << 18)] | None = setting(
        None, "which views to use for how many steps, in turn: '2GHz: 30, sigma=0.2; 2-4GHz: 30; all'"
    )
    hop: Annotated[str, Field(max_length=1 << 16)] | None = setting(
        None, "start with the lowest frequency and move to higher ones in stages, such as 2,4,6GHz, or auto"
    )
    hop_steps: Count | None = setting(None, "steps of each stage of --hop except the last; equal parts if not given")
    hop_keep: bool = setting(False, "in each stage of --hop, also use the frequencies of earlier stages", switch=True)
    iterations: Count = setting(100, "number of steps; if not given, a run ends when the image has arrived")
    time_limit: Positive | None = setting(None, "stop after this many seconds")
    distance_limit: Positive | None = setting(None, "stop at this relative distance to a fixed point")
    arrive: Annotated[float, Field(gt=0, le=1)] | None = setting(
        None,
        "stop when the image has arrived: when ten times as many steps would change it by less than this part of it; "
        "0.01 if --iterations is not given, and then within five times the usual number of steps",
    )
    settled: Count | None = setting(
        None, "stop when the misfit on held-out views (--hold-out) has not fallen in this many measurements"
    )

    @property
    def refined(self) -> tuple[str, ...]:
        """What is found along with the image, by name."""
        return split_words(self.refine)


class MomentumSettings(Choice):
    """The sequence q_k of pgm."""

    kind = "momentum"
    name: str = setting(
        "nesterov",
        "the sequence q_k of pgm; if not given, nesterov with all views, tapered with a few of them, bounded for a "
        "followed scan, or what the algorithm prefers",
        flag="momentum",
    )
    restart: Literal["none", "gradient", "residual"] = setting(
        "none", "restart the momentum of pgm when it leads away, judged by the last move or the residual"
    )


class GradientSettings(Choice):
    """The gradient of pgm over the views of a step."""

    kind = "gradient"
    name: str = setting("plain", "of pgm: the mean over the batch, or with its variance reduced", flag="gradient")


class SamplerSettings(Choice):
    """Which views each step uses."""

    kind = "sampler"
    name: str = setting("uniform", "how views are drawn", flag="sampler")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = setting(
        0, "seed of random choices: views, and full passes of svrg"
    )

    def build(self, *parts: Any, **more: Any) -> Any:
        """The sampler of a fidelity; one that draws is handed the seed."""
        return super().build(*parts, **more, **({"seed": self.seed} if self.entry.facts.get("seeded") else {}))

    @property
    def views(self) -> int | None:
        """How many views a step has, None for all or where the sampler gives no number."""
        batch: int | None = getattr(self, "batch", None)
        return batch
