"""Use an installed plugstream in a new folder, on any system: what CI runs on each wheel.

python release/smoke.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ["--size", "32", "--views", "12", "--receivers", "30", "--radius", "0.4", "--wavelength", "0.03"]
COMMANDS = (
    ["--version"],
    ["--help"],
    ["simulate", "scan.zarr", "--input-snr", "35", *SMALL],
    ["verify", "scan.zarr"],
    ["reconstruct", "scan.zarr", "--out", "run", "--sigma", "0.02", "--batch", "4", "--iterations", "30"],
    ["resume", "run", "--iterations", "40"],
    ["report", "run"],
    ["info", "run"],
)


def main() -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="plugstream-smoke-", ignore_cleanup_errors=True) as place:
        for words in COMMANDS:
            print("plugstream", *words, flush=True)
            # -P: the installed package, not the source that this file lies beside.
            subprocess.run([sys.executable, "-P", "-m", "plugstream", *words], cwd=place, check=True, env=kept)
        for name in ("result.npy", "result.png", "report.html", "settings.toml"):
            assert (Path(place) / "run" / name).stat().st_size > 0, name


if __name__ == "__main__":
    main()
