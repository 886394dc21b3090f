"""The instruments: one file each, which declares what a scan of it holds, simulates one and builds its model.

The registry finds them here; files that begin with _ are not instruments.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.instruments.born import Born2D as Born2D, born_geometry as born_geometry
    from plugstream.instruments.scattering import Scattering2D as Scattering2D

__getattr__, __dir__ = lazy_names(__name__)
