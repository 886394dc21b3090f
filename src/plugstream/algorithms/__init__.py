"""The paper's algorithms, each an `init` and a `step` on a frozen state; which views a step uses; their theory.

The names are imported when first used, so that lists of entries do not wait for torch.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.algorithms.admm import ADMM as ADMM, SplitState as SplitState
    from plugstream.algorithms.base import Algorithm as Algorithm, PlugAndPlay as PlugAndPlay, State as State
    from plugstream.algorithms.gradient_splitting import GradientSplitting as GradientSplitting
    from plugstream.algorithms.heat import DenoiserRace as DenoiserRace, HeatState as HeatState, Rival as Rival
    from plugstream.algorithms.incremental import (
        BlockADMM as BlockADMM,
        BlockState as BlockState,
        IncrementalADMM as IncrementalADMM,
    )
    from plugstream.algorithms.inexact import InexactADMM as InexactADMM
    from plugstream.algorithms.pgm import (
        BoundedMomentum as BoundedMomentum,
        GradientState as GradientState,
        ProximalGradient as ProximalGradient,
        TaperedMomentum as TaperedMomentum,
    )
    from plugstream.algorithms.preconditioning import Diagonal as Diagonal
    from plugstream.algorithms.proxskip import ProxSkip as ProxSkip, ShiftedState as ShiftedState
    from plugstream.algorithms.race import RaceState as RaceState, SigmaRace as SigmaRace
    from plugstream.algorithms.red import RED as RED
    from plugstream.algorithms.sampling import (
        All as All,
        Epochs as Epochs,
        FixedViews as FixedViews,
        Importance as Importance,
        ShiftedViews as ShiftedViews,
        Uniform as Uniform,
    )
    from plugstream.algorithms.theory import (
        fixed_point_distance as fixed_point_distance,
        fixed_point_map as fixed_point_map,
    )
    from plugstream.algorithms.variance import SAGA as SAGA, SVRG as SVRG, Estimator as Estimator, Plain as Plain

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "admm": ["ADMM", "SplitState"],
        "base": ["Algorithm", "PlugAndPlay", "State"],
        "gradient_splitting": ["GradientSplitting"],
        "heat": ["DenoiserRace", "HeatState", "Rival"],
        "incremental": ["BlockADMM", "BlockState", "IncrementalADMM"],
        "inexact": ["InexactADMM"],
        "pgm": ["BoundedMomentum", "GradientState", "ProximalGradient", "TaperedMomentum"],
        "preconditioning": ["Diagonal"],
        "proxskip": ["ProxSkip", "ShiftedState"],
        "race": ["RaceState", "SigmaRace"],
        "red": ["RED"],
        "sampling": ["All", "Epochs", "FixedViews", "Importance", "ShiftedViews", "Uniform"],
        "theory": ["fixed_point_distance", "fixed_point_map"],
        "variance": ["Estimator", "Plain", "SAGA", "SVRG"],
    },
)
