"""The paper's algorithms, each an `init` and a `step` on a frozen state."""

from plugstream.algorithms.admm import ADMM, SplitState
from plugstream.algorithms.base import Algorithm, PlugAndPlay, State
from plugstream.algorithms.gradient_splitting import GradientSplitting
from plugstream.algorithms.heat import DenoiserRace, HeatState, Rival
from plugstream.algorithms.incremental import BlockADMM, BlockState, IncrementalADMM
from plugstream.algorithms.inexact import InexactADMM
from plugstream.algorithms.pgm import BoundedMomentum, GradientState, ProximalGradient, TaperedMomentum
from plugstream.algorithms.preconditioning import Diagonal
from plugstream.algorithms.proxskip import ProxSkip, ShiftedState
from plugstream.algorithms.race import RaceState, SigmaRace
from plugstream.algorithms.red import RED
from plugstream.algorithms.variance import SAGA, SVRG, Estimator, Plain

__all__ = [
    "ADMM",
    "RED",
    "SAGA",
    "SVRG",
    "Algorithm",
    "BlockADMM",
    "BlockState",
    "BoundedMomentum",
    "DenoiserRace",
    "Diagonal",
    "Estimator",
    "GradientSplitting",
    "GradientState",
    "HeatState",
    "IncrementalADMM",
    "InexactADMM",
    "Plain",
    "PlugAndPlay",
    "ProxSkip",
    "ProximalGradient",
    "RaceState",
    "Rival",
    "ShiftedState",
    "SigmaRace",
    "SplitState",
    "State",
    "TaperedMomentum",
]
