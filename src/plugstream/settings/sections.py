"""The sections of the settings: every setting with its default, limits, help and flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from plugstream.choices import Choice, validator
from plugstream.errors import InputError
from plugstream.registry import find
from plugstream.selections import Selection, selected_names, selection_validator

__all__ = [
    "LARGE",
    "SMALL",
    "AlgorithmSettings",
    "ComputeSettings",
    "DenoiserSettings",
    "GradientSettings",
    "LossSettings",
    "MomentumSettings",
    "MonitorSettings",
    "RunSettings",
    "SamplerSettings",
    "ScanSettings",
    "Settings",
    "SimulateSettings",
    "needed_monitors",
    "with_low",
]


def _flag(name: str) -> dict[str, Any]:
    """The flag of a setting whose own name would be unclear or taken on the command line."""
    return {"flag": name}


def _short(name: str) -> dict[str, Any]:
    """A shorter flag besides the setting's own name, which is the library's."""
    return {"short": name}


_SWITCH: dict[str, Any] = {"switch": True}
"""A setting that is off unless its flag is there; the flag takes no value."""


# Nothing that is measured or computed here comes near these; beyond them squares and products leave the range of double
# precision, and counters that of 64 bits.
LARGE, SMALL = 1e100, 1e-100  # of images and what they are compared with
_LONG, _SHORT = 1e15, 1e-15  # of lengths, in metres
_COUNT = 10**12
_SEEDS = 2**63 - 1
_THREADS = 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SimulateSettings(_Section):
    """The scan that `simulate` and `demo` make; lengths are in metres. The defaults are the paper's experiment."""

    picture: str = Field("camera", description="a picture file, or the name of a scikit-image picture")
    size: int = Field(256, ge=8, le=8192, description="pixels a side")
    width: float = Field(0.18, ge=_SHORT, le=_LONG, description="width of the image")
    contrast: float = Field(1.0, ge=SMALL, le=LARGE, description="permittivity contrast that white stands for")
    wavelength: float = Field(6 * 0.18 / 256, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    background: float = Field(1.0, ge=_SHORT, le=_LONG, description="relative permittivity around the object")
    views: int = Field(60, ge=1, le=_COUNT, description="number of transmitters")
    receivers: int = Field(360, ge=1, le=_COUNT, description="number of receivers")
    radius: float = Field(1.6, ge=_SHORT, le=_LONG, description="radius of the circle of transmitters and receivers")
    arc: float = Field(360.0, gt=0, le=360, description="degrees that they cover")
    snr: float = Field(40.0, ge=-200, le=400, description="input SNR in dB", json_schema_extra=_flag("input-snr"))
    seed: int = Field(0, ge=0, le=_SEEDS, description="seed of the noise", json_schema_extra=_flag("noise-seed"))


class AlgorithmSettings(Choice):
    """The iteration."""

    kind = "algorithm"
    name: str = Field("pgm", description="the iteration", json_schema_extra=_flag("algorithm"))
    step_size: float | str = Field(
        "1/L", description="a number, or a multiple of 1/L such as 0.25/L", json_schema_extra=_short("step")
    )
    step_size_end: float | str | None = Field(
        None,
        description="let the step go to this value geometrically, as sigma",
        json_schema_extra=_short("step-end"),
    )
    sigma: float | None = Field(None, ge=0, le=LARGE, description="the denoiser's noise level, in the image's units")
    sigma_end: float | None = Field(None, ge=SMALL, le=LARGE, description="let sigma go to this value geometrically")
    sigma_steps: int | None = Field(
        None,
        ge=1,
        le=_COUNT,
        description="steps in which sigma and the step reach their ends; all iterations if not given",
    )
    lam: float | None = Field(None, ge=0, le=LARGE, description="instead of sigma: sigma = sqrt(step_size * lam)")
    iterations: int = Field(100, ge=1, le=_COUNT, description="number of steps")
    time_limit: float | None = Field(None, gt=0, description="stop after this many seconds")
    distance_limit: float | None = Field(None, gt=0, description="stop at this relative distance to a fixed point")

    def assemble(
        self,
        fidelity: Any,
        denoiser: Any,
        momentum: MomentumSettings,
        gradient: GradientSettings,
        seed: int,
        **common: Any,
    ) -> Any:
        """The algorithm, built from what its entry uses.

        Arguments: seed, of the gradient; common, by keyword sigma or lam, step_size and sampler.
        """
        uses = self.entry.facts.get("uses", ())
        if "momentum" in uses:
            common |= {"momentum": momentum.build(), "restart": momentum.restart}
        if "gradient" in uses:
            common["gradient"] = gradient.build(seed)
        return self.build(fidelity, denoiser, **common)


class MomentumSettings(Choice):
    """The sequence q_k of pgm."""

    kind = "momentum"
    name: str = Field(
        "nesterov",
        description="the sequence q_k of pgm; bounded if it is not given and a scan is followed",
        json_schema_extra=_flag("momentum"),
    )
    restart: Literal["none", "gradient", "residual"] = Field(
        "none", description="forget the momentum of pgm where it leads away, judged by the last move or the residual"
    )


class GradientSettings(Choice):
    """The gradient of pgm over the views of a step."""

    kind = "gradient"
    name: str = Field(
        "plain",
        description="of pgm: the mean over the batch, or with its variance reduced",
        json_schema_extra=_flag("gradient"),
    )


class SamplerSettings(Choice):
    """Which views each step uses."""

    kind = "sampler"
    name: str = Field("uniform", description="how views are drawn", json_schema_extra=_flag("sampler"))
    seed: int = Field(0, ge=0, le=_SEEDS, description="seed of what is drawn: views, and full passes of svrg")

    @property
    def views(self) -> int | None:
        """How many views a step has, None for all or where the sampler says no number."""
        batch: int | None = getattr(self, "batch", None)
        return batch


class DenoiserSettings(Choice):
    """The prior."""

    kind = "denoiser"
    name: str = Field(
        "tv",
        description="which denoiser, as 'plugstream denoisers' lists them",
        json_schema_extra=_flag("denoiser"),
    )
    low: Annotated[float, Field(ge=-LARGE, le=LARGE)] | Literal["auto"] | None = Field(
        "auto",
        description="least value of the image; 'none' for no limit, and 'auto' for 0 unless the data asks for negative "
        "values",
    )
    high: float | None = Field(None, ge=-LARGE, le=LARGE, description="largest value of the image")
    damping: float | None = Field(None, gt=0, lt=1, description="theta of (1 - theta) I + theta D")

    @property
    def least(self) -> float | None:
        """The lower bound, which is 0 for "auto" where there is no data to ask, unless the upper one forbids it."""
        if self.low != "auto":
            return self.low
        return None if self.high is not None and self.high <= 0 else 0.0


class LossSettings(Choice):
    """How predictions are compared with the data."""

    kind = "loss"
    name: str = Field(
        "gaussian", description="how predictions are compared with the data", json_schema_extra=_flag("loss")
    )


class MonitorSettings(Selection):
    """What is measured while it runs; the time for it is not counted as the algorithm's."""

    kind = "monitor"
    names: tuple[str, ...] = Field(
        ("distance", "snr"),
        description="measure this too, one that is listed by 'plugstream monitors' or FILE.py:NAME",
        json_schema_extra={"flag": "monitor", "adds": True},
    )
    every: int = Field(10, ge=1, le=_COUNT, description="steps between two measurements")
    measured_views: int | None = Field(
        None,
        ge=1,
        le=_COUNT,
        description="views to measure distance and cost on, evenly spaced; if not given all of a scan in memory or "
        "with --watch-theory, and up to 1000 of a larger one",
    )
    watch_theory: bool = Field(
        False,
        description="compare with the bound of Proposition 5, and warn where a step contradicts the theory",
        json_schema_extra=_SWITCH,
    )

    def check(self, shape: Sequence[int], *, truth: bool) -> None:
        """Refuse to measure what a scan does not allow.

        Arguments: shape of the image, with its channels; truth, whether it is known.
        """
        for name in self.names:
            facts, flag = find(self.kind, name).facts, f"--monitor {name}" if ":" in name else f"--{name}"
            if facts.get("truth", False) and not truth and name not in _USUAL:
                raise InputError(f"{flag} compares with the truth, which this scan does not have; leave it out")
            if facts.get("axes", len(shape)) != len(shape):
                raise InputError(
                    f"{flag} is for images of {facts['axes']} axes, and these have {len(shape)}; leave it out"
                )
            least = facts.get("least", 1)
            if min(shape[-2:]) < least:
                raise InputError(f"{flag} needs an image of at least {least} x {least} pixels; leave it out")

    def assemble(self, truth: Any, views: Any, *, also: Sequence[str] = ()) -> list[Any]:
        """The monitors, those of `also` among them; without a truth those that need none.

        Arguments: truth, None where it is not known; views, from a fidelity to those of its views to measure on.
        """
        names = selected_names(type(self), {"names": [*self.names, *also]})
        possible = [n for n in names if truth is not None or not find(self.kind, n).facts.get("truth", False)]
        return [self.build(name, truth, views) for name in possible]


_USUAL: tuple[str, ...] = MonitorSettings.model_fields["names"].default


class ComputeSettings(_Section):
    """Where it runs."""

    device: str = Field("cpu", description="cpu, cuda or cuda:N")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision")
    threads: int | None = Field(None, ge=1, le=_THREADS, description="CPU threads; torch's choice if not given")
    method: Literal["auto", "dense", "fast"] = Field(
        "auto", description="the Born model by its Green's matrix, through plane waves, or whichever is cheaper"
    )
    eps: float | None = Field(
        None, ge=1e-12, le=1e-3, description="accuracy of the fast method; 1e-5, or 1e-9 in float64, if not given"
    )


class ScanSettings(_Section):
    """How the scan is read."""

    in_memory: float = Field(256.0, ge=0, description="MB of data up to which a scan is loaded whole")
    ahead: int = Field(2, ge=0, le=64, description="batches to read ahead where it is not")
    readers: int = Field(2, ge=1, le=64, description="threads that read")
    follow: bool = Field(
        False,
        description="use views as they are measured; 'iterations' then counts from the end of the scan",
        json_schema_extra=_SWITCH,
    )
    patience: float | None = Field(
        None, gt=0, description="when following, take the scan as ended after so many seconds without a view"
    )
    skip_damaged: bool = Field(
        False, description="read all of the scan first, and leave damaged views out", json_schema_extra=_SWITCH
    )


class RunSettings(_Section):
    """How a run is kept on disk."""

    checkpoint: float = Field(30.0, ge=0, description="seconds between two checkpoints; 0 for one after every step")
    preview: float = Field(5.0, ge=0, description="seconds between two previews of the image at least; 0 for none")
    report: str = Field(
        "png",
        description="formats of the report: png, pdf and svg, several with commas",
        json_schema_extra=_flag("report-format"),
    )

    @field_validator("report")
    @classmethod
    def _formats(cls, text: str) -> str:
        if unknown := set(_words(text)) - {"png", "pdf", "svg"}:
            raise ValueError(f"there is no report as {sorted(unknown)[0]!r}; choose among png, pdf and svg")
        if not _words(text):
            raise ValueError("name at least one of png, pdf and svg")
        return ",".join(_words(text))

    @property
    def report_formats(self) -> tuple[str, ...]:
        """The endings of the reports to write."""
        return _words(self.report)


def _words(text: str) -> tuple[str, ...]:
    """The words of a list with commas, in lower case and each once."""
    return tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))


class Settings(_Section):
    """All settings, section by section."""

    simulate: SimulateSettings = SimulateSettings()
    algorithm: Annotated[SerializeAsAny[AlgorithmSettings], validator(AlgorithmSettings)] = Field(
        default_factory=AlgorithmSettings.of
    )
    momentum: Annotated[SerializeAsAny[MomentumSettings], validator(MomentumSettings)] = Field(
        default_factory=MomentumSettings.of
    )
    gradient: Annotated[SerializeAsAny[GradientSettings], validator(GradientSettings)] = Field(
        default_factory=GradientSettings.of
    )
    sampler: Annotated[SerializeAsAny[SamplerSettings], validator(SamplerSettings)] = Field(
        default_factory=SamplerSettings.of
    )
    denoiser: Annotated[SerializeAsAny[DenoiserSettings], validator(DenoiserSettings)] = Field(
        default_factory=DenoiserSettings.of
    )
    loss: Annotated[SerializeAsAny[LossSettings], validator(LossSettings)] = Field(default_factory=LossSettings.of)
    monitor: Annotated[SerializeAsAny[MonitorSettings], selection_validator(MonitorSettings)] = Field(
        default_factory=MonitorSettings.of
    )
    compute: ComputeSettings = ComputeSettings()
    scan: ScanSettings = ScanSettings()
    run: RunSettings = RunSettings()


def needed_monitors(settings: Settings) -> tuple[str, ...]:
    """The monitors that a run needs whether or not they are asked for: what it stops by, and what it is watched by."""
    needed = settings.monitor.watch_theory or settings.algorithm.distance_limit is not None
    return ("distance",) if needed else ()


def with_low(settings: Settings, low: float | None) -> Settings:
    """The settings with this lower bound of the image."""
    return settings.model_copy(update={"denoiser": settings.denoiser.model_copy(update={"low": low})})
