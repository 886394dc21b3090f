"""Code of a person's own: what a name of a Python file makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from plugstream.errors import InputError

__all__ = ["call_from_file", "load_from_file"]


def load_from_file(where: str) -> Any:
    """What a name of a Python file stands for. The file is run as Python.

    Arguments: where, "path/to/module.py:NAME".
    """
    path, colon, name = where.rpartition(":")
    file = Path(path)
    if not colon or not name.isidentifier():
        raise InputError(f"cannot read {where!r}; write file.py:Name, the file and a name in it")
    if not file.is_file():
        raise InputError(f"there is no file {file} to read {name} from")
    spec = importlib.util.spec_from_file_location(f"plugstream_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever their code does
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {error}".splitlines()[0]) from error
    if not hasattr(module, name):
        raise InputError(f"{file} has no {name}")
    return getattr(module, name)


def call_from_file(where: str, *parts: Any, **more: Any) -> Any:
    """What a function or class of a Python file makes of these arguments.

    Arguments: where, "path/to/module.py:NAME"; parts and more, what it is called with.
    """
    made = load_from_file(where)
    if not callable(made):
        raise InputError(f"{where} is no function or class, but {type(made).__name__}")
    try:
        return made(*parts, **more)
    except Exception as error:  # whatever their code does
        raise InputError(f"{where} cannot be called: {type(error).__name__}: {error}".splitlines()[0]) from error
