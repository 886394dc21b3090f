"""What a run says of itself: three answers, each with its number and what to do.

Has the image arrived, does the model explain the data, and was the strength of the denoiser chosen by the data.
"""

from plugstream.solver.verdict.arrival import ARRIVED, Arrival, estimate_arrival
from plugstream.solver.verdict.outcome import Answer, Outcome, Verdict, has_settled, judge, remedies, worst_verdict
from plugstream.solver.verdict.strength import StrengthProbe, found_strength, probe_strength
from plugstream.solver.verdict.trace import Trace

__all__ = [
    "ARRIVED",
    "Answer",
    "Arrival",
    "Outcome",
    "StrengthProbe",
    "Trace",
    "Verdict",
    "estimate_arrival",
    "found_strength",
    "has_settled",
    "judge",
    "probe_strength",
    "remedies",
    "worst_verdict",
]
