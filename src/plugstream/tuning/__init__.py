"""Finding the best sigma, step and momentum: searches, a journal of what was tried, and scores without a truth."""

from plugstream.tuning.journal import Journal
from plugstream.tuning.scores import discrepancy_score, held_out_score, split_views
from plugstream.tuning.search import Best, golden_section, successive_halving

__all__ = [
    "Best",
    "Journal",
    "discrepancy_score",
    "golden_section",
    "held_out_score",
    "split_views",
    "successive_halving",
]
