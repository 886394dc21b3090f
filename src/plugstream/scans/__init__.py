"""Scans of any instrument: measurements with their columns, in memory, on disk and still arriving.

Importers make them from the files of other programs, and baselines form the usual images from them.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.scans.importers import (
        import_file as import_file,
        import_hdf5 as import_hdf5,
        import_npz as import_npz,
    )
    from plugstream.scans.journal import Limits as Limits
    from plugstream.scans.keys import make_keys as make_keys
    from plugstream.scans.receive import Receiver as Receiver
    from plugstream.scans.scan import MemoryScan as MemoryScan
    from plugstream.scans.send import ScanSender as ScanSender, send_scan as send_scan
    from plugstream.scans.simulation import simulate as simulate
    from plugstream.scans.store import StoredScan as StoredScan, open_scan as open_scan
    from plugstream.scans.writer import ScanWriter as ScanWriter, save_scan as save_scan

if TYPE_CHECKING:  # of this room alone
    from plugstream.scans.scan import Scan as Scan

__getattr__, __dir__ = lazy_names(__name__)
