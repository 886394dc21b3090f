"""The paper's algorithms, each an `init` and a `step` on a frozen state."""

from plugstream.algorithms.admm import ADMM, SplitState
from plugstream.algorithms.base import Algorithm, PlugAndPlay, State
from plugstream.algorithms.pgm import GradientState, ProximalGradient

__all__ = ["ADMM", "Algorithm", "GradientState", "PlugAndPlay", "ProximalGradient", "SplitState", "State"]
