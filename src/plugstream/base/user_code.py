"""The user's own code: what `FILE.py:NAME`, a name in a Python file, stands for.

A file is run once, as long as its content stays the same; whatever it registers while it runs
(`plugstream.base.registry.register`) belongs only to it. Whether a file may be run is decided elsewhere
(`plugstream.settings.consent`) and recorded here by `allow`: the registry only looks into allowed files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from plugstream.base.errors import InputError


@dataclass
class OwnFile:
    """A file that was run: the hash of its content, its module, its registrations, or why it cannot be run."""

    digest: str
    module: ModuleType
    declarations: list[Any] = field(default_factory=list)
    error: InputError | None = None


_PREFIX = "plugstream_user_"
_files: dict[Path, OwnFile] = {}
_consents: set[Path] = set()
_current: ContextVar[OwnFile | None] = ContextVar("current", default=None)


def allow(where: str) -> None:
    """Note that a person wants this file run: it was typed, is an argument of a function, or is trusted."""
    _consents.add(_split(where)[0].resolve())


def is_allowed(where: str) -> bool:
    """Whether `allow` was called for the file."""
    return _split(where)[0].resolve() in _consents


def forget() -> None:
    """Start again, as a command does: no file is allowed, and each would be run again."""
    _files.clear()
    _consents.clear()


def declarations(module: str) -> list[Any] | None:
    """Where a module's registrations go: its own list if it is a file that is being run, otherwise None.

    Modules that such a file imports may register things too, for everybody.
    """
    loaded = _current.get()
    return loaded.declarations if loaded is not None and loaded.module.__name__ == module else None


def run_declarations() -> list[Any]:
    """What all files that were run have registered."""
    return [declaration for loaded in _files.values() for declaration in loaded.declarations]


def load_from_file(where: str) -> Any:
    """What a name of a Python file stands for. The file is run as Python, unless it was before.

    Arguments: where, "path/to/module.py:NAME".
    """
    file, name = _split(where)
    module = run_file(file).module
    if not hasattr(module, name):
        raise InputError(f"{file} has no {name}")
    return getattr(module, name)


def call_from_file(where: str, *parts: Any, **more: Any) -> Any:
    """The result of calling a function or class of a Python file with these arguments.

    Arguments: where, "path/to/module.py:NAME"; parts and more, what it is called with.
    """
    function = load_from_file(where)
    if not callable(function):
        raise InputError(f"{where} is not a function or class, but {type(function).__name__}")
    return call_own(where, function, *parts, **more)


def call_own(where: str, function: Any, *parts: Any, **more: Any) -> Any:
    """Call a person's own function; an error in it becomes one line."""
    try:
        return function(*parts, **more)
    except InputError:
        raise
    except Exception as error:  # whatever their code does
        raise InputError(f"{where} cannot be called: {type(error).__name__}: {error}".splitlines()[0]) from error


def run_file(file: Path) -> OwnFile:
    """The file, run if it was not yet; one that failed is not tried again until it changes."""
    if not file.is_file():
        raise InputError(f"there is no file {file} to run")
    place = file.resolve()
    try:
        digest = hashlib.sha256(place.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    loaded = _files.get(place)
    if loaded is None or loaded.digest != digest:
        loaded = _files[place] = _run(file, place, digest)
    if loaded.error is not None:
        raise loaded.error
    return loaded


def own_line(error: BaseException) -> str | None:
    """The file and line of a person's own code that an exception passed through last; None if there is none."""
    last = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(_PREFIX):
            last = f"{frame.f_code.co_filename}:{line}"
    return last


def _run(file: Path, place: Path, digest: str) -> OwnFile:
    name = f"{_PREFIX}{place.stem}_{hashlib.sha256(str(place).encode(errors='replace')).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python file")
    loaded = OwnFile(digest, importlib.util.module_from_spec(spec))
    sys.modules[name] = loaded.module  # where dataclasses and pydantic look up what annotations mean
    token = _current.set(loaded)
    try:
        spec.loader.exec_module(loaded.module)
    except (Exception, SystemExit) as error:  # whatever their code does
        sys.modules.pop(name, None)
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        loaded.error = InputError(f"{file} cannot be run: {text}".splitlines()[0])
        loaded.error.__cause__ = error
    finally:
        _current.reset(token)
    return loaded


def _split(where: str) -> tuple[Path, str]:
    path, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        raise InputError(f"cannot read {where!r}; write file.py:Name, the file and a name in it")
    return Path(path), name
