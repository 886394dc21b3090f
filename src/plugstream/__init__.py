"""Online plug-and-play image reconstruction: a few views per iteration, any denoiser as the prior.

The public names are those of the rooms, and imported when first used, so that `import plugstream` and
`plugstream --help` do not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names
from plugstream.base.version import __version__ as __version__

if TYPE_CHECKING:
    from plugstream.algorithms import *
    from plugstream.base import *
    from plugstream.bridges import *
    from plugstream.denoisers import *
    from plugstream.fidelity import *
    from plugstream.images import *
    from plugstream.instruments import *
    from plugstream.models import *
    from plugstream.runs import *
    from plugstream.scans import *
    from plugstream.solver import *
    from plugstream.studies import *

__getattr__, __dir__ = lazy_names(__name__, inner=False, also=("__version__",))
