"""What holds for the tests of the library holds here."""

from tests.conftest import (
    _same_numbers,
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    shared_data,
)

__all__ = [
    "_same_numbers",
    "pytest_collection_modifyitems",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "shared_data",
]
