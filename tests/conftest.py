"""What tests share: small problems, and the data beside the checkout, which may be absent."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Generator, Iterator

# Before torch is imported, here and in the processes that tests start: where a core is busy, two threads wait for each
# other and small work takes ten times as long. Tests of threads ask for theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that puts us into the background has SIGINT ignored, and so would the processes that tests interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from effort import effort
from quick_disk import wait_for_no_disk

# Nothing here imports torch at once: the process that hands tests out to others needs none, and all wait for it.
if TYPE_CHECKING:
    from plugstream import BornGeometry, LeastSquares

wait_for_no_disk()

_SIGNALS, _TOLD = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_COMPILED = Path(__file__).parent / "__pycache__" / "all tests"

_COMMON = {
    "deadline": None,
    "print_blob": True,
    # Our fixtures are never changed by a test; and what is too slow goes by the clock, as a deadline does.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
# The same examples every time, so that a change is judged by what it changed; `make test-random` looks for new ones.
settings.register_profile("default", derandomize=True, max_examples=effort(12, 25), **_COMMON)
settings.register_profile("random", max_examples=200, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(_TOLD, warn_on_full_buffer=False)


def pytest_collection() -> None:
    """In a clean clone one process compiles all tests, and the others wait for what it made."""
    until = time.monotonic() + 120 * (_WORKER not in ("", "gw0") and not sys.dont_write_bytecode)
    while time.monotonic() < until and not _COMPILED.exists():
        time.sleep(0.1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is listed in long.txt, before tests are chosen by their marks."""
    listed = set((Path(__file__).parent / "long.txt").read_text().split())
    for item in items:
        if item.nodeid.partition("[")[0] in listed:
            item.add_marker("long")


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: they need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    if _COMPILED.parent.exists():
        _COMPILED.touch()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no GPU here")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Ctrl-C ends the suite: a run in this process takes it as its own, and so only its test would fail."""
    done = yield
    with contextlib.suppress(BlockingIOError):
        if signal.SIGINT in os.read(_SIGNALS, 4096):
            raise KeyboardInterrupt
    return done


@pytest.fixture
def own_ctrl_c() -> Iterator[None]:
    """A Ctrl-C that the test sends to this process is for the test alone."""
    before = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(before, warn_on_full_buffer=False)


@pytest.fixture(autouse=True)
def _same_numbers(request: pytest.FixtureRequest) -> None:
    """torch's numbers are a test's own, whichever tests ran before it.

    `torch.manual_seed` takes a millisecond: it notes its stack for every kind of device that is not here."""
    import torch

    seed = zlib.crc32(request.node.nodeid.encode())
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch begins with one thread, whatever the test makes of it, and has as many as before when the test is over."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the shared data is not at {SHARED}")
    return SHARED


@pytest.fixture
def small_geometry() -> BornGeometry:
    """A 12 x 10 image, 7 views, 9 receivers: small enough for every matrix to be written out."""
    from plugstream import BornGeometry, Grid

    return BornGeometry.rings(Grid((12, 10), 0.01), 0.05, views=7, receivers=9, radius=0.3, receiver_radius=0.25)


@pytest.fixture
def regression() -> LeastSquares:
    """Five views of six rows each on an image of 4 x 5, well posed, in double precision."""
    import numpy as np
    import torch

    from plugstream import LeastSquares, MatrixModel

    rng = np.random.default_rng(7)
    u, s, v = np.linalg.svd(rng.standard_normal((30, 20)), full_matrices=False)
    model = MatrixModel(list(((u * np.sqrt(s[0] * s)) @ v).reshape(5, 6, 20)), (4, 5))  # few steps are enough
    return LeastSquares(model, torch.from_numpy(rng.standard_normal((5, 6))), lipschitz_tol=1e-6, prox_tol=1e-12)


@pytest.fixture(scope="session")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small simulated scan on disk, which tests leave as it is."""
    from plugstream.cli import main
    from small_run import SMALL

    path = tmp_path_factory.mktemp("scan") / "small.zarr"
    assert main(["simulate", str(path), *SMALL]) == 0
    return path
