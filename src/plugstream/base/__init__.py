"""The foundation: errors, the registry of names, inner products, files, randomness, processes.

It knows nothing about images, views or instruments. `display` shows a person the progress of work.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.base.errors import (
        DamagedError as DamagedError,
        InputError as InputError,
        PlugstreamWarning as PlugstreamWarning,
        StorageError as StorageError,
    )
    from plugstream.base.processes import Group as Group, process_group as process_group
    from plugstream.base.quantities import Quantity as Quantity
    from plugstream.base.schedules import Geometric as Geometric, OverL as OverL, Overlap as Overlap, Power as Power

__getattr__, __dir__ = lazy_names(__name__)
