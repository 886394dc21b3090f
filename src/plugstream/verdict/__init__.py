"""What a run says of itself: three answers, each with its number and what to do.

Has the image arrived, does the model explain the data, and was the strength of the denoiser chosen by the data.
"""

from plugstream.verdict.outcome import (
    Outcome,
    Verdict,
    has_settled,
    judge,
    judge_misfit,
    remedies,
    worst_verdict,
)

__all__ = ["Outcome", "Verdict", "has_settled", "judge", "judge_misfit", "remedies", "worst_verdict"]
