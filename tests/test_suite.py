"""What a person does to the suite as a whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import warm
from plugstream.runs.replay import replay

TESTS = """
from small_run import main

def test_a_run_that_takes_ctrl_c_as_its_own(scan):
    words = ["reconstruct", str(scan), "--out", "run", "--sigma", "0.02", "--batch", "4", "--iterations", "1000000000"]
    assert main(words) == 130

def test_that_comes_after_it():
    open("after", "w").close()
"""


def test_ctrl_c_ends_the_suite_and_not_one_test(tmp_path: Path) -> None:
    here = Path(__file__).parent
    for name in ("conftest.py", "long.txt"):
        shutil.copy(here / name, tmp_path)
    (tmp_path / "test_two.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "no:zarr", "-p", "no:cacheprovider", "-o"]
    words += [f"pythonpath={here / 'helpers'}"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with warm.Popen(words, cwd=tmp_path, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as suite:
        while suite.poll() is None:
            if (tmp_path / "run" / "events.jsonl").exists() and replay(tmp_path / "run" / "events.jsonl").measured:
                suite.send_signal(signal.SIGINT)
                break
            time.sleep(0.05)
        said = suite.communicate(timeout=120)[0]
    assert suite.returncode == 2, said
    assert "KeyboardInterrupt" in said
    assert not (tmp_path / "after").exists()
