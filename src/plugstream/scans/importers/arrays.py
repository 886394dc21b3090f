"""Scans from the named arrays of a file, HDF5 or NPZ, for any instrument.

The declaration of an instrument says which arrays and values a scan has, and so what to look for
(`plugstream.scans.importers.declaration`). An instrument whose files need more, such as calibration, has its own
reader:

    @reader("born-2d", options=BornImport)
    def read(source: Source, mapping: Mapping[str, Any], options: BornImport) -> Reading: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import create_model

from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Field, Options, entries
from plugstream.base.text import shell_quote
from plugstream.instruments.base import find_instrument
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.declaration import read_by_declaration
from plugstream.scans.importers.reading import Reading, name_file, read_toml, write_reading
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
    """Options for a file of arrays of any instrument."""

    instrument: str = Field("born-2d", description="the instrument that the scan is of, or FILE.py:NAME")
    map: tuple[str, ...] = Field(
        (),
        description="where the file keeps data and what else the instrument has, or values such as pixel=0.003",
        json_schema_extra={"words": "NAME=PATH"},
    )
    mapping: str | None = Field(None, description="read the mapping from this TOML file")


Reader = Callable[[Source, Mapping[str, Any], Any], Reading]
R = TypeVar("R", bound=Reader)

# The readers of instruments: function, options and names of values.
_readers: dict[str, tuple[Reader, type[Options], tuple[str, ...]]] = {}


def reader(instrument: str, *, options: type[Options] = Options, values: tuple[str, ...] = ()) -> Callable[[R], R]:
    """Declare the function below as the reader of files of arrays as scans of an instrument.

    Arguments: instrument, by name; options besides `ArrayOptions`; values, names in a mapping that may be numbers.
    """

    def declare(function: R) -> R:
        _readers[instrument] = function, options, values
        return function

    return declare


def options_for(instrument: str | None = None) -> type[Options]:
    """The options of an importer of arrays with those of the instrument's own reader; None for every reader."""
    entries("importer")  # declares the readers
    own = dict.fromkeys(options for name, (_, options, _) in _readers.items() if instrument in (None, name))
    own.pop(Options, None)  # readers without options
    return _combine(tuple(own))  # each once: instruments of one experiment share a reader


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
    are not mapped are looked up as they are, values also among the attributes; options, `ArrayOptions` and those of
    the instrument's reader.
    """
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    reading = plan_reading(source, mapping, options)
    provenance = {"made_by": "plugstream import", "file": source.path.name, "mapping": dict(mapping)}
    with name_file(source.path):
        return write_reading(replace(reading, provenance=provenance | dict(reading.provenance)), target)


def plan_reading(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """How to read a file: by the reader of its instrument, or by the declaration alone."""
    entries("importer")
    cls = find_instrument(options.instrument, trust=True)
    if cls.name not in _readers:
        return read_by_declaration(source, mapping, cls)
    return _readers[cls.name][0](source, mapping, options)


def read_mapping(options: ArrayOptions) -> dict[str, Any]:
    """The mapping of a TOML file and of words such as data=/entry/data or size=64, where the words win.

    For a value, as opposed to an array, a word that does not begin with a slash is a number if it can be one.
    """
    from plugstream.base.values import parse_value

    entries("importer")
    cls = find_instrument(options.instrument, trust=True)
    values = _readers[cls.name][2] if cls.name in _readers else [attribute.name for attribute in cls.attributes]
    mapping = {} if options.mapping is None else read_toml(Path(options.mapping), "the mapping ")
    for word in options.map:
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise InputError(f"cannot read the mapping {word!r}; write NAME=PATH, such as data=/entry/data")
        mapping[name] = parse_value(value) if name in values and not value.startswith("/") else value
    return mapping


def describe_arrays(kind: str, path: Path, opener: Callable[[Path], Any]) -> tuple[str, list[str]]:
    """What 'plugstream import' can do with a file of arrays, in words, and its content.

    Arguments: kind, the importer; path; opener of its files.
    """
    with opener(path) as source:
        lines = [f"{name}  {shape} {dtype}" for name, shape, dtype in source.names()]
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
    """What a file lacks for the instrument whose names it has most of, or in general where it has none.

    Arguments: kind, the importer; source; reasons, by instrument, why its scan cannot be made.
    """
    names = {re.split("[/@]", name)[-1] for name, _, _ in source.names()}

    def count_names(instrument: str) -> int:
        cls = find_instrument(instrument)
        parts: list[Any] = [*cls.columns, *cls.arrays, *cls.attributes]
        return len(names & ({part.name for part in parts} - _COMMON))

    nearest = max(reasons, key=count_names)
    need = "makes a scan of it if --map says where in it everything is"
    if count_names(nearest):
        return f"'plugstream import {kind} --instrument {nearest}' {need}: {reasons[nearest]}"
    if not any(len(shape) > 1 and re.match(r"u?int|float|complex|[\[{]", dtype) for _, shape, dtype in source.names()):
        return "'plugstream import' cannot make a scan of it: no array of numbers in it has a row for each view"
    return (
        f"'plugstream import {kind} --instrument NAME' {need}; 'plugstream instruments' lists names and what each needs"
    )


def scan_name(options: Any, file: Path) -> str:
    """The default name of a scan: that of its file, with the chosen frequency if there is one."""
    frequency = getattr(options, "frequency", None)
    return f"{file.stem}{'' if frequency is None else f'-{frequency:g}GHz'}.zarr"


ARRAY_FACTS: dict[str, Any] = {
    "options": ArrayOptions,
    "options_for": options_for,
    "default_name": scan_name,
    "general": True,
}
"""The facts that the importers of named arrays share."""
