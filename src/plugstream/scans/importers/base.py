"""What an importer is, and how to import a file by the name of one.

An importer is an entry of the registry, a function of its options, the file and the scan to make:

    @register("importer", "microscope", "files of our microscope", options=MicroscopeOptions)
    def read(options: MicroscopeOptions, file: Path, out: Path) -> Scan: ...

It returns a scan, which is saved to OUT, or has written OUT itself, a few views at a time, and returns `ImportResult`.
Facts: `default_name(options, file)` of a scan; `describe(file)`, for `plugstream info`, which gives what can be made of
a file and lines with its content, or None for a file of another kind; `general`, that it reads files of any content,
and so is asked last; `folders`, that it reads folders, too; `options_for(instrument)`, the options where they depend on
the instrument; `open_reading(options, file, growth)`, a context manager that gives a `Reading`, for files that can be
followed while they grow (`plugstream.scans.importers.following`), with `check_growing(options, file, growth)`, which
refuses options that need all of one; `streams`, that `open_reading` takes the address of a stream, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError
from plugstream.base.registry import Entry, Field, Options, entries, find, register
from plugstream.base.trust import trusting
from plugstream.scans.importers.address import run_address
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.streams.address import Address, read_place


@dataclass(frozen=True)
class ImportResult:
    """A scan that an importer has written: the number of its views, and remarks for a person."""

    views: int
    remarks: tuple[str, ...] = ()


def switch(description: str) -> Any:
    """An option that is off unless its flag is given."""
    return Field(False, description=description, json_schema_extra={"switch": True})


def import_options(entry: Entry, instrument: str | None = None) -> type[Options]:
    """The options of an importer, for scans of an instrument where they depend on it."""
    options_for = entry.facts.get("options_for", lambda instrument: entry.options)
    model: type[Options] = options_for(instrument)
    return model


def import_file(
    kind: str,
    file: str | Path,
    out: str | Path | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
) -> tuple[Path, ImportResult]:
    """Make a scan from another program's file, and return its path and content. An output that exists is refused.

    Arguments: kind, the name of an importer; file, or an address of Tiled; out, the scan to make, by default named
    after the file; values of the importer's options, by name; trust, whether other files that this one names may be
    read outside its folder.
    """
    entry, options, path, target = plan_import(kind, file, out, values)
    if isinstance(path, Address):
        raise InputError(f"{path} is a stream, which has no end yet; use 'plugstream follow', or add --follow")
    if path.exists() and not path.is_file() and not (path.is_dir() and entry.facts.get("folders", False)):
        raise InputError(f"{path} is not a file, but a folder, a pipe or a device")
    if target.exists():
        raise InputError(f"{target} exists already; remove it or choose another name")
    with trusting(trust):
        scan = entry.make(kind, options, path, target)
    if isinstance(scan, ImportResult):
        return target, scan
    if not (hasattr(scan, "instrument") and hasattr(scan, "read")):
        raise InputError(f"the importer {kind} made no scan, but {type(scan).__name__}")
    from plugstream.scans.writer import save_scan

    save_scan(scan, target)
    return target, ImportResult(scan.n_views)


def plan_import(
    kind: str, file: str | Path, out: str | Path | None, values: Mapping[str, Any] | None
) -> tuple[Entry, Options, Path | Address, Path]:
    """The importer, its options, checked, the file or stream, and the scan to make. Arguments: as of `import_file`."""
    entry, path = find("importer", kind, trust=True), run_address(file) or read_place(file)
    entry.check_installed()
    values = dict(values or {})
    model = import_options(entry, values.get("instrument"))
    for key in values:
        if key not in model.model_fields:
            raise InputError(f"the importer {kind} has no use for {key}; {_owners(entry, key)}")
    options = Entry("importer", kind, "", entry.build, model).check(values)
    default_name = entry.facts.get("default_name", lambda options, file: f"{file.stem}.zarr")
    return entry, options, path, Path(default_name(options, path) if out is None else out)


def _owners(entry: Entry, key: str) -> str:
    """Advice on an option that an importer does not have: who has it."""
    rivals = [e.name for e in entries("importer").values() if e is not entry and key in import_options(e).model_fields]
    instruments = [name for name in entries("instrument") if key in import_options(entry, name).model_fields]
    owners = [f"--instrument {name}" for name in instruments] or rivals
    return f"leave it out, or choose {' or '.join(owners)}" if owners else "no other has it either"


@register("importer", "FILE.py:NAME", "your own: NAME(file, out) returns a scan, or writes one to out")
def build_from_file(options: Options, file: Path, out: Path, *, name: str) -> Any:
    """Call a function of a Python file; `plugstream.settings.consent` decides whether it may run."""
    from plugstream.base.user_code import call_from_file

    return call_from_file(name, file, out)


def describe_file(path: str | Path, *, trust: bool = False) -> tuple[str, list[str]] | None:
    """What can be made of a file that an importer knows, in words, and its content, in lines; None for others.

    Arguments: path; trust, whether other files that this one names may be read outside its folder.
    """
    path = Path(path)
    if not path.is_file():
        return None
    for entry in sorted(entries("importer").values(), key=lambda entry: bool(entry.facts.get("general", False))):
        describe = entry.facts.get("describe")
        with trusting(trust):
            description: tuple[str, list[str]] | None = None if describe is None else describe(path)
        if description is not None:
            return description
    return None


def open_begun(out: Path, path: Path | Address) -> StoredScan:
    """The scan that following this recording has begun; a finished one, or another's, is refused."""
    scan = open_scan(out)
    if not scan.provenance.get("followed") or scan.provenance.get("file") != path.name:
        raise InputError(f"{out} exists already, and was not made by following {path.name}; choose another name")
    if scan.complete:
        raise InputError(f"the scan {out} is finished; choose another name, or use plugstream reconstruct")
    return scan
