"""What is built of runs: tuning, training and certificates of denoisers."""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.studies.certificates import Certificate as Certificate, certify as certify

__getattr__, __dir__ = lazy_names(__name__)
