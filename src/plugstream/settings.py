"""Every setting of the command line, described once: defaults, limits, help, flags, and how they are read and written.

Settings come from the defaults below, then a TOML file, then flags and `--set section.key=value`, later ones winning.
This module knows pydantic and nothing of torch, so that mistakes are found before anything slow is imported.
"""

from __future__ import annotations

import difflib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator
from pydantic.fields import FieldInfo

from plugstream.choices import Choice, every_field, fields_of, is_marked, section_class, validator
from plugstream.consent import consented
from plugstream.errors import InputError
from plugstream.files import read_small
from plugstream.registry import refuse_foreign

__all__ = ["Settings", "all_leaves", "choice_of", "leaves", "parse_assignment", "resolve", "to_toml", "with_low"]


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
_LARGE, _SMALL = 1e100, 1e-100  # of images and what they are compared with
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
    contrast: float = Field(1.0, ge=_SMALL, le=_LARGE, description="permittivity contrast that white stands for")
    wavelength: float = Field(6 * 0.18 / 256, ge=_SHORT, le=_LONG, description="wavelength in vacuum")
    background: float = Field(1.0, ge=_SHORT, le=_LONG, description="relative permittivity around the object")
    views: int = Field(60, ge=1, le=_COUNT, description="number of transmitters")
    receivers: int = Field(360, ge=1, le=_COUNT, description="number of receivers")
    radius: float = Field(1.6, ge=_SHORT, le=_LONG, description="radius of the circle of transmitters and receivers")
    arc: float = Field(360.0, gt=0, le=360, description="degrees that they cover")
    snr: float = Field(40.0, ge=-200, le=400, description="input SNR in dB", json_schema_extra=_flag("input-snr"))
    seed: int = Field(0, ge=0, le=_SEEDS, description="seed of the noise", json_schema_extra=_flag("noise-seed"))


class AlgorithmSettings(_Section):
    """The iteration."""

    name: Literal["pgm", "admm", "hqs"] = Field(
        "pgm",
        description="proximal gradient (ISTA, FISTA, PnP-SGD), ADMM or half-quadratic splitting",
        json_schema_extra=_flag("algorithm"),
    )
    step_size: float | str = Field(
        "1/L", description="a number, or a multiple of 1/L such as 0.25/L", json_schema_extra=_short("step")
    )
    step_size_end: float | str | None = Field(
        None,
        description="let the step go to this value geometrically, as sigma",
        json_schema_extra=_short("step-end"),
    )
    sigma: float | None = Field(None, ge=0, le=_LARGE, description="the denoiser's noise level, in the image's units")
    sigma_end: float | None = Field(None, ge=_SMALL, le=_LARGE, description="let sigma go to this value geometrically")
    sigma_steps: int | None = Field(
        None,
        ge=1,
        le=_COUNT,
        description="steps in which sigma and the step reach their ends; all iterations if not given",
    )
    lam: float | None = Field(None, ge=0, le=_LARGE, description="instead of sigma: sigma = sqrt(step_size * lam)")
    iterations: int = Field(100, ge=1, le=_COUNT, description="number of steps")
    time_limit: float | None = Field(None, gt=0, description="stop after this many seconds")
    distance_limit: float | None = Field(None, gt=0, description="stop at this relative distance to a fixed point")


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
    low: Annotated[float, Field(ge=-_LARGE, le=_LARGE)] | Literal["auto"] | None = Field(
        "auto",
        description="least value of the image; 'none' for no limit, and 'auto' for 0 unless the data asks for negative "
        "values",
    )
    high: float | None = Field(None, ge=-_LARGE, le=_LARGE, description="largest value of the image")
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


class MonitorSettings(_Section):
    """What is measured while it runs; the time for it is not counted as the algorithm's."""

    every: int = Field(10, ge=1, le=_COUNT, description="steps between two measurements")
    distance: bool = Field(True, description="measure the distance to a fixed point")
    cost: bool = Field(False, description="measure the data misfit and, for a known prox, the cost")
    psnr: bool = Field(
        False,
        description="measure PSNR, where the scan has its truth; the peak is its range",
        json_schema_extra=_SWITCH,
    )
    ssim: bool = Field(
        False,
        description="measure SSIM, where the scan has its truth; the peak is its range",
        json_schema_extra=_SWITCH,
    )
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
    algorithm: AlgorithmSettings = AlgorithmSettings()
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
    monitor: MonitorSettings = MonitorSettings()
    compute: ComputeSettings = ComputeSettings()
    scan: ScanSettings = ScanSettings()
    run: RunSettings = RunSettings()


def section_of(section: str) -> type[BaseModel]:
    """The model of a section, of a choice what all its entries have in common."""
    made = Settings.model_fields[section].annotation
    assert isinstance(made, type)
    assert issubclass(made, BaseModel)
    return made


def choice_of(section: str) -> type[Choice] | None:
    """The model of a section that chooses an entry, None for others."""
    made = section_of(section)
    return made if issubclass(made, Choice) else None


def leaves(sections: Iterable[str], names: Mapping[str, str] | None = None) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting in these sections.

    Arguments: names, of the entries that choice sections have; the default ones where they are not said.
    """
    for section in sections:
        kind, choice = section_of(section), choice_of(section)
        fields: Mapping[str, FieldInfo] = kind.model_fields
        if choice is not None:
            fields = fields_of(choice, (names or {}).get(section, kind.model_fields["name"].default))
        for key, info in fields.items():
            yield section, key, info


def all_leaves(sections: Iterable[str]) -> Iterator[tuple[str, str, FieldInfo]]:
    """(section, key, field) of every setting that any entry has in these sections."""
    for section in sections:
        choice = choice_of(section)
        fields = section_of(section).model_fields.items() if choice is None else every_field(choice)
        for key, info in fields:
            yield section, key, info


def parse_assignment(text: str, names: Mapping[str, str] | None = None) -> tuple[str, str, Any]:
    """Read `section.key=value`; the value is TOML where it can be, and else it is text."""
    path, equals, value = text.partition("=")
    section, dot, key = path.strip().partition(".")
    if not equals or not dot:
        raise InputError(f"cannot read the setting {text!r}; write section.key=value, such as sampler.batch=10")
    read = parse_value(value.strip())  # with quotes, as TOML has text, or without
    if not isinstance(read, str) and section in Settings.model_fields:
        read = parse_setting(section, key, value.strip(), names)
    return section, key, read


def parse_setting(section: str, key: str, text: str, names: Mapping[str, str] | None = None) -> Any:
    """A setting from the command line; one that is a text, such as a file's name, stays as it was typed."""
    kind = _annotation(section, key, names)
    if kind is str or set(get_args(kind)) == {str, type(None)}:
        return text
    return parse_value(text)


def _annotation(section: str, key: str, names: Mapping[str, str] | None) -> Any:
    """The type of a setting: of the entry that is chosen, and else of the first that has it."""
    fields = itertools.chain(leaves([section], names), all_leaves([section]))
    return next((info.annotation for _, k, info in fields if k == key), None)


def parse_sigma(text: str, *, zero: bool) -> float:
    """A noise level that is no setting, such as 15/255; `zero` says whether it may be 0."""
    value = parse_value(text)
    if type(value) not in (int, float) or not (_SMALL <= value <= _LARGE or (zero and value == 0)):
        raise InputError(f"sigma must be a number {'>= 0' if zero else '> 0'} such as 15/255, not {text}")
    return float(value)


def parse_value(text: str) -> Any:
    """A value from the command line: TOML where it can be, a fraction such as 15/255, and else it is text."""
    above, slash, below = text.partition("/")
    try:
        if slash:
            return float(above) / float(below)
    except (ValueError, ZeroDivisionError):
        pass  # a step such as 1/L, or nonsense that is told where it is used
    if not text.isprintable():  # more than one line of TOML, of which only the first would count
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, lists thousands deep
        return text


def resolve(
    file: Path | None = None,
    assignments: Iterable[tuple[str, str, Any]] = (),
    *,
    presets: Iterable[tuple[str, str, Any]] = (),
    trust: bool = False,
) -> Settings:
    """Defaults, then the TOML file, then the assignments (section, key, value), checked as a whole.

    What the file asks to run or to unpickle is refused unless it is trusted (`plugstream.consent`); assignments are
    what a person typed, and need no more consent.

    `presets` are defaults of a command, for where there is no file, which says everything. Of them, and of the file
    where another entry was typed than it names, the options that the chosen entry does not have are left out; any
    other option that it does not have is refused.

    The text "none" means nothing where a setting may be left out; TOML has no other word for it. A run that follows a
    scan takes many steps with few views, for which momentum is bounded unless another one is asked for.
    """
    values: dict[str, dict[str, Any]] = {}
    if file is not None:
        try:
            content = tomllib.loads(read_small(file))
        except OSError as error:
            raise InputError(f"cannot read the settings {file}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
            raise InputError(f"{file} is not TOML: {error}") from error
        for section, table in content.items():
            _check_name(section)
            if not isinstance(table, Mapping):
                raise InputError(f"{section!r} in {file} must be a section: write [{section}] and its keys below")
            values[section] = dict(table)
    from_file = {(section, key) for section, table in values.items() for key in table}
    before = {section: table.get("name") for section, table in values.items()}
    preset, typed = set(), set()
    for section, key, value in presets if file is None else ():
        values.setdefault(section, {})[key] = value
        preset.add((section, key))
    for section, key, value in assignments:
        _check_name(section, key)
        values.setdefault(section, {})[key] = value
        from_file.discard((section, key))
        preset.discard((section, key))
        typed.add((section, key))
    for section, table in values.items():
        for key in table:
            _check_name(section, key)
        if (choice := choice_of(section)) is not None:
            default = choice.model_fields["name"].default
            overruled = (section, "name") in typed and table["name"] != (before.get(section) or default)
            free = preset | from_file if overruled else preset
            _settle_choice(section, choice, table, {key for s, key in free if s == section})
        for key, value in table.items():
            if value == "none" and _may_be_none(section, key, table.get("name")):
                table[key] = None
            if isinstance(value, str) and not _is_unicode(value):
                raise InputError(
                    f"setting {section}.{key} = {value!r} holds bytes that are not UTF-8, which cannot be written "
                    "down; rename the file"
                )
    try:
        settings = Settings.model_validate(values)
        if settings.scan.follow and "name" not in values.get("momentum", {}):
            values.setdefault("momentum", {})["name"] = "bounded"
            settings = Settings.model_validate(values)
        return consented(settings, from_file, file, trust=trust)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:2])
        text = first["msg"].removeprefix("Value error, ")
        reason = text[:1].lower() + text[1:]
        raise InputError(f"setting {where} = {first['input']!r} cannot be used: {reason}") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _settle_choice(section: str, choice: type[Choice], table: dict[str, Any], free: set[str]) -> None:
    """Refuse an entry that is not there and options that it does not have, but leave out those that nobody asked for.

    Arguments: table, of the section, changed in place; free, its keys that are defaults or meant for another entry.
    """
    name = table.get("name", choice.model_fields["name"].default)
    try:
        mine = section_class(choice, name).model_fields
    except InputError as error:
        raise InputError(f"setting {section}.name = {name!r} cannot be used: {error}") from None
    for key in free - set(mine):
        del table[key]
    refuse_foreign(choice.kind, name, table, choice.model_fields)


def _may_be_none(section: str, key: str, name: str | None) -> bool:
    names = {} if name is None else {section: name}
    return any(type(None) in get_args(info.annotation) for _, k, info in leaves([section], names) if k == key)


def with_low(settings: Settings, low: float | None) -> Settings:
    """The settings with this lower bound of the image."""
    return settings.model_copy(update={"denoiser": settings.denoiser.model_copy(update={"low": low})})


def to_toml(settings: Settings, header: str = "") -> str:
    """The settings as TOML that `resolve` reads back to the same; nothing is written as "none".

    Consent to unpickle is a person's, and not written.
    """
    lines = [f"# {line}" for line in header.splitlines()]
    for section, table in settings.model_dump().items():
        lines += ["", f"[{section}]"]
        names = {section: table.get("name", "")}
        keys = [key for _, key, info in leaves([section], names) if not is_marked(info, "consent")]
        lines += [f"{key} = {_toml_value(table[key])}" for key in keys]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for one character that JSON leaves as it is and TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _check_name(section: str, key: str | None = None) -> None:
    """Refuse a name that is not a setting, with the nearest one that is."""
    known = {f"{s}.{k}" for s, k, _ in all_leaves(Settings.model_fields)}
    given = section if key is None else f"{section}.{key}"
    if given in known or (key is None and section in Settings.model_fields):
        return
    choices = [*known, *Settings.model_fields] if key is None else [*known]
    near = [f"{key}.name"] if f"{key}.name" in known else difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    if not near and key is not None:  # the key may be right and the section wrong
        near = [name for name in sorted(known) if name.split(".")[1] == key][:1]
    hint = f"; did you mean {near[0]!r}?" if near else f"; sections are {', '.join(Settings.model_fields)}"
    raise InputError(f"there is no setting {given!r}{hint}")
