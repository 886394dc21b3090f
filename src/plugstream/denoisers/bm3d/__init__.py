"""BM3D in three forms: torch (the specification), native C++ for the CPU, CUDA C++ for GPUs.

The names are imported when first used: `plugstream.bm3d`, which takes NumPy arrays, does not wait for torch.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.denoisers.bm3d.denoiser import BM3D as BM3D
    from plugstream.denoisers.bm3d.profile import BM3DProfile as BM3DProfile, Profile as Profile

__getattr__, __dir__ = lazy_names(__name__)
