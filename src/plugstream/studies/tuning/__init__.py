"""Finding the best sigma, step and momentum: searches, a journal of evaluations, and scores without a truth."""

from plugstream.studies.tuning.journal import Journal
from plugstream.studies.tuning.scores import discrepancy_score, held_out_score, residual_excess, split_views
from plugstream.studies.tuning.search import Best, Crossing, golden_section, largest_crossing, successive_halving

__all__ = [
    "Best",
    "Crossing",
    "Journal",
    "discrepancy_score",
    "golden_section",
    "held_out_score",
    "largest_crossing",
    "residual_excess",
    "split_views",
    "successive_halving",
]
