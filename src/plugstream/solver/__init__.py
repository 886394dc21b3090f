"""The one loop, what it measures, and what it says at the end: monitors, verdict, result, uncertainty."""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.solver.loop import solve as solve
    from plugstream.solver.monitors import (
        PSNR as PSNR,
        SNR as SNR,
        SSIM as SSIM,
        Cost as Cost,
        Distance as Distance,
        snr as snr,
    )
    from plugstream.solver.result import (
        Progress as Progress,
        Result as Result,
        Stop as Stop,
        load_result as load_result,
    )
    from plugstream.solver.uncertainty import error_map as error_map
    from plugstream.solver.verdict import Outcome as Outcome, Verdict as Verdict

__getattr__, __dir__ = lazy_names(__name__)
