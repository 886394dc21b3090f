"""d(x), the mean over views of how a prediction compares with the data, and its losses.

By least squares, by a loss or by a function of yours; of one process or of several.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.fidelity.by_function import SmoothFidelity as SmoothFidelity
    from plugstream.fidelity.by_loss import LossFidelity as LossFidelity
    from plugstream.fidelity.checks import check_adjoint as check_adjoint, check_gradient as check_gradient
    from plugstream.fidelity.least_squares import Fidelity as Fidelity, LeastSquares as LeastSquares
    from plugstream.fidelity.losses import (
        Amplitude as Amplitude,
        Gaussian as Gaussian,
        Huber as Huber,
        Loss as Loss,
        Poisson as Poisson,
        Transmission as Transmission,
    )
    from plugstream.fidelity.sharded import Sharded as Sharded

__getattr__, __dir__ = lazy_names(__name__)
