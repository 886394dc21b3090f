"""TNRD, trained nonlinear reaction diffusion, in three forms: torch (the specification), native C++, Triton."""

from plugstream.denoisers.tnrd.denoiser import TNRD
from plugstream.denoisers.tnrd.model import ReactionDiffusion

__all__ = ["TNRD", "ReactionDiffusion"]
