"""Importers: scans from the files of others. One file an importer; the registry finds them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugstream.scans.importers.base import ImportResult, describe_file, import_file
    from plugstream.scans.importers.hdf5 import import_hdf5
    from plugstream.scans.importers.npz import import_npz

__all__ = ["ImportResult", "describe_file", "import_file", "import_hdf5", "import_npz"]

_HOME = {name: name.removeprefix("import_") for name in ("import_hdf5", "import_npz")}


def __getattr__(name: str) -> Any:  # imported when first used, since lists of importers need none of it
    if name not in __all__:
        raise AttributeError(f"module 'plugstream.scans.importers' has no attribute {name!r}")
    return getattr(import_module(f"plugstream.scans.importers.{_HOME.get(name, 'base')}"), name)
