"""The paper's algorithms, each an `init` and a `step` on a frozen state; which views a step uses; their theory.

The names are imported when first used, so that lists of entries do not wait for torch.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.algorithms.admm import ADMM as ADMM
    from plugstream.algorithms.base import Algorithm as Algorithm
    from plugstream.algorithms.incremental import BlockADMM as BlockADMM, IncrementalADMM as IncrementalADMM
    from plugstream.algorithms.inexact import InexactADMM as InexactADMM
    from plugstream.algorithms.pgm import (
        BoundedMomentum as BoundedMomentum,
        ProximalGradient as ProximalGradient,
        TaperedMomentum as TaperedMomentum,
    )
    from plugstream.algorithms.preconditioning import Diagonal as Diagonal
    from plugstream.algorithms.race import SigmaRace as SigmaRace
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
    from plugstream.algorithms.variance import SAGA as SAGA, SVRG as SVRG

if TYPE_CHECKING:  # of this room alone
    from plugstream.algorithms.admm import SplitState as SplitState
    from plugstream.algorithms.base import PlugAndPlay as PlugAndPlay, State as State
    from plugstream.algorithms.falling import FallingSearch as FallingSearch, FallingState as FallingState
    from plugstream.algorithms.falling_heat import FallingHeat as FallingHeat, FallingHeatState as FallingHeatState
    from plugstream.algorithms.falling_waves import FallingWaveSearch as FallingWaveSearch
    from plugstream.algorithms.heat import DenoiserRace as DenoiserRace, HeatState as HeatState, Rival as Rival
    from plugstream.algorithms.incremental import BlockState as BlockState
    from plugstream.algorithms.pgm import GradientState as GradientState
    from plugstream.algorithms.race import RaceState as RaceState
    from plugstream.algorithms.variance import Estimator as Estimator, Plain as Plain

__getattr__, __dir__ = lazy_names(__name__)
