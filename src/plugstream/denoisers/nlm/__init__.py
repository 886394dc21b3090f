"""Non-local means as a symmetric, doubly stochastic matrix, in three forms: torch (the specification), C++, Triton."""

from plugstream.denoisers.nlm.denoiser import NLM
from plugstream.denoisers.nlm.reference import weights

__all__ = ["NLM", "weights"]
