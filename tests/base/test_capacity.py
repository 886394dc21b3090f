"""What claims more than holds it is refused before memory is taken."""

import pytest

from plugstream.base.capacity import check_claim, most_read, reading_at_most
from plugstream.base.errors import InputError


def test_a_claim_is_measured_by_what_holds_it_and_by_one_limit():
    """Bytes that a file has may be read, those of a few only up to the limit, and none that memory has not."""
    check_claim(most_read(), 0, "it")
    check_claim(20 * most_read(), most_read(), "it")
    with pytest.raises(
        InputError, match=r"it claims 257 MB, and 0.1 kB hold it; .* the limit of 256 MB with --max-read"
    ):
        check_claim(257_000_000, 100, "it")
    with reading_at_most(10**9):
        check_claim(257_000_000, 100, "it")
        with reading_at_most(None):
            check_claim(257_000_000, 100, "it")
    with pytest.raises(InputError, match="it claims"):
        check_claim(257_000_000, 100, "it")
    with pytest.raises(InputError, match=r"it takes about .* of memory"):
        check_claim(10**15, 10**15, "it")
