"""The registry: a kind and a name lead to the settings of a thing, its help and the function that builds it.

An entry is declared where it lives, in a file that imports nothing slow at its top:

    from plugstream.base.registry import Field, Options, register

    class MedianOptions(Options):
        size: int = Field(3, ge=1, description="pixels a side of the window")

    @register("denoiser", "median", "the median of a window", options=MedianOptions)
    def build(options: MedianOptions) -> Denoiser:
        from plugstream.denoisers.wrap import FromFunction  # torch is imported when it is used
        ...

The files of a kind are found in the package that `KINDS` names, and those of other packages by their entry points
(`plugstream.denoisers`, `plugstream.instruments`, ...), which name a module or a function with such declarations. A
file in no package is named directly, FILE.py:NAME (`find`). Settings, flags, help, lists and the docs' tables are made
from the entries; nothing else knows their names.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plugstream.base.errors import InputError
from plugstream.base.user_code import allow, call_own, declarations, is_allowed, run_file

if TYPE_CHECKING or importlib.util.find_spec("pydantic") is not None:
    from pydantic import BaseModel, BeforeValidator as BeforeValidator, ConfigDict, Field as Field
else:  # the library does without the command line's packages: options then have their defaults, and are not checked

    class BaseModel:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    def Field(default: Any = None, **_: Any) -> Any:
        return default

    def BeforeValidator(check: Any) -> Any:
        return check

    ConfigDict = dict


class Options(BaseModel):
    """The options of an entry: the type, default and description of each field make a flag.

    Write only fields and validators; unknown names are refused, and so are NaN and infinity.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Kind:
    """A kind of thing that has names.

    Arguments: name; plural, for the command that lists it and the entry-point group `plugstream.PLURAL`; package, whose
    modules declare entries; parts, attributes that what is built must have.
    """

    name: str
    plural: str
    package: str
    parts: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The entry-point group for other packages."""
        return f"plugstream.{self.plural}"


_ALGORITHMS = "plugstream.algorithms.entries"
_entry_points = cache(entry_points)  # of all kinds, since reading those of every package takes long
OWN = "FILE.py:NAME"
"""The pattern of a name in a person's own file."""
WEIGHTS = "FILE.pt"
"""The pattern of a file of a network's weights, from which nothing is run."""
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("denoiser", "denoisers", "plugstream.denoisers.entries"),
        Kind("algorithm", "algorithms", _ALGORITHMS, ("init", "step", "parameters", "fidelity", "denoiser", "sampler")),
        Kind("sampler", "samplers", _ALGORITHMS, ("draw",)),
        Kind("momentum", "momenta", _ALGORITHMS),
        Kind("gradient", "gradients", _ALGORITHMS, ("begin", "estimate")),
        Kind("loss", "losses", "plugstream.fidelity.entries", ("value", "derivative", "curvature")),
        Kind("monitor", "monitors", "plugstream.solver.entries", ("begin", "every", "measures")),
        Kind("instrument", "instruments", "plugstream.instruments"),
        Kind("importer", "importers", "plugstream.scans.importers"),
    )
}


@dataclass(frozen=True)
class Entry:
    """One thing that can be asked for by name.

    Arguments:
        kind, name: "deepinv:NAME", "FILE.py:NAME" and "FILE.pt" are patterns, which stand for any such name.
        help: one line for people. options: the class of its options.
        build: makes it from its options and arguments that depend on the kind (`docs/extending.md`).
        needs: modules that must be installed. facts: anything else, by names that the kind uses. origin: the module
            that declared it.
    """

    kind: str
    name: str
    help: str
    build: Callable[..., Any]
    options: type[Options] = Options
    needs: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether its name stands for many."""
        return self.name.endswith(":NAME") or self.name == WEIGHTS

    @property
    def missing(self) -> str | None:
        """The first needed module that is not installed, None if all are."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)

    def make(self, name: str, options: Options, *parts: Any, **more: Any) -> Any:
        """Build it from its options and the arguments of its kind, and check the result.

        Arguments: name, as it was asked for; the entry of a pattern gets it as `name=`.
        """
        if self.is_pattern:
            more["name"] = name
        own = pattern_of(self.name) == OWN and not self.is_pattern
        item = call_own(name, self.build, options, *parts, **more) if own else self.build(options, *parts, **more)
        needed = KINDS[self.kind].parts
        if needed and isinstance(item, type):
            raise InputError(f"the {self.kind} {name} is the class {item.__name__}, where one of its objects should be")
        for part in needed:
            if not hasattr(item, part):
                kind = f"{type(item).__name__}, which has no {part}"
                raise InputError(f"the {self.kind} {name} is {kind}; it needs {', '.join(needed)}")
        return item

    @property
    def option_names(self) -> tuple[str, ...]:
        names = getattr(self.options, "model_fields", None)
        if names is None:  # without pydantic
            return tuple(key for base in self.options.__mro__ for key in vars(base).get("__annotations__", {}))
        return tuple(names)

    def check(self, values: Mapping[str, Any]) -> Options:
        """Its options with these values; wrong ones are refused in one line."""
        try:
            return self.options(**values)
        except ValueError as error:
            first = error.errors()[0] if hasattr(error, "errors") else {"loc": ("options",), "msg": str(error)}
            raise InputError(f"{first['loc'][0]} of the {self.kind} {self.name}: {first['msg']}") from None

    def check_installed(self) -> None:
        """Refuse an entry whose package is not installed."""
        if (name := self.missing) is not None:
            raise InputError(f"the {self.kind} {self.name} needs the package {name}, which is not installed")


F = TypeVar("F", bound=Callable[..., Any])
_table: dict[str, dict[str, Entry]] = {name: {} for name in KINDS}
_ordered: dict[str, tuple[list[tuple[str, Entry]], dict[str, Entry]]] = {}


def register(
    kind: str, name: str, help: str, *, options: type[Options] = Options, needs: tuple[str, ...] = (), **facts: Any
) -> Callable[[F], F]:
    """Declare the function or class below as the entry of a name; the same name twice is refused.

    Arguments: as `Entry`; facts by keyword.
    """
    if kind not in KINDS:
        raise InputError(f"there is no kind {kind!r} of entries; kinds are {', '.join(KINDS)}")

    _refuse_reserved(options)

    def declare(build: F) -> F:
        origin = f"{build.__module__}.{build.__qualname__}"
        if (own := declarations(build.__module__)) is not None:  # a file of a person's own is being run
            own.append(Entry(kind, name, help, build, options, needs, facts, origin))
            return build
        before = _table[kind].get(name)
        if before is not None and before.origin != origin:
            raise InputError(f"the {kind} {name!r} is declared twice: by {before.origin} and by {origin}")
        _table[kind][name] = Entry(kind, name, help, build, options, needs, facts, origin)
        return build

    return declare


RESERVED = frozenset(
    {"assemble", "build", "check", "chosen", "entry", "follows", "kind", "least", "name", "names"}
    | {"of", "options", "options_of", "refined", "rival_names", "upper", "views"}
)
"""Names that sections of the settings use themselves, which no option can have."""


def _refuse_reserved(options: type[Options]) -> None:
    for key in RESERVED.intersection(getattr(options, "model_fields", ())):
        raise InputError(f"an option cannot be called {key!r}, as one of {options.__name__} is; choose another name")


def entries(kind: str) -> dict[str, Entry]:
    """All entries of a kind by name: ours in the order of their files, those of other packages, then patterns.

    A package whose entry point cannot be loaded is left out; `find` reports it when its entry is asked for.
    """
    _load(kind)
    package, items = f"{KINDS[kind].package}.", list(_table[kind].items())
    before = _ordered.get(kind)
    if before is not None and before[0] == items:  # a command asks hundreds of times
        return dict(before[1])

    def place(item: tuple[str, Entry]) -> tuple[bool, bool, str]:  # independent of the order of imports
        ours = item[1].origin.startswith(package)
        return item[1].is_pattern, not ours, item[1].origin.removeprefix(package).partition(".")[0] if ours else ""

    _ordered[kind] = items, dict(sorted(items, key=place))
    return dict(_ordered[kind][1])


def find(kind: str, name: str, *, trust: bool = False) -> Entry:
    """The entry of a name, or an error that lists all of them, with the nearest one.

    "deepinv:NAME", "drunet.pt" and the like lead to the entry of their pattern. So does FILE.py:NAME, unless the file
    may be run (`user_code.allow`) and declares more: an entry that it registers under NAME, or a function or class NAME
    whose first parameter is annotated with its `Options`.

    Arguments: trust, whether the file may be run from now on, since a person typed the name or passed it to a function.
    """
    available = entries(kind)
    if trust and pattern_of(name) == OWN:
        allow(name)
    if pattern_of(name) == OWN and is_allowed(name):
        entry = _own_entry(kind, name)
        if entry is not None:
            return entry
        if OWN not in available or available[OWN].facts.get("declared", False):
            line = "@declare (plugstream.instruments.base)" if kind == "instrument" else f'@register("{kind}", ...)'
            raise InputError(f"{name} is not declared as {_a(kind)}; write {line} above it")
    if name in available and ":" not in name:
        return available[name]
    if (pattern := pattern_of(name)) in available:
        return available[pattern]
    broken = _load(kind).get(name)
    if broken is not None:
        raise InputError(f"the {kind} {name!r} of an installed package cannot be loaded: {broken}")
    near = difflib.get_close_matches(name, available, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"there is no {kind} {name!r}; {hint}there are {', '.join(available)}")


def refuse_foreign(
    kind: str,
    name: str,
    keys: Iterable[str],
    common: Container[str] = (),
    names: Callable[[Entry], Container[str]] = lambda entry: entry.option_names,
) -> None:
    """Refuse an option that the chosen entry does not have, and name the entries that have it.

    Arguments: common, options of every entry of the kind; names, gives the option names of an entry.
    """
    mine = names(find(kind, name))
    for key in keys:
        if key in mine or key in common:
            continue
        owners = [entry.name for entry in entries(kind).values() if key in names(entry)]
        advice = f"leave it out, or choose {' or '.join(owners)}" if owners else "no other has it either"
        raise InputError(f"the {kind} {name} has no use for {key}; {advice}")


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _own_entry(kind: str, where: str) -> Entry | None:
    """The entry that a name of a file stands for, None if it has no options."""
    path, _, name = where.rpartition(":")
    own = run_file(Path(path))
    build = getattr(own.module, name, None)
    declared: list[Entry] = [e for e in own.declarations if e.build is build or (build is None and e.name == name)]
    for entry in declared:
        if entry.kind == kind:
            return replace(entry, name=where, origin=where)
    if declared:
        raise InputError(f"{where} is declared as {_a(declared[0].kind)}, not as {_a(kind)}")
    if build is None:
        raise InputError(f"{path} has no {name}")
    options = _annotated_options(build)
    if options is None:
        return None
    _refuse_reserved(options)
    text = (inspect.getdoc(build) or "yours").splitlines()[0]
    return Entry(kind, where, text, build, options, origin=where)


def _annotated_options(build: Any) -> type[Options] | None:
    """The options by which the first parameter of a function or class is annotated."""
    if not inspect.isroutine(build) and not inspect.isclass(build):
        return None
    try:
        first = next(iter(inspect.signature(build).parameters.values()), None)
    except ValueError:  # a function written in C may have no signature
        return None
    kind = None if first is None else first.annotation
    if isinstance(kind, str):  # with `from __future__ import annotations`
        kind = vars(sys.modules.get(build.__module__, build)).get(kind)
    return kind if isinstance(kind, type) and issubclass(kind, Options) else None


def pattern_of(name: str) -> str:
    """The pattern of a name with a colon, or of a file of weights, or "" if there is none."""
    if re.fullmatch(r"(?s).+\.py:[^\W\d]\w*", name):
        return OWN
    if re.fullmatch(r"(?s).+\.(pt|pth|ckpt|safetensors)", name):
        return WEIGHTS
    match = re.fullmatch(r"([A-Za-z]\w*):[A-Za-z_]\w*", name)
    return f"{match[1]}:NAME" if match else ""


@cache
def _load(kind: str) -> dict[str, str]:
    """Import every module that declares entries of a kind, once; returns failed entry points with their reasons."""
    importlib.import_module("plugstream.base.own_files")  # FILE.py:NAME, of several kinds
    package = importlib.import_module(KINDS[kind].package)
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package.__name__}.{module.name}")
    points = _entry_points().select(group=KINDS[kind].group)
    return {point.name: wrong for point in points if (wrong := _load_point(point))}


def _load_point(point: EntryPoint) -> str:
    """Why an entry point of another package cannot be loaded, "" if it can."""
    try:
        point.load()
    except Exception as error:  # whatever their code does
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""
