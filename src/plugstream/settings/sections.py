"""All sections of the settings; those of the iteration are in `iteration`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from plugstream.base.capacity import parse_size
from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Options, find
from plugstream.settings.choices import Choice, Selection, pick, selected_names
from plugstream.settings.fields import LARGE, MOST_COUNT, SMALL, Count, Positive, Section, Value, setting, split_words
from plugstream.settings.iteration import AlgorithmSettings, GradientSettings, MomentumSettings, SamplerSettings


class MonitorSettings(Selection):
    """What is measured during a run; the time for that does not count as the algorithm's."""

    kind = "monitor"
    names: tuple[str, ...] = setting(
        ("distance", "snr"),
        "also measure this, a name from 'plugstream monitors' or FILE.py:NAME",
        flag="monitor",
        adds=True,
    )
    every: Count = setting(10, "steps between two measurements")
    measured_views: Count | None = setting(
        None,
        "views to measure distance and cost on, evenly spaced; if not given all of a scan in memory, and up to 1000 "
        "of a larger one",
    )
    hold_out: Annotated[int, Field(ge=2, le=MOST_COUNT)] | None = setting(
        None, "hold out every n-th view from the steps, and measure the misfit on those: 10 holds out a tenth"
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
    """The instrument of the scan, with the options of its model."""

    kind = "instrument"
    name: str = setting(
        "born-2d", "the instrument, as 'plugstream instruments' lists them; a scan has its own", flag="instrument"
    )


class SimulateSettings(Choice):
    """The scan that `simulate` and `demo` make, as the instrument has it."""

    kind = "instrument"
    follows = "instrument"
    name: str = Field("born-2d", exclude=True)

    @classmethod
    def options_of(cls, entry: Entry) -> type[Options]:
        """The options of the instrument's simulation."""
        options: type[Options] = entry.facts.get("simulation", Options)
        return options


class DenoiserSettings(Choice):
    """The prior."""

    kind = "denoiser"
    name: str = setting("tv", "which denoiser, as 'plugstream denoisers' lists them", flag="denoiser")
    low: Value | Literal["auto"] | None = setting(
        "auto",
        "least value of the image; 'none' for no limit, and 'auto' for 0 unless the data call for negative values",
    )
    high: Value | Literal["auto"] | None = setting(
        "auto",
        "largest value of the image; 'none' for no limit; 'auto' is no limit unless angles are missing, and then the "
        "lowest one that explains the data as well",
    )
    support: Annotated[str, Field(max_length=1 << 14)] = setting(
        "auto",
        "where the image may differ from 0: 'none' for everywhere, 'disc' or 'hull' for what the data's tangent rays "
        "leave (ct), a FILE.npy of the image's shape, 0 outside, or 'auto' for disc or hull if angles are missing",
    )
    damping: Annotated[float, Field(gt=0, lt=1)] | None = setting(None, "theta of (1 - theta) I + theta D")
    equivariant: Literal["mean", "random"] | None = setting(
        None,
        "turn and mirror the image before D and back after it: the mean over all ways, or one a step, drawn at random",
    )
    opening: str | None = setting(None, "a cheaper denoiser for the first steps, such as tv")
    opening_steps: Count = setting(8, "how many steps it is used for")
    opening_factor: Annotated[float, Field(ge=SMALL, le=LARGE)] = setting(
        3.0, "its sigma, relative to that of the denoiser that follows"
    )
    rivals: str | None = setting(
        None,
        "other denoisers, separated by commas, that the search for sigma may choose instead, judged by data that no "
        "step uses; where sigma falls, of any kind, each with a search of its own; volumes have some if none is given",
    )
    along: Literal["z", "y", "x", "all"] | None = setting(
        None,
        "of a volume: denoise its slices along this axis, or all for the mean of the three; if not given, the "
        "denoiser's own way, which for tv is in 3D",
    )
    parts: Literal["real-imaginary", "mean-phase", "magnitude-phase"] | None = setting(
        None,
        "of a complex image: denoise its real and imaginary part, these after the mean phase is taken out, or "
        "magnitude and phase; if not given, as it is where the denoiser takes complex images, and else the parts, "
        "without the mean phase where the data leave that free",
    )

    @field_validator("rivals")
    @classmethod
    def _names(cls, text: str | None) -> str | None:
        return None if text is None else ",".join(split_words(text)) or None

    @property
    def rival_names(self) -> tuple[str, ...]:
        """The denoisers of which the search for sigma may choose one."""
        return split_words(self.rivals)

    def chosen(self, name: str) -> DenoiserSettings:
        """The section with this denoiser in place of its own, and the options that mean the same to both."""
        own = {key: field.annotation for key, field in type(self).model_fields.items()}
        theirs = {**DenoiserSettings.model_fields, **find("denoiser", name).options.model_fields}
        alike = {key for key, field in theirs.items() if key in own and own[key] == field.annotation}
        values = {key: value for key, value in self.model_dump().items() if key in alike}
        return DenoiserSettings.of(**{**values, "name": name, "rivals": None})

    @property
    def least(self) -> float | None:
        """The lower bound, which is 0 for "auto" where there is no data to ask, unless the upper one forbids it."""
        if self.low != "auto":
            return self.low
        return None if self.upper is not None and self.upper <= 0 else 0.0

    @property
    def upper(self) -> float | None:
        """The upper bound, which is none for "auto" until the data is asked."""
        return None if self.high == "auto" else self.high


class LossSettings(Choice):
    """How predictions are compared with the data."""

    kind = "loss"
    name: str = setting("gaussian", "how predictions are compared with the data", flag="loss")


class ComputeSettings(Section):
    """Where it runs."""

    device: str = setting("cpu", "cpu, cuda or cuda:N")
    dtype: Literal["float32", "float64"] = setting("float32", "precision")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = setting(None, "CPU threads; torch's choice if not given")
    tile: Annotated[int, Field(ge=1)] | None = setting(
        None, "denoise tiles of this many pixels a side (slabs of a volume), to need less memory"
    )
    halo: Annotated[int, Field(ge=0)] | None = setting(
        None, "pixels around a tile to denoise it with; as many as the denoiser needs if not given"
    )
    memory: str | None = setting(
        None,
        "memory that a run may use, with --device cuda the GPU's, such as 2GB; a volume that needs more is "
        "reconstructed in blocks of slices if possible. Four fifths of what is free if not given",
    )
    deterministic: bool = setting(
        False, "under torchrun, give the same bits with 1, 2, 4 or 8 processes; takes longer", switch=True
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

    in_memory: Annotated[float, Field(ge=0)] = setting(256.0, "scans of up to this many MB are loaded completely")
    ahead: Annotated[int, Field(ge=0, le=64)] = setting(2, "batches to read ahead of larger scans")
    readers: Annotated[int, Field(ge=1, le=64)] = setting(2, "threads that read")
    follow: bool = setting(
        False, "use views as they are measured; 'iterations' then counts from the end of the scan", switch=True
    )
    patience: Positive | None = setting(
        None, "when following, treat the scan as ended after this many seconds without a view"
    )
    window: Annotated[int, Field(ge=1)] | None = setting(
        None, "when following a sample that changes, draw from the last so many views and forget older ones"
    )
    outliers: Literal["auto", "none"] = setting(
        "auto", "numbers that cannot be right, such as dead pixels and spikes: auto leaves them out, none takes all"
    )
    skip_damaged: bool = setting(False, "read all of the scan first, and leave damaged views out", switch=True)


class RunSettings(Section):
    """How a run is kept on disk."""

    checkpoint: Annotated[float, Field(ge=0)] = setting(
        30.0, "seconds between two checkpoints; 0 for one after every step"
    )
    preview: Annotated[float, Field(ge=0)] = setting(
        5.0, "seconds between two previews of the image, with more at first, and a tenth with --follow; 0 for none"
    )
    uncertainty: Annotated[int, Field(ge=2, le=10_000)] | None = setting(
        None, "after the last step, make an error map from this many images of halves of the views"
    )
    report: str = setting(
        "html", "what reports to write, a page (html) or a figure (png, pdf, svg), several with commas, or none"
    )

    @field_validator("report")
    @classmethod
    def _formats(cls, text: str) -> str:
        words = split_words(text)
        unknown = set(words) - {"html", "png", "pdf", "svg"}
        if unknown and words != ("none",):
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


class Settings(Section):
    """All settings, section by section; [simulate] is None where no scan is simulated."""

    instrument: SerializeAsAny[InstrumentSettings] = Field(default_factory=InstrumentSettings.of)
    simulate: SerializeAsAny[SimulateSettings] | None = Field(default_factory=SimulateSettings.of)
    algorithm: SerializeAsAny[AlgorithmSettings] = Field(default_factory=AlgorithmSettings.of)
    momentum: SerializeAsAny[MomentumSettings] = Field(default_factory=MomentumSettings.of)
    gradient: SerializeAsAny[GradientSettings] = Field(default_factory=GradientSettings.of)
    sampler: SerializeAsAny[SamplerSettings] = Field(default_factory=SamplerSettings.of)
    denoiser: SerializeAsAny[DenoiserSettings] = Field(default_factory=DenoiserSettings.of)
    loss: SerializeAsAny[LossSettings] = Field(default_factory=LossSettings.of)
    monitor: SerializeAsAny[MonitorSettings] = Field(default_factory=MonitorSettings.of)
    compute: ComputeSettings = ComputeSettings()
    scan: ScanSettings = ScanSettings()
    run: RunSettings = RunSettings()

    @field_validator("*", mode="before")
    @classmethod
    def _by_entry(cls, value: Any, info: ValidationInfo) -> Any:
        """Let the entry that a table names check its options."""
        return pick(section_of(str(info.field_name)), value)

    @model_validator(mode="before")
    @classmethod
    def _simulate_by_instrument(cls, values: Any) -> Any:
        """Give [simulate] the name of the instrument, by which its fields are known."""
        if not isinstance(values, Mapping) or not isinstance(values.get("simulate", {}), Mapping):
            return values
        chosen = values.get("instrument", {})
        name = chosen.get("name") if isinstance(chosen, Mapping) else getattr(chosen, "name", None)
        return values if name is None else {**values, "simulate": {**values.get("simulate", {}), "name": name}}


@cache  # asked for each setting several times
def section_of(name: str) -> type[Section]:
    """The class of a section; of a choice, with what all its entries have in common."""
    kind: Any = Settings.model_fields[name].annotation
    if get_origin(kind) in (Union, UnionType):  # a section that may be left out
        kind = next(one for one in get_args(kind) if one is not type(None))
    return cast("type[Section]", get_args(kind)[0] if get_origin(kind) is Annotated else kind)


def used_sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain values, without the sections that nothing is built from.

    Those are [simulate] where a scan is read, and [momentum] and [gradient] with an algorithm that uses none.
    """
    uses = settings.algorithm.entry.facts.get("uses", ())
    unused = {section for section in ("momentum", "gradient") if section not in uses}
    if settings.simulate is None:
        unused.add("simulate")
    return settings.model_dump(mode="json", exclude=unused)


def needed_monitors(settings: Settings) -> tuple[str, ...]:
    """The monitors that a run needs whether or not they are asked for, to stop by."""
    return () if settings.algorithm.distance_limit is None else ("distance",)


def with_bounds(settings: Settings, **bounds: float | str | None) -> Settings:
    """The settings with these values of low, high and support."""
    return settings.model_copy(update={"denoiser": settings.denoiser.model_copy(update=bounds)})
