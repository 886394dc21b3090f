"""Importers: scans from the files of others."""

from plugstream.scans.importers.arrays import describe_file, import_outlook
from plugstream.scans.importers.fresnel import import_fresnel
from plugstream.scans.importers.hdf5 import import_hdf5
from plugstream.scans.importers.npz import import_npz

__all__ = ["describe_file", "import_fresnel", "import_hdf5", "import_npz", "import_outlook"]
