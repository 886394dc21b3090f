"""BM4D in three forms: torch (the specification), native C++ for the CPU, CUDA C++.

The denoiser is imported when first used: the parameters and the native kernel need no torch.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.denoisers.bm4d.denoiser import BM4D as BM4D
    from plugstream.denoisers.bm4d.profile import BM4DProfile as BM4DProfile

__getattr__, __dir__ = lazy_names(__name__)
