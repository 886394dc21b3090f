"""Scans from arrays that have names in some file: what HDF5 and NPZ share, for any instrument.

By its declaration an instrument says which arrays and values a scan of it has, and so what is looked for
(`plugstream.scans.importers.declaration`). One whose files need more than that, such as calibration, has a reader of
its own:

    @reader("born-2d", options=BornImport)
    def read(source: Source, mapping: Mapping[str, Any], options: BornImport) -> Reading: ...
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import create_model

from plugstream.base.errors import InputError
from plugstream.base.files import read_small
from plugstream.base.registry import Entry, Field, Options, entries
from plugstream.base.text import shell_quote
from plugstream.instruments.base import find_instrument
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.declaration import read_by_declaration
from plugstream.scans.importers.reading import Reading, name_file, write_reading
from plugstream.scans.importers.source import Source

__all__ = [
    "ARRAY_FACTS",
    "ArrayOptions",
    "array_options",
    "describe_arrays",
    "import_arrays",
    "plan_reading",
    "read_mapping",
    "reader",
    "scan_name",
]

_COMMON = {"mask", "pixel", "truth", "weights"}  # names that say nothing of the instrument


class ArrayOptions(Options):
    """What can be said of a file of arrays, whatever its instrument."""

    instrument: str = Field("born-2d", description="the instrument of the scan, or FILE.py:NAME")
    map: tuple[str, ...] = Field(
        (),
        description="where the file has the data and the instrument's other arrays, or values such as pixel=0.003",
        json_schema_extra={"words": "NAME=PATH"},
    )
    mapping: str | None = Field(None, description="read the mapping from this TOML file")


Reader = Callable[[Source, Mapping[str, Any], Any], Reading]
R = TypeVar("R", bound=Reader)


@dataclass(frozen=True)
class _Own:
    """The reader of an instrument; what the decorator `reader` is given."""

    read: Reader
    options: type[Options]
    values: tuple[str, ...]


_readers: dict[str, _Own] = {}


def reader(
    instrument: str,
    *,
    options: type[Options] = Options,
    values: tuple[str, ...] = (),
) -> Callable[[R], R]:
    """Declare the function below as what reads files of arrays as scans of an instrument.

    Arguments: instrument, by name; options besides `ArrayOptions`; values, names of a mapping that may be numbers.
    """

    def declare(function: R) -> R:
        _readers[instrument] = _Own(function, options, values)
        return function

    return declare


def options_for(instrument: str | None = None) -> type[Options]:
    """The options of an importer of arrays with those that the instrument's own reader has besides.

    Arguments: instrument, by name; None for those of every reader.
    """
    entries("importer")  # declares the readers
    found = dict.fromkeys(own.options for name, own in _readers.items() if instrument in (None, name))
    found.pop(Options, None)  # of readers without any
    return _combine(tuple(found))  # each once: instruments of one experiment share a reader


def array_options(instrument: str, **values: Any) -> Any:
    """Options with these values, checked, for scans of an instrument."""
    model = options_for(instrument)
    return Entry("importer", "of arrays", "", import_arrays, model).check({"instrument": instrument, **values})


@cache
def _combine(more: tuple[type[Options], ...]) -> type[Options]:
    bases: Any = (*more, ArrayOptions)
    return cast("type[Options]", create_model("ArrayOptions", __base__=bases, __module__=__name__))


def import_arrays(source: Source, out: str | Path, mapping: Mapping[str, Any], options: Any) -> ImportResult:
    """Write a scan from the arrays of an open file of any size, some views at a time; an output that exists is refused.

    Arguments: source; out, the scan to make; mapping from our names to the file's, or for values to numbers; names that
    are not mapped are looked for under our own name, values also among the attributes; options, `ArrayOptions` with
    what the instrument's reader has besides.
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    reading = plan_reading(source, mapping, options)
    provenance = {"made_by": "plugstream import", "file": source.path.name, "mapping": dict(mapping)}
    with name_file(source.path):
        return write_reading(replace(reading, provenance=provenance | dict(reading.provenance)), target)


def plan_reading(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """How a file is read: by the reader of its instrument, or by the declaration alone."""
    entries("importer")
    cls = find_instrument(options.instrument, trust=True)
    own = _readers.get(cls.name)
    return read_by_declaration(source, mapping, cls) if own is None else own.read(source, mapping, options)


def read_mapping(options: ArrayOptions) -> dict[str, Any]:
    """The mapping that a TOML file and words such as data=/entry/data or size=64 give, the words winning.

    Of what is a value, and no array, a word that does not begin with a slash is a number where it can be one.
    """
    from plugstream.base.text import parse_value

    entries("importer")
    cls = find_instrument(options.instrument, trust=True)
    own = _readers.get(cls.name)
    values = [attribute.name for attribute in cls.attributes] if own is None else own.values

    mapping: dict[str, Any] = {}
    if options.mapping is not None:
        file = Path(options.mapping)
        try:
            mapping = tomllib.loads(read_small(file))
        except OSError as error:
            raise InputError(f"cannot read the mapping {file}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, lists thousands deep
            raise InputError(f"{file} is not TOML: {error}") from error
    for word in options.map:
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise InputError(f"cannot read the mapping {word!r}; write NAME=PATH, such as data=/entry/data")
        mapping[name] = parse_value(value) if name in values and not value.startswith("/") else value
    return mapping


def describe_arrays(kind: str, path: Path, opener: Callable[[Path], Any]) -> tuple[str, list[str]]:
    """What 'plugstream import' can do with a file of arrays, in words, and what is in it.

    Arguments: kind, the importer; opener, what opens its files.
    """
    with opener(path) as source:
        lines = [f"{name}  {shape} {what}" for name, shape, what in source.names()]
        usual, reasons = ArrayOptions().instrument, {}
        for name in dict.fromkeys([usual, *entries("instrument")]):
            if ":" in name:
                continue
            try:
                plan_reading(source, {}, array_options(name)).instrument.check_plausible()
            except InputError as error:
                reasons[name] = str(error)
                continue
            flag = "" if name == usual else f" --instrument {name}"
            return f"'plugstream import {kind} {shell_quote(path)}{flag}' makes a scan of it", lines
        return _outlook(kind, source, reasons), lines


def _outlook(kind: str, source: Source, reasons: Mapping[str, str]) -> str:
    """What a file lacks of the instrument whose names it has most of; of none in particular where it has none.

    Arguments: kind, the importer; source; reasons, by instrument, why no scan is made as it is.
    """
    has = {re.split("[/@]", name)[-1] for name, _, _ in source.names()}

    def known(name: str) -> int:
        cls = find_instrument(name)
        parts: list[Any] = [*cls.columns, *cls.arrays, *cls.attributes]
        return len(has & ({part.name for part in parts} - _COMMON))

    nearest = max(reasons, key=known)
    need = "makes a scan of it if --map says where in it everything is"
    if known(nearest):
        return f"'plugstream import {kind} --instrument {nearest}' {need}: {reasons[nearest]}"
    if not any(len(shape) > 1 and re.match(r"u?int|float|complex|[\[{]", what) for _, shape, what in source.names()):
        return "'plugstream import' cannot make a scan of it: no array of numbers in it has a row for each view"
    return (
        f"'plugstream import {kind} --instrument NAME' {need}; 'plugstream instruments' lists names and what each needs"
    )


def scan_name(options: Any, file: Path) -> str:
    """What a scan is called that is given no name: as its file, with the frequency that was chosen, if one was."""
    chosen = getattr(options, "frequency", None)
    return f"{file.stem}{'' if chosen is None else f'-{chosen:g}GHz'}.zarr"


ARRAY_FACTS: dict[str, Any] = {
    "options": ArrayOptions,
    "options_for": options_for,
    "default_name": scan_name,
    "general": True,
}
"""What is declared alike of the importers of named arrays."""
