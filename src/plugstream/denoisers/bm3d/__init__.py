"""BM3D in three forms: torch (the specification), native C++ for the CPU, Triton for CUDA."""

from plugstream.denoisers.bm3d.denoiser import BM3D
from plugstream.denoisers.bm3d.profile import Profile

__all__ = ["BM3D", "BM3DProfile", "Profile"]

BM3DProfile = Profile  # its public name
