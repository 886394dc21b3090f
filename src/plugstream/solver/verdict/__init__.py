"""What a run says about itself: three answers, each with its number and what to do.

Has the image arrived, does the model explain the data, and was the strength of the denoiser chosen by the data.
"""

from plugstream.solver.verdict.arrival import (
    ARRIVED as ARRIVED,
    Arrival as Arrival,
    compare_arrival as compare_arrival,
    estimate_arrival as estimate_arrival,
    forecast_end as forecast_end,
)
from plugstream.solver.verdict.outcome import (
    Answer as Answer,
    Outcome as Outcome,
    Verdict as Verdict,
    has_settled as has_settled,
    judge as judge,
    remedies as remedies,
    worst_verdict as worst_verdict,
)
from plugstream.solver.verdict.strength import (
    StrengthProbe as StrengthProbe,
    found_strength as found_strength,
    probe_length as probe_length,
    probe_strength as probe_strength,
)
from plugstream.solver.verdict.trace import Trace as Trace
