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

from plugstream.base.class_entries import register_class
from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.fidelity.least_squares import Fidelity
    from plugstream.models.views import Views
    from plugstream.solver.misfit import Misfit

    Where = Callable[[Fidelity], Views]


class PeakOptions(Options):
    """Of what compares an error with the largest value that there can be."""

    peak: float | None = Field(None, gt=0, le=1e100, description="the peak; the range of the truth if not given")


def _declare(name: str, text: str, monitor: str, **how: Any) -> None:
    register_class(__name__, "monitor", name, text, f"plugstream.solver:{monitor}", **how)


_declare("distance", "the distance to a fixed point, relative to its start", "Distance")


_declare("snr", "SNR in dB, if the scan has a truth", "SNR", truth=True)


_declare("psnr", "PSNR in dB, if the scan has a truth", "PSNR", options=PeakOptions, truth=True)


_declare("ssim", "SSIM, if the scan has a truth", "SSIM", options=PeakOptions, truth=True, least=11, axes=2)


_declare("cost", "the data misfit and, for a known prox, the cost", "Cost")


@register("monitor", "misfit", "the unexplained part of the data, in all and for each frequency")
def build_misfit(options: Options, truth: Any, views: Where) -> Misfit:
    from plugstream.solver.misfit import Misfit

    # What a run hands on knows more than a function: all views, whatever stage the run is in, and their groups.
    return Misfit(getattr(views, "every_view", views), getattr(views, "groups", None))
