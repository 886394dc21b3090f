"""The monitors by name: what is measured during a run.

One is built from the truth, None if it is not known, and a function from a fidelity to the views to measure on, or None
(`plugstream.solver.monitors.Distance`). Facts of an entry:

    truth: it compares with the truth. Without one it is refused, or left out if it is one of the defaults.
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
    from plugstream.solver.monitors import Misfit

    Where = Callable[[Fidelity], Views]


class PeakOptions(Options):
    """The options of monitors that compare an error with the largest possible value."""

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
    from plugstream.solver.monitors import Misfit

    # The function of a run also knows all views, whatever stage the run is in, and their groups.
    return Misfit(getattr(views, "every_view", views), getattr(views, "groups", None))
