"""The sections of the settings: every setting with its default, limits, help and flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from plugstream.capacity import parse_size
from plugstream.choices import Choice, validator
from plugstream.errors import InputError
from plugstream.registry import Entry, Options, find
from plugstream.selections import Selection, selected_names, selection_validator

__all__ = [
    "LARGE",
    "SMALL",
    "AlgorithmSettings",
    "ComputeSettings",
    "DenoiserSettings",
    "GradientSettings",
    "InstrumentSettings",
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

_SHARE: dict[str, Any] = {"share": True}
"""A setting in the image's unit, which may be written as a share of the first image's range, such as 1%."""


# Nothing that is measured or computed here comes near these; beyond them squares and products leave the range of double
# precision, and counters that of 64 bits.
LARGE, SMALL = 1e100, 1e-100  # of images and what they are compared with
_COUNT = 10**12
_SEEDS = 2**63 - 1
_THREADS = 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class InstrumentSettings(Choice):
    """The instrument of the scan, with what can be said of its model."""

    kind = "instrument"
    name: str = Field(
        "born-2d",
        description="the instrument, as 'plugstream instruments' lists them; a scan has its own",
        json_schema_extra=_flag("instrument"),
    )


class SimulateSettings(Choice):
    """The scan that `simulate` and `demo` make, as the instrument has it."""

    kind = "instrument"
    follows = "instrument"
    name: str = Field("born-2d", exclude=True)

    @classmethod
    def options_of(cls, entry: Entry) -> type[Options]:
        """What the instrument's simulation takes."""
        made: type[Options] = entry.facts.get("simulation", Options)
        return made


class AlgorithmSettings(Choice):
    """The iteration."""

    kind = "algorithm"
    name: str = Field("pgm", description="the iteration", json_schema_extra=_flag("algorithm"))
    step_size: float | str = Field(
        "1/L",
        description="a number, a multiple of 1/L such as 0.25/L, or overlap, where the instrument's views have one",
        json_schema_extra=_short("step"),
    )
    step_size_end: float | str | None = Field(
        None,
        description="let the step go to this value geometrically, as sigma",
        json_schema_extra=_short("step-end"),
    )
    sigma: float | None = Field(
        None,
        ge=0,
        le=LARGE,
        description="the denoiser's noise level, in the image's unit (attenuation of ct: 1/m), or a share of the first "
        "image's range such as 1%",
        json_schema_extra=_SHARE,
    )
    search: int | None = Field(
        None,
        ge=20,
        le=_COUNT,
        description="find sigma in the first so many of the steps, from the one given on, by views that are held out "
        "from them and used afterwards; where no sigma is given this is the default",
    )
    sigma_end: float | None = Field(
        None, ge=SMALL, le=LARGE, description="let sigma go to this value geometrically", json_schema_extra=_SHARE
    )
    sigma_steps: int | None = Field(
        None,
        ge=1,
        le=_COUNT,
        description="steps in which sigma and the step reach their ends; all iterations if not given",
    )
    lam: float | None = Field(None, ge=0, le=LARGE, description="instead of sigma: sigma = sqrt(step_size * lam)")
    refine: str | None = Field(
        None,
        max_length=1 << 10,
        description="find this of the instrument along with the image, such as probe; several with commas",
    )
    refine_steps: int | None = Field(
        None,
        ge=1,
        le=_COUNT,
        description="find it in the first so many steps, without denoising, and denoise from then on; all the while "
        "if not given",
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
        None, ge=1, le=_COUNT, description="steps of each stage of --hop but the last; equal parts if not given"
    )
    hop_keep: bool = Field(
        False,
        description="in each stage of --hop use the frequencies of the stages before it, too",
        json_schema_extra=_SWITCH,
    )
    iterations: int = Field(100, ge=1, le=_COUNT, description="number of steps")
    time_limit: float | None = Field(None, gt=0, description="stop after this many seconds")
    distance_limit: float | None = Field(None, gt=0, description="stop at this relative distance to a fixed point")

    @property
    def refined(self) -> tuple[str, ...]:
        """What is found along with the image, by name."""
        return () if self.refine is None else _words(self.refine)


class MomentumSettings(Choice):
    """The sequence q_k of pgm."""

    kind = "momentum"
    name: str = Field(
        "nesterov",
        description="the sequence q_k of pgm; if not given, bounded for a followed scan, or what the algorithm prefers",
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
    equivariant: Literal["mean", "random"] | None = Field(
        None,
        description="turn and mirror the image before D and back after it: the mean over all ways, or one a step, "
        "drawn at random",
    )
    along: Literal["z", "y", "x", "all"] | None = Field(
        None,
        description="of a volume: denoise its slices along this axis, or all for the mean of the three; the denoiser's "
        "own way if not given, which for tv is in 3D",
    )
    parts: Literal["real-imaginary", "mean-phase", "magnitude-phase"] | None = Field(
        None,
        description="of a complex image: denoise its real and imaginary part, these after the mean phase is taken out, "
        "or magnitude and phase; if not given, as it is where the denoiser takes complex images, and else the parts, "
        "without the mean phase where the data leave that free",
    )

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
    hold_out: int | None = Field(
        None,
        ge=2,
        le=_COUNT,
        description="use every so many-th view in no step, and measure the misfit on those: 10 holds out a tenth",
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
    tile: int | None = Field(
        None, ge=1, description="denoise tiles of so many pixels a side (slabs of a volume), to need less memory"
    )
    halo: int | None = Field(
        None, ge=0, description="pixels around a tile that it is denoised with; what the denoiser needs if not given"
    )
    memory: str | None = Field(
        None,
        description="memory that a run may take, such as 2GB; a volume for which that is too little goes by blocks of "
        "slices where it can. What is free, less a fifth, if not given",
    )
    deterministic: bool = Field(
        False,
        description="under torchrun, give the same bits with 1, 2, 4 or 8 processes; takes longer",
        json_schema_extra=_SWITCH,
    )

    @field_validator("memory")
    @classmethod
    def _size(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                parse_size(text)
            except InputError as error:
                raise ValueError(str(error)) from None
        return text


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
    preview: float = Field(
        5.0, ge=0, description="seconds between two previews of the image, of which there are more at first; 0 for none"
    )
    uncertainty: int | None = Field(
        None,
        ge=2,
        le=10_000,
        description="after the last step make an error map, from so many images of halves of the views",
    )
    report: str = Field(
        "png,html",
        description="formats of the report: html, png, pdf and svg, several with commas, or none",
        json_schema_extra=_flag("report-format"),
    )

    @field_validator("report")
    @classmethod
    def _formats(cls, text: str) -> str:
        words = _words(text)
        if words == ("none",):
            return "none"
        if unknown := set(words) - {"html", "png", "pdf", "svg"}:
            raise ValueError(
                f"there is no report as {sorted(unknown)[0]!r}; choose among html, png, pdf and svg, or none"
            )
        if not words:
            raise ValueError("name at least one of html, png, pdf and svg, or none")
        return ",".join(words)

    @property
    def report_formats(self) -> tuple[str, ...]:
        """The endings of the reports to write."""
        return () if self.report == "none" else _words(self.report)

    @property
    def figure_formats(self) -> tuple[str, ...]:
        """Those of them that are one figure, and no page."""
        return tuple(ending for ending in self.report_formats if ending != "html")


def _words(text: str) -> tuple[str, ...]:
    """The words of a list with commas, in lower case and each once."""
    return tuple(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))


class Settings(_Section):
    """All settings, section by section."""

    instrument: Annotated[SerializeAsAny[InstrumentSettings], validator(InstrumentSettings)] = Field(
        default_factory=InstrumentSettings.of
    )
    simulate: Annotated[SerializeAsAny[SimulateSettings], validator(SimulateSettings)] = Field(
        default_factory=SimulateSettings.of
    )
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

    @model_validator(mode="before")
    @classmethod
    def _simulate_by_instrument(cls, values: Any) -> Any:
        """Give [simulate] the name of the instrument, by which its fields are known."""
        if not isinstance(values, Mapping) or not isinstance(values.get("simulate", {}), Mapping):
            return values
        chosen = values.get("instrument", {})
        name = chosen.get("name") if isinstance(chosen, Mapping) else getattr(chosen, "name", None)
        return values if name is None else {**values, "simulate": {**values.get("simulate", {}), "name": name}}


def needed_monitors(settings: Settings) -> tuple[str, ...]:
    """The monitors that a run needs whether or not they are asked for: what it stops by, and what it is watched by."""
    needed = settings.monitor.watch_theory or settings.algorithm.distance_limit is not None
    return ("distance",) if needed else ()


def with_low(settings: Settings, low: float | None) -> Settings:
    """The settings with this lower bound of the image."""
    return settings.model_copy(update={"denoiser": settings.denoiser.model_copy(update={"low": low})})
