"""All sections of the settings: those of instrument, prior, loss, machine, scan and run stand here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from plugstream.base.capacity import parse_size
from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Options, find
from plugstream.settings.choices import Choice, Selection, selected_names, selection_validator, validator
from plugstream.settings.fields import LARGE, MOST_COUNT, MOST_THREADS, SMALL, SWITCH, Section, flag, split_words
from plugstream.settings.iteration import AlgorithmSettings, GradientSettings, MomentumSettings, SamplerSettings

__all__ = [
    "ComputeSettings",
    "DenoiserSettings",
    "InstrumentSettings",
    "LossSettings",
    "MonitorSettings",
    "RunSettings",
    "ScanSettings",
    "Settings",
    "SimulateSettings",
    "needed_monitors",
    "used_sections",
    "with_bounds",
]


class MonitorSettings(Selection):
    """What is measured while it runs; the time for it is not counted as the algorithm's."""

    kind = "monitor"
    names: tuple[str, ...] = Field(
        ("distance", "snr"),
        description="also measure this, a name from 'plugstream monitors' or FILE.py:NAME",
        json_schema_extra={"flag": "monitor", "adds": True},
    )
    every: int = Field(10, ge=1, le=MOST_COUNT, description="steps between two measurements")
    measured_views: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="views to measure distance and cost on, evenly spaced; if not given all of a scan in memory or "
        "with --watch-theory, and up to 1000 of a larger one",
    )
    hold_out: int | None = Field(
        None,
        ge=2,
        le=MOST_COUNT,
        description="hold out every n-th view from the steps, and measure the misfit on those: 10 holds out a tenth",
    )
    watch_theory: bool = Field(
        False,
        description="compare with the bound of Proposition 5, and warn if a step contradicts the theory",
        json_schema_extra=SWITCH,
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


class InstrumentSettings(Choice):
    """The instrument of the scan, with what can be said of its model."""

    kind = "instrument"
    name: str = Field(
        "born-2d",
        description="the instrument, as 'plugstream instruments' lists them; a scan has its own",
        json_schema_extra=flag("instrument"),
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


class DenoiserSettings(Choice):
    """The prior."""

    kind = "denoiser"
    name: str = Field(
        "tv",
        description="which denoiser, as 'plugstream denoisers' lists them",
        json_schema_extra=flag("denoiser"),
    )
    low: Annotated[float, Field(ge=-LARGE, le=LARGE)] | Literal["auto"] | None = Field(
        "auto",
        description="least value of the image; 'none' for no limit, and 'auto' for 0 unless the data asks for negative "
        "values",
    )
    high: Annotated[float, Field(ge=-LARGE, le=LARGE)] | Literal["auto"] | None = Field(
        "auto",
        description="largest value of the image; 'none' for no limit, and 'auto' for none unless angles are missing, "
        "and then for the least that explains the data as well as none does",
    )
    support: str = Field(
        "auto",
        max_length=1 << 14,
        description="where the image may be other than 0: 'none' for everywhere, 'disc' or 'hull' for what the data's "
        "tangent rays leave (ct), a FILE.npy of the image's shape, 0 outside, or 'auto' for disc or hull where views "
        "lack angles",
    )
    damping: float | None = Field(None, gt=0, lt=1, description="theta of (1 - theta) I + theta D")
    equivariant: Literal["mean", "random"] | None = Field(
        None,
        description="turn and mirror the image before D and back after it: the mean over all ways, or one a step, "
        "drawn at random",
    )
    opening: str | None = Field(
        None, description="another denoiser for the first steps, such as tv, which costs little"
    )
    opening_steps: int = Field(8, ge=1, le=MOST_COUNT, description="how many steps that denoiser has")
    opening_factor: float = Field(
        3.0, ge=SMALL, le=LARGE, description="its sigma over that of the denoiser that follows it"
    )
    rivals: str | None = Field(
        None,
        description="other denoisers, with commas, of which the search for sigma may choose one instead, by data that "
        "no step uses; for born-2d it does where no denoiser is given",
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

    @field_validator("rivals")
    @classmethod
    def _names(cls, text: str | None) -> str | None:
        return None if text is None else ",".join(split_words(text)) or None

    @property
    def rival_names(self) -> tuple[str, ...]:
        """The denoisers of which the search for sigma may choose one."""
        return () if self.rivals is None else split_words(self.rivals)

    def chosen(self, name: str) -> DenoiserSettings:
        """The section with this denoiser in place of its own: what all have in common, and options that both have."""
        mine = {**self.model_dump(), "name": name, "rivals": None}
        known = {*DenoiserSettings.model_fields, *DenoiserSettings.options_of(find("denoiser", name)).model_fields}
        return DenoiserSettings.of(**{key: value for key, value in mine.items() if key in known})

    @property
    def least(self) -> float | None:
        """The lower bound, which is 0 for "auto" where there is no data to ask, unless the upper one forbids it."""
        if self.low != "auto":
            return self.low
        return None if self.upper is not None and self.upper <= 0 else 0.0

    @property
    def upper(self) -> float | None:
        """The upper bound, which is none for "auto" as long as the data was not asked."""
        return None if self.high == "auto" else self.high


class LossSettings(Choice):
    """How predictions are compared with the data."""

    kind = "loss"
    name: str = Field(
        "gaussian", description="how predictions are compared with the data", json_schema_extra=flag("loss")
    )


class ComputeSettings(Section):
    """Where it runs."""

    device: str = Field("cpu", description="cpu, cuda or cuda:N")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision")
    threads: int | None = Field(None, ge=1, le=MOST_THREADS, description="CPU threads; torch's choice if not given")
    tile: int | None = Field(
        None, ge=1, description="denoise tiles of this many pixels a side (slabs of a volume), to need less memory"
    )
    halo: int | None = Field(
        None, ge=0, description="pixels around a tile to denoise it with; as many as the denoiser needs if not given"
    )
    memory: str | None = Field(
        None,
        description="memory that a run may take, such as 2GB; a volume for which that is too little goes by blocks of "
        "slices where it can. What is free, less a fifth, if not given",
    )
    deterministic: bool = Field(
        False,
        description="under torchrun, give the same bits with 1, 2, 4 or 8 processes; takes longer",
        json_schema_extra=SWITCH,
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


class ScanSettings(Section):
    """How the scan is read."""

    in_memory: float = Field(256.0, ge=0, description="MB of data up to which a scan is loaded completely")
    ahead: int = Field(2, ge=0, le=64, description="batches to read ahead if it is not")
    readers: int = Field(2, ge=1, le=64, description="threads that read")
    follow: bool = Field(
        False,
        description="use views as they are measured; 'iterations' then counts from the end of the scan",
        json_schema_extra=SWITCH,
    )
    patience: float | None = Field(
        None, gt=0, description="when following, treat the scan as ended after this many seconds without a view"
    )
    skip_damaged: bool = Field(
        False, description="read all of the scan first, and leave damaged views out", json_schema_extra=SWITCH
    )


class RunSettings(Section):
    """How a run is kept on disk."""

    checkpoint: float = Field(30.0, ge=0, description="seconds between two checkpoints; 0 for one after every step")
    preview: float = Field(
        5.0, ge=0, description="seconds between two previews of the image, with more at first; 0 for none"
    )
    uncertainty: int | None = Field(
        None,
        ge=2,
        le=10_000,
        description="after the last step make an error map, from this many images of halves of the views",
    )
    report: str = Field(
        "png,html",
        description="formats of the report: html, png, pdf and svg, several with commas, or none",
        json_schema_extra=flag("report-format"),
    )

    @field_validator("report")
    @classmethod
    def _formats(cls, text: str) -> str:
        words = split_words(text)
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
        return () if self.report == "none" else split_words(self.report)

    @property
    def figure_formats(self) -> tuple[str, ...]:
        """Those of them that are one figure, and no page."""
        return tuple(ending for ending in self.report_formats if ending != "html")


class Settings(Section):
    """All settings, section by section; [simulate] is None where a scan is read and none simulated."""

    instrument: Annotated[SerializeAsAny[InstrumentSettings], validator(InstrumentSettings)] = Field(
        default_factory=InstrumentSettings.of
    )
    simulate: Annotated[SerializeAsAny[SimulateSettings] | None, validator(SimulateSettings)] = Field(
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


def used_sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain values, without the sections that nothing is built from.

    Those are [simulate] where a scan is read, and [momentum] and [gradient] with an algorithm that has none: shown,
    they would tell of a run what is not so.
    """
    uses = settings.algorithm.entry.facts.get("uses", ())
    unused = {section for section in ("momentum", "gradient") if section not in uses}
    if settings.simulate is None:
        unused.add("simulate")
    return settings.model_dump(mode="json", exclude=unused)


def needed_monitors(settings: Settings) -> tuple[str, ...]:
    """The monitors that a run needs whether or not they are asked for: what it stops by, and what it is watched by."""
    needed = settings.monitor.watch_theory or settings.algorithm.distance_limit is not None
    return ("distance",) if needed else ()


def with_bounds(settings: Settings, **bounds: float | str | None) -> Settings:
    """The settings with these of low, high and support."""
    return settings.model_copy(update={"denoiser": settings.denoiser.model_copy(update=bounds)})
