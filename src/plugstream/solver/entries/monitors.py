"""The monitors by name: what is measured while a run goes on, besides its steps.

One is built from the truth, None where it is not known, and a function that says of a fidelity on which of its views to
measure, None for all (`plugstream.solver.monitors.Distance`). Facts that an entry may say:

    truth: it compares with the truth, and is refused for a scan without one, unless it is among those that are
        measured unless somebody says otherwise; those are then left out.
    least: pixels a side that the image must have. axes: how many it must have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views
    from plugstream.solver.misfit import Misfit
    from plugstream.solver.monitors import PSNR, SNR, SSIM, Cost, Distance

    Where = Callable[[Fidelity], Views]

__all__ = ["PeakOptions"]


class PeakOptions(Options):
    """Of what compares an error with the largest value that there can be."""

    peak: float | None = Field(None, gt=0, le=1e100, description="the peak; the range of the truth if not given")


@register("monitor", "distance", "the distance to a fixed point, relative to its start")
def build_distance(options: Options, truth: Tensor | None, views: Where) -> Distance:
    from plugstream.solver.monitors import Distance

    return Distance(views=views)


@register("monitor", "snr", "SNR in dB, where the scan has its truth", truth=True)
def build_snr(options: Options, truth: Tensor, views: Where) -> SNR:
    from plugstream.solver.monitors import SNR

    return SNR(truth)


@register("monitor", "psnr", "PSNR in dB, where the scan has its truth", options=PeakOptions, truth=True)
def build_psnr(options: PeakOptions, truth: Tensor, views: Where) -> PSNR:
    from plugstream.solver.monitors import PSNR

    return PSNR(truth, options.peak)


@register("monitor", "ssim", "SSIM, where the scan has its truth", options=PeakOptions, truth=True, least=11, axes=2)
def build_ssim(options: PeakOptions, truth: Tensor, views: Where) -> SSIM:
    from plugstream.solver.monitors import SSIM

    return SSIM(truth, options.peak)


@register("monitor", "cost", "the data misfit and, for a known prox, the cost")
def build_cost(options: Options, truth: Any, views: Where) -> Cost:
    from plugstream.solver.monitors import Cost

    return Cost(views=views)


@register("monitor", "misfit", "the part of the data that is left unexplained, and that of each frequency")
def build_misfit(options: Options, truth: Any, views: Where) -> Misfit:
    from plugstream.solver.misfit import Misfit

    # What a run hands on knows more than a function: all views, whatever stage the run is in, and their groups.
    return Misfit(getattr(views, "every_view", views), getattr(views, "groups", None))
