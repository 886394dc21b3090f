"""Scans from the named arrays of a file, HDF5 or NPZ, for any instrument.

The declaration of an instrument says which arrays and values a scan has, and so what to look for. An instrument whose
files need more, such as calibration, has its own reader:

    @reader("born-2d", options=BornImport)
    def read(source: Source, mapping: Mapping[str, Any], options: BornImport) -> Reading: ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import create_model

from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Field, Options, entries
from plugstream.base.text import shell_quote
from plugstream.instruments.base import Attribute, Instrument, find_instrument
from plugstream.scans.importers.base import ImportResult
from plugstream.scans.importers.reading import Reading, name_file, read_toml, write_reading
from plugstream.scans.importers.source import UNITS, Lookup, Source, check_array, check_names, read_complex, unit_of

_COMMON = {"mask", "pixel", "truth", "weights"}  # names that say nothing of the instrument


class ArrayOptions(Options):
    """Options for a file of arrays of any instrument."""

    instrument: str = Field("born-2d", description="the instrument of the scan, or FILE.py:NAME")
    map: tuple[str, ...] = Field(
        (),
        description="where the file has the data and the instrument's other arrays, or values such as pixel=0.003",
        json_schema_extra={"words": "NAME=PATH"},
    )
    mapping: str | None = Field(None, description="read the mapping from this TOML file")


Reader = Callable[[Source, Mapping[str, Any], Any], Reading]
Opened = AbstractContextManager[Source]
R = TypeVar("R", bound=Reader)

# The reader of an instrument: function, options and names of values.
_Reader = tuple[Reader, type[Options], tuple[str, ...]]
_readers: dict[str, _Reader] = {}


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
    models = dict.fromkeys(options for name, (_, options, _) in _readers.items() if instrument in (None, name))
    models.pop(Options, None)  # readers without options
    return _combine(tuple(models))  # each once: instruments of one experiment share a reader


def _check_options(instrument: str, values: Mapping[str, Any]) -> Any:
    """Options with these values, checked, for scans of an instrument."""
    model = options_for(instrument)
    return Entry("importer", "of arrays", "", build_scan, model).check({"instrument": instrument, **values})


@cache
def _combine(more: tuple[type[Options], ...]) -> type[Options]:
    bases: Any = (*more, ArrayOptions)
    return cast("type[Options]", create_model("ArrayOptions", __base__=bases, __module__=__name__))


def import_opened(
    opened: Opened, out: str | Path, mapping: Mapping[str, Any], instrument: str, values: Mapping[str, Any]
) -> int:
    """Write a scan from the arrays of a file of any size, some views at a time, and return the number of views.

    An output that exists is refused. Arguments: opened, the file; out, the scan to make; mapping from our names to the
    file's, or for values to numbers; names that are not mapped are looked up as they are, values also among the
    attributes; instrument, by name; values of the options.
    """
    options = _check_options(instrument, values)
    with opened as source:
        return _import(source, out, mapping, options).views


def build_scan(opened: Opened, options: ArrayOptions, out: Path) -> ImportResult:
    """The importer of an opened file."""
    with opened as source:
        return _import(source, out, _read_mapping(options), options)


@contextmanager
def read_opened(opened: Opened, options: Any) -> Iterator[Reading]:
    """How an opened file is read as a scan, while it is open."""
    with opened as source, name_file(source.path):
        yield _plan(source, _read_mapping(options), options)


def _import(source: Source, out: str | Path, mapping: Mapping[str, Any], options: Any) -> ImportResult:
    target = Path(out)
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    reading = _plan(source, mapping, options)
    with name_file(source.path):
        return write_reading(reading, target)


def _plan(source: Source, mapping: Mapping[str, Any], options: Any) -> Reading:
    """How to read a file: by the reader of its instrument, or by the declaration alone."""
    cls, reader = _find_reader(options)
    reading = read_by_declaration(source, mapping, cls) if reader is None else reader[0](source, mapping, options)
    provenance = {"made_by": "plugstream import", "file": source.path.name, "mapping": dict(mapping)}
    return replace(reading, provenance=provenance | dict(reading.provenance))


def _find_reader(options: ArrayOptions) -> tuple[type[Instrument], _Reader | None]:
    entries("importer")  # declares the readers
    cls = find_instrument(options.instrument, trust=True)
    return cls, _readers.get(cls.name)


def read_by_declaration(
    source: Source, mapping: Mapping[str, Any], cls: type[Instrument], defaults: Mapping[str, Any] | None = None
) -> Reading:
    """A file as a scan of an instrument, by what the instrument declares and nothing else.

    data, columns and fixed arrays are arrays, and so is truth, which may be missing; attributes are values. Complex
    numbers may be stored as such, as records of two or as a last axis of two. An array whose own attribute `units`
    differs from the declared unit is refused, except for lengths, which are converted.

    Arguments: source; mapping from our names to the file's; cls, the instrument; defaults, fixed arrays by name for a
    file that has none.
    """
    path, look = source.path, Lookup(source, mapping)
    parts: list[Any] = [*cls.columns, *cls.arrays, *cls.attributes]
    check_names(mapping, ["data", *(part.name for part in parts), "truth"])
    fixed = {}
    for part in cls.arrays:
        array = look.array(part.name)
        array = (defaults or {}).get(part.name) if array is None else array
        if array is not None:
            numbers = _numeric(path, part.name, array, part.dtype)
            fixed[part.name] = _read_scaled(numbers, _unit_scale(path, part, array), slice(None))
    values = {a.name: value for a in cls.attributes if (value := _attribute(look, a)) is not None}
    try:
        instrument = cls.from_parts(fixed, values)
    except InputError as error:
        raise InputError(f"{path} is not of {cls.name}: {error}; --map says where in it everything is") from None
    stored = look.array("data")
    if stored is None:
        raise InputError(f"{path} has no data; say where it is with --map data=PATH")
    data = _numeric(path, "data", stored, cls.data.dtypes[0])
    _unit_scale(path, cls.data, stored)
    growth, n_views, remarks = source.growth, int(data.shape[0]) if data.shape else 0, list[str]()
    if growth is not None:  # columns may lag behind the data, or lead
        shapes = {column.name: getattr(look.array(column.name), "shape", None) for column in cls.columns}
        rows = {"data": n_views} | {name: int(shape[0]) for name, shape in shapes.items() if shape}
        n_views, remarks = growth.turn_to(min(rows.values()), "view"), growth.uneven(rows)
    if len(data.shape) == 0 or data.shape[0] == 0 or tuple(data.shape[1:]) != instrument.data_shape:
        raise InputError(
            f"data of {path} has shape {tuple(data.shape)}, but {cls.name} has views of {instrument.view_text}: it "
            f"must be (views, {', '.join(map(str, instrument.data_shape))})"
        )
    columns: dict[str, tuple[Any, float]] = {}
    for column in cls.columns:
        if (array := look.array(column.name)) is None:
            continue
        numbers = _numeric(path, column.name, array, column.dtype)
        if len(numbers.shape) == 0 or (numbers.shape[0] != n_views and growth is None):
            raise InputError(
                f"{column.name} of {path} has shape {tuple(numbers.shape)}, but data has {data.shape[0]} views"
            )
        columns[column.name] = numbers, _unit_scale(path, column, array)

    def read(views: slice) -> dict[str, Any]:
        return {"data": data[views], **{name: _read_scaled(*column, views) for name, column in columns.items()}}

    dtype = data.dtype.name if data.dtype.name in cls.data.dtypes else None
    return Reading(instrument, n_views, read, dtype, _truth(look, instrument), {}, remarks)


def _numeric(path: Path, name: str, array: Any, dtype: str) -> Any:
    """An array of numbers; complex numbers, however they are stored, where those are declared."""
    if np.dtype(dtype).kind == "c":
        return read_complex(path, name, array)
    return check_array(path, name, array, "fiub")


def _unit_scale(path: Path, declared: Any, array: Any) -> float:
    """The factor from an array's own unit to the declared one."""
    unit, name = unit_of(array), getattr(declared, "name", "data")
    if unit is None or unit == declared.unit:
        return 1
    if declared.unit == "m" and unit in UNITS:
        return UNITS[unit]
    unit_name = declared.unit or "no unit"
    raise InputError(f"{name} of {path} is in {unit!r}, but must be in {unit_name!r}; convert it first")


def _read_scaled(array: Any, scale: float, rows: slice) -> Any:
    return array[rows] if scale == 1 else scale * array[rows]


def _attribute(look: Lookup, attribute: Attribute) -> Any:
    """The value of an attribute as in JSON, None where it is nowhere."""
    name, kind = attribute.name, attribute.kind
    value = look.mapping.get(name)
    if value is None or (isinstance(value, str) and not (kind is str and look.source.find(value) is None)):
        value = look.find(name)
    if hasattr(value, "shape"):
        value = np.asarray(value[()]).tolist()
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if kind is bool and value in (0, 1):
        return bool(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind not in (float, int, bool, str) and isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(
                f"{name} of {look.source.path} is not JSON, which it must be in a file of arrays"
            ) from None
    return value


def _truth(look: Lookup, instrument: Instrument) -> NDArray[Any] | None:
    """The true image, which the writer of the scan checks."""
    array = look.array("truth")
    if array is None:
        return None
    real = getattr(array, "shape", None) == instrument.image.shape and array.dtype.kind in "fiu"
    if instrument.image.is_complex and not real:
        array = read_complex(look.source.path, "truth", array)
    return np.asarray(check_array(look.source.path, "truth", array, "fiubc")[:])


def _read_mapping(options: ArrayOptions) -> dict[str, Any]:
    """The mapping of a TOML file and of words such as data=/entry/data or size=64, where the words win.

    For a value, as opposed to an array, a word that does not begin with a slash is a number if it can be one.
    """
    from plugstream.base.text import parse_value

    cls, reader = _find_reader(options)
    values = [attribute.name for attribute in cls.attributes] if reader is None else reader[2]
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
                _plan(source, {}, _check_options(name, {})).instrument.check_plausible()
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
